"""Which inputs share a pass through a network, so that little is padded and few passes are made.

A pass costs a fixed amount plus an amount for each token, padding included. The inputs are sorted by length; where the
sorted lengths are best cut is found exactly, by dynamic programming over the lengths that differ enough to matter.

Two kinds of shapes: any (`AnyShape`), where a pass is as wide as its longest input; and buckets (`Buckets`), where a
pass has one of a few shapes that were measured, and is padded to it in rows as in width.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

STEP = 8
"""Without buckets, lengths are compared as multiples of this many tokens: shorter differences are not worth a pass."""


class Pass(NamedTuple):
    """The inputs `indices`, shortest first, as a pass of so many rows of so many tokens, padding included."""

    indices: list[int]
    rows: int
    width: int


class Bucket(NamedTuple):
    """The shape of a pass."""

    rows: int
    width: int


class Split(NamedTuple):
    """What passes over inputs of one width cost, and for each how many of them go in, in how many rows."""

    cost: float
    passes: list[tuple[int, int]]


class Shapes(Protocol):
    """Which shapes passes may have, and what they cost."""

    def step(self, length: int) -> int:
        """Inputs of one step are never kept apart because of their lengths. It does not decrease with length."""

    def width(self, longest: int) -> int:
        """How wide a pass is whose longest input has so many tokens."""

    def split(self, count: int, width: int) -> Split:
        """So many inputs, at least one, in passes of this width."""


def plan(lengths: Sequence[int], shapes: Shapes) -> list[Pass]:
    """The cheapest passes over inputs of these lengths, in tokens.

    Every index occurs exactly once; within and across passes lengths do not decrease.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    passes: list[Pass] = []
    for start, stop in _cuts(lengths, order, shapes):
        width = shapes.width(lengths[order[stop - 1]])
        for count, rows in shapes.split(stop - start, width).passes:
            passes.append(Pass(order[start : start + count], rows, width))
            start += count
    return passes


def _cuts(lengths: Sequence[int], order: Sequence[int], shapes: Shapes) -> list[tuple[int, int]]:
    """The cheapest runs of `order`, by `best[i]`: the cost and the last cut of the first i ends."""
    ends = _ends(lengths, order, shapes)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for stop in range(1, len(ends)):
        width = shapes.width(lengths[order[ends[stop] - 1]])
        best.append(
            min((best[start][0] + shapes.split(ends[stop] - ends[start], width).cost, start) for start in range(stop))
        )
    runs, stop = [], len(ends) - 1
    while stop > 0:
        start = best[stop][1]
        runs.append((ends[start], ends[stop]))
        stop = start
    return runs[::-1]


def _ends(lengths: Sequence[int], order: Sequence[int], shapes: Shapes) -> list[int]:
    """Where in `order` a cut is allowed: 0, then after the last input of each step."""
    steps = [shapes.step(lengths[index]) for index in order]
    return [0, *(at for at in range(1, len(steps)) if steps[at] != steps[at - 1]), *([len(steps)] if steps else [])]


class AnyShape:
    """Any number of rows of any width, for networks that run eagerly.

    `overhead` is the fixed cost of a pass in tokens, and `most` bounds the tokens of a pass, padding included (a single
    longer input still gets a pass).
    """

    def __init__(self, overhead: float, most: int) -> None:
        self._overhead = overhead
        self._most = most

    def step(self, length: int) -> int:
        return -(-length // STEP)

    def width(self, longest: int) -> int:
        return longest

    def split(self, count: int, width: int) -> Split:
        rows = max(1, self._most // max(1, width))
        parts = [min(rows, count - at) for at in range(0, count, rows)]
        return Split(len(parts) * self._overhead + count * width, [(part, part) for part in parts])


class Buckets:
    """The shapes that were measured, with what a pass of each costs; inputs longer than any go as `otherwise` says.

    Each width has a bucket of one row, or a lone input would be padded with rows. The costs of `otherwise` are in
    tokens, of which each counts as much as in the bucket where it costs least.
    """

    # Frozen. `_best` has for each width and each number of inputs up to that of its largest bucket the cheapest split.
    def __init__(self, costs: Mapping[Bucket, float], otherwise: Shapes) -> None:
        self._otherwise = otherwise
        self._token = min((cost / math.prod(bucket) for bucket, cost in costs.items()), default=1.0)
        by_width: dict[int, dict[int, float]] = {}
        for bucket, cost in sorted(costs.items()):
            by_width.setdefault(bucket.width, {})[bucket.rows] = cost
        self._best = {width: _best_splits(by_width[width]) for width in by_width}
        self._widths = sorted(by_width)

    def step(self, length: int) -> int:
        place = bisect.bisect_left(self._widths, length)
        return place if place < len(self._widths) else place + self._otherwise.step(length)

    def width(self, longest: int) -> int:
        place = bisect.bisect_left(self._widths, longest)
        return self._widths[place] if place < len(self._widths) else self._otherwise.width(longest)

    def split(self, count: int, width: int) -> Split:
        best = self._best.get(width)
        if best is None:
            cost, passes = self._otherwise.split(count, width)
            return Split(cost * self._token, passes)
        most = len(best) - 1
        whole = (count - 1) // most
        rest = best[count - whole * most]
        return Split(whole * best[most].cost + rest.cost, best[most].passes * whole + rest.passes)


def _best_splits(costs: Mapping[int, float]) -> list[Split]:
    """The cheapest split of 0, 1, 2, … inputs, of which so many rows cost so much: one padded pass, or a full one and
    the rest.
    """
    sizes = list(costs)
    best = [Split(0.0, [])]
    for count in range(1, sizes[-1] + 1):
        place = bisect.bisect_left(sizes, count)
        padded = [Split(costs[rows], [(count, rows)]) for rows in sizes[place:]]
        full = [
            Split(costs[rows] + best[count - rows].cost, [(rows, rows), *best[count - rows].passes])
            for rows in sizes[:place]
        ]
        best.append(min(padded + full, key=lambda split: split.cost))
    return best


def grid(rows: Sequence[int], widths: Sequence[int], most: int) -> list[Bucket]:
    """All buckets of these rows and widths with no more than `most` tokens, the largest first."""
    made = [Bucket(count, width) for count in rows for width in widths if count * width <= most]
    return sorted(made, key=lambda bucket: (-math.prod(bucket), bucket))
