"""How long a predictor takes: service times as people write them, and a simulated predictor that takes that long.

All times are seconds. A service time is the mean of a batch of `rows` instances that starts at `now`; the simulated
predictor adds noise, queueing and the overhead around it (network, JSON), which other batches overlap.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import random
from dataclasses import dataclass
from typing import NamedTuple, Protocol

ALLOWED = "milliseconds for a batch of n instances: a formula like 10+0.1n, 12 or 0.5n, or pairs like 1:10.1,32:13.2"

_LARGEST = 3_600_000.0  # an hour


class Service(Protocol):
    """Mean seconds of work on a batch."""

    def seconds(self, rows: int, now: float) -> float:
        """For a batch of `rows` that starts at `now`."""
        ...


@dataclass(frozen=True)
class Affine:
    """`fixed + per_row * rows`: what most models do between one instance and a full batch."""

    fixed: float
    per_row: float

    def seconds(self, rows: int, now: float) -> float:
        """The same at any time."""
        return self.fixed + self.per_row * rows


@dataclass(frozen=True)
class Measured:
    """Straight lines between measured (rows, seconds), rows ascending, and on after the last; flat before the first.

    Flat because a smaller batch may cost as much, and a plan should not hope that it costs less.
    """

    points: tuple[tuple[int, float], ...]

    def seconds(self, rows: int, now: float) -> float:
        """The same at any time."""
        if rows <= self.points[0][0]:
            return self.points[0][1]
        after = bisect.bisect_left(self.points, rows, key=lambda point: point[0])
        after = min(after, len(self.points) - 1)
        (left, low), (right, high) = self.points[after - 1], self.points[after]
        return low + (high - low) * (rows - left) / (right - left)


class Predictor(NamedTuple):
    """A model server: `workers` batches at a time, each with `overhead` seconds, half before and half after.

    `variation` is the coefficient of variation (deviation over mean) of the lognormal noise on service times. Batches
    then pass the `later` stages, each of which works on one at a time, while the workers have the next: as where one is
    written, one computed and one read.
    """

    service: Service
    overhead: float = 0.0
    workers: int = 1
    variation: float = 0.05
    later: tuple[Service, ...] = ()

    def capacity(self, max_batch_size: int) -> float:
        """Instances a second when every batch is full."""
        seconds = self.service.seconds(max_batch_size, 0.0) / self.workers
        return max_batch_size / max([seconds, *[stage.seconds(max_batch_size, 0.0) for stage in self.later]])

    def alone(self, rows: int) -> float:
        """Seconds of a batch that meets no other, on average."""
        return self.overhead + sum([stage.seconds(rows, 0.0) for stage in (self.service, *self.later)])

    @property
    def words(self) -> str:
        """Milliseconds of a batch in each stage, as `parse` reads them."""
        return ", then ".join(map(_words, (self.service, *self.later)))

    def simulated(self, seed: str) -> SimulatedPredictor:
        """One that works from now on."""
        return SimulatedPredictor(self, seed)


class ServedBatch(NamedTuple):
    """A batch that was sent, had a worker from `started` to `ended`, and came back at `returned`, from later stages."""

    sent: float
    started: float
    ended: float
    returned: float
    rows: int


class SimulatedPredictor:
    """Batches start in the order in which they were sent, on the worker that is free first."""

    def __init__(self, predictor: Predictor, seed: str) -> None:
        self.predictor = predictor
        self._free = [0.0] * predictor.workers  # a heap: when each worker has finished what it was given
        self._later_free = [0.0] * len(predictor.later)
        self._random = random.Random(seed)
        variance = math.log1p(predictor.variation**2)
        self._mu, self._sigma = -variance / 2, math.sqrt(variance)  # mean 1

    def serve(self, rows: int, now: float) -> ServedBatch:
        """Work on a batch of `rows` that is sent `now`, no earlier than the one before."""
        half = self.predictor.overhead / 2
        started = max(now + half, self._free[0])
        ended = done = started + self._seconds(self.predictor.service, rows, started)
        heapq.heapreplace(self._free, ended)
        for place, stage in enumerate(self.predictor.later):
            begin = max(done, self._later_free[place])
            done = self._later_free[place] = begin + self._seconds(stage, rows, begin)
        return ServedBatch(now, started, ended, done + half, rows)

    def _seconds(self, service: Service, rows: int, now: float) -> float:
        seconds = service.seconds(rows, now)
        return seconds * self._random.lognormvariate(self._mu, self._sigma) if self._sigma else seconds


def _words(service: Service) -> str:
    one, none = (service.seconds(rows, 0.0) for rows in (1, 0))
    return f"{none * 1000:.4g}+{(one - none) * 1000:.3g}n"


def parse(text: str) -> Service:
    """Read `10+0.1n`, `10 + 0.1*n`, `12`, `0.5n`, or `1:10.1,8:10.8,32:13.2`; milliseconds.

    Raises `ValueError` with what is wrong and what is allowed.
    """
    try:
        return _pairs(text) if ":" in text else _formula(text)
    except ValueError as error:
        raise ValueError(f"{error}; allowed: {ALLOWED}") from None


def _formula(text: str) -> Affine:
    terms = [term.strip() for term in text.split("+")]
    growing = [_factor(term) for term in terms if term.endswith("n")]
    fixed = [_milliseconds(term) for term in terms if not term.endswith("n")]
    if len(growing) > 1 or len(fixed) > 1:
        raise ValueError(f"{text!r} has two terms of one kind")
    if not any(growing + fixed):
        raise ValueError(f"{text!r} is no time at all")
    return Affine(sum(fixed) / 1000, sum(growing) / 1000)


def _factor(term: str) -> float:
    number = term.removesuffix("n").rstrip().removesuffix("*").rstrip()
    return _milliseconds(number) if number or term != "n" else 1.0


def _pairs(text: str) -> Measured:
    points = tuple(_pair(pair) for pair in text.split(","))
    if len(points) < 2:
        raise ValueError(f"{text!r} is one measurement, and two are needed to see how time grows")
    for (rows, seconds), (next_rows, next_seconds) in itertools.pairwise(points):
        if next_rows <= rows:
            raise ValueError(f"sizes must ascend, and {next_rows} comes after {rows}")
        if next_seconds < seconds:
            raise ValueError(f"a batch of {next_rows} cannot take less time than one of {rows}")
    return Measured(points)


def _pair(text: str) -> tuple[int, float]:
    rows, _, milliseconds = (part.strip() for part in text.partition(":"))
    if not (rows.isascii() and rows.isdecimal() and 0 < int(rows) <= 100_000):
        raise ValueError(f"{rows!r} is not a batch size (1 to 100000)")
    seconds = _milliseconds(milliseconds) / 1000
    if not seconds:
        raise ValueError(f"a batch of {rows} cannot take no time")
    return int(rows), seconds


def _milliseconds(text: str) -> float:
    # float() also reads inf, nan, 1_0 and 1e9, which are slips here.
    if not (text.isascii() and text.replace(".", "", 1).isdecimal()):
        raise ValueError(f"{text!r} is not a number of milliseconds")
    value = float(text)
    if not math.isfinite(value) or value > _LARGEST:
        raise ValueError(f"{text} is more than an hour")
    return value
