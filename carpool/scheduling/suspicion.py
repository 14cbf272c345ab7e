"""Whose requests were rejected lately, and who resembles them.

Finding one bad request in a batch costs a dozen calls to the predictor. A client that sends bad requests mostly sends
more of them, so what a culprit had about it (its traits: content, connection, …) is remembered for a while, and
requests that have the same travel alone. Equal content is enough for that at once. Any other trait has to be that of
two culprits whose content differed, and to be guilty at a rate: one that good requests share as well, such as a
connection from an ingress, is cleared by their answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping

from carpool.scheduling.messages import Request

Traits = Mapping[str, Callable[[Request], Hashable | None]]
"""What requests may have in common, by name, their content first; None where a request has nothing of the kind."""

NO_TRAITS: Traits = {}

Trait = tuple[str, int]
"""The name of a trait and the hash of its value. Equal hashes of different values do no harm: answers clear them."""

# Travelling alone costs one call, a culprit in a batch of 32 about ten: alone is cheaper from one guilty in ten on. The
# share asked for is higher, as those who travel alone also wait longer.
_INNOCENT_FOR_ONE_GUILTY = 3

# So many culprits of different content make a trait speak against others. More are not remembered, so that trust
# returns after three times as many answers: no more than the calls that suspects may save up.
_ENOUGH_GUILTY = 2

# So many answers in favour of a trait are remembered at most.
_MOST_INNOCENT = 1000

# After this many seconds without a rejection a trait is forgotten.
_MEMORY_SECONDS = 60.0
_MOST_RECORDS = 4096


def no_trait(request: Request) -> None:
    """A request has nothing in common with any other."""


class _Record:
    __slots__ = ("expires", "guilty", "innocent")

    def __init__(self) -> None:
        self.guilty = self.innocent = 0
        self.expires = 0.0

    @property
    def is_accusing(self) -> bool:
        return self.guilty >= _ENOUGH_GUILTY and self.innocent < _INNOCENT_FOR_ONE_GUILTY * self.guilty


class Suspicion:
    """Verdicts on requests, by their traits. Times are seconds."""

    # Mutable state: _records by trait, the one blamed last at the end; _accusing, those that speak against a request
    # that has them; _on_trial: requests on which a verdict is due, with their traits; _trusted: origins of suspects
    # that were answered, and until when that counts.
    def __init__(self, traits: Traits) -> None:
        self._kinds = traits
        names = list(traits)
        self._content: str | None = names[0] if names else None
        self._origin: str | None = names[-1] if names else None
        self._records: OrderedDict[Trait, _Record] = OrderedDict()
        self._accusing: set[Trait] = set()
        self._on_trial: dict[Request, tuple[Trait, ...]] = {}
        self._trusted: OrderedDict[Trait, float] = OrderedDict()

    @property
    def is_calm(self) -> bool:
        """Whether nothing was rejected lately."""
        return not self._records

    @property
    def awaits_verdicts(self) -> bool:
        """Whether `innocent` would learn from any answer."""
        return bool(self._on_trial)

    def suspects(self, request: Request, now: float) -> bool:
        """Whether a request resembles rejected ones; if so, a verdict on it is due."""
        self._forget_old(now)
        if not self._accusing:
            return False
        traits = self._traits(request)
        if not self._accuse(traits, now):
            return False
        self._on_trial[request] = traits
        return True

    def knows(self, request: Request) -> bool:
        """Whether the origin of a request on trial was found guilty."""
        return any(trait[0] == self._origin and trait in self._records for trait in self._on_trial.get(request, ()))

    def watch(self, requests: Iterable[Request]) -> None:
        """A batch of these was rejected: verdicts on them are due."""
        for request in requests:
            if request not in self._on_trial:
                self._on_trial[request] = self._traits(request)

    def guilty(self, request: Request, now: float) -> None:
        """It was rejected when it travelled alone; its payload is still there.

        Traits that spoke against it before, and never against a good one, explain that: no others are blamed.
        """
        traits = self._on_trial.pop(request, None) or self._traits(request)
        explaining = [trait for trait in traits if trait in self._accusing and not self._records[trait].innocent]
        for trait in traits:
            if trait[0] == self._origin:
                self._trusted.pop(trait, None)
            if not explaining or trait in explaining or trait[0] == self._origin:
                self._blame(trait, _ENOUGH_GUILTY if trait[0] == self._content else 1, now)
        while len(self._records) > _MOST_RECORDS:
            self._drop(next(iter(self._records)))

    def _blame(self, trait: Trait, times: int, now: float) -> None:
        record = self._records.setdefault(trait, _Record())
        self._records.move_to_end(trait)
        record.expires = now + _MEMORY_SECONDS
        record.guilty += times
        if record.guilty > _ENOUGH_GUILTY:
            record.innocent = record.innocent * _ENOUGH_GUILTY // record.guilty
            record.guilty = _ENOUGH_GUILTY
        if record.is_accusing:
            self._accusing.add(trait)

    def innocent(self, request: Request, now: float) -> bool:
        """It was answered. Returns whether somebody who was suspected until now may not be any more."""
        traits = self._on_trial.pop(request, ())
        for trait in traits:
            if trait[0] == self._origin and trait not in self._records:
                self._trusted[trait] = now + _MEMORY_SECONDS
                if len(self._trusted) > _MOST_RECORDS:
                    self._trusted.popitem(last=False)
        return self._absolve(traits, 1)

    def answered(self, request: Request, times: int) -> bool:
        """One of so many that were answered together, of which no verdict was due; its payload is still there.

        Returns as `innocent` does. It stands for all of them, as looking at each would take longer than that is worth.
        """
        return self._absolve(self._traits(request), times)

    def _absolve(self, traits: tuple[Trait, ...], times: int) -> bool:
        was_accused = not self._accusing.isdisjoint(traits)
        for trait in traits:
            record = self._records.get(trait)
            if record is None:
                continue
            record.innocent = min(_MOST_INNOCENT, record.innocent + times)
            if trait[0] == self._content:
                self._drop(trait)  # the same was answered: whatever was wrong with it is over
            elif not record.is_accusing:
                self._accusing.discard(trait)
        return was_accused

    def forget(self, request: Request) -> None:
        """There will be no verdict on it."""
        self._on_trial.pop(request, None)

    def accuses(self, request: Request, now: float) -> bool:
        """Whether a request on trial is still suspected."""
        return self._accuse(self._on_trial.get(request, ()), now)

    def _accuse(self, traits: tuple[Trait, ...], now: float) -> bool:
        """Whether something speaks against traits, other than what their origin has shown not to mean anything."""
        accusing = [trait for trait in traits if trait in self._accusing]
        if not accusing or accusing[0][0] == self._content:
            return bool(accusing)
        return not any(self._trusted.get(trait, 0.0) > now for trait in traits)

    def _traits(self, request: Request) -> tuple[Trait, ...]:
        found = [(name, measure(request)) for name, measure in self._kinds.items()]
        return tuple((name, hash(value)) for name, value in found if value is not None)

    def _forget_old(self, now: float) -> None:
        while self._records:
            trait = next(iter(self._records))
            if self._records[trait].expires > now:
                return
            self._drop(trait)

    def _drop(self, trait: Trait) -> None:
        del self._records[trait]
        self._accusing.discard(trait)
