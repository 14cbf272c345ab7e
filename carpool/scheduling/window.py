"""The policy of KServe's maxBatchSize and maxLatency, made safe: a batch leaves when it is full or old enough."""

from __future__ import annotations

from collections.abc import Mapping

from carpool import errors
from carpool.compiled import mypyc_attr
from carpool.scheduling import own_time, packing, tuning
from carpool.scheduling.backlog import Backlog, Queue
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Batch, Reason
from carpool.scheduling.policy import Decision, Release, Wait
from carpool.scheduling.predictor_model import PredictorModel


@mypyc_attr(allow_interpreted_subclasses=True)
class Window:
    """Full or old enough.

    A batch is due when it is full (in instances, bytes or cost) or its oldest request has waited `max_latency` since it
    arrived. With `max_latency` 0 a batch leaves as soon as the predictor is free. When it is due does not depend on
    anything learned.

    How many may be out at once does where `limits.learns_in_flight`: one for each batch that the predictor works on at
    a time, and another one that is full, or leaves just in time to arrive when the predictor is done. As long as it is
    not known when that is, one in so many goes beside another to find out. `tick` is the grain of the timers that carry
    out its waits, in seconds.
    """

    # State: what was learned of the predictor, and how many batches in a row had it to themselves; what batching itself
    # takes decides nothing here, and is only shown.
    def __init__(self, limits: Limits, tick: float = 0.0) -> None:
        self.predictor = PredictorModel(limits)
        self.own_time = own_time.OwnTimeModel()
        self._limits = limits
        self._grain = max(tick / 2, tuning.SHORTEST_WAIT)
        self._lone = 0  # batches in a row that left while no other was out

    def choose(self, backlog: Backlog, now: float) -> Decision:
        """Collect until a queue is full or its oldest request has waited long enough, then cut a batch from it."""
        oldest, window = backlog.oldest(), self._limits.max_latency
        if oldest is None:
            return Wait(None)
        due_at = oldest.oldest.arrived + window
        is_old = now >= due_at
        # Of several queues that are due the one that travels first goes: a busy key cannot starve a quiet one.
        queue = backlog.due(now, window) or oldest if is_old else backlog.full() or backlog.partly_sent()
        if queue is None:
            return Wait(due_at, due_at)
        return self._until_wanted(queue, now) or self._release(queue, is_old)

    def _release(self, queue: Queue, is_old: bool) -> Release:
        allowed, window = self._limits.allowed_sizes, self._limits.max_latency
        rows = packing.best_size(queue.next_rows, allowed) if allowed else None
        if queue.is_full:
            return Release(queue, Reason.FULL, rows)
        if not is_old:
            return Release(queue, Reason.REST, rows)
        return Release(queue, Reason.DUE if window else Reason.IDLE, rows)

    def _until_wanted(self, queue: Queue, now: float) -> Wait | None:
        """How long one that is due waits for a predictor that is busy; it fills meanwhile. None: it leaves now."""
        predictor = self.predictor
        if not self._limits.learns_in_flight or predictor.is_idle:
            return None
        overdue_at = predictor.overdue_at
        if predictor.should_run_dry:
            return Wait(overdue_at, overdue_at)
        if queue.is_full:
            return None
        if predictor.out >= predictor.places:
            return Wait(overdue_at, overdue_at)
        if not predictor.knows_overhead:
            return None if self._lone >= tuning.PROBE_EVERY else Wait(overdue_at, overdue_at)
        lead = min(self._grain, max(predictor.overhead, tuning.SHORTEST_WAIT))
        if now < predictor.free_at - lead:
            return Wait(min(predictor.free_at - lead / 2, overdue_at), min(predictor.free_at - lead, overdue_at))
        return None

    @property
    def max_in_flight(self) -> float:
        most = self._limits.max_in_flight
        return min(self.predictor.most_out, most) if self._limits.learns_in_flight else most

    def sent(self, batch: Batch, now: float) -> None:
        """A batch left."""
        if self._limits.learns_in_flight:
            self._lone = 0 if self.predictor.out else self._lone + 1
            self.predictor.sent(batch, now)

    def completed(self, batch: Batch, now: float) -> None:
        """A batch came back with predictions."""
        if self.predictor.watches(batch):
            self.predictor.completed(batch, now)

    def batch_failed(self, batch: Batch, error: errors.CarpoolError, now: float) -> None:
        """A batch failed."""
        if self.predictor.watches(batch):
            self.predictor.gone(batch, now)

    # --- what it need not know ---------------------------------------------------------------------------------

    def arrived(self, rows: int, goal: float, ahead: int, now: float) -> errors.CarpoolError | None:
        return None

    def learned(self, backlog: Backlog, now: float) -> Mapping[str, float]:
        return {}
