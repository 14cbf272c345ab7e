"""When callers arrive in an open loop: drawn ahead from a seed, so that every system gets the same ones."""

from __future__ import annotations

import random


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Arrival times in seconds from 0, ascending and below `seconds`: a Poisson process of `rate` a second."""
    draw, times, now = random.Random(seed), [], 0.0
    while (now := now + draw.expovariate(rate)) < seconds:
        times.append(now)
    return times


def percentile(values: list[float], share: float) -> float:
    """The smallest of the values that at least `share` of them do not exceed (nearest rank); NaN if there are none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = -(-round(share * 1e6) * len(ordered) // 1_000_000)
    return ordered[max(0, rank - 1)]
