"""Which failed batches are tried again, how, and how often.

A predictor that rejects a batch does not say whose instance it disliked. Sending the halves again, and the halves of
those, finds the culprit in about 2·log2(n) calls and lets everybody else have their answers. The calls cost the
predictor time, so a budget bounds how many of them go before regular batches; the others go when nothing regular waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from carpool.scheduling.messages import Part

# Client errors that all members of a batch share by construction (same path, same credentials) or that speak of the
# predictor's state: sending halves cannot change them.
_NEVER_ISOLATED = frozenset({401, 403, 404, 405, 406, 407, 408, 410, 415, 421, 425, 426, 428, 429, 451})

_BURST = 100.0


@dataclass(frozen=True, slots=True)
class Statuses:
    """A set of HTTP statuses, written like `4xx,500,503`."""

    text: str
    members: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Statuses:
        """Read a comma-separated list of `4xx`, `5xx` and single statuses from 400 to 599; empty means none.

        `4xx` leaves out those that isolation cannot help (401, 404, 429, …); naming one of them includes it.
        Raises `ValueError` that says what is allowed.
        """
        members: set[int] = set()
        for item in filter(None, (item.strip().lower() for item in text.split(","))):
            if item in ("4xx", "5xx"):
                start = int(item[0]) * 100
                members |= set(range(start, start + 100)) - _NEVER_ISOLATED
            elif item.isascii() and item.isdigit() and 400 <= int(item) <= 599:
                members.add(int(item))
            else:
                raise ValueError(f"{item!r} is not 4xx, 5xx or a status from 400 to 599")
        return cls(text, frozenset(members))

    def __contains__(self, status: int) -> bool:
        return status in self.members


class Budget:
    """A bucket of retry calls: every regular batch puts `rate` in, every retry takes one out.

    It starts full with 100, enough to isolate culprits in several batches at once; in the long run retries that go
    before regular batches are at most `rate` times those.
    """

    def __init__(self) -> None:
        self.tokens = _BURST

    def earn(self, rate: float) -> None:
        """A regular batch went out."""
        self.tokens = min(_BURST, self.tokens + rate)

    def spend(self) -> bool:
        """Take one retry; False if the budget cannot pay for it."""
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Retry(NamedTuple):
    """Rows that have to travel again, and why: `isolate` or `closed`."""

    parts: Sequence[Part]
    reason: str


class Retries:
    """Parts of failed batches that wait for a slot, the latest first: what is begun is finished before more begins."""

    # Mutable state: what goes before all else, what has to be paid for, the budget for that, and instances of both.
    def __init__(self) -> None:
        self._free: deque[Retry] = deque()
        self._paid: deque[Retry] = deque()
        self.budget = Budget()
        self.rows = 0

    def __bool__(self) -> bool:
        return bool(self._free or self._paid)

    def add(self, groups: Sequence[Sequence[Part]], reason: str, *, is_free: bool) -> None:
        """Send these again, one call for each group, in this order. If it `is_free`, the budget need not pay for it."""
        found = [Retry(group, reason) for group in groups if group]
        (self._free if is_free else self._paid).extendleft(reversed(found))
        self.rows += sum(map(_rows, found))

    def next(self, is_urgent: bool) -> Retry | None:
        """What goes now, less those who left; if it `is_urgent`, the budget is not asked."""
        while self._free or (self._paid and (is_urgent or self.budget.tokens >= 1)):
            waiting = self._free or self._paid
            parts, reason = found = waiting.popleft()
            self.rows -= _rows(found)
            still_open = [part for part in parts if part.request.open]
            if still_open:
                if waiting is self._paid and not is_urgent:
                    self.budget.spend()
                return Retry(still_open, reason)
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


def _rows(retry: Retry) -> int:
    return sum([stop - start for _, start, stop in retry.parts])


def halves(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """The parts in two halves, in order; a single one stays alone, and none makes none."""
    middle = (len(parts) + 1) // 2
    return [half for half in (parts[:middle], parts[middle:]) if half]
