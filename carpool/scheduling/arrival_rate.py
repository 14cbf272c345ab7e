"""How many instances arrive a second, as of lately."""

from __future__ import annotations

import math

from carpool.scheduling import tuning

# What comes within so many seconds counts as one event: it makes the rate too low by a ten-thousandth at most.
_GRAIN = tuning.RATE_SECONDS / 10_000


class Rate:
    """An exponentially decaying count: what came `tuning.RATE_SECONDS` ago counts a third."""

    def __init__(self) -> None:
        self._count = 0.0
        self._at = float("-inf")

    def add(self, count: int, now: float) -> None:
        """So many came."""
        if now - self._at > _GRAIN:
            self._count = self._faded(now)
            self._at = now
        self._count += count

    def per_second(self, now: float) -> float:
        """The rate now."""
        return self._faded(now) / tuning.RATE_SECONDS

    def _faded(self, now: float) -> float:
        return self._count * math.exp(min(0.0, self._at - now) / tuning.RATE_SECONDS)
