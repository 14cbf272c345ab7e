"""The batching state machine: requests in, effects out.

Every method is synchronous and returns the I/O still to do, in the order it should be done: batches leave before
answers are written, so that the predictor never waits for that. A dispatched batch occupies its slot from the moment
its `Dispatch` is returned. After every call, arrange to call `poll()` at `next_deadline()`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from sidecar import errors
from sidecar.core import retries, shares
from sidecar.core.admission import Admission
from sidecar.core.backlog import Backlog
from sidecar.core.deadlines import Deadlines
from sidecar.core.limits import Limits
from sidecar.core.model import Abandon, Answer, Batch, Dispatch, Effect, Part, Refuse, Request, Rows
from sidecar.core.policies import Decision, Drop, Policy, Release, Wait


class Scheduler:
    """Owns every accepted request until it is answered, refused or cancelled; each happens exactly once.

    `clock` returns seconds and never goes back; `new_id` makes batch ids. Limits may change at any time: call
    `limits_changed()` afterwards.
    """

    # All mutable state: the backlog (waiting requests), the retries (parts of failed batches that wait for a slot),
    # in_flight (batches at the predictor), the deadlines of open requests, and the admission counters.
    def __init__(self, limits: Limits, policy: Policy, clock: Callable[[], float], new_id: Callable[[], str]) -> None:
        self.limits = limits
        self.policy = policy
        self.backlog = Backlog(limits)
        self.admission = Admission(limits)
        self.in_flight: set[Batch] = set()
        self.draining = False
        self._aborted = False
        self._clock = clock
        self._new_id = new_id
        self._retries: deque[Batch] = deque()
        self._budget = retries.Budget()
        self._deadlines = Deadlines()
        self.wake = math.inf
        """When the policy wants to be asked again, at the latest."""
        self._settled_until = -math.inf  # as the policy says with its wish to wait
        self._has_slot = True  # False if it is known that none is free
        self._sequence = 0

    # --- events ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Sequence[Effect]:
        """Accept a request, or refuse it at once (`Overloaded`, `PayloadTooLarge`, `Draining`)."""
        now = self._clock()
        limits, backlog = self.limits, self.backlog
        timeout = request.timeout
        if not timeout or timeout > limits.timeout:
            timeout = limits.timeout
        deadline, goal = now + timeout, now + limits.slo
        request.arrived = now
        request.deadline = deadline
        request.goal = goal if goal < deadline else deadline
        error = self.admission.refusal(request, backlog, self.draining)
        if error is None:
            error = self.policy.arrived(request, backlog, now)
        if error is not None:
            return (Refuse(request, error),)
        self._sequence = request.sequence = self._sequence + 1
        request.open = True
        self.admission.held += request.size
        self._deadlines.add(request)
        is_notable = backlog.add(request)
        # Most arrivals cannot change what was decided last; asking again would cost more than all of the above.
        if not self._has_slot or (now < self._settled_until and not is_notable):
            return ()
        return self._step(now)

    def cancel(self, request: Request) -> Sequence[Effect]:
        """The caller left. What still waits is dropped, what already travels is ignored when it comes back.

        A batch that nobody waits for any more is abandoned: its slot is for those who do wait.
        """
        if not request.open:
            return ()
        self._close(request)
        orphans = [batch for batch in self.in_flight if not any(part.request.open for part in batch.parts)]
        return [*self._step(self._clock()), *map(Abandon, orphans)]

    def done(self, batch: Batch, predictions: Rows) -> Sequence[Effect]:
        """The predictor answered. A wrong number of predictions fails this batch, and only this batch."""
        if len(predictions) != batch.rows:
            text = f"the predictor gave {len(predictions)} predictions for {batch.rows} instances"
            return self.failed(batch, errors.UpstreamBroken(text))
        now = self._clock()
        self.in_flight.remove(batch)
        self.admission.observe(batch, now)
        self.policy.completed(batch, now)
        effects = self._step(now)
        answers: list[Answer] = []
        try:
            shares.deal(batch, predictions, answers)
        except Exception as error:  # a bug; who has no answer yet must not wait for one until the deadline
            effects = [*effects, *self._give_up(batch, error)]
        self.admission.held -= sum([request.size for request, _ in answers])
        self._deadlines.forget(len(answers))
        return [*effects, *answers]

    def failed(self, batch: Batch, error: errors.CarpoolError) -> Sequence[Effect]:
        """The predictor rejected the batch or did not answer it; some of it may be tried again."""
        now = self._clock()
        batch.error = error
        self.in_flight.remove(batch)
        self.policy.troubled(batch, error, now)
        parts = [part for part in batch.parts if part.request.open]
        if isinstance(error, errors.UpstreamClosed) and batch.reason != "closed":
            self._retry(parts, "closed")
            return self._step(now)
        if len(batch.parts) > 1 and self._is_isolated(error):
            if self._isolate(parts, is_free=isinstance(error, errors.Uneven)):
                return self._step(now)
            error = errors.NotIsolated()
        for part in parts:
            self._close(part.request)
        return [*self._step(now), *(Refuse(part.request, error) for part in parts)]

    def poll(self) -> Sequence[Effect]:
        """Time passed: refuse what is too late, dispatch what is due."""
        now = self._clock()
        effects: list[Effect] = []
        for request in self._deadlines.pop_expired(now):
            self._close(request)
            effects.append(Refuse(request, errors.DeadlineExceeded()))
        return [*self._step(now), *effects]

    def drain(self) -> Sequence[Effect]:
        """Take nothing new; everything accepted leaves as soon as there are slots."""
        self.draining = True
        return self._step(self._clock())

    def abort(self, error: errors.CarpoolError) -> Sequence[Effect]:
        """Give up everything that is still open: its callers get `error`, and nothing is sent any more."""
        self.draining = self._aborted = True
        requests = list(self._deadlines)
        for request in requests:
            self._close(request)
        self._retries.clear()
        return [Refuse(request, error) for request in requests]

    def limits_changed(self) -> Sequence[Effect]:
        """Apply changed limits to what already waits."""
        self.backlog.refresh()
        return self._step(self._clock())

    # --- questions ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When to call `poll()` next, or None if only events can change anything."""
        expiry = self._deadlines.next()
        return expiry if expiry is None or expiry < self.wake else self.wake

    def learned(self) -> Mapping[str, float]:
        """What the policy has learned, by name, in base units."""
        return self.policy.learned(self.backlog, self._clock())

    @property
    def idle(self) -> bool:
        """Whether every accepted request has been answered and no batch is out."""
        return not (self.in_flight or self._retries or self.backlog)

    # --- internals ---------------------------------------------------------------------------------------------

    def _step(self, now: float) -> Sequence[Effect]:
        self.wake = math.inf
        self._settled_until = -math.inf
        self._has_slot = True
        if self._aborted or not (self.backlog or self._retries):
            return ()
        effects: list[Effect] = []
        while len(self.in_flight) < self.policy.max_in_flight:
            batch = self._next_retry() or self._next_batch(now, effects)
            if batch is None:
                return effects
            batch.dispatched = now
            self.in_flight.add(batch)
            self.policy.sent(batch, now)
            effects.append(Dispatch(batch))
        self._has_slot = False
        return effects

    def _next_batch(self, now: float, effects: list[Effect]) -> Batch | None:
        while self.backlog:
            decision = self._decide(now)
            if isinstance(decision, Drop):
                self._close(decision.request)
                effects.append(Refuse(decision.request, decision.error))
            elif isinstance(decision, Wait):
                self.wake = math.inf if decision.until is None else decision.until
                self._settled_until = decision.settled_until
                return None
            else:
                self._budget.earn(self.limits.retry_budget)
                parts = self.backlog.take(decision.queue, decision.rows)
                return Batch(self._new_id(), decision.queue.key, parts, decision.reason)
        return None

    def _decide(self, now: float) -> Decision:
        decision = self.policy.choose(self.backlog, now)
        if isinstance(decision, Wait) and self.draining:
            first = self.backlog.first()
            return decision if first is None else Release(first, "drain")
        return decision

    def _next_retry(self) -> Batch | None:
        while self._retries:
            batch = self._retries.popleft()
            parts = [part for part in batch.parts if part.request.open]
            if parts:
                return Batch(batch.id, batch.key, parts, batch.reason)
        return None

    def _retry(self, parts: Sequence[Part], reason: str) -> None:
        if parts:
            self._retries.appendleft(Batch(self._new_id(), parts[0].request.key, parts, reason))

    def _is_isolated(self, error: errors.CarpoolError) -> bool:
        # An answer that cannot be read is one row's fault as often as not: NaN, half an emoji, a row left out.
        if isinstance(error, errors.UpstreamBroken):
            return True
        if not isinstance(error, errors.UpstreamStatus):
            return False
        return error.status in self.limits.retry_statuses or (error.is_doubtful and self.limits.isolates_doubtful)

    def _isolate(self, parts: Sequence[Part], is_free: bool) -> bool:
        """Send the members of a rejected batch again, by halves; False if the budget does not allow it.

        If it `is_free`, as there is no culprit to find, one by one.
        """
        groups = [[part] for part in parts] if is_free else retries.halves(parts)
        if not is_free and not self._budget.spend(len(groups)):
            return False
        for group in reversed(groups):
            self._retry(group, "isolate")
        return True

    def _give_up(self, batch: Batch, error: Exception) -> Sequence[Effect]:
        """Refuse all members that still wait; the batch's error tells why."""
        batch.error = errors.CarpoolError()
        batch.error.__cause__ = error
        waiting = [part.request for part in batch.parts if part.request.open]
        for request in waiting:
            self._close(request)
        return [Refuse(request, errors.CarpoolError()) for request in waiting]

    def _close(self, request: Request) -> None:
        """The request's last moment: it is refused or cancelled. Answers do the same in one go for a whole batch."""
        request.open = False
        if request.rows_queued:
            self.backlog.remove(request)
        self.admission.held -= request.size
        self._deadlines.forget()
        request.payload = None
