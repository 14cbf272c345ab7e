"""What only the study and the tests simulate: callers that wait for replies, odd predictors, and other balancers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from carpool_sidecar.planning import service_times, traffic


@dataclass(frozen=True)
class Padded:
    """Batches cost as much as the next power of two, as on predictors compiled for a few shapes."""

    service: service_times.Service

    def seconds(self, rows: int, now: float) -> float:
        """The time of 1, 2, 4, 8, … rows."""
        return self.service.seconds(1 << (rows - 1).bit_length(), now)


@dataclass(frozen=True)
class Drifting:
    """`factor` times slower for batches that start from `begin` to `end`: a noisy neighbour."""

    service: service_times.Service
    factor: float
    begin: float
    end: float

    def seconds(self, rows: int, now: float) -> float:
        """The usual time, or `factor` times that."""
        slow = self.begin <= now < self.end
        return self.service.seconds(rows, now) * (self.factor if slow else 1.0)


class OneInterpreter(service_times.Predictor):
    """Two stages in threads of one process: each is `MEETING` times as slow while the other works, too.

    `service` is the first stage, and the only one of `later` the second. So batches that leave close together are each
    slower than batches that keep apart, without waiting for one another.
    """

    MEETING: ClassVar = 1.3

    def simulated(self, seed: str) -> service_times.SimulatedPredictor:
        """One that works from now on."""
        return _Meeting(self, seed)


class _Meeting(service_times.SimulatedPredictor):
    """Takes half of what a meeting costs from either stage: the second does not know yet what the first will do."""

    def __init__(self, predictor: service_times.Predictor, seed: str) -> None:
        super().__init__(predictor, seed)
        self._first_free = 0.0
        self._second = 0.0, 0.0  # when the second stage begins and ends with the last batch

    def serve(self, rows: int, now: float) -> service_times.ServedBatch:
        half, slower = self.predictor.overhead / 2, OneInterpreter.MEETING
        started = max(now + half, self._first_free)
        begin, end = self._second
        alone = max(0.0, begin - started)
        work = self._seconds(self.predictor.service, rows, started)
        beside = min(max(0.0, work - alone), max(0.0, end - max(started, begin)) / slower)
        self._first_free = started + work + beside * (slower - 1)
        begin = max(self._first_free, end)
        end = begin + self._seconds(self.predictor.later[0], rows, begin) * (1 + slower) / 2
        self._second = begin, end
        return service_times.ServedBatch(now, started, end, end + half, rows)


class Closed:
    """`callers` that send again a think time after their reply, and `pause` later after a refusal, until `end`.

    `stalls` are times (from, to), ascending, in which their process does not run: what is due then is sent at the end.
    """

    def __init__(
        self,
        callers: int,
        end: float,
        think: Callable[[random.Random], float],
        seed: int,
        request: traffic.RequestKind = traffic.ONE,
        pause: float = 0.005,
        stalls: Iterable[tuple[float, float]] = (),
    ) -> None:
        self.request = request
        self.end = end
        self._callers = callers
        self._think = think
        self._pause = pause
        self._stalls = iter(stalls)
        self._stall = next(self._stalls, None)
        self._random = random.Random(f"callers {seed}")

    def first(self) -> Iterable[float]:
        """All callers begin within the first 5 ms."""
        return sorted(self._random.uniform(0.0, 0.005) for _ in range(self._callers))

    def after_arrival(self) -> float | None:
        """Only replies bring new requests."""
        return None

    def after_reply(self, now: float, refused: bool) -> float | None:
        """A caller that thinks past the end stops."""
        back = self._when_running(now, now + self._think(self._random) + (self._pause if refused else 0.0))
        return back if back < self.end else None

    def _when_running(self, now: float, wanted: float) -> float:
        while self._stall is not None and self._stall[1] <= now:
            self._stall = next(self._stalls, None)
        if self._stall is None or not self._stall[0] <= wanted < self._stall[1]:
            return wanted
        return self._stall[1]


def stalls(rate: float, shortest: float, longest: float, seed: int) -> Iterator[tuple[float, float]]:
    """`rate` times a second a process does not run for `shortest` to `longest` seconds: others have its core."""
    source = random.Random(f"stalls {seed}")
    now = 0.0
    while True:
        begin = now + source.expovariate(rate)
        now = begin + source.uniform(shortest, longest)
        yield begin, now


def bursts(high: float, low: float, high_for: float, low_for: float, seed: int) -> Iterator[float]:
    """A Markov-modulated Poisson process: rate `high` for about `high_for` seconds, then `low` for `low_for`, …"""
    source = random.Random(f"bursts {seed}")
    now = 0.0
    for rate, mean in itertools.cycle(((high, high_for), (low, low_for))):
        end = now + source.expovariate(1 / mean)
        now += source.expovariate(rate)
        while now < end:
            yield now
            now += source.expovariate(rate)
        now = end  # exponential gaps have no memory: the next phase may start afresh


def constant_think(seconds: float) -> Callable[[random.Random], float]:
    """Every caller comes back after exactly `seconds`."""
    return lambda source: seconds


def network_think(least: float = 0.0002, mean_extra: float = 0.0003) -> Callable[[random.Random], float]:
    """A load generator on the same network: at least `least`, plus an exponential rest."""
    return lambda source: least + source.expovariate(1 / mean_extra)


class Random:
    """Each pod is as likely as any other: a plain Kubernetes service with many connections."""

    def __init__(self, pods: int, seed: int) -> None:
        self._pods = pods
        self._random = random.Random(f"balancer {seed}")

    def pick(self) -> int:
        """Any of them."""
        return self._random.randrange(self._pods)

    def left(self, pod: int) -> None:
        """Does not matter."""


class RoundRobin:
    """One after another."""

    def __init__(self, pods: int, seed: int) -> None:
        self._pods = pods
        self._next = seed % pods

    def pick(self) -> int:
        """The one after the last."""
        pod = self._next
        self._next = (pod + 1) % self._pods
        return pod

    def left(self, pod: int) -> None:
        """Does not matter."""
