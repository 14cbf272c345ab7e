"""What a status of the predictor's means: which batches are tried again by halves, and which say that it is overloaded.

The scheduler never sees a status; it is told the remedy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from carpool_sidecar import errors
from carpool_sidecar.batching import size_refusals

# Client errors that all members of a batch share by construction (same path, same credentials) or that speak of the
# predictor's state: sending halves cannot change them.
_NEVER_ISOLATED = frozenset({401, 403, 404, 405, 406, 407, 408, 410, 415, 421, 425, 426, 428, 429, 451})

_OVERLOAD = frozenset({429, 503})


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


class Rules:
    """Tells the remedy for a status.

    `named` are the statuses after which a batch is tried again by halves, as `Statuses.parse` reads them.
    None: 4xx, and the route's `doubtful`.
    """

    def __init__(self, named: str | None = None) -> None:
        self.retried = Statuses.parse("4xx" if named is None else named)
        self._isolates_doubtful = named is None

    def judge(self, refusal: errors.UpstreamStatus, doubtful: Collection[int], rows: int) -> None:
        """Give the refusal of a batch of so many rows its remedy.

        One that says itself that its blame is in doubt is treated as one of a status that the route doubts.
        A batch that is too large is sent in smaller ones, whatever is `named`: that looks for no culprit.
        """
        status = refusal.status
        refusal.is_overload = status in _OVERLOAD
        refusal.is_doubtful = refusal.is_doubtful or status in doubtful
        if status in self.retried:
            refusal.remedy = errors.Remedy.HALVES
        elif refusal.is_doubtful and self._isolates_doubtful:
            refusal.remedy = errors.Remedy.HALVES_WHILE_WELL
        sign = size_refusals.read(refusal, rows)
        if sign is not None:
            refusal.remedy = errors.Remedy.SMALLER
            refusal.most_rows = sign.most
            refusal.is_doubtful = sign.memory
            refusal.is_overload = False
