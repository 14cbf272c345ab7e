"""What rounds measured, and their medians: a round that something else disturbed does not count."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Sample:
    """One round of one cell. Times in seconds, rate in requests/s, `busy` in shares of a core.

    `requests` were answered 2xx; `cpu_per_request` is of all the peer's processes. The lag is the load generator's
    own (open loop only); see `poisson.OpenLoop`.
    """

    requests: int
    rate: float
    p50: float
    p99: float
    errors: dict[str, int] = field(default_factory=dict)
    cpu_per_request: float | None = None
    busy: float | None = None
    lag_p99: float | None = None
    lag_max: float | None = None
    is_saturated: bool = False


@dataclass
class Rounds:
    """All rounds of one peer in one cell. `failures` say why others are missing; `is_over`: no more are tried."""

    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_over: bool = False

    @property
    def is_saturated(self) -> bool:
        """Whether most rounds were."""
        return 2 * sum(sample.is_saturated for sample in self.samples) > len(self.samples)

    @property
    def errors(self) -> dict[str, int]:
        """Those of all rounds together."""
        found: Counter[str] = Counter()
        for sample in self.samples:
            found.update(sample.errors)
        return dict(found)

    def median(self, value: Callable[[Sample], float | None]) -> float | None:
        """The median of a figure over the rounds that have it and were not saturated; None if there are none."""
        usable = [sample for sample in self.samples if not sample.is_saturated]
        values = [found for sample in usable if (found := value(sample)) is not None]
        return statistics.median(values) if values else None


@dataclass
class Outcome:
    """Everything about one peer.

    `absence` says why it was not measured, or no further; `trouble` what went wrong while it warmed up, though it
    came right in the end. Empty if there is nothing to say.
    """

    name: str
    role: str
    version: str = ""
    absence: str = ""
    trouble: str = ""
    cells: dict[str, Rounds] = field(default_factory=dict)

    def rounds(self, cell: str) -> Rounds:
        """The rounds of a cell, begun if there are none yet."""
        return self.cells.setdefault(cell, Rounds())

    def median(self, cell: str, value: Callable[[Sample], float | None]) -> float | None:
        """As `Rounds.median`, and None for a cell that was not measured."""
        return self.cells[cell].median(value) if cell in self.cells else None


def by_role(outcomes: Sequence[Outcome], role: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.role == role]
