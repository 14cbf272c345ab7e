"""Which pod gets a request. Cheap enough for a thousand pods: no pick looks at all of them."""

from __future__ import annotations

from typing import Protocol

from carpool_sidecar.planning import chance


class Balancer(Protocol):
    """Picks among pods 0 to n - 1 and hears when a request has left one."""

    def pick(self) -> int:
        """The pod for the next request."""
        ...

    def left(self, pod: int) -> None:
        """A request that was sent to `pod` has been answered or refused."""
        ...


class Random:
    """Each pod as likely as any other: a plain Kubernetes service with many connections."""

    def __init__(self, pods: int, seed: int) -> None:
        self._pods = pods
        self._random = chance.source(f"balancer {seed}")

    def pick(self) -> int:
        """Any."""
        return self._random.randrange(self._pods)

    def left(self, pod: int) -> None:
        """Not looked at."""


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
        """Not looked at."""


class LeastLoaded:
    """A pod with the fewest open requests, among equals the one that has been so for longest."""

    # Mutable state: _open requests per pod; _levels[n], the pods with n open requests; _lowest, no level below it
    # has pods. Counts change by one, so _lowest moves by one too and no pick searches.
    def __init__(self, pods: int, seed: int) -> None:
        order = list(range(pods))
        chance.source(f"balancer {seed}").shuffle(order)
        self._open = [0] * pods
        self._levels: list[dict[int, None]] = [dict.fromkeys(order)]
        self._lowest = 0

    def pick(self) -> int:
        """The least loaded."""
        while not self._levels[self._lowest]:
            self._lowest += 1
        pod = next(iter(self._levels[self._lowest]))
        self._move(pod, 1)
        return pod

    def left(self, pod: int) -> None:
        """Counts."""
        self._move(pod, -1)
        self._lowest = min(self._lowest, self._open[pod])

    def _move(self, pod: int, change: int) -> None:
        del self._levels[self._open[pod]][pod]
        self._open[pod] += change
        if self._open[pod] == len(self._levels):
            self._levels.append({})
        self._levels[self._open[pod]][pod] = None
