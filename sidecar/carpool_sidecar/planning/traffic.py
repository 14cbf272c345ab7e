"""Requests on their way to pods: when callers send them, and which pod gets each.

All times are seconds, rates requests a second. A workload is used up by one simulation.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol


class RequestKind(NamedTuple):
    """What a request has: instances, seconds its caller waits (None: forever), bytes, a batch key, and its level."""

    rows: int = 1
    timeout: float | None = None
    size: int = 0
    key: Hashable = "key"
    priority: int = 0


ONE = RequestKind()


def row_sizes(kind: RequestKind, start: int, stop: int) -> Sequence[int]:
    """Bytes of so many instances of a request, taken to be equal parts of its own."""
    return [max(1, kind.size // kind.rows)] * (stop - start)


class Workload(Protocol):
    """When requests arrive, which may depend on replies. `end` is the latest arrival.

    `request` is what the arrival has that has come, until `after_arrival` is called.
    """

    @property
    def request(self) -> RequestKind: ...

    @property
    def end(self) -> float: ...

    def first(self) -> Iterable[float]:
        """Arrivals that depend on nothing."""
        ...

    def after_arrival(self) -> float | None:
        """The arrival that follows the one that has come, or None."""
        ...

    def after_reply(self, now: float, refused: bool) -> float | None:
        """When the caller that was answered or refused `now` sends its next request, or None."""
        ...


class Open:
    """Arrivals at `times`, which ascend, until `end`."""

    def __init__(self, times: Iterable[float], end: float, request: RequestKind = ONE) -> None:
        self.request = request
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


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Many independent callers: exponential gaps with mean 1 / `rate`, without end."""
    source = random.Random(f"poisson {seed}")
    now = 0.0
    while True:
        now += source.expovariate(rate)
        yield now


class Balancer(Protocol):
    """Picks among pods 0 to n - 1 and hears when a request has left one."""

    def pick(self) -> int:
        """The pod for the next request."""
        ...

    def left(self, pod: int) -> None:
        """A request to `pod` was answered or refused."""
        ...


class LeastLoaded:
    """A pod with the fewest open requests; among equals, the one that has had so few for longest."""

    # Mutable state: _open requests per pod; _levels[n], the pods with n open requests; _lowest: levels below it are
    # empty. Counts change by one, so _lowest moves by one as well, and no pick searches all pods.
    def __init__(self, pods: int, seed: int) -> None:
        order = list(range(pods))
        random.Random(f"balancer {seed}").shuffle(order)
        self._open = [0] * pods
        self._levels: list[dict[int, None]] = [dict.fromkeys(order)]
        self._lowest = 0

    def pick(self) -> int:
        """One with the fewest open requests."""
        while not self._levels[self._lowest]:
            self._lowest += 1
        pod = next(iter(self._levels[self._lowest]))
        self._move(pod, 1)
        return pod

    def left(self, pod: int) -> None:
        """One open request less."""
        self._move(pod, -1)
        self._lowest = min(self._lowest, self._open[pod])

    def _move(self, pod: int, change: int) -> None:
        del self._levels[self._open[pod]][pod]
        self._open[pod] += change
        if self._open[pod] == len(self._levels):
            self._levels.append({})
        self._levels[self._open[pod]][pod] = None
