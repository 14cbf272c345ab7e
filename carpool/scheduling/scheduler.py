"""The batching state machine: requests in, effects out.

Its rules, each with what carries it out:

1. Requests with equal keys may share a batch, up to its limits in rows, bytes and cost. Those of a higher level, which
   is the priority that a caller gives them as a number, and small ones if so configured, overtake others for a while;
   else all go by arrival. A request is cut only if it is too large for any batch. (`Scheduler._cut`, `packing.pack`,
   `queues.tier_of`; rows of like length: `lengths.Groups.pick`)
2. A batch leaves when there is a slot and the policy says that it is due. Until that moment requests join it. One
   that is out for far longer than it should be keeps its slot, and nothing else waits for it. (`Scheduler._fill`,
   `policy.Policy.choose`, `predictor_model.PredictorModel.passed`)
3. A request is refused at once if there is no room for it, if it could not be answered in time, or while draining.
   (`limits.Admission.refusal`, `policy.Policy.arrived`)
4. Answers go to those who still wait, each its own rows in its own order; a cut request is answered with its last part.
   (`Scheduler.done`, `messages.split_predictions`)
5. After a failure the error says what may still be done for the members of the batch: its remedy. So each error has
   one outcome (`Scheduler.failed`, `isolation.Isolation.failed`; which status has which remedy is the sidecar's):

   | error, for example | remedy | what happens |
   |---|---|---|
   | too late, overloaded, not to be reached | give up | all members are told |
   | the call broke off before its answer | resend once | the batch goes as it was, unless it was resent |
   | 400, 422, an answer that does not fit | halves | the halves go, and theirs, until one is left and told |
   | 500 where a request may be its cause | halves while well | likewise, but all are told while lone ones fail too |
   | one does not go with the others | apart | it goes alone and the others together, or the halves go |
   | an answer whose rows are nobody's | one by one | each goes alone, and whole if it was cut |
   | too large, memory is full | smaller | all of it goes in pieces; who is too large alone is told |

   What goes again goes before regular batches, but halves only as far as a budget pays, else when nothing waits.
   What the predictor refuses for its size, or together though all of it was answered in parts, is also learned: later
   batches of that key are smaller, or of one length, for a while. (`learned_limits.LearnedLimits.refused`,
   `learned_limits.LearnedLimits.proved`)
6. A suspect, which is a request that resembles rejected ones, travels alone, and rarely enough to keep nobody else
   waiting for long. (`suspicion.Suspicion.suspects`, `suspicion.Quarantine.next`)
7. A request is at one place at a time, and ends exactly once: answered, refused, or cancelled by its caller. At its
   deadline it is refused. (`messages.Place`, `messages.split_predictions`, `Scheduler._close`, `Scheduler.poll`)
8. When the last caller of a batch leaves, the batch is abandoned: its slot is for those who do wait, as soon as its
   call is broken off or ends. A batch whose members were all refused ends with its call. (`Scheduler.cancel`)
9. While draining every batch is due; when aborted nothing is sent any more, and everybody is refused.
   (`Scheduler.drain`, `Scheduler._next_batch`, `Scheduler.abort`)
10. Where an event fails in itself, by a bug or for lack of memory, those whom it concerns are refused at once.
    (`Scheduler.give_up`, `Scheduler._lost`)

Every method is synchronous and returns the I/O still to do, in the order it should be done: batches leave before
answers are written, so that the predictor never waits for that. A dispatched batch occupies its slot from the moment
its `Dispatch` is returned. After every call, arrange to call `poll()` at `next_deadline()`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from carpool import errors
from carpool.compiled import mypyc_attr
from carpool.scheduling import isolation, ledger, lengths, suspicion
from carpool.scheduling.backlog import Backlog
from carpool.scheduling.learned_limits import LearnedLimits
from carpool.scheduling.limits import Admission, Limits
from carpool.scheduling.messages import (
    WAITING,
    Abandon,
    Answer,
    Batch,
    Dispatch,
    Effect,
    Reason,
    Refuse,
    Request,
    Rows,
    accept_all,
    split_predictions,
)
from carpool.scheduling.policy import Drop, Policy, Release, Wait
from carpool.scheduling.queues import Deadlines

STATE = """
attribute        what it is                                  written by
backlog          requests that wait for a regular batch      submit_all, _accept_each, _readmit, _cut, _next_batch,
                                                             _close, _keep_whole, change_limits, _resize
learned_limits   what the predictor takes in one call        _learn_from, _lessons, failed, _fill
isolation        what failures left behind, and suspects     _accept_each, _close, done, failed, abort,
                                                             _keep_whole, _fill, _next_batch, _next_after_failures,
                                                             change_limits, _resize, _learn_from
in_flight        batches at the predictor, as they left      _fill, done, failed
policy           what it learned of the predictor            _accept_all, _accept_each, done, failed, _fill,
                                                             _next_batch, change_limits, and whoever calls reconsider
limits           the numbers it obeys                        change_limits
ledger           bytes held by open requests, and by others  _accept_all, _accept_each, _forget, change_limits,
                                                             and all with reservations
admission        the predictor's pace                        done
own_time         what batching takes of its own core         whoever measures it, as the driver does
groups           what a call costs beside its padding        done, _cut
draining         nothing new is taken                        drain, abort
asking           when to ask the policy again                _step
_aborted         nothing is sent any more                    abort
_deadlines       open requests by deadline                   _accept_all, _accept_each, _forget, poll, next_deadline
bug              what failed that cannot, until it is told   submit_turn, _lost, done, _step, _close,
                                                             and whoever tells of it
_sequence        number of the request that came last        _accept_all, _accept_each, _readmit
"""
"""All mutable state of a `Scheduler`, and who writes it. A request carries its own: `messages.Request`."""


class Asking(NamedTuple):
    """When to ask the policy again: `at` this time, or before as something else happens than that requests come.

    They ask from `arrivals_from` on, and those that fill their queue, are the first in it or have its earliest goal
    from `notable_from` on.
    """

    at: float = math.inf
    arrivals_from: float = -math.inf
    notable_from: float = -math.inf


ASK: Final = Asking()
"""At every event."""

NO_SLOT: Final = Asking(math.inf, math.inf, math.inf)
"""Whatever comes: batches are out, as many as may be."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    """Owns every accepted request until it is answered, refused or cancelled; each happens exactly once.

    `clock` returns seconds and never goes back; `new_id` makes batch ids. `traits` are what requests may have in common
    with rejected ones, the content first; without any, nobody is ever suspected. Limits may change at any time, by
    `change_limits`.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        traits: suspicion.Traits = suspicion.NO_TRAITS,
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        # Mutable, see `STATE`.
        self.limits = limits
        self.policy = policy
        self.learned_limits = LearnedLimits(limits)
        self.backlog = Backlog(limits, self.learned_limits)
        self.isolation = isolation.Isolation(limits, traits, self.learned_limits)
        self.ledger = ledger.Ledger(limits.max_queue_bytes)
        self.admission = Admission(limits, self.ledger)
        self.own_time = policy.own_time
        self.groups = None if limits.row_lengths is None else lengths.Groups(limits)
        self.in_flight: dict[Batch, None] = {}
        self.draining = False
        self.asking = ASK
        self.bug: Exception | None = None
        self._aborted = False
        self._deadlines = Deadlines()
        self._sequence = 0

    # --- events ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Sequence[Effect]:
        """Accept a request, or refuse it at once (`Overloaded`, `PayloadTooLarge`, `Draining`)."""
        return Scheduler.submit_all(self, (request,))

    def submit_all(self, requests: Sequence[Request]) -> Sequence[Effect]:
        """Accept requests that came at one moment, or refuse some of them at once: each in turn, as `submit` does.

        The outcome is that of so many calls of `submit` if nothing became due before the last of them. It takes about
        half the time where nobody is refused or suspected.
        """
        if not requests:
            return ()
        now = self._clock()
        refusals: list[Effect] = []
        if self._accept_all(requests, now):
            is_notable = self.backlog.add_all(requests)
        else:
            is_notable = self._accept_each(requests, now, refusals)
            if len(refusals) == len(requests):
                return refusals
        # Most arrivals cannot change what was decided last; asking again would cost more than all of the above.
        if now < (self.asking.notable_from if is_notable else self.asking.arrivals_from):
            return refusals
        return [*self._step(now), *refusals]

    def submit_turn(self, requests: Sequence[Request]) -> Sequence[Effect]:
        """As `submit_all` if all have room, else one after the other: what leaves makes room for the next."""
        if self.has_room(requests):
            return self.submit_all(requests)
        effects: list[Effect] = []
        for request in requests:
            try:
                effects += self.submit(request)
            except Exception as error:  # those before have left
                self.bug = error
                effects += self.give_up((request,))
        return effects

    def cancel(self, request: Request) -> Sequence[Effect]:
        """The caller left. What still waits is dropped, what already travels is ignored when it comes back.

        A batch is abandoned at most once. Where it cannot be broken off, it keeps its slot until `done` or `failed`.
        """
        if not request.open:
            return ()
        self._close(request)
        orphans = [batch for batch in self.in_flight if _is_left_by(batch, request)]
        return [*self._step(self._clock()), *map(Abandon, orphans)]

    def done(self, batch: Batch, predictions: Rows) -> Sequence[Effect]:
        """The predictor answered. A wrong number of predictions fails this batch, and only this batch."""
        if len(predictions) != batch.rows:
            text = f"the predictor gave {len(predictions)} predictions for {batch.rows} instances"
            return self.failed(batch, errors.UpstreamBroken(text))
        now, busy = self._clock(), len(self.in_flight)
        del self.in_flight[batch]
        try:
            self.admission.observe(batch, now, busy)
            self.policy.completed(batch, now)
            if self.groups is not None:
                self.groups.completed(batch, now)
            if batch.search is not None or not self.learned_limits.is_empty:
                self._learn_from(batch, now)
            if not self.isolation.is_calm:
                self._readmit(self.isolation.came_back(batch, self._sequence, now))
        except Exception as error:  # what was to be learned is lost, and no answer
            self._lost(batch, error, now)
        effects = self._step(now, batch)
        if self.learned_limits.lessons:
            effects = [*effects, *self._lessons()]
        answers: list[Answer] = []
        try:
            split_predictions(batch, predictions, answers)
        except Exception as error:  # a bug; who has no answer yet must not wait for one until the deadline
            effects = [*effects, *self._give_up(batch, error)]
        answered = [answer.request for answer in answers]
        self._forget(answered)
        if not self.isolation.is_calm and self.isolation.awaits_outcomes:
            try:
                self._readmit(self.isolation.answered(answered, now))
            except Exception as error:
                self.bug = error
            effects = [*effects, *self._step(now)]
        return [*effects, *answers]

    def failed(self, batch: Batch, error: errors.CarpoolError) -> Sequence[Effect]:
        """The predictor rejected the batch or did not answer it; some of it may be tried again."""
        now = self._clock()
        batch.error = error
        del self.in_flight[batch]
        try:
            self.policy.batch_failed(batch, error, now)
            if not self.learned_limits.is_empty and error.remedy is not errors.Remedy.SMALLER:
                self.learned_limits.failed(batch, error.remedy in isolation.REFUSALS, now)
            if error.remedy is errors.Remedy.ONE_BY_ONE:
                self._keep_whole(batch)
            refusals = self.isolation.failed(batch, error, now)
            if error.remedy is errors.Remedy.SMALLER:
                self._resize(batch)
        except Exception as bug:  # nobody knows who of them would go again
            self._lost(batch, bug, now)
            told = self._give_up(batch, bug)
            return [*self._step(now), *told]
        for refusal in refusals:
            self._close(refusal.request)
        return [*self._step(now), *refusals]

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
        requests = self.open_requests()
        for request in requests:
            self._close(request)
        self.isolation.abort()
        return [Refuse(request, error) for request in requests]

    def give_up(self, requests: Sequence[Request]) -> Sequence[Effect]:
        """Refuse these, accepted or not, for a bug: nobody else would tell them before their deadlines."""
        for request in requests:
            if request.open:
                self._close(request)
        return [Refuse(request, errors.CarpoolError()) for request in requests]

    def change_limits(self, limits: Limits) -> Sequence[Effect]:
        """Obey other limits, also with what already waits."""
        self.limits.become(limits)
        self.ledger.limit = self.limits.max_queue_bytes
        self.policy.predictor.limits_changed()
        self.backlog.refresh()
        self.isolation.quarantine.refresh()
        return self._step(self._clock())

    def reconsider(self) -> Sequence[Effect]:
        """The policy was told something that no event here tells of, so what it said last may not hold any more."""
        return self._step(self._clock())

    # --- questions ---------------------------------------------------------------------------------------------

    def has_room(self, requests: Sequence[Request]) -> bool:
        """Whether all of them may wait at once."""
        rows = size = 0
        for request in requests:
            rows += request.rows
            size += request.size
        return self.admission.refusal(rows, size, self.waiting_rows, False) is None

    def next_deadline(self) -> float | None:
        """When to call `poll()` next, or None if only events can change anything."""
        expiry, deadline = self._deadlines.next(), self.asking.at
        if expiry is not None and expiry < deadline:
            return expiry
        return None if deadline == math.inf else deadline

    def open_requests(self) -> Sequence[Request]:
        """All that were accepted and are not answered, refused or cancelled, in the order in which they came."""
        return sorted(self._deadlines, key=lambda request: request.sequence)

    def learned(self) -> Mapping[str, float]:
        """What the policy has learned, and what batching itself takes if that is known, by name, in base units."""
        learned = self.policy.learned(self.backlog, self._clock())
        if not self.own_time.samples:
            return learned
        batch, request = self.own_time.now
        return {**learned, "own_batch_seconds": batch, "own_request_seconds": request}

    def smallest_limit(self) -> float:
        """The most rows that the predictor takes in one call, of the key with the lowest limit; 0 if none is known."""
        return self.learned_limits.smallest(self._clock())

    def smallest_bytes(self) -> float:
        """The most bytes, likewise."""
        return self.learned_limits.smallest_bytes(self._clock())

    def kept_apart(self) -> int:
        """Of how many keys requests are kept apart by the lengths of their rows."""
        return self.learned_limits.kept_apart(self._clock())

    @property
    def waiting_rows(self) -> int:
        """Instances that wait for a batch, for the first time or again."""
        return self.backlog.rows if self.isolation.is_calm else self.backlog.rows + self.isolation.rows

    @property
    def idle(self) -> bool:
        """Whether every accepted request has been answered and no batch is out."""
        return not (self.in_flight or self.isolation or self.backlog)

    # --- batches -----------------------------------------------------------------------------------------------

    def _step(self, now: float, answered: Batch | None = None) -> Sequence[Effect]:
        """Fill the free slots with what is due now; the end of every event that may have changed what is.

        Returns a `Dispatch` for each batch, and a `Refuse` for each request that the policy drops. Leaves behind
        when the policy wants to be asked again. The members of an `answered` batch do not wait.
        """
        self.asking = ASK
        is_calm = self.isolation.is_calm
        if self._aborted or not (self.backlog or (not is_calm and self.isolation)):
            return ()
        effects: list[Effect] = []
        try:
            self.asking = self._fill(now, effects)
        except Exception as error:  # nobody knows who could leave, and when
            self.bug = error
            batches = [*self.in_flight] if answered is None else [*self.in_flight, answered]
            out = {part.request for batch in batches for part in batch.parts}
            effects += self.give_up([request for request in self.open_requests() if request not in out])
        return effects

    def _fill(self, now: float, effects: list[Effect]) -> Asking:
        """Add to the effects of `_step`; when to ask again."""
        if not self.isolation.is_calm:
            self.isolation.calm_down()
        predictor = self.policy.predictor
        if predictor.overdue_at <= now:
            predictor.passed(now)
        while len(self.in_flight) < (most := self.policy.max_in_flight):
            is_calm = self.isolation.is_calm
            batch = self._next_batch(now, effects) if is_calm else self._next_after_failures(now, effects)
            if isinstance(batch, Asking):
                return batch
            batch.dispatched = now
            self.in_flight[batch] = None
            effects.append(Dispatch(batch))
            self.policy.sent(batch, now)
            if not self.learned_limits.is_empty and self.learned_limits.left(batch, now):
                self._resize(batch)
        return Asking(predictor.overdue_at, math.inf, math.inf) if most < self.limits.max_in_flight else NO_SLOT

    def _next_batch(self, now: float, effects: list[Effect]) -> Batch | Asking:
        """A regular batch, if the policy wants one now, or when to ask it again."""
        while self.backlog:
            decision = self.policy.choose(self.backlog, now)
            if isinstance(decision, Wait) and self.draining and (first := self.backlog.due(math.inf, 0.0)) is not None:
                decision = Release(first, Reason.DRAIN)
            if isinstance(decision, Drop):
                self._close(decision.request)
                effects.append(Refuse(decision.request, decision.error))
            elif isinstance(decision, Wait):
                return Asking(math.inf if decision.until is None else decision.until, decision.settled_until)
            else:
                self.isolation.regular_left(now)
                return self._cut(decision)
        return ASK

    def _cut(self, release: Release) -> Batch:
        """What leaves now of a queue."""
        queue, rows = release.queue, release.rows
        key = queue.oldest.key
        if self.groups is None:
            return Batch(self._new_id(), key, self.backlog.take(queue, rows), release.reason)
        most = queue.max_batch_size if rows is None else min(rows, queue.max_batch_size)
        parts = self.backlog.take(queue, rows, self.groups.pick(queue, most))
        batch = Batch(self._new_id(), key, parts, release.reason)
        batch.weight = self.groups.weigh(batch)
        return batch

    def _next_after_failures(self, now: float, effects: list[Effect]) -> Batch | Asking:
        """A batch that goes again, a suspect, or a regular batch, in the order of their rights to a slot."""
        again = self.isolation.next_urgent(now, is_draining=self.draining)
        if again is None:
            regular = self._next_batch(now, effects)
            if isinstance(regular, Batch):
                return regular
            # Where the number of slots is given, one that is free is the predictor's as well.
            again = self.isolation.next_leisurely(now, is_idle=not self.policy.predictor.out)
            if again is None:
                free_at = min(self.isolation.quarantine.next_at(), self.policy.predictor.overdue_at)
                return regular._replace(at=min(regular.at, free_at))
        batch = Batch(self._new_id(), again.parts[0].request.key, again.parts, again.reason)
        batch.search = again.search
        return batch

    def _learn_from(self, batch: Batch, now: float) -> None:
        """A batch was answered that tells what the predictor takes in one call."""
        is_other = self.learned_limits.answered(batch, now)
        if batch.search is not None and self.isolation.proved(batch, now):
            is_other = True
        if is_other:
            self._resize(batch)

    def _lessons(self) -> Sequence[Effect]:
        lessons, self.learned_limits.lessons = self.learned_limits.lessons, []
        return lessons

    def _resize(self, batch: Batch) -> None:
        """Who may share a call of a batch's key is something else, or how much."""
        key = batch.key
        self.backlog.resize(key)
        if self.learned_limits.of(key).is_apart:
            self._readmit(self.backlog.withdraw_all(key))
        if self.isolation.quarantine:
            self.isolation.quarantine.refresh()

    # --- requests ----------------------------------------------------------------------------------------------

    def _accept_all(self, requests: Sequence[Request], now: float) -> bool:
        """Accept requests together, if that can be told without looking at each; otherwise none of them."""
        most, slo = self.limits.timeout, self.limits.slo
        deadline = now + most
        goal = earliest = now + (slo if slo < most else most)
        rows = size = 0
        for request in requests:
            rows += request.rows
            size += request.size
            request.arrived = now
            request.deadline = deadline
            request.goal = goal
            timeout = request.timeout
            if timeout and timeout < most:
                request.deadline = now + timeout
                request.goal = min(goal, request.deadline)
                earliest = min(earliest, request.goal)
        waiting = self.backlog.rows
        if not self.isolation.is_calm or self.admission.refusal(rows, size, waiting, self.draining) is not None:
            return False
        if self.policy.arrived(rows, earliest, waiting + rows - requests[-1].rows, now) is not None:
            return False
        self._sequence = accept_all(requests, self._sequence)
        self.ledger.held += size
        self._deadlines.add_all(requests)
        return True

    def _accept_each(self, requests: Sequence[Request], now: float, refusals: list[Effect]) -> bool:
        """Accept those that can be, one after the other, and refuse the others. As `Backlog.add` returns for any."""
        is_notable = False
        for request in requests:
            ahead = self.backlog.ahead_of(request.priority)  # those below it take no room from it
            waiting = ahead + self.isolation.rows
            error = self.admission.refusal(request.rows, request.size, waiting, self.draining)
            is_suspect = error is None and self.isolation.suspects(request, now)
            if is_suspect:
                error = self.isolation.refusal(request)
            elif error is None:
                error = self.policy.arrived(request.rows, request.goal, ahead, now)
            if error is not None:
                refusals.append(Refuse(request, error))
                continue
            self._sequence = accept_all((request,), self._sequence)
            self.ledger.held += request.size
            self._deadlines.add_all((request,))
            if is_suspect:
                self.isolation.add(request)
                is_notable = True
            else:
                is_notable = self.backlog.add(request) or is_notable
        return is_notable

    def _readmit(self, cleared: Sequence[Request]) -> None:
        """Let those who were suspected travel with the others, as if they came now."""
        for request in cleared:
            self._sequence = accept_all((request,), self._sequence)
            self.backlog.add(request)

    def _lost(self, batch: Batch, error: Exception, now: float) -> None:
        """What was to be learned of a batch that is back is lost; it is not at the predictor any more."""
        self.bug = error
        predictor = self.policy.predictor
        with contextlib.suppress(Exception):
            if predictor.watches(batch):
                predictor.gone(batch, now)

    def _close(self, request: Request) -> None:
        """A request's last moment: it is refused or cancelled. `split_predictions` closes those that are answered."""
        place = request.place
        request.finish()
        try:
            self.isolation.closed(request, place)
            if place is WAITING:
                self.backlog.remove(request)
        except Exception as error:  # after another: it must be told all the same
            self.bug = error
        self._forget((request,))

    def _keep_whole(self, batch: Batch) -> None:
        """What waits of requests whose parts cannot be answered does not go any more: isolation sends all of them."""
        for request, start, stop in batch.parts:
            place = request.place
            if stop - start < request.rows and request.is_queued:
                if place is WAITING:
                    self.backlog.remove(request)
                else:
                    self.isolation.quarantine.closed(request, place)

    def _forget(self, closed: Sequence[Request]) -> None:
        """The counterpart of `_accept`, for requests that were just closed."""
        for request in closed:
            self.ledger.held -= request.size
        self._deadlines.forget(closed)

    def _give_up(self, batch: Batch, error: Exception) -> Sequence[Effect]:
        """Refuse all members that still wait; the batch's error tells why."""
        batch.error = errors.CarpoolError()
        batch.error.__cause__ = error
        return self.give_up([part.request for part in batch.parts if part.request.open])


def _is_left_by(batch: Batch, request: Request) -> bool:
    """Whether a request that was just closed was the last member of a batch that waited for it."""
    parts = batch.parts
    return not any(part.request.open for part in parts) and any(part.request is request for part in parts)
