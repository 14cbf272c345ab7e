"""The numbers the core obeys. One mutable object, so that a change at run time reaches every part at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.core import retries


@dataclass(slots=True)
class Limits:
    """Units: instances, bytes, seconds.

    `max_queue_instances` bounds what waits for a batch; `max_queue_bytes` bounds everything held, waiting or at the
    predictor, because that is what memory is spent on. `retry_budget` is the number of extra predictor calls that each
    regular batch earns for isolating failures, see `retries.Budget`.
    """

    max_batch_size: int = 32
    max_latency: float = 0.5
    timeout: float = 60.0
    max_in_flight: int = 1
    max_queue_instances: int = 4096
    max_queue_bytes: int = 256 * 1024 * 1024
    retry_statuses: retries.Statuses = field(default_factory=lambda: retries.Statuses.parse("4xx"))
    retry_budget: float = 2.0
