"""The batching state machine: requests in, effects out.

Every method is synchronous and returns the I/O still to do, in the order it should be done: batches leave before
answers are written, so that the predictor never waits for that. A dispatched batch occupies its slot from the moment
its `Dispatch` is returned. After every call, arrange to call `poll()` at `next_deadline()`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sidecar import errors
from sidecar.core import retries
from sidecar.core.admission import Admission
from sidecar.core.backlog import Backlog
from sidecar.core.deadlines import Deadlines
from sidecar.core.limits import Limits
from sidecar.core.model import Answer, Batch, Dispatch, Effect, Part, Piece, Refuse, Request
from sidecar.core.policies import Policy, Release


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
        self._clock = clock
        self._new_id = new_id
        self._retries: deque[Batch] = deque()
        self._budget = retries.Budget()
        self._deadlines = Deadlines()
        self._wake: float | None = None
        self._sequence = 0

    # --- events ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Sequence[Effect]:
        """Accept a request, or refuse it at once (`Overloaded`, `PayloadTooLarge`, `Draining`)."""
        error = self.admission.refusal(request, self.backlog, self.draining)
        if error is not None:
            return (Refuse(request, error),)
        now = self._clock()
        self._sequence += 1
        request.sequence = self._sequence
        request.arrived = now
        request.deadline = now + min(request.timeout or self.limits.timeout, self.limits.timeout)
        request.open = True
        self.admission.admit(request)
        self._deadlines.add(request)
        self.backlog.add(request)
        return self._step(now)

    def cancel(self, request: Request) -> Sequence[Effect]:
        """The caller left. What still waits is dropped, what already travels is ignored when it comes back."""
        if request.open:
            self._close(request)
        return self._step(self._clock())

    def done(self, batch: Batch, predictions: Sequence[Any]) -> Sequence[Effect]:
        """The predictor answered. A wrong number of predictions fails this batch, and only this batch."""
        if len(predictions) != batch.rows:
            text = f"the predictor gave {len(predictions)} predictions for {batch.rows} instances"
            return self.failed(batch, errors.UpstreamBroken(text))
        now = self._clock()
        self.in_flight.remove(batch)
        self.admission.observe(batch, now)
        self.policy.completed(batch, len(self.in_flight), now)
        effects = list(self._step(now))
        offset = 0
        for request, start, stop in batch.parts:
            rows = stop - start
            if request.open:
                request.pieces.append(Piece(start, batch.id, predictions[offset : offset + rows]))
                request.rows_answered += rows
                if request.rows_answered == request.rows:
                    self._close(request)
                    effects.append(Answer(request, _in_order(request.pieces)))
            offset += rows
        return effects

    def failed(self, batch: Batch, error: errors.CarpoolError) -> Sequence[Effect]:
        """The predictor rejected the batch or did not answer it; some of it may be tried again."""
        now = self._clock()
        batch.error = error
        self.in_flight.remove(batch)
        self.policy.troubled(batch, now)
        parts = [part for part in batch.parts if part.request.open]
        refused: Sequence[Part] = ()
        if isinstance(error, errors.UpstreamClosed) and batch.reason != "closed":
            self._retry(parts, "closed")
        elif self._can_isolate(parts, error):
            first, second = retries.halves(parts)
            self._retry(second, "isolate")
            self._retry(first, "isolate")
        else:
            refused = parts
        for part in refused:
            self._close(part.request)
        return [*self._step(now), *(Refuse(part.request, error) for part in refused)]

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
        """Give up everything that is still open: its callers get `error`."""
        self.draining = True
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
        if self._wake is None or expiry is None:
            return expiry
        return min(self._wake, expiry)

    @property
    def idle(self) -> bool:
        """Whether every accepted request has been answered and no batch is out."""
        return not (self.backlog or self._retries or self.in_flight)

    # --- internals ---------------------------------------------------------------------------------------------

    def _step(self, now: float) -> Sequence[Effect]:
        self._wake = None
        if not self.backlog and not self._retries:
            return ()
        effects: list[Effect] = []
        while len(self.in_flight) < self.limits.max_in_flight:
            batch = self._next_retry() or self._next_batch(now)
            if batch is None:
                break
            batch.dispatched = now
            self.in_flight.add(batch)
            effects.append(Dispatch(batch))
        return effects

    def _next_batch(self, now: float) -> Batch | None:
        if not self.backlog:
            return None
        choice = self.policy.choose(self.backlog, len(self.in_flight), now)
        oldest = self.backlog.oldest()
        if not isinstance(choice, Release) and self.draining and oldest is not None:
            choice = Release(oldest, "drain")
        if not isinstance(choice, Release):
            self._wake = choice.until
            return None
        self._budget.earn(self.limits.retry_budget)
        return Batch(self._new_id(), choice.queue.key, self.backlog.take(choice.queue), choice.reason)

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

    def _can_isolate(self, parts: Sequence[Part], error: errors.CarpoolError) -> bool:
        return (
            isinstance(error, errors.UpstreamStatus)
            and error.status in self.limits.retry_statuses
            and len(parts) > 1
            and self._budget.spend(2)
        )

    def _close(self, request: Request) -> None:
        """The request's last moment: it is answered, refused or cancelled."""
        request.open = False
        if request.rows_queued:
            self.backlog.remove(request)
        self.admission.release(request)
        self._deadlines.forget()
        request.payload = None


def _in_order(pieces: list[Piece]) -> list[Piece]:
    # Parts of one request may come back in any order; nearly all requests have just one.
    return pieces if len(pieces) == 1 else sorted(pieces, key=lambda piece: piece.start)
