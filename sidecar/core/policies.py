"""When a batch leaves.

A policy is asked only while the predictor has a free slot and something waits; it names the queue to cut the next
batch from, or says until when to wait. It never seals a batch: requests keep joining until the moment it goes.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sidecar.core.backlog import Backlog, Queue
from sidecar.core.limits import Limits
from sidecar.core.model import Batch


class Release(NamedTuple):
    """Cut a batch from `queue` now; `reason` is one of `full`, `due`, `idle`."""

    queue: Queue
    reason: str


class Wait(NamedTuple):
    """Nothing goes yet. Ask again at `until` or at the next event, whichever is first."""

    until: float | None


class Policy(Protocol):
    """The seat of a dispatch rule. The scheduler tells it what happened and asks what to do."""

    def choose(self, backlog: Backlog, in_flight: int, now: float) -> Release | Wait:
        """Decide with `in_flight` batches at the predictor and at least one slot free; the backlog is not empty."""
        ...

    def completed(self, batch: Batch, in_flight: int, now: float) -> None:
        """A batch came back with predictions, after which `in_flight` others are still out."""
        ...

    def troubled(self, batch: Batch, now: float) -> None:
        """A batch failed."""
        ...


class Window:
    """Full or old enough: KServe's maxBatchSize and maxLatency, made safe.

    A batch is due when its queue holds `max_batch_size` instances or its oldest request has waited `max_latency`
    since it arrived. With `max_latency` 0 nothing ever waits for a free predictor. Among queues that are due the one
    with the oldest head goes first, so that a busy key cannot starve a quiet one.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def choose(self, backlog: Backlog, in_flight: int, now: float) -> Release | Wait:
        oldest = backlog.oldest()
        if oldest is None:
            return Wait(None)
        due_at = oldest.head.arrived + self._limits.max_latency
        if now >= due_at:
            return Release(oldest, self._reason(oldest))
        full = backlog.full()
        return Wait(due_at) if full is None else Release(full, "full")

    def completed(self, batch: Batch, in_flight: int, now: float) -> None:
        """A window learns nothing."""

    def troubled(self, batch: Batch, now: float) -> None:
        """A window learns nothing."""

    def _reason(self, queue: Queue) -> str:
        if queue.rows >= self._limits.max_batch_size:
            return "full"
        return "due" if self._limits.max_latency else "idle"
