"""The batching state machine: requests in, effects out.

Every method is synchronous and returns the I/O still to do, in the order it should be done: batches leave before
answers are written, so that the predictor never waits for that. A dispatched batch occupies its slot from the moment
its `Dispatch` is returned. After every call, arrange to call `poll()` at `next_deadline()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from carpool import errors
from carpool.scheduling import isolation, ledger, quarantine, shares, suspicion
from carpool.scheduling.admission import Admission
from carpool.scheduling.backlog import Backlog
from carpool.scheduling.deadlines import Deadlines
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Abandon, Answer, Batch, Dispatch, Effect, Part, Refuse, Request, Rows
from carpool.scheduling.policies import Decision, Drop, Policy, Release, Wait

# Full batches of requests that wait to be cleared; with more, finding culprits takes longer than their mates can wait.
_MOST_UNCLEARED = 8

# Batches on whose members verdicts are due.
_JUDGED = ("isolate", "suspect")

# So many lone requests in a row that failed as a request or its predictor may: it is the predictor.
_MOST_DOUBTFUL = 10


class Scheduler:
    """Owns every accepted request until it is answered, refused or cancelled; each happens exactly once.

    `clock` returns seconds and never goes back; `new_id` makes batch ids. `traits` are what requests may have in common
    with rejected ones, the content first; without any, nobody is ever suspected. Limits may change at any time: call
    `limits_changed()` afterwards.
    """

    # All mutable state: the backlog (waiting requests), the quarantine (suspects that wait), the retries (parts of
    # failed batches that wait for a slot), in_flight (batches at the predictor), the deadlines of open requests, the
    # admission counters, the suspicion (verdicts on requests), and how many lone requests failed doubtfully in a row.
    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        traits: suspicion.Traits = suspicion.NO_TRAITS,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.backlog = Backlog(limits)
        self.ledger = ledger.Ledger(limits.max_queue_bytes)
        self.admission = Admission(limits, self.ledger)
        self.in_flight: set[Batch] = set()
        self.draining = False
        self._aborted = False
        self._clock = clock
        self._new_id = new_id
        self.quarantine = quarantine.Quarantine(limits, next(iter(traits.values()), suspicion.no_trait))
        self._retries = isolation.Retries()
        self._suspicion = suspicion.Suspicion(traits)
        self._doubtful_in_a_row = 0
        self._deadlines = Deadlines()
        self.wake = math.inf
        """When the policy wants to be asked again, at the latest."""
        self._settled_until = -math.inf  # as the policy says with its wish to wait
        self._has_slot = True  # False if it is known that none is free
        self._had_failures = False  # False if nothing waits for a retry, and nobody is suspected
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
        elsewhere = self._retries.rows + self.quarantine.rows if self._had_failures else 0
        error = self.admission.refusal(request, backlog, self.draining, elsewhere)
        if error is None and self._had_failures and self._suspicion.suspects(request, now):
            return self._submit_suspect(request, now)
        if error is None:
            error = self.policy.arrived(request, backlog, now)
        if error is not None:
            return (Refuse(request, error),)
        self._accept(request)
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
        self._doubtful_in_a_row = 0
        if self._had_failures:
            self._absolve(batch)
        effects = self._step(now)
        answers: list[Answer] = []
        try:
            shares.deal(batch, predictions, answers)
        except Exception as error:  # a bug; who has no answer yet must not wait for one until the deadline
            effects = [*effects, *self._give_up(batch, error)]
        self.ledger.held -= sum([request.size for request, _ in answers])
        self._deadlines.forget(len(answers))
        if self._suspicion.awaits_verdicts:
            effects = [*effects, *self._acquit([request for request, _ in answers], now)]
        return [*effects, *answers]

    def failed(self, batch: Batch, error: errors.CarpoolError) -> Sequence[Effect]:
        """The predictor rejected the batch or did not answer it; some of it may be tried again."""
        now = self._clock()
        self._had_failures = True
        batch.error = error
        self.in_flight.remove(batch)
        self.policy.troubled(batch, error, now)
        parts = [part for part in batch.parts if part.request.open]
        if isinstance(error, errors.UpstreamClosed) and batch.reason != "closed":
            self._retries.add([parts], "closed", is_free=True)
            return self._step(now)
        refused = [part.request for part in parts]
        equals: Sequence[Request] = ()
        is_fault = self._may_be_one_members_fault(error, is_first=batch.reason != "isolate")
        if len(batch.parts) == 1:
            equals = self._convict(refused, error, now) if is_fault else ()
        elif not is_fault:
            error = error.for_several()
        elif self._isolate(batch, parts, error):
            return self._step(now)
        else:
            error = errors.NotIsolated()
        for request in (*refused, *equals):
            self._close(request)
        return [
            *self._step(now),
            *(Refuse(request, error) for request in refused),
            *(Refuse(request, error.for_equals()) for request in equals),
        ]

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
        self.ledger.limit = self.limits.max_queue_bytes
        self.backlog.refresh()
        self.quarantine.refresh()
        return self._step(self._clock())

    def reconsider(self) -> Sequence[Effect]:
        """The policy was told something that no event here tells of, so what it said last may not hold any more."""
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
    def waiting_rows(self) -> int:
        """Instances that wait for a batch, for the first time or again."""
        return self.backlog.rows + self._retries.rows + self.quarantine.rows

    @property
    def idle(self) -> bool:
        """Whether every accepted request has been answered and no batch is out."""
        return not (self.in_flight or self._retries or self.backlog or self.quarantine)

    # --- internals ---------------------------------------------------------------------------------------------

    def _step(self, now: float) -> Sequence[Effect]:
        self.wake = math.inf
        self._settled_until = -math.inf
        self._has_slot = True
        if self._aborted or not (self.backlog or self._retries or self.quarantine):
            return ()
        if self._had_failures:
            self._had_failures = bool(self._retries or self.quarantine or not self._suspicion.is_calm)
        effects: list[Effect] = []
        while len(self.in_flight) < self.policy.max_in_flight:
            batch = self._next_after_failures(now, effects) if self._had_failures else self._next_batch(now, effects)
            if batch is None:
                return effects
            batch.dispatched = now
            self.in_flight.add(batch)
            self.policy.sent(batch, now)
            effects.append(Dispatch(batch))
        self._has_slot = False
        return effects

    def _next_after_failures(self, now: float, effects: list[Effect]) -> Batch | None:
        batch = self._next_retry(is_urgent=False) or self._next_trial(now, is_free=self.draining)
        if batch is None and (batch := self._next_batch(now, effects)) is not None:
            self.quarantine.regular_left(now)
        if batch is None:  # no regular batch wants this slot now
            is_quiet = not self.in_flight and self.quarantine.is_quiet(now)
            batch = self._next_retry(is_urgent=True) or self._next_trial(now, is_free=is_quiet)
        if batch is None:
            self.wake = min(self.wake, self.quarantine.next_at())
        return batch

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
                self._retries.budget.earn(self.limits.retry_budget)
                parts = self.backlog.take(decision.queue, decision.rows)
                return Batch(self._new_id(), decision.queue.key, parts, decision.reason)
        return None

    def _decide(self, now: float) -> Decision:
        decision = self.policy.choose(self.backlog, now)
        if isinstance(decision, Wait) and self.draining:
            first = self.backlog.first()
            return decision if first is None else Release(first, "drain")
        return decision

    def _next_retry(self, *, is_urgent: bool) -> Batch | None:
        while self._retries and (found := self._retries.next(is_urgent)) is not None:
            parts = found.parts if len(found.parts) == 1 else self._sift(found.parts)
            if parts:
                return Batch(self._new_id(), parts[0].request.key, parts, found.reason)
        return None

    # --- culprits and suspects ---------------------------------------------------------------------------------

    def _may_be_one_members_fault(self, error: errors.CarpoolError, is_first: bool) -> bool:
        """Whether a failure may be the fault of one request, and not of all or of the predictor.

        While the predictor seems to be ill, a batch that fails for the first time is still tried in two halves: if one
        is answered, it is not.
        """
        # An answer that cannot be read is one row's fault as often as not: NaN, half an emoji, a row left out.
        if isinstance(error, errors.UpstreamBroken):
            return True
        if not isinstance(error, errors.UpstreamStatus):
            return False
        if error.status in self.limits.retry_statuses:
            return True
        if not (error.is_doubtful and self.limits.isolates_doubtful):
            return False
        return is_first or self._doubtful_in_a_row < _MOST_DOUBTFUL

    def _isolate(self, batch: Batch, parts: Sequence[Part], error: errors.CarpoolError) -> bool:
        """Send those of a rejected batch who still wait again, by halves; False if the budget will never allow it.

        Without a culprit to find that is free.
        """
        if isinstance(error, errors.Uneven):
            self._retries.add([[part] for part in parts], "isolate", is_free=True)
            return True
        if isinstance(error, errors.NotMergeable):
            odd = None if error.member is None else batch.parts[error.member]
            others = [part for part in parts if part is not odd]
            alone = [part for part in parts if part is odd]
            self._retries.add([others, alone] if alone else isolation.halves(others), "isolate", is_free=True)
            return True
        is_payable = self.limits.retry_budget or self._retries.budget.tokens >= self._retries.unpaid + 2
        if not is_payable or self._retries.rows > _MOST_UNCLEARED * self.limits.max_batch_size:
            return False
        self._suspicion.watch([part.request for part in parts])
        rest = self._sift(parts)
        self._retries.add(isolation.halves(parts) if len(rest) == len(parts) else [rest], "isolate", is_free=False)
        return True

    def _sift(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Put those on trial who are suspected by now, and return the others."""
        rest: list[Part] = []
        for part in parts:
            request = part.request
            is_whole = part.stop - part.start == request.rows
            if is_whole and self._is_suspected(request):
                request.rows_taken = 0
                self.quarantine.add(request, self._suspicion.knows(request))
            else:
                rest.append(part)
        return rest

    def _is_suspected(self, request: Request) -> bool:
        return self._suspicion.accuses(request, self._clock())

    def _submit_suspect(self, request: Request, now: float) -> Sequence[Effect]:
        if not self.quarantine.has_room(request):
            self._suspicion.let_go(request)
            return (Refuse(request, errors.TooManySuspects()),)
        self._accept(request)
        self.quarantine.add(request, self._suspicion.knows(request))
        return self._step(now) if self._has_slot else ()

    def _next_trial(self, now: float, *, is_free: bool) -> Batch | None:
        parts = self.quarantine.next(now, is_free) if self.quarantine else ()
        return Batch(self._new_id(), parts[0].request.key, parts, "suspect") if parts else None

    def _convict(self, alone: Sequence[Request], error: errors.CarpoolError, now: float) -> Sequence[Request]:
        """Learn from the failure of a request that travelled alone; returns those who share its verdict."""
        for request in alone:
            equals = self.quarantine.equals(request)
            if isinstance(error, errors.UpstreamStatus) and error.is_doubtful:
                self._doubtful_in_a_row += not self._is_suspected(request)
                if self._doubtful_in_a_row >= _MOST_DOUBTFUL:
                    return equals
            self._suspicion.guilty(request, now)
            return equals
        return ()

    def _absolve(self, batch: Batch) -> None:
        """Learn from a regular batch that came back, by one of its members."""
        if batch.reason not in _JUDGED and not self._suspicion.is_calm:
            request = batch.parts[self._sequence % len(batch.parts)].request
            if request.open and self._suspicion.answered(request, len(batch.parts)):
                self._readmit(self.quarantine.release(None, self._is_suspected))

    def _acquit(self, answered: Sequence[Request], now: float) -> Sequence[Effect]:
        """Learn from answers; who is not suspected any more travels with the others again."""
        for request in answered:
            if self._suspicion.innocent(request, now) or request is self.quarantine.on_trial:
                self._readmit(self.quarantine.release(request, self._is_suspected))
        return self._step(now)

    def _readmit(self, cleared: Sequence[Request]) -> None:
        for request in cleared:
            self._suspicion.let_go(request)
            self._sequence = request.sequence = self._sequence + 1
            self.backlog.add(request)

    def _give_up(self, batch: Batch, error: Exception) -> Sequence[Effect]:
        """Refuse all members that still wait; the batch's error tells why."""
        batch.error = errors.CarpoolError()
        batch.error.__cause__ = error
        waiting = [part.request for part in batch.parts if part.request.open]
        for request in waiting:
            self._close(request)
        return [Refuse(request, errors.CarpoolError()) for request in waiting]

    def _accept(self, request: Request) -> None:
        self._sequence = request.sequence = self._sequence + 1
        request.open = True
        self.ledger.held += request.size
        self._deadlines.add(request)

    def _close(self, request: Request) -> None:
        """The request's last moment: it is refused or cancelled. Answers do the same in one go for a whole batch."""
        request.open = False
        if type(request.key) is quarantine.Suspects:
            self.quarantine.closed(request)
        elif request.rows_queued:
            self.backlog.remove(request)
        self._suspicion.let_go(request)
        self.ledger.held -= request.size
        self._deadlines.forget()
        request.payload = None
