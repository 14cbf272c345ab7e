"""The numbers the core obeys. One mutable object, so that a change at run time reaches every part at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from carpool.scheduling import isolation

RowMeasure = Callable[[Any, int, int], Sequence[int]]
"""Measures rows `start` to `stop` (exclusive) of a request's payload, one number for each."""


def lengths(payload: Any, start: int, stop: int) -> list[int]:
    """The measure of payloads that are plain sequences of rows with a length, such as bytes."""
    return [len(row) for row in payload[start:stop]]


@dataclass(slots=True)
class Limits:
    """Units: instances, bytes, seconds.

    `slo` is the service objective: seconds from arrival to answer. `max_queue_instances` bounds what waits for a batch;
    `max_queue_bytes` bounds everything held, waiting or at the predictor, because that is what memory is spent on.
    `retry_statuses` are those after which a batch is tried again by halves, and `isolates_doubtful` says whether it is
    after those that its route calls doubtful, too. `retry_budget` is the number of extra predictor calls that each
    regular batch earns for isolating failures, see `retries.Budget`.

    A batch carries at most `max_batch_size` instances, `max_batch_bytes` of request bodies and `max_batch_cost` of what
    `row_costs` measures (None: costs nothing); only an instance that is over a limit by itself goes beyond it, alone.
    `row_sizes` tells the bytes of each instance; it is asked only about requests that no batch could carry whole.
    `allowed_sizes` are the sizes the predictor computes with, ascending (empty: any); its last is `max_batch_size`.
    Requests of at most `small_batch_threshold` instances overtake larger ones that came less than `priority_ageing`
    before them.
    """

    max_batch_size: int = 32
    max_latency: float = 0.5
    timeout: float = 60.0
    slo: float = math.inf
    max_in_flight: int = 1
    max_queue_instances: int = 4096
    max_queue_bytes: int = 256 * 1024 * 1024
    retry_statuses: isolation.Statuses = field(default_factory=lambda: isolation.Statuses.parse("4xx"))
    isolates_doubtful: bool = True
    retry_budget: float = 2.0
    max_batch_bytes: float = math.inf
    max_batch_cost: float = math.inf
    row_sizes: RowMeasure = lengths
    row_costs: RowMeasure | None = None
    allowed_sizes: tuple[int, ...] = ()
    small_batch_threshold: int = 0
    priority_ageing: float = 1.0
