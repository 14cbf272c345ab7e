"""Whose requests were rejected lately, who resembles them, and where these wait.

Finding one bad request in a batch costs a dozen calls to the predictor. A client that sends bad requests mostly sends
more of them, so what a culprit had about it (its traits: content, connection, …) is remembered for a while, and
requests that have the same travel alone. Equal content is enough for that at once. Any other trait has to be that of
two culprits whose content differed, and to fail at a rate: one that good requests share as well, such as a
connection from an ingress, is cleared by their answers.

In quarantine they travel alone, one after another, in a bounded share of calls. While regular requests come, suspects
get at most ten calls a second and one more for every four regular batches, so that a client which sends nothing but
bad requests slows itself down and hardly anybody else. Suspects of one batch key with equal content share one call's
outcome.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from carpool.scheduling.backlog import Backlog
from carpool.scheduling.learned_limits import LearnedLimits
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import QUARANTINED, Part, Place, Request, Suspects

Traits = Mapping[str, Callable[[Request], Hashable | None]]
"""What requests may have in common, by name, their content first; None where a request has nothing of the kind."""

NO_TRAITS: Traits = {}

Trait = tuple[str, int]
"""The name of a trait and the hash of its value. Equal hashes of different values do no harm: answers clear them."""

# Travelling alone costs one call, a culprit in a batch of 32 about ten: alone is cheaper from one failure in ten on.
# The share asked for is higher, as those who travel alone also wait longer.
_ANSWERS_FOR_ONE_FAILURE = 3

# Failures of different content that make others with a trait suspects. Two are enough, and the most that is counted, so
# six answers clear a trait: no more than the calls that suspects may save up.
_ENOUGH_FAILURES = 2

# So many answers in favour of a trait are remembered at most.
_MOST_ANSWERS = 1000

# After this many seconds without a rejection a trait is forgotten.
_MEMORY_SECONDS = 60.0
_MOST_RECORDS = 4096


def no_trait(request: Request) -> None:
    """A request has nothing in common with any other."""


class _Record:
    """What became of requests with a trait: how many `failed` alone, and how many were `answered`."""

    __slots__ = ("answered", "expires", "failed")

    def __init__(self) -> None:
        self.failed = self.answered = 0
        self.expires = 0.0

    @property
    def makes_suspects(self) -> bool:
        return self.failed >= _ENOUGH_FAILURES and self.answered < _ANSWERS_FOR_ONE_FAILURE * self.failed


class Suspicion:
    """What became of requests, by their traits, and so who is suspected. Times are seconds."""

    # Mutable state: _records by trait, the one that failed last at the end; _suspected, the traits that make requests
    # suspects; _awaited: requests whose outcome is to be learned from, with their traits; _trusted: origins of suspects
    # that were answered, and until when that counts.
    def __init__(self, traits: Traits) -> None:
        self._kinds = traits
        names = list(traits)
        self._content: str | None = names[0] if names else None
        self._origin: str | None = names[-1] if names else None
        self._records: OrderedDict[Trait, _Record] = OrderedDict()
        self._suspected: set[Trait] = set()
        self._awaited: dict[Request, tuple[Trait, ...]] = {}
        self._trusted: OrderedDict[Trait, float] = OrderedDict()

    @property
    def is_calm(self) -> bool:
        """Whether nothing was rejected lately, and no outcome is awaited."""
        return not (self._records or self._awaited)

    @property
    def awaits_outcomes(self) -> bool:
        """Whether `answered_alone` would learn from any answer."""
        return bool(self._awaited)

    # --- questions ---------------------------------------------------------------------------------------------

    def suspects(self, request: Request, now: float) -> bool:
        """Whether a request resembles rejected ones; if so, its outcome is awaited."""
        while self._records and self._records[next(iter(self._records))].expires <= now:
            self._drop(next(iter(self._records)))
        if not self._suspected:
            return False
        traits = self._traits(request)
        if self._is_suspicious(traits, now):
            self._awaited[request] = traits
            return True
        return False

    def still_suspects(self, request: Request, now: float) -> bool:
        """Whether a request whose outcome is awaited is suspected."""
        return self._is_suspicious(self._awaited.get(request, ()), now)

    def knows(self, request: Request) -> bool:
        """Whether requests of this one's origin failed alone, where its outcome is awaited."""
        return any(trait[0] == self._origin and trait in self._records for trait in self._awaited.get(request, ()))

    # --- what became of requests -------------------------------------------------------------------------------

    def watch(self, requests: Iterable[Request]) -> None:
        """A batch of these was rejected: their outcomes are awaited."""
        for request in requests:
            if request not in self._awaited:
                self._awaited[request] = self._traits(request)

    def forget(self, request: Request) -> None:
        """There will be no outcome to learn from."""
        self._awaited.pop(request, None)

    def failed_alone(self, request: Request, now: float) -> None:
        """It was rejected when it travelled alone; its payload is still there.

        If it has traits that were suspected already, and never of an answered request, only those and its origin count.
        """
        traits = self._awaited.pop(request, None) or self._traits(request)
        enough = [trait for trait in traits if trait in self._suspected and not self._records[trait].answered]
        for trait in traits:
            is_origin = trait[0] == self._origin
            if is_origin:
                self._trusted.pop(trait, None)
            if not enough or trait in enough or is_origin:
                self._count_failure(trait, _ENOUGH_FAILURES if trait[0] == self._content else 1, now)
        while len(self._records) > _MOST_RECORDS:
            self._drop(next(iter(self._records)))

    def answered_alone(self, request: Request, now: float) -> bool:
        """It was answered. Returns whether somebody who was suspected until now may not be any more."""
        traits = self._awaited.pop(request, ())
        for trait in traits:
            if trait[0] == self._origin and trait not in self._records:
                self._trusted[trait] = now + _MEMORY_SECONDS
                if len(self._trusted) > _MOST_RECORDS:
                    self._trusted.popitem(last=False)
        return self._count_answers(traits, 1)

    def answered_together(self, request: Request, times: int) -> bool:
        """One of so many that were answered together, whose outcomes were not awaited; its payload is still there.

        Returns as `answered_alone` does. It stands for all, as looking at each would take longer than that is worth.
        """
        return self._count_answers(self._traits(request), times)

    # --- internals ---------------------------------------------------------------------------------------------

    def _count_failure(self, trait: Trait, times: int, now: float) -> None:
        record = self._records.setdefault(trait, _Record())
        self._records.move_to_end(trait)
        record.expires = now + _MEMORY_SECONDS
        record.failed += times
        if record.failed > _ENOUGH_FAILURES:
            record.answered = record.answered * _ENOUGH_FAILURES // record.failed
            record.failed = _ENOUGH_FAILURES
        if record.makes_suspects:
            self._suspected.add(trait)

    def _count_answers(self, traits: tuple[Trait, ...], times: int) -> bool:
        was_suspected = not self._suspected.isdisjoint(traits)
        for trait in traits:
            record = self._records.get(trait)
            if record is None:
                continue
            record.answered = min(_MOST_ANSWERS, record.answered + times)
            if trait[0] == self._content:
                self._drop(trait)  # the same was answered: whatever was wrong with it is over
            elif not record.makes_suspects:
                self._suspected.discard(trait)
        return was_suspected

    def _is_suspicious(self, traits: tuple[Trait, ...], now: float) -> bool:
        """Whether a trait is suspected, other than what its origin has shown not to mean anything."""
        suspected = [trait for trait in traits if trait in self._suspected]
        if not suspected or suspected[0][0] == self._content:
            return bool(suspected)
        return not any(self._trusted.get(trait, 0.0) > now for trait in traits)

    def _traits(self, request: Request) -> tuple[Trait, ...]:
        found = [(name, measure(request)) for name, measure in self._kinds.items()]
        return tuple((name, hash(value)) for name, value in found if value is not None)

    def _drop(self, trait: Trait) -> None:
        del self._records[trait]
        self._suspected.discard(trait)


# --- quarantine -------------------------------------------------------------------------------------------------

# A suspect's call is followed by the next one after this many seconds, less what regular batches earn meanwhile: a
# quarter of it each. So many calls may be saved up.
_PAUSE = 0.1
_EARNED = _PAUSE / 4
_MOST_SAVED = 6

_QUIET_SECONDS = 1.0

# So many whose origin is new go for each one whose origin has failed before.
_NEW_FIRST = 3

# Suspects may take this part of the room for waiting instances, and for bytes: a flood must not keep others out.
_SHARE_OF_QUEUE = 4

Content = Callable[[Request], Hashable | None]
"""What a caller sent, to be compared in full; None if it is not to be compared."""


class Quarantine:
    """Suspects, the oldest first; at most one of them is at the predictor at any time.

    Those whose origin never failed go before the others, three to one: a caller that only has something in
    common with culprits must not wait behind all of theirs. Times are seconds on the scheduler's clock.
    """

    # Mutable state: _new and _known, a queue for each outcome that is awaited, apart by whether the origin
    # failed before; on_trial, the request whose outcome is being found out; when the next suspect may travel; when a
    # regular batch last left; how many of the new went since one of the known.
    def __init__(self, limits: Limits, content: Content, learned: LearnedLimits | None = None) -> None:
        self._new = Backlog(limits, learned, QUARANTINED)
        self._known = Backlog(limits, learned, QUARANTINED)
        self.on_trial: Request | None = None
        self._limits = limits
        self._content = content
        self._allowed_at = self._last_regular = -math.inf
        self._new_in_a_row = 0

    def __bool__(self) -> bool:
        return bool(self._new or self._known)

    def __iter__(self) -> Iterator[Request]:
        """All that wait; nothing may change meanwhile."""
        return itertools.chain(self._new, self._known)

    @property
    def rows(self) -> int:
        """Instances that wait here."""
        return self._new.rows + self._known.rows

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._new.size + self._known.size

    def has_room(self, request: Request) -> bool:
        """Whether one more may wait here; the only one may, however large it is."""
        most, most_bytes = self._limits.max_queue_instances, self._limits.max_queue_bytes
        return not self or (
            self.rows + request.rows <= most / _SHARE_OF_QUEUE
            and self.size + request.size <= most_bytes / _SHARE_OF_QUEUE
        )

    def add(self, request: Request, is_known: bool) -> None:
        """Keep a request until `next` lets it travel or `release` finds it cleared."""
        content = self._content(request)
        request.queue_key = Suspects(request.key, request.sequence if content is None else content, is_known)
        self._of(request).add(request)

    def regular_left(self, now: float) -> None:
        """A regular batch was sent."""
        self._allowed_at -= _EARNED
        self._last_regular = now

    def is_quiet(self, now: float) -> bool:
        """Whether no regular batch has left for a while: suspects take nothing from anybody."""
        return now - self._last_regular >= _QUIET_SECONDS

    def next(self, now: float, is_free: bool) -> Sequence[Part]:
        """What the next suspect's call carries, or nothing. If it `is_free`, nothing has to be saved up for it."""
        if self._is_busy or not self:
            return ()
        if not is_free:
            if now < self._allowed_at:
                return ()
            self._allowed_at = max(self._allowed_at, now - (_MOST_SAVED - 1) * _PAUSE) + _PAUSE
        if self.on_trial is not None and self.on_trial.open:
            waiting = self._of(self.on_trial)  # the rest of it
        elif self._new and (self._new_in_a_row < _NEW_FIRST or not self._known):
            waiting = self._new
            self._new_in_a_row += 1
        else:
            waiting = self._known
            self._new_in_a_row = 0
        queue = waiting.partly_sent() or waiting.due(math.inf, 0.0)
        if queue is None:
            return ()
        self.on_trial = queue.first
        return waiting.take(queue, queue.first.rows_queued)

    def next_at(self) -> float:
        """When `next` will have something, which had nothing just now, if nothing else happens; infinity if never."""
        return self._allowed_at if self and not self._is_busy else math.inf

    def closed(self, request: Request, place: Place) -> None:
        """A request that was at that place does not wait any more, or is refused or cancelled."""
        if place is QUARANTINED:
            self._of(request).remove(request)
        if request is self.on_trial:
            self.on_trial = None

    def equals(self, request: Request) -> Sequence[Request]:
        """The other requests that wait for the outcome of this one."""
        if not isinstance(request.queue_key, Suspects):
            return ()
        return [
            other
            for is_known, waiting in ((False, self._new), (True, self._known))
            for other in waiting.of_key(request.queue_key._replace(is_known=is_known))
            if other is not request
        ]

    def release(self, answered: Request | None, is_suspected: Callable[[Request], bool]) -> Sequence[Request]:
        """Take out who is cleared by an answer: equals of a suspect, and all who are not suspected any more.

        Each has its batch key again. Who was cut stays, as its first rows travel.
        """
        if answered is self.on_trial:
            self.on_trial = None
        equals = set() if answered is None else set(self.equals(answered))
        cleared = [
            request for request in self if not request.rows_taken and (request in equals or not is_suspected(request))
        ]
        for request in cleared:
            self._of(request).withdraw(request)
            request.queue_key = request.key
        return cleared

    def refresh(self) -> None:
        """Adapt to changed limits."""
        self._new.refresh()
        self._known.refresh()

    def _of(self, request: Request) -> Backlog:
        suspects: Any = request.queue_key
        return self._known if suspects.is_known else self._new

    @property
    def _is_busy(self) -> bool:
        """Whether an outcome is being found out, and no more rows have to be sent for it."""
        return self.on_trial is not None and self.on_trial.open and not self.on_trial.rows_queued
