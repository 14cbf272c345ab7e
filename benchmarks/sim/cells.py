"""The grid: which loads on which predictors. A cell says all that a run depends on but the contender and its length."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from benchmarks.sim import variants
from carpool_sidecar.planning import service_times, traffic

SEED = 7
BURST_HIGH, BURST_LOW, BURST_FOR, QUIET_FOR = 2.5, 0.5, 0.050, 0.150
POISSON_LOADS = (0.02, 0.1, 0.3, 0.6, 0.9, 0.97)
BURST_LOADS = (0.3, 0.6)
CALLERS = (1, 2, 4, 8, 16, 32, 48, 64, 128)
OVERLOADS = (0.5, 0.8, 0.95, 1.0, 1.3, 2.0)
DEADLINES = (1.5, 2, 4, 8)  # in S(B), plus h
SATURATING_CALLERS = 256


class Shape(enum.StrEnum):
    """How a predictor's real time relates to `fixed + per_row * rows`."""

    AFFINE = "affine"
    STEPS = "steps"  # padded to powers of two
    NOISY = "noisy"  # lognormal, coefficient of variation 0.5
    DRIFTS = "drifts"  # three times slower in the middle third of the run


@dataclass(frozen=True)
class System:
    """A predictor and the batch size it is given. Times are milliseconds, for people."""

    fixed: float
    per_row: float
    size: int
    overhead: float = 0.0
    workers: int = 1
    shape: Shape = Shape.AFFINE

    def __str__(self) -> str:
        extras = [] if self.shape is Shape.AFFINE else [self.shape.value]
        extras += [f"{self.workers} workers"] if self.workers > 1 else []
        name = f"{self.fixed:g}+{self.per_row:g}b, B={self.size}, h={self.overhead:g}"
        return ", ".join([name, *extras])

    @property
    def affine(self) -> service_times.Affine:
        return service_times.Affine(self.fixed / 1000, self.per_row / 1000)

    def seconds(self, rows: int) -> float:
        """S(rows), on the device."""
        return self.affine.seconds(rows, 0.0)

    @property
    def full(self) -> float:
        """S(B)."""
        return self.seconds(self.size)

    @property
    def capacity(self) -> float:
        """Instances a second with full batches one after another on every worker."""
        return self.workers / self.full * self.size

    def predictor(self, seconds: float) -> service_times.Predictor:
        """The device for a run of so many seconds."""
        model: service_times.Service = self.affine
        if self.shape is Shape.STEPS:
            model = variants.Padded(model)
        elif self.shape is Shape.DRIFTS:
            model = variants.Drifting(model, 3.0, seconds / 3, seconds * 2 / 3)
        variation = 0.5 if self.shape is Shape.NOISY else 0.05
        return service_times.Predictor(model, self.overhead / 1000, self.workers, variation)


class Kind(enum.StrEnum):
    """What the x of a cell means."""

    POISSON = "poisson"  # load as a share of capacity
    BURSTS = "bursts"  # mean load as a share of capacity; 2.5 times that for 50 ms, half of it for 150 ms
    CLOSED = "closed"  # callers in a closed loop
    OVERLOAD = "overload"  # load as a share of capacity, with deadlines
    WINDOW = "window"  # load as a share of what one batch in flight can do


@dataclass(frozen=True)
class Cell:
    """One load on one system. `deadline` is in multiples of S(B), plus h; None: nobody has one."""

    kind: Kind
    system: System
    x: float
    deadline: float | None = None

    def __str__(self) -> str:
        due = f", deadline {self.deadline:g} S(B)+h" if self.deadline else ""
        return f"{self.system}: {self.kind} {self.x:.3g}{due}"

    @property
    def timeout(self) -> float | None:
        """Seconds that a caller waits."""
        return None if self.deadline is None else self.deadline * self.system.full + self.system.overhead / 1000

    @property
    def rate(self) -> float:
        """Requests a second: offered in an open loop, about what to expect in a closed one."""
        system = self.system
        trip = system.full + system.overhead / 1000
        if self.kind is Kind.WINDOW:
            return self.x * system.size / trip
        if self.kind is not Kind.CLOSED:
            return self.x * system.capacity
        rows = min(int(self.x), system.size)
        return min(system.capacity, self.x / (system.seconds(rows) + system.overhead / 1000))

    def seconds(self, requests: int) -> float:
        """How long a run takes, in virtual time, to see about so many requests."""
        return requests / self.rate

    def workload(self, seconds: float) -> traffic.Workload:
        """The callers, for a run of so many seconds."""
        request = traffic.RequestKind(1, self.timeout)
        if self.kind is Kind.CLOSED:
            return variants.Closed(int(self.x), seconds, variants.network_think(), SEED, request)
        if self.kind is Kind.BURSTS:
            high, low = BURST_HIGH * self.rate, BURST_LOW * self.rate
            return traffic.Open(variants.bursts(high, low, BURST_FOR, QUIET_FOR, SEED), seconds, request)
        return traffic.Open(traffic.poisson(self.rate, SEED), seconds, request)


MODELS = ((10, 0.5, 32), (3, 1, 16), (30, 0.3, 64))
OVERHEADS = (0, 4)
SYSTEMS = tuple(System(*model, overhead) for model in MODELS for overhead in OVERHEADS)
IRREGULAR = tuple(
    System(10, 0.5, 32, overhead, workers, shape)
    for overhead in OVERHEADS
    for workers, shape in ((1, Shape.STEPS), (1, Shape.NOISY), (1, Shape.DRIFTS), (2, Shape.AFFINE), (4, Shape.AFFINE))
)


def saturated(system: System) -> list[Cell]:
    """More callers than any predictor of the grid can use, with overheads up to the time of a full batch."""
    full = system.full * 1000
    return [Cell(Kind.CLOSED, System(*model_of(system), h), SATURATING_CALLERS) for h in (0, 4, full / 2, full)]


def model_of(system: System) -> tuple[float, float, int]:
    """The numbers without the overhead."""
    return system.fixed, system.per_row, system.size
