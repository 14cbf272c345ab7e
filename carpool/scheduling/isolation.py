"""What happens to batches that failed: what goes again and how, who failed, and who travels alone from then on.

A predictor that rejects a batch does not say whose instance it disliked. Sending the halves again, and the halves of
those, finds the culprit in about 2·log2(n) calls and lets everybody else have their answers. The calls cost the
predictor time, so a budget bounds how many of them go before regular batches; the others go when nothing regular waits.

Nor does it say whether it disliked any. Rows of several lengths may be none that it takes in one call, so two that
differ go first: if they are refused, and answered one by one, the others travel apart by their lengths. And where all
of a refused batch was answered in parts in the end, nobody was to blame: that is learned, see `learned_limits`.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from carpool import errors
from carpool.scheduling import packing, suspicion
from carpool.scheduling.learned_limits import LearnedLimits, Search
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Batch, Part, Place, Reason, Refuse, Request

# So many retries may be saved up: enough to isolate culprits in several batches at once.
_BURST = 100.0

# Full batches of requests that wait to be cleared; with more, finding culprits takes longer than the other requests of
# their batch can wait.
_MOST_UNCLEARED = 8

# So many lone requests in a row that failed as a request or its predictor may: it is the predictor.
_MOST_DOUBTFUL = 10

_HALVED = (errors.Remedy.HALVES, errors.Remedy.APART, errors.Remedy.ONE_BY_ONE)

# Of those, after which it is not known whether one member is at fault.
REFUSALS = (errors.Remedy.HALVES, errors.Remedy.HALVES_WHILE_WELL)

# Verdicts are due on the members of such batches: each counts by itself.
_WATCHED = (Reason.ISOLATE, Reason.SMALLER, Reason.SUSPECT)


class Retry(NamedTuple):
    """Rows that travel because of a failure, and why; in which search, if their batch was refused."""

    parts: Sequence[Part]
    reason: Reason
    search: Search | None = None


class Retries:
    """Parts of failed batches that wait for a slot, the latest first: what is begun is finished before more begins.

    `budget` is how many of them may go before regular batches, each of which puts some in; in the long run no more go.
    """

    # Mutable state: what goes before all else, what has to be paid for, the budget for that, and instances of both.
    def __init__(self) -> None:
        self._free: deque[Retry] = deque()
        self._paid: deque[Retry] = deque()
        self.budget = _BURST
        self.rows = 0

    def __bool__(self) -> bool:
        return bool(self._free or self._paid)

    def add(
        self, groups: Sequence[Sequence[Part]], reason: Reason, search: Search | None = None, *, is_free: bool
    ) -> None:
        """Send these again, one call for each group, in this order. If it `is_free`, the budget need not pay for it."""
        found = [Retry(group, reason, search) for group in groups if group]
        (self._free if is_free else self._paid).extendleft(reversed(found))
        self.rows += sum(map(_rows, found))

    def next(self, ignores_budget: bool) -> Retry | None:
        """What goes now, less those who left or go whole. With `ignores_budget` the budget neither decides nor pays."""
        while self._free or (self._paid and (ignores_budget or self.budget >= 1)):
            waiting = self._free or self._paid
            parts, reason, search = found = waiting.popleft()
            self.rows -= _rows(found)
            still_open = [
                part for part in parts if part.request.open and not (part.request.goes_whole and _is_cut(part))
            ]
            if still_open:
                if waiting is self._paid and not ignores_budget:
                    self.budget -= 1
                return Retry(still_open, reason, search)
        return None

    @property
    def unpaid(self) -> int:
        """Calls that wait for the budget."""
        return len(self._paid)

    def clear(self) -> None:
        """Nothing is sent again any more."""
        self._free.clear()
        self._paid.clear()
        self.rows = 0


class Isolation:
    """What the scheduler asks once a batch has failed, until all of that is over (`is_calm`).

    It decides by an error's remedy. `traits` are what requests may have in common with rejected ones. `learned` is told
    which batches were refused for their size.
    """

    # Mutable state: _retries, parts of failed batches that wait for a slot, with their budget; the quarantine, suspects
    # that wait; _suspicion, what became of requests; how many lone requests failed doubtfully in a row; is_calm.
    def __init__(self, limits: Limits, traits: suspicion.Traits, learned: LearnedLimits) -> None:
        self.quarantine = suspicion.Quarantine(limits, next(iter(traits.values()), suspicion.no_trait), learned)
        self.is_calm = True
        """Whether nothing waits here, is suspected or in doubt, and no outcome awaited; then nothing needs asking."""
        self._limits = limits
        self._learned = learned
        self._retries = Retries()
        self._suspicion = suspicion.Suspicion(traits)
        self._doubtful_in_a_row = 0

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Instances that wait here."""
        return self._retries.rows + self.quarantine.rows

    def __bool__(self) -> bool:
        return bool(self._retries or self.quarantine)

    def calm_down(self) -> None:
        """See whether all of it is over."""
        self.is_calm = self._suspicion.is_calm and not (self or self._doubtful_in_a_row)

    def suspects(self, request: Request, now: float) -> bool:
        """Whether a request resembles rejected ones and must travel alone; `add` or `refusal` deals with it."""
        return self._suspicion.suspects(request, now)

    def refusal(self, suspect: Request) -> errors.CarpoolError | None:
        """Why a suspect cannot wait here, or None."""
        if self.quarantine.has_room(suspect):
            return None
        self._suspicion.forget(suspect)
        return errors.TooManySuspects()

    def add(self, suspect: Request) -> None:
        """Keep a suspect that was accepted."""
        self.quarantine.add(suspect, self._suspicion.knows(suspect))

    # --- what travels ------------------------------------------------------------------------------------------

    def next_urgent(self, now: float, *, is_draining: bool) -> Retry | None:
        """What goes before regular batches."""
        return self._next_retry(now, ignores_budget=False) or self._next_trial(now, is_free=is_draining)

    def next_leisurely(self, now: float, *, is_idle: bool) -> Retry | None:
        """What goes while no regular batch wants a slot. If the predictor `is_idle`, suspects may not have to wait."""
        is_quiet = is_idle and self.quarantine.is_quiet(now)
        return self._next_retry(now, ignores_budget=True) or self._next_trial(now, is_free=is_quiet)

    def regular_left(self, now: float) -> None:
        """A regular batch leaves: it earns calls for retries and, while it is not calm, for suspects."""
        if self._retries.budget < _BURST:
            self._retries.budget = min(_BURST, self._retries.budget + self._limits.retry_budget)
        if not self.is_calm:
            self.quarantine.regular_left(now)

    # --- what came of it ---------------------------------------------------------------------------------------

    def failed(self, batch: Batch, error: errors.CarpoolError, now: float) -> Sequence[Refuse]:
        """A batch failed. Who is told of it; nobody if all members that still wait go again."""
        self.is_calm = False
        parts = [part for part in batch.parts if part.request.open]
        if error.remedy is errors.Remedy.RESEND_ONCE and batch.reason is not Reason.CLOSED:
            self._retries.add([parts], Reason.CLOSED, batch.search, is_free=True)
            return ()
        is_too_large = error.remedy in REFUSALS and self._learned.is_over(batch)
        if (is_too_large or error.remedy is errors.Remedy.SMALLER) and self._send_smaller(batch, parts, error, now):
            return ()
        if error.remedy is errors.Remedy.ONE_BY_ONE and (len(batch.parts) > 1 or _is_cut(batch.parts[0])):
            self._retries.add(_one_by_one(parts), Reason.ISOLATE, is_free=True)
            return ()
        is_fault = self._may_be_one_members_fault(error, batch.reason)
        if len(batch.parts) == 1:
            equals = self._record_failure(parts[0].request, error, now) if parts and is_fault else ()
            told = [Refuse(part.request, error) for part in parts]
            return told + [Refuse(request, error.for_equals()) for request in equals]
        if is_fault and self._send_again(batch, parts, error, now):
            return ()
        error = errors.NotIsolated() if is_fault else error.for_several()
        return [Refuse(part.request, error) for part in parts]

    def proved(self, batch: Batch, now: float) -> bool:
        """A part of a refused batch was answered. Returns whether something was learned by that of who may share."""
        search: Search | None = batch.search
        is_mixed = len(self._learned.by_length(batch.parts)) > 1
        size, is_learned = self._learned.size_of(batch.parts), False
        while search is not None:
            search.unanswered -= batch.rows
            search.largest, search.largest_size = max(search.largest, batch.rows), max(search.largest_size, size)
            search.was_mixed = search.was_mixed or is_mixed
            if not search.unanswered:
                is_learned = self._learned.proved(search, batch, now) or is_learned
            search = search.parent
        return is_learned

    def came_back(self, batch: Batch, sample: int, now: float) -> Sequence[Request]:
        """A batch was answered: learn by its member number `sample`, modulo its length.

        Returns who is not suspected any more.
        """
        self._doubtful_in_a_row = 0
        if batch.reason in _WATCHED:
            return ()
        request = batch.parts[sample % len(batch.parts)].request
        if request.open and self._suspicion.answered_together(request, len(batch.parts)):
            return self._release(None, now)
        return ()

    @property
    def awaits_outcomes(self) -> bool:
        """Whether `answered` would learn from any answer."""
        return self._suspicion.awaits_outcomes

    def answered(self, requests: Iterable[Request], now: float) -> Sequence[Request]:
        """These were answered. Returns who is not suspected any more: they travel with the others again."""
        cleared: list[Request] = []
        for request in requests:
            if self._suspicion.answered_alone(request, now) or request is self.quarantine.on_trial:
                cleared += self._release(request, now)
        return cleared

    def closed(self, request: Request, place: Place) -> None:
        """A request is refused or cancelled, and was at that place."""
        self._suspicion.forget(request)
        self.quarantine.closed(request, place)

    def abort(self) -> None:
        """Nothing is sent again any more."""
        self._retries.clear()

    # --- internals ---------------------------------------------------------------------------------------------

    def _next_retry(self, now: float, *, ignores_budget: bool) -> Retry | None:
        while self._retries and (found := self._retries.next(ignores_budget)) is not None:
            parts = found.parts if len(found.parts) == 1 else self._split_suspected(found.parts, now)
            if parts:
                return self._cut(found._replace(parts=parts))
        return None

    def _cut(self, retry: Retry) -> Retry:
        """What goes of this for a start, after what was learned since it was put aside."""
        parts, reason, search = retry
        key, learned = parts[0].request.key, self._learned
        groups: Sequence[Sequence[Part]] = [parts]
        # Two are what shows whether lengths mix, as long as that is in doubt.
        if reason is Reason.ISOLATE and learned.separates(key, is_sure=len(parts) == 2):
            groups = learned.by_length(parts)
        may_be_cut = reason is Reason.SMALLER or (reason is Reason.ISOLATE and len(parts) > 1)
        most = learned.of(key).rows
        if len(groups) == 1 and may_be_cut and _rows(retry) > most:
            groups = packing.pieces(parts, int(most), math.inf, self._limits)
        self._retries.add(groups[1:], reason, search, is_free=True)
        return Retry(groups[0], reason, search)

    def _next_trial(self, now: float, *, is_free: bool) -> Retry | None:
        parts = self.quarantine.next(now, is_free) if self.quarantine else ()
        return Retry(parts, Reason.SUSPECT) if parts else None

    def _may_be_one_members_fault(self, error: errors.CarpoolError, reason: Reason) -> bool:
        """Whether a failure may be the fault of one request, and not of all or of the predictor.

        While the predictor seems to be ill, a batch that fails for the first time is still tried in two halves: if one
        is answered, it is not. A request that was refused for its size may be at fault even if that is in doubt, if it
        was in a batch that was.
        """
        if error.remedy is errors.Remedy.HALVES_WHILE_WELL:
            return reason is not Reason.ISOLATE or self._doubtful_in_a_row < _MOST_DOUBTFUL
        if error.remedy is errors.Remedy.SMALLER:
            return reason is Reason.SMALLER or not error.is_doubtful
        return error.remedy in _HALVED

    def _send_smaller(self, batch: Batch, parts: Sequence[Part], error: errors.CarpoolError, now: float) -> bool:
        """Send those of a batch that was too large again, if that can help; False if one is to be told."""
        request = batch.parts[0].request
        is_whole = len(batch.parts) == 1 and batch.rows == request.rows and not error.cuts_requests
        most = self._learned.refused(batch, error.most_rows, is_whole, now)
        if most is None or request.goes_whole:  # in smaller ones it cannot be answered
            return False
        batch.pieces_of, most_bytes = most
        self._suspicion.watch([part.request for part in parts])
        pieces = packing.pieces(parts, batch.pieces_of, most_bytes, self._limits)
        search = Search(batch, self._learned.size_of(batch.parts), False) if error.most_rows is None else batch.search
        self._retries.add(pieces, Reason.SMALLER, search, is_free=True)
        return True

    def _send_again(self, batch: Batch, parts: Sequence[Part], error: errors.CarpoolError, now: float) -> bool:
        """Send those of a rejected batch who still wait again; False if the budget will never allow it.

        Where no request is at fault it costs no budget.
        """
        if error.remedy is errors.Remedy.APART:
            odd = None if error.member is None else batch.parts[error.member]
            others = [part for part in parts if part is not odd]
            alone = [part for part in parts if part is odd]
            self._retries.add([others, alone] if alone else halves(others), Reason.ISOLATE, is_free=True)
            return True
        lengths = self._learned.by_length(parts)
        is_mixed = len(lengths) > 1
        search = None if error.is_overload else Search(batch, self._learned.size_of(batch.parts), is_mixed)
        if is_mixed and self._learned.separates(batch.key, is_sure=True):
            self._retries.add(lengths, Reason.ISOLATE, search, is_free=True)
            return True
        is_payable = self._limits.retry_budget or self._retries.budget >= self._retries.unpaid + 2
        if not is_payable or self._retries.rows > _MOST_UNCLEARED * self._limits.max_batch_size:
            return False
        self._suspicion.watch([part.request for part in parts])
        rest = self._split_suspected(parts, now)
        groups = [rest]
        if len(rest) == len(parts):
            is_tried = is_mixed and len(parts) > 2 and not self._learned.trusts(batch.key, now)
            groups = _two_that_differ(parts, lengths) if is_tried else halves(parts)
        self._retries.add(groups, Reason.ISOLATE, search, is_free=False)
        return True

    def _split_suspected(self, parts: Sequence[Part], now: float) -> Sequence[Part]:
        """Put those on trial who are suspected by now, and return the others."""
        rest: list[Part] = []
        for part in parts:
            request = part.request
            is_whole = part.stop - part.start == request.rows
            if is_whole and self._suspicion.still_suspects(request, now):
                request.take_back()
                self.add(request)
            else:
                rest.append(part)
        return rest

    def _record_failure(self, alone: Request, error: errors.CarpoolError, now: float) -> Sequence[Request]:
        """Learn from the failure of a request that travelled alone; returns those who share its outcome."""
        if error.is_doubtful:
            self._doubtful_in_a_row += not self._suspicion.still_suspects(alone, now)
        if not error.is_doubtful or self._doubtful_in_a_row < _MOST_DOUBTFUL:
            self._suspicion.failed_alone(alone, now)
        return self.quarantine.equals(alone)

    def _release(self, answered: Request | None, now: float) -> Sequence[Request]:
        cleared = self.quarantine.release(answered, functools.partial(self._suspicion.still_suspects, now=now))
        for request in cleared:
            self._suspicion.forget(request)
        return cleared


def _rows(retry: Retry) -> int:
    return sum([stop - start for _, start, stop in retry.parts])


def _is_cut(part: Part) -> bool:
    """Whether this is not all of a request."""
    return part.stop - part.start < part.request.rows


def _one_by_one(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """Each request by itself, and all of it; one that goes so already does not go again."""
    found: list[Sequence[Part]] = []
    for part in parts:
        request = part.request
        if not _is_cut(part):
            found.append([part])
        elif not request.goes_whole:
            request.goes_whole = True
            found.append([Part(request, 0, request.rows)])
    return found


def _two_that_differ(parts: Sequence[Part], lengths: Sequence[Sequence[Part]]) -> list[Sequence[Part]]:
    """Two small parts of different lengths, which seldom are too much for a call, and the halves of the others."""
    smallest = sorted([min(group, key=_size) for group in lengths], key=_size)[:2]
    return [smallest, *halves([part for part in parts if part not in smallest])]


def _size(part: Part) -> float:
    return part.request.size * (part.stop - part.start) / part.request.rows


def halves(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """The parts in two halves, in order; a single one stays alone, and none makes none."""
    middle = (len(parts) + 1) // 2
    return [half for half in (parts[:middle], parts[middle:]) if half]
