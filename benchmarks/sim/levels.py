"""`python -m benchmarks.sim.levels`: interactive callers beside a flood of bulk, with and without levels of priority.

Interactive requests have one instance each and come as a Poisson stream; bulk comes in large requests, more than the
predictor can do. What interactive callers wait is told beside what they wait alone, and how much is done in all beside
what is possible.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console

from benchmarks.sim import measured
from carpool.scheduling import own_time
from carpool_sidecar.planning import engine, service_times, traffic

WARM_UP = 0.3
OVERLOAD = 1.3  # bulk, as a share of what is possible
LEVEL = 1


class System(NamedTuple):
    """A predictor, its largest batch, the instances of a bulk request, and what the sidecar takes itself."""

    predictor: service_times.Predictor
    size: int
    bulk_rows: int
    own: own_time.OwnTime = own_time.NO_TIME

    @property
    def possible(self) -> float:
        """Instances a second."""
        return max(self.predictor.capacity(rows) for rows in range(1, self.size + 1))


SYSTEMS = {
    "10 + 0.5 n ms": System(service_times.Predictor(service_times.parse("10+0.5n"), 0.001), 32, 16),
    **{
        f"MiniLM, {name}": System(measured.PREDICTORS[name], measured.SIZE, 32, measured.OWN)
        for name in ("serial", "in stages")
    },
}


class Mixed:
    """Two Poisson streams: one instance each of a level of its own, and bulk below it (`traffic.Workload`)."""

    def __init__(self, interactive: float, bulk: float, bulk_rows: int, level: int, end: float, seed: int) -> None:
        self.end = end
        self.request = traffic.ONE
        kinds = traffic.RequestKind(priority=level), traffic.RequestKind(bulk_rows, priority=-level)
        streams = [
            zip(itertools.takewhile(lambda time: time < end, traffic.poisson(rate, seed)), itertools.repeat(kind))
            for rate, kind in zip((interactive, bulk), kinds, strict=True)
            if rate
        ]
        self._coming: Iterator[tuple[float, traffic.RequestKind]] = heapq.merge(*streams)

    def first(self) -> list[float]:
        return [time for time in [self.after_arrival()] if time is not None]

    def after_arrival(self) -> float | None:
        """The next one; its kind is known from now on."""
        found = next(self._coming, None)
        if found is None:
            return None
        time, self.request = found
        return time

    def after_reply(self, now: float, refused: bool) -> float | None:
        return None


class Figures(NamedTuple):
    """Of interactive callers, in seconds; how many of them were refused; instances a second in all."""

    p50: float
    p99: float
    refused: int
    rate: float


def run(system: System, share: float, bulk: float, level: int, seconds: float, seed: int = 3) -> Figures:
    """Interactive requests are such a share of what is possible, and `bulk` another; `level` 0 makes them alike."""
    possible = system.possible
    load = Mixed(share * possible, bulk * possible / system.bulk_rows, system.bulk_rows, level, seconds, seed)
    make = measured.adaptive_policy(system.size)
    result = engine.simulate(make, system.predictor, load, seed=seed, own=system.own)
    mine = [each for each in result.outcomes if each.priority == level and each.rows == 1]
    mine = [each for each in mine if each.arrived > WARM_UP * seconds]
    waits = sorted(each.finished - each.arrived for each in mine if each.refused is None)
    rate = sum(batch.rows for batch in result.batches if batch.sent < seconds) / seconds
    return Figures(engine.quantile(waits, 0.5), engine.quantile(waits, 0.99), len(mine) - len(waits), rate)


def main() -> int:
    """Print a line for each predictor and share."""
    console = Console(width=150, highlight=False)
    for name, system in SYSTEMS.items():
        seconds = 5.0 if system.own.batch else 20.0
        for share in (0.05, 0.3):
            alone, beside, alike = (
                run(system, share, bulk, level, seconds) for bulk, level in ((0.0, 1), (OVERLOAD, 1), (OVERLOAD, 0))
            )
            console.print(
                f"{name}, {share:.0%}: p50 / p99 alone {_words(alone)}, in a flood {_words(beside)} "
                f"({beside.p99 / alone.p99:.2f} times), without levels {_words(alike)}; "
                f"{beside.rate / system.possible:.0%} of what is possible are done, "
                f"without {alike.rate / system.possible:.0%}"
            )
    return 0


def _words(figures: Figures) -> str:
    refused = f", {figures.refused} refused" if figures.refused else ""
    return f"{figures.p50 * 1e3:.1f} / {figures.p99 * 1e3:.1f} ms{refused}"


if __name__ == "__main__":
    sys.exit(main())
