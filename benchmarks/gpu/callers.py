"""Load for one system from as many processes as there are cores for it, so that the client is never the limit.

`closed` models callers that wait for an answer before they ask again; it is wrk where there is one, with a thread for
each core. `poisson` models callers who know nothing of each other: each process sends a part of the stream, and the
parts together are a Poisson process again. It counts from when a request was meant to leave, and tells how late the
client was itself. The processes live as long as the `Callers`, each on a core of its own.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import operator
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import uvloop

from benchmarks import client, load, wrk
from benchmarks.gpu import systems
from benchmarks.peers import poisson

Found = TypeVar("Found")

UNPINNED = 2  # processes on a machine where nothing is pinned
MOST_OUTSTANDING = 8192  # requests without an answer, at which a stream is broken off: the system is saturated
LATE = 0.002  # seconds by which 1 in 100 requests left late, from which on a run is not to be trusted
PATIENCE = 10.0


class Callers:
    """All callers. Use as a context manager; its processes end with it."""

    def __init__(self, cores: Sequence[int], has_wrk: bool | None = None) -> None:
        self._has_wrk = wrk.is_available() if has_wrk is None else has_wrk
        self._cores = set(cores) or None
        places: Sequence[int | None] = cores or [None] * UNPINNED
        context = multiprocessing.get_context("spawn")
        self._processes = [
            futures.ProcessPoolExecutor(1, mp_context=context, initializer=_settle, initargs=(core,)) for core in places
        ]

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.shutdown(cancel_futures=True)

    @property
    def words(self) -> str:
        """What sends, for the report."""
        count = len(self._processes)
        return f"wrk, {count} threads" if self._has_wrk else f"{count} processes of Python"

    def closed(self, running: systems.Running, callers: int, seconds: float) -> load.Measurement:
        """So many callers, each with one request at a time. Whole seconds with wrk."""
        if self._has_wrk:
            threads = min(len(self._processes), callers)
            # wrk gives each of its threads as many connections: with a remainder there would be fewer callers.
            threads = next(count for count in range(threads, 0, -1) if callers % count == 0)
            return wrk.measure(running.url, running.bodies, callers, seconds, self._cores, threads=threads)
        shares = split(callers, len(self._processes))
        jobs = [(running.address, _requests(running, place), share, seconds) for place, share in enumerate(shares)]
        return merge(self._all(_closed, jobs))

    def poisson(self, running: systems.Running, rate: float, seconds: float, seed: int) -> poisson.OpenLoop:
        """A Poisson stream of so many requests a second. The same seed draws the same moments."""
        count = len(self._processes)
        jobs = [
            (running.address, _requests(running, place), rate / count, seconds, seed * 1000 + place, count)
            for place in range(count)
        ]
        return functools.reduce(operator.add, self._all(_poisson, jobs)).outcome()

    def _all(self, work: Callable[..., Found], jobs: Iterable[tuple[Any, ...]]) -> list[Found]:
        """Each job by a process of its own, at the same time."""
        begun = [process.submit(work, *job) for process, job in zip(self._processes, jobs, strict=False)]
        return [each.result() for each in begun]


def split(total: int, parts: int) -> list[int]:
    """So many as even as it goes, without parts of none."""
    return [share for place in range(parts) if (share := total // parts + (place < total % parts))]


class Seen(NamedTuple):
    """What one process of a closed loop saw."""

    latencies: list[float]
    seconds: float
    errors: dict[str, int]


def merge(seen: Sequence[Seen]) -> load.Measurement:
    """What several clients saw at the same time, as one. The longest of their times counts."""
    ordered = sorted(itertools.chain.from_iterable(each.latencies for each in seen))
    errors: Counter[str] = Counter()
    for each in seen:
        errors.update(each.errors)
    return load.Measurement(
        requests=len(ordered),
        seconds=max((each.seconds for each in seen), default=0.0),
        p50=load.percentile(ordered, 0.50),
        p99=load.percentile(ordered, 0.99),
        errors=dict(errors),
    )


def _requests(running: systems.Running, place: int) -> list[bytes]:
    """All requests, complete; each process begins with another one."""
    host, _ = running.address
    found = [client.post(host, running.path, body) for body in running.bodies]
    first = place * 97 % len(found)
    return found[first:] + found[:first]


# --- in the processes -------------------------------------------------------------------------------------------------


def _settle(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})


def _closed(address: load.Address, requests: list[bytes], callers: int, seconds: float) -> Seen:
    latencies: list[float] = []
    stream = itertools.cycle(requests)
    measured = uvloop.run(load.closed_loop(address, stream, callers, seconds, latencies=latencies))
    return Seen(latencies, measured.seconds, measured.errors)


def _poisson(
    address: load.Address, requests: list[bytes], rate: float, seconds: float, seed: int, parts: int
) -> poisson.Samples:
    times = poisson.draw(rate, seconds, seed)
    return poisson.sample(address, requests, times, MOST_OUTSTANDING // parts, patience=PATIENCE)
