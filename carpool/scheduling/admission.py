"""Who gets in: bounds in instances and in bytes, and an honest guess of when to come back."""

from __future__ import annotations

import math

from carpool import errors
from carpool.scheduling import ledger
from carpool.scheduling.backlog import Backlog
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Batch, Request

# Weight of the newest batch in the running means: the last ten or so decide.
_EWMA = 0.2
_LONGEST_RETRY_AFTER = 60


class Admission:
    """Refuses what does not fit; learns from batches that came back when to try again."""

    def __init__(self, limits: Limits, memory: ledger.Ledger) -> None:
        self._limits = limits
        self._memory = memory
        self._batch_seconds = 0.0
        self._batch_rows = 0.0

    def refusal(
        self, request: Request, backlog: Backlog, draining: bool, waiting_elsewhere: int = 0
    ) -> errors.CarpoolError | None:
        """Why this request cannot be taken now, or None. So many instances wait beside those in the backlog."""
        limits = self._limits
        waiting = backlog.rows + waiting_elsewhere
        has_room = waiting + request.rows <= limits.max_queue_instances
        if has_room and self._memory.has_room(request.size) and not draining:
            return None
        if draining:
            return errors.Draining()
        if request.rows > limits.max_queue_instances or request.size > limits.max_queue_bytes:
            return errors.PayloadTooLarge(
                f"{request.rows} instances in {request.size} bytes; a request may have at most "
                f"{limits.max_queue_instances} instances and {limits.max_queue_bytes} bytes"
            )
        if not has_room:
            return errors.Overloaded(f"{waiting} instances are waiting already", self.drain_seconds(backlog))
        return errors.MemoryFull(f"{self._memory.held} bytes are held already", self.drain_seconds(backlog))

    def observe(self, batch: Batch, now: float) -> None:
        """Learn the predictor's pace from a batch that came back."""
        weight = _EWMA if self._batch_rows else 1.0
        self._batch_seconds += weight * (now - batch.dispatched - self._batch_seconds)
        self._batch_rows += weight * (batch.rows - self._batch_rows)

    def drain_seconds(self, backlog: Backlog) -> int:
        """Predicted time until what waits now has left, in whole seconds from 1 to 60."""
        if not self._batch_rows:
            return 1
        batches = backlog.rows / self._batch_rows
        seconds = batches * self._batch_seconds / self._limits.max_in_flight
        return whole_seconds(seconds)


def whole_seconds(predicted: float) -> int:
    """When to try again, for a `Retry-After`: whole seconds from 1 to 60."""
    return math.ceil(min(_LONGEST_RETRY_AFTER, max(1.0, predicted)))
