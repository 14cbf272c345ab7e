"""The core's numbers, in its units, as the settings have them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from carpool.scheduling import isolation, limits, sizes
from carpool_sidecar import config
from carpool_sidecar.protocols import interface

_ADAPTIVE_IN_FLIGHT = 8
_USUAL_STATUSES = "4xx"


def _row_sizes(payload: interface.Payload, start: int, stop: int) -> Sequence[int]:
    return payload.row_sizes(start, stop)


def _row_lengths(payload: interface.Payload, start: int, stop: int) -> Sequence[int]:
    return payload.row_lengths(start, stop)


ROW_COSTS: Mapping[str, limits.RowMeasure] = {"bytes": _row_sizes, "length": _row_lengths}
"""What an instance costs, by the names that `--instance-cost` has for it."""


def core_limits(chosen: config.Settings) -> limits.Limits:
    """The limits for these settings."""
    allowed = sizes.parse(chosen.allowed_batch_sizes)
    statuses = _USUAL_STATUSES if chosen.retry_statuses is None else chosen.retry_statuses
    return limits.Limits(
        max_batch_size=allowed[-1] if allowed else chosen.max_batch_size,
        max_latency=chosen.latency_bound / 1000,
        timeout=chosen.timeout,
        slo=math.inf if chosen.slo is None else chosen.slo / 1000,
        max_in_flight=chosen.max_in_flight or (_ADAPTIVE_IN_FLIGHT if chosen.is_adaptive else 1),
        max_queue_instances=chosen.max_queue_instances,
        max_queue_bytes=chosen.max_queue_bytes,
        retry_statuses=isolation.Statuses.parse(statuses),
        isolates_doubtful=chosen.retry_statuses is None,
        retry_budget=chosen.retry_budget,
        max_batch_bytes=chosen.max_batch_bytes or math.inf,
        max_batch_cost=chosen.max_batch_cost or math.inf,
        row_sizes=_row_sizes,
        row_costs=ROW_COSTS.get(chosen.instance_cost) if chosen.max_batch_cost else None,
        allowed_sizes=allowed,
        small_batch_threshold=chosen.small_batch_threshold,
        priority_ageing=chosen.priority_ageing / 1000,
    )
