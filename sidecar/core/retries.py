"""Which failed batches are tried again, how, and how often.

A predictor that rejects a batch does not say whose instance it disliked. Sending the halves again, and the halves of
those, finds the culprit in about 2·log2(n) calls and lets everybody else have their answers. The calls cost the
predictor time, so a budget bounds them: one poisonous caller must not slow all others down without limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.core.model import Part

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

    It starts full with 100, enough to isolate culprits in several batches at once; in the long run retries are at
    most `rate` times the regular calls.
    """

    def __init__(self) -> None:
        self.tokens = _BURST

    def earn(self, rate: float) -> None:
        """A regular batch went out."""
        self.tokens = min(_BURST, self.tokens + rate)

    def spend(self, calls: int) -> bool:
        """Take `calls` retries, all or none; False if the budget cannot pay for them."""
        if self.tokens < calls:
            return False
        self.tokens -= calls
        return True


def halves(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """The parts in two halves, in order; a single one stays alone, and none makes none."""
    middle = (len(parts) + 1) // 2
    return [half for half in (parts[:middle], parts[middle:]) if half]
