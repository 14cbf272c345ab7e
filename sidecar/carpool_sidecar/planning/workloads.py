"""Who asks, and when: open loops (callers that do not wait for each other) and closed loops (callers that do).

All times are seconds, rates requests a second. A workload is used up by one simulation.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from carpool_sidecar.planning import chance


class Ask(NamedTuple):
    """What every request of a workload looks like: its instances, and how long its caller waits (None: forever)."""

    rows: int = 1
    timeout: float | None = None


ONE = Ask()


class Workload(Protocol):
    """Arrival times, some of which depend on replies. `end` is when the last request may arrive."""

    ask: Ask
    end: float

    def first(self) -> Iterable[float]:
        """Arrivals that nothing has to happen for."""
        ...

    def after_arrival(self) -> float | None:
        """The next arrival now that one has come, or None."""
        ...

    def after_reply(self, now: float, refused: bool) -> float | None:
        """When the caller that was answered or refused `now` asks again, or None."""
        ...


class Open:
    """Arrivals at `times`, which ascend, until `end`."""

    def __init__(self, times: Iterable[float], end: float, ask: Ask = ONE) -> None:
        self.ask = ask
        self.end = end
        self._times: Iterator[float] = itertools.takewhile(lambda time: time <= end, times)

    def first(self) -> Iterable[float]:
        """The first of the times."""
        return itertools.islice(self._times, 1)

    def after_arrival(self) -> float | None:
        """The one after the last."""
        return next(self._times, None)

    def after_reply(self, now: float, refused: bool) -> float | None:
        """Replies change nothing."""
        return None


class Closed:
    """`callers` that each ask again a think time after their reply, or `pause` after a refusal, until `end`."""

    def __init__(
        self,
        callers: int,
        end: float,
        think: Callable[[random.Random], float],
        seed: int,
        ask: Ask = ONE,
        pause: float = 0.005,
    ) -> None:
        self.ask = ask
        self.end = end
        self._callers = callers
        self._think = think
        self._pause = pause
        self._random = chance.source(f"callers {seed}")

    def first(self) -> Iterable[float]:
        """All callers begin within the first 5 ms."""
        return sorted(self._random.uniform(0.0, 0.005) for _ in range(self._callers))

    def after_arrival(self) -> float | None:
        """Only replies bring new requests."""
        return None

    def after_reply(self, now: float, refused: bool) -> float | None:
        """A caller that thinks past the end stops."""
        back = now + self._think(self._random) + (self._pause if refused else 0.0)
        return back if back < self.end else None


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Many independent callers: exponential gaps with mean 1 / `rate`, without end."""
    source = chance.source(f"poisson {seed}")
    now = 0.0
    while True:
        now += source.expovariate(rate)
        yield now


def bursts(high: float, low: float, high_for: float, low_for: float, seed: int) -> Iterator[float]:
    """A Markov-modulated Poisson process: rate `high` for about `high_for` seconds, then `low` for `low_for`, …"""
    source = chance.source(f"bursts {seed}")
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
