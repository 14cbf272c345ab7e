"""The policy of KServe's maxBatchSize and maxLatency, made safe: a batch leaves when it is full or old enough."""

from __future__ import annotations

from collections.abc import Mapping

from carpool import errors
from carpool.scheduling import packing
from carpool.scheduling.backlog import Backlog, Queue
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Batch, Reason
from carpool.scheduling.policy import Decision, Release, Wait


class Window:
    """Full or old enough.

    A batch is due when it is full (in instances, bytes or cost) or its oldest request has waited `max_latency` since it
    arrived. With `max_latency` 0 a batch leaves as soon as the predictor is free. It learns nothing.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def choose(self, backlog: Backlog, now: float) -> Decision:
        """Collect until the oldest request has waited long enough, or a queue is full."""
        oldest_queue, window = backlog.oldest(), self._limits.max_latency
        if oldest_queue is None:
            return Wait(None)
        due_at = oldest_queue.oldest.arrived + window
        if now < due_at:
            queue = self._full(backlog)
            return Wait(due_at, due_at) if queue is None else self._release(queue, Reason.REST)
        # Of several queues that are due the one that travels first goes: a busy key cannot starve a quiet one.
        queue = backlog.due(now, window) or oldest_queue
        return self._release(queue, Reason.DUE if window else Reason.IDLE)

    def _full(self, backlog: Backlog) -> Queue | None:
        """A queue that need not wait: it holds a whole batch, or the rest of a request that was larger than one."""
        return backlog.full() or backlog.partly_sent()

    def _release(self, queue: Queue, reason: Reason) -> Release:
        allowed = self._limits.allowed_sizes
        rows = packing.best_size(queue.next_rows, allowed) if allowed else None
        return Release(queue, Reason.FULL if queue.is_full else reason, rows)

    @property
    def max_in_flight(self) -> float:
        return self._limits.max_in_flight

    # --- what it need not know ---------------------------------------------------------------------------------

    def arrived(self, rows: int, goal: float, ahead: int, now: float) -> errors.CarpoolError | None:
        return None

    def sent(self, batch: Batch, now: float) -> None:
        pass

    def completed(self, batch: Batch, now: float) -> None:
        pass

    def batch_failed(self, batch: Batch, error: errors.CarpoolError, now: float) -> None:
        pass

    def learned(self, backlog: Backlog, now: float) -> Mapping[str, float]:
        return {}
