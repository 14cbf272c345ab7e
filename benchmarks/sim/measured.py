"""`python -m benchmarks.sim.measured`: the adaptive policy beside fixed windows, before a measured predictor.

A sentence encoder on a GPU reads texts, computes, and writes embeddings, each while the others have another batch. Its
time for a batch bends: 96 instances at once are served at a higher rate than 128. The sidecar's own core takes what it
took there. The same times without stages, on two workers, and in stages that slow each other down, stand beside it. A
figure is the mean over seeds; the best window is the best one of the sweep for that cell and that figure.
"""

from __future__ import annotations

import argparse
import enum
import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple, cast

from rich.console import Console

from benchmarks.sim import contenders, variants
from carpool.scheduling import adaptive, limits, own_time, scheduler, window
from carpool_sidecar.planning import engine, service_times, traffic

TIMES = ((1, 1.60), (2, 1.64), (4, 1.81), (8, 1.80), (16, 2.16), (32, 2.71), (64, 3.93), (96, 5.19), (128, 7.30))
"""Instances, and milliseconds of a call with so many that has the predictor to itself."""

ENCODER_TIMES = (
    (1, 1.31),
    (2, 1.43),
    (4, 1.57),
    (8, 1.68),
    (16, 1.93),
    (32, 2.47),
    (64, 3.62),
    (96, 4.71),
    (128, 6.16),
)
"""The same of another run, whose answers followed each other as those of two stages in one interpreter do."""

AROUND = 0.3  # milliseconds of these for network and HTTP
OWN = own_time.OwnTime(0.00012, 0.000019)  # of the sidecar, where answers have 4.7 kB
SIZE = 128
STAGES = (0.2, 0.62, 0.18)
THIRDS = (1 / 3, 1 / 3, 1 / 3)
WINDOWS = (0.0, 0.0009, 0.0018, 0.0037)
WARM_UP = 0.3
MANY_ROWS, BULK_ROWS, BULK_SHARE = 8, 32, 1 / 33


def part_of_times(share: float) -> service_times.Measured:
    """What so large a share of the work takes."""
    return service_times.Measured(tuple((rows, (took - AROUND) * share / 1000) for rows, took in TIMES))


def staged(*shares: float, workers: int = 1, variation: float = 0.05) -> service_times.Predictor:
    """A predictor whose stages take such shares of the work."""
    first, *later = map(part_of_times, shares)
    return service_times.Predictor(first, AROUND / 1000, workers, variation, tuple(later))


def in_one_interpreter() -> variants.OneInterpreter:
    """Two stages, of which the second has a third of what grows with the batch."""
    second = [0.05 + 0.35 * max(0.0, took - AROUND - 0.9) for _, took in ENCODER_TIMES]
    points = list(zip(ENCODER_TIMES, second, strict=True))
    computes = service_times.Measured(tuple((rows, (took - AROUND - later) / 1000) for (rows, took), later in points))
    writes = service_times.Measured(tuple((rows, later / 1000) for (rows, _), later in points))
    return variants.OneInterpreter(computes, AROUND / 1000, 1, 0.15, (writes,))


PREDICTORS = {
    "in stages": staged(*STAGES),
    "in equal stages": staged(*THIRDS),
    "in one interpreter": in_one_interpreter(),
    "serial": staged(1.0),
    "on two workers": staged(1.0, workers=2),
}


class Kind(enum.StrEnum):
    """What callers send, and when."""

    POISSON = "poisson"
    BURSTS = "bursts"  # 2.5 times the mean rate for about 50 ms, half of it for 150 ms
    ROWS = "rows"  # requests of 1 to 8 instances
    LENGTHS = "lengths"  # texts of very different lengths, which even out in large batches only
    BULK = "bulk"  # half of the instances come in requests of 32
    CLOSED = "closed"  # callers who ask again at once


class Scene(NamedTuple):
    """A predictor by its name, and a load on it: a share of what is possible, or callers in a closed loop."""

    predictor: str
    kind: Kind
    load: float

    @property
    def possible(self) -> float:
        """Instances a second, at the size at which the predictor can do most; the sidecar's core may do less."""
        predictor = PREDICTORS[self.predictor]
        return min(SIZE / OWN.of(SIZE), max(predictor.capacity(rows) for rows, _ in TIMES))

    def simulate(self, make: engine.MakeScheduler, seconds: float, seed: int) -> engine.Result:
        """A run of so many seconds."""
        predictor = PREDICTORS[self.predictor]
        if self.kind is Kind.LENGTHS:
            services = [Lengths(service, seed) for service in (predictor.service, *predictor.later)]
            predictor = predictor._replace(service=services[0], later=tuple(services[1:]))
        return engine.simulate(make, predictor, self._workload(seconds, seed), seed=seed, own=OWN)

    def _workload(self, seconds: float, seed: int) -> traffic.Workload:
        if self.kind is Kind.CLOSED:
            return variants.Closed(int(self.load), seconds, variants.network_think(0.0001, 0.0002), seed)
        rows = Mixed.MEAN.get(self.kind, 1.0)
        rate = self.load * self.possible / rows
        if self.kind is Kind.BURSTS:
            return traffic.Open(variants.bursts(2.5 * rate, 0.5 * rate, 0.050, 0.150, seed), seconds)
        times = traffic.poisson(rate, seed)
        return Mixed(times, seconds, self.kind, seed) if self.kind in Mixed.MEAN else traffic.Open(times, seconds)


class Lengths:
    """Takes longer or less long by chance: the lengths of single texts, whose mean varies less the more there are."""

    def __init__(self, service: service_times.Service, seed: int, variation: float = 0.6) -> None:
        self._service = service
        self._variation = variation
        self._random = random.Random(f"lengths {seed}")

    def seconds(self, rows: int, now: float) -> float:
        """What texts of one length take, by a gamma variate with mean 1."""
        shape = rows / self._variation**2
        return self._service.seconds(rows, now) * (0.5 + 0.5 * self._random.gammavariate(shape, 1 / shape))


class Mixed(traffic.Open):
    """As `Open`, with requests of several instances."""

    MEAN: ClassVar = {Kind.ROWS: (1 + MANY_ROWS) / 2, Kind.BULK: 1 + BULK_SHARE * (BULK_ROWS - 1)}

    def __init__(self, times: Iterator[float], end: float, kind: Kind, seed: int) -> None:
        super().__init__(times, end)
        self._kind = kind
        self._random = random.Random(f"rows {seed}")

    def after_arrival(self) -> float | None:
        """The next one, which has a number of instances of its own."""
        if self._kind is Kind.ROWS:
            rows = self._random.randint(1, MANY_ROWS)
        else:
            rows = BULK_ROWS if self._random.random() < BULK_SHARE else 1
        self.request = traffic.RequestKind(rows)
        return super().after_arrival()


class OnEventLoop(scheduler.Scheduler):
    """Is woken after whole milliseconds, as the event loop does it; what comes may wake it before."""

    _asked, _told = 0.0, 0.0

    def next_deadline(self) -> float | None:
        """At the end of the first millisecond, counted from now, by which it wants to be woken."""
        when = super().next_deadline()
        if when is not None and when != self._asked:
            now = self._clock()
            self._asked, self._told = when, now + math.ceil(max(0.0, when - now) * 1000) / 1000
        return None if when is None else self._told


def adaptive_policy(size: int = SIZE, kind: type[adaptive.Adaptive] = adaptive.Adaptive) -> engine.MakeScheduler:
    """As the sidecar has it without settings, but for the size of its batches."""

    def make_policy(bounds: limits.Limits) -> adaptive.Adaptive:
        policy = kind(bounds, tick=contenders.TICK)
        policy.predictor.hint_overhead(AROUND / 1000)
        return policy

    most = contenders.MOST_IN_FLIGHT
    return contenders.production(make_policy, size, contenders.ADAPTIVE_MAX_LATENCY, most, True, OnEventLoop)


def learning_window(seconds: float) -> engine.MakeScheduler:
    """A window that finds out how many batches are in flight."""

    def make_policy(bounds: limits.Limits) -> window.Window:
        return window.Window(bounds, contenders.TICK)

    return contenders.production(make_policy, SIZE, seconds, contenders.MOST_IN_FLIGHT, True, OnEventLoop)


def windows(scene: Scene) -> dict[str, engine.MakeScheduler]:
    """The sweep for a scene: windows, with as many in flight as may be good."""
    sweep = {
        f"{wait * 1000:g} ms, {count}": contenders.production(window.Window, SIZE, wait, count, kind=OnEventLoop)
        for wait in WINDOWS
        for count in ((1, 2) if scene.predictor == "serial" else (2, 3))
    }
    sweep["1.8 ms of 32, 2"] = contenders.production(window.Window, 32, 0.0018, 2, kind=OnEventLoop)
    return sweep


class Figures(NamedTuple):
    """Means over seeds; seconds, and answers a second."""

    p50: float
    p99: float
    rate: float
    batch: float

    def __str__(self) -> str:
        return f"{self.p50 * 1e3:.2f} / {self.p99 * 1e3:.2f} ({self.batch:.0f})"


def figures(scene: Scene, make: engine.MakeScheduler, seconds: float, seeds: int) -> Figures:
    """What callers get."""
    found = [scene.simulate(make, seconds, 3 + seed).summary(WARM_UP) for seed in range(seeds)]
    columns = [(each.p50, each.p99, each.throughput, each.mean_batch) for each in found]
    return Figures(*map(statistics.fmean, zip(*columns, strict=True)))


class Verdict(NamedTuple):
    """The adaptive policy in a scene, beside the best window for each figure; below 1 it is better."""

    scene: Scene
    mine: Figures
    best: dict[str, tuple[str, float]]

    @property
    def ratios(self) -> dict[str, float]:
        mine = {"p50": self.mine.p50, "p99": self.mine.p99, "rate": 1 / self.mine.rate}
        return {name: mine[name] / best for name, (_, best) in self.best.items()}


def compare(scene: Scene, make: engine.MakeScheduler, sweep: dict[str, Figures], seconds: float, seeds: int) -> Verdict:
    """Run the adaptive policy in a scene whose windows are known."""
    mine = figures(scene, make, seconds, seeds)
    if scene.kind is Kind.CLOSED:
        name = max(sweep, key=lambda each: sweep[each].rate)
        return Verdict(scene, mine, {"rate": (name, 1 / sweep[name].rate)})
    best = {}
    for figure in ("p50", "p99"):
        name = min(sweep, key=lambda each: cast(float, getattr(sweep[each], figure)))
        best[figure] = name, cast(float, getattr(sweep[name], figure))
    return Verdict(scene, mine, best)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each scene."""
    options = _parser().parse_args(argv)
    console = Console(width=150, highlight=False)
    for predictor in options.predictors:
        for kind in options.kinds:
            loads = options.callers if kind is Kind.CLOSED else options.loads
            for load in loads:
                scene = Scene(predictor, kind, load)
                sweep = {
                    name: figures(scene, make, options.seconds, options.seeds) for name, make in windows(scene).items()
                }
                verdict = compare(scene, adaptive_policy(), sweep, options.seconds, options.seeds)
                console.print(words(verdict))
    return 0


def words(verdict: Verdict) -> str:
    """One line."""
    scene = verdict.scene
    load = f"{scene.load:g}" if scene.kind is Kind.CLOSED else f"{scene.load:.0%}"
    ratios = ", ".join(f"{figure} {verdict.ratios[figure]:.2f} of {name}" for figure, (name, _) in verdict.best.items())
    return f"{scene.predictor}, {scene.kind} {load}: {verdict.mine}; {ratios}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sim.measured", description=__doc__)
    add = parser.add_argument
    add("--predictors", type=lambda text: text.split(","), default=list(PREDICTORS), metavar="NAME,…")
    add("--kinds", type=lambda text: [Kind(each) for each in text.split(",")], default=list(Kind), metavar="KIND,…")
    add("--loads", type=_numbers, default=[0.2, 0.5, 0.8, 0.95], metavar="X,…", help="shares of what is possible")
    add("--callers", type=_numbers, default=[1, 8, 32, 128, 512], metavar="N,…", help="of closed loops")
    add("--seconds", type=float, default=1.0, metavar="S", help="of virtual time, a third of it to learn")
    add("--seeds", type=int, default=3, metavar="N")
    return parser


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
