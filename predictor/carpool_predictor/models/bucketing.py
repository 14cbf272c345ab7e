"""Which sentences share a forward pass, so that little is padded and few passes are made.

A pass costs a fixed amount plus an amount for each token, padding included. With lengths rounded up to a few
steps, the best partition of the sorted lengths is found exactly, by dynamic programming over those steps.
"""

from __future__ import annotations

from collections.abc import Sequence

STEP = 8
"""Lengths are compared as multiples of this many tokens: shorter differences are not worth a pass."""

Group = list[int]


def plan(lengths: Sequence[int], overhead: int, most: int) -> list[Group]:
    """Partition indices into groups to be padded to their longest member.

    `lengths` are in tokens, `overhead` is the fixed cost of a pass in tokens, and `most` bounds the tokens of a
    pass, padding included (a single longer sentence still gets a pass). Every index occurs exactly once; within
    and across groups lengths do not decrease.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [
        part for start, stop in _cuts(lengths, order, overhead) for part in _split(lengths, order[start:stop], most)
    ]


def _cuts(lengths: Sequence[int], order: Sequence[int], overhead: int) -> list[tuple[int, int]]:
    """The cheapest runs of `order`, by `best[i]`: the cost and the last cut of the first i ends."""
    ends = _ends(lengths, order)
    best: list[tuple[int, int]] = [(0, 0)]
    for stop in range(1, len(ends)):
        padded = lengths[order[ends[stop] - 1]]
        costs = [(best[start][0] + overhead + padded * (ends[stop] - ends[start]), start) for start in range(stop)]
        best.append(min(costs))
    runs, stop = [], len(ends) - 1
    while stop > 0:
        start = best[stop][1]
        runs.append((ends[start], ends[stop]))
        stop = start
    return runs[::-1]


def _ends(lengths: Sequence[int], order: Sequence[int]) -> list[int]:
    """Where in `order` a cut is allowed: 0, then after the last sentence of each step."""
    steps = [-(-lengths[index] // STEP) for index in order]
    return [0, *(at for at in range(1, len(steps)) if steps[at] != steps[at - 1]), *([len(steps)] if steps else [])]


def _split(lengths: Sequence[int], group: Group, most: int) -> list[Group]:
    rows = max(1, most // max(1, lengths[group[-1]]))
    return [group[at : at + rows] for at in range(0, len(group), rows)]
