"""Traffic that really came, as a workload: as it was, thinned out, or laid over itself.

A pod among more pods gets a part of it, by chance or in turn. A pod among fewer gets copies of it as well, each shifted
by its own part of a second: other callers' requests, in the same busy and quiet times. A run that is longer than the
recording begins it anew. Times are seconds.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import itertools
import math
import random
from collections.abc import Iterator, Sequence

from carpool_sidecar.planning import traffic
from carpool_sidecar.recording import document

SHIFT = 1.0
"""Copies are shifted by up to so many seconds: far more than a batch takes, and less than a busy time lasts."""

_LEAST_SPAN = 1e-3


@dataclasses.dataclass(frozen=True)
class Arrivals:
    """Requests in the order in which they came: `times` from 0 to `span`, and what each was."""

    times: Sequence[float]
    kinds: Sequence[traffic.RequestKind]
    span: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.times) / self.span

    @functools.cached_property
    def mean_rows(self) -> float:
        """Instances in a request."""
        return sum(kind.rows for kind in self.kinds) / len(self.kinds)

    def sharing(self) -> Arrivals:
        """The same requests, as if all could share a batch."""
        return dataclasses.replace(self, kinds=[kind._replace(key=traffic.ONE.key) for kind in self.kinds])

    def stream(
        self, factor: float = 1.0, seed: int = 1, before: float = 0.0, in_turn: bool = False
    ) -> Iterator[tuple[float, traffic.RequestKind]]:
        """So many times this traffic, without end, from time 0. The recording begins at `before`; its end comes first.

        What is thinned out is chosen by chance, or `in_turn`.
        """
        copies = []
        for number in range(math.ceil(factor)):
            source = random.Random(f"copy {seed} {number}")
            share = min(1.0, factor - number)
            shift = source.uniform(0.1, 1.0) * min(SHIFT, self.span) if number else 0.0
            kept = self._kept(share, before + shift, source, in_turn)
            copies.append(itertools.dropwhile(lambda arrival: arrival[0] < 0, kept))
        return heapq.merge(*copies, key=lambda arrival: arrival[0])

    def _kept(
        self, share: float, begin: float, source: random.Random, in_turn: bool
    ) -> Iterator[tuple[float, traffic.RequestKind]]:
        """A share of the arrivals of round after round, of which one begins at `begin`, and others go before it."""
        count = len(self.times)
        rounds = math.ceil(begin / self.span)
        first = bisect.bisect_left(self.times, rounds * self.span - begin)
        index = first - 1
        exact = float(index)
        while True:
            if share >= 1:
                index += 1
            elif in_turn:
                exact += 1 / share
                index = math.floor(exact)
            else:
                # How many are passed over is geometric.
                index += 1 + math.floor(math.log(1 - source.random()) / math.log1p(-share))
            turn, place = divmod(index, count)
            yield begin + (turn - rounds) * self.span + self.times[place], self.kinds[place]


class Replay:
    """A stream of arrivals until `end`, as a `traffic.Workload`."""

    # State: the arrival that has come last, or is to come first.
    def __init__(self, stream: Iterator[tuple[float, traffic.RequestKind]], end: float) -> None:
        self.end = end
        self._stream = itertools.takewhile(lambda arrival: arrival[0] <= end, stream)
        self._next: tuple[float, traffic.RequestKind] | None = None

    @property
    def request(self) -> traffic.RequestKind:
        """What the arrival has that has come."""
        return traffic.ONE if self._next is None else self._next[1]

    def first(self) -> Sequence[float]:
        """When the first one comes."""
        self._next = next(self._stream, None)
        return () if self._next is None else (self._next[0],)

    def after_arrival(self) -> float | None:
        """When the next one comes."""
        self._next = next(self._stream, None)
        return None if self._next is None else self._next[0]

    def after_reply(self, now: float, refused: bool) -> float | None:
        """Replies change nothing: what came has come."""
        return None


def arrivals(blocks: Sequence[document.Block]) -> Arrivals:
    """What came in these blocks, of which one at least has an arrival."""
    found = [
        (block.began + at / 1e6, traffic.RequestKind(rows, None, size, key))
        for block in blocks
        for at, rows, size, key in zip(block.at, block.rows, block.bytes, block.keys, strict=True)
    ]
    found.sort(key=lambda arrival: arrival[0])
    began = found[0][0]
    # Until the end of the last block nobody else came; one arrival more would come after about as long as any other.
    end = max(blocks[-1].ended, found[-1][0] + (found[-1][0] - began) / len(found))
    return Arrivals([time - began for time, _ in found], [kind for _, kind in found], max(_LEAST_SPAN, end - began))


def latest(blocks: Sequence[document.Block], most: int) -> Sequence[document.Block]:
    """The last blocks, with at most so many arrivals in all, or the last one alone."""
    count, taken = 0, 0
    for block in reversed(blocks):
        count += len(block.at)
        if taken and count > most:
            break
        taken += 1
    return blocks[len(blocks) - taken :]
