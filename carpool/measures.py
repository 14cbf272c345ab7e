"""What is measured: values counted in buckets, the same buckets wherever Carpool measures the same thing.

Plain numbers, cheap enough to be kept for every batch. Whoever shows them reads a `Distribution`, which never changes.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from carpool.compiled import mypyc_attr

SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)

_FEW: Final = 3  # values that are sooner counted one by one than sorted


@mypyc_attr(native_class=False)  # a native class cannot be pickled
@dataclass(frozen=True)  # with slots=True Python 3.14 would want the code of its properties, which compiled have none
class Distribution:
    """How many values fell between ascending bounds.

    `counts[i]` is for values of at most `bounds[i]` that are above the bound before; the last is for those above all
    bounds. `sum` adds all values up. The mean is exact; where a value lies in its bucket is not known, so `quantile` is
    an estimate. While there are no values, all of them are 0.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @classmethod
    def empty(cls, bounds: Sequence[float]) -> Distribution:
        """No values yet."""
        return cls(tuple(bounds), (0,) * (len(bounds) + 1), 0.0)

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The arithmetic mean, exact."""
        return self.sum / self.count if self.count else 0.0

    @property
    def p50(self) -> float:
        """The median, estimated as `quantile` does."""
        return self.quantile(0.5)

    @property
    def p99(self) -> float:
        """What 99 of 100 values do not exceed, estimated as `quantile` does."""
        return self.quantile(0.99)

    @property
    def ceiling(self) -> float:
        """The smallest bound that no value exceeds, infinity if some value is above all bounds."""
        filled = [index for index, count in enumerate(self.counts) if count]
        return [*self.bounds, math.inf][filled[-1]] if filled else 0.0

    def quantile(self, share: float) -> float:
        """What so many of the values (0 to 1) do not exceed, as if each bucket were evenly filled.

        That is how Prometheus's `histogram_quantile` estimates it. The true one is in the same bucket, so the estimate
        is off by less than the bucket is wide. Infinity above the last bound, where nothing is known.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"a quantile is between 0 and 1, not {share}")
        rank = share * self.count
        below, lower = 0, 0.0
        for count, upper in zip(self.counts, [*self.bounds, math.inf], strict=True):
            if count and below + count >= rank:
                return upper if math.isinf(upper) else lower + (upper - lower) * (rank - below) / count
            below, lower = below + count, upper
        return 0.0

    def cumulative(self) -> list[tuple[str, int]]:
        """Each bound as text and how many values do not exceed it, as Prometheus's clients want histograms."""
        marks = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(marks, itertools.accumulate(self.counts), strict=True))

    def since(self, earlier: Distribution) -> Distribution:
        """The values that came after the `earlier` ones of the same histogram; ValueError if their bounds differ."""
        if self.bounds != earlier.bounds:
            raise ValueError(f"distributions with bounds {self.bounds} and {earlier.bounds} cannot be compared")
        return Distribution(self.bounds, tuple(map(operator.sub, self.counts, earlier.counts)), self.sum - earlier.sum)

    def __add__(self, other: Distribution) -> Distribution:
        """The values of both; raises ValueError if their bounds differ."""
        if self.bounds != other.bounds:
            raise ValueError(f"distributions with bounds {self.bounds} and {other.bounds} cannot be added up")
        return Distribution(self.bounds, tuple(map(operator.add, self.counts, other.counts)), self.sum + other.sum)


class Histogram:
    """A distribution that grows. Any thread may count or read.

    A number grows in one statement without a call, which the interpreter's lock does not interrupt; a real lock would
    cost more than the rest. Who reads meanwhile may see values whose sum is still to come.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def read(self) -> Distribution:
        """The values so far."""
        return Distribution(self._bounds, tuple(self._counts), self._sum)

    def observe(self, value: float, times: int = 1) -> None:
        """One more value, or as many that are equal."""
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def observe_all(self, values: Collection[float]) -> None:
        """Many values at once. Those of a batch are alike, so most of them fall into one bucket and cost little."""
        counts, bounds = self._counts, self._bounds
        if len(values) < _FEW:
            for value in values:
                counts[bisect.bisect_left(bounds, value)] += 1
                self._sum += value
            return
        ordered = sorted(values)
        bucket, last = bisect.bisect_left(bounds, ordered[0]), bisect.bisect_left(bounds, ordered[-1])
        counted = 0
        while bucket < last:
            upto = bisect.bisect_right(ordered, bounds[bucket], counted)
            counts[bucket] += upto - counted
            counted, bucket = upto, bucket + 1
        rest, added = len(ordered) - counted, sum(ordered)
        counts[bucket] += rest
        self._sum += added

    def observe_since(self, moments: Sequence[float], now: float) -> None:
        """The times from each of some moments until `now`. It is quickest where all of them fall into one bucket."""
        count = len(moments)
        if count < _FEW:
            for moment in moments:
                self.observe(now - moment)
            return
        ordered, bounds = sorted(moments), self._bounds
        bucket = bisect.bisect_left(bounds, now - ordered[-1])
        if bucket == bisect.bisect_left(bounds, now - ordered[0]):
            added = now * count - sum(ordered)
            self._counts[bucket] += count
            self._sum += added
        else:
            self.observe_all([now - moment for moment in ordered])
