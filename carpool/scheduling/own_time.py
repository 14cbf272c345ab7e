"""What batching itself takes: processor time for each batch, and for each request in it.

Where a predictor is fast, this is what limits a sidecar on its one core, and small batches cost it more than large
ones. Whoever drives the scheduler reads a processor clock now and then, and tells what was used since.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from carpool.scheduling import tuning


class OwnTime(NamedTuple):
    """Seconds of one core, for each batch and for each request."""

    batch: float = 0.0
    request: float = 0.0

    def of(self, requests: float) -> float:
        """Seconds for a batch of so many requests."""
        return self.batch + self.request * requests


NO_TIME: Final = OwnTime()


class OwnTimeModel:
    """Learns both from totals, by least squares with forgetting.

    Batches that are all of one size do not tell the two apart. Then a batch is taken to cost as much as
    `tuning.BATCH_IN_REQUESTS` requests, which counts as much as one sample.
    """

    # State: exponentially weighted sums over (requests in a batch, seconds of a batch), and what they say.
    def __init__(self) -> None:
        self.samples = 0
        self.now = NO_TIME
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, seconds: float, batches: int, requests: int) -> None:
        """So many batches (one at least), of so many requests in all, took so many seconds."""
        size, took, keep = requests / batches, seconds / batches, tuning.FORGETTING
        self._n = self._n * keep + 1
        self._x = self._x * keep + size
        self._y = self._y * keep + took
        self._xx = self._xx * keep + size * size
        self._xy = self._xy * keep + size * took
        self.samples += 1
        self.now = self._solved()

    def _solved(self) -> OwnTime:
        ratio = tuning.BATCH_IN_REQUESTS
        n, x, xx = self._n + 1, self._x - ratio, self._xx + ratio * ratio
        determinant = n * xx - x * x  # above zero: the guess and any one size are not on one line
        batch = (self._y * xx - self._xy * x) / determinant
        request = (self._xy * n - self._y * x) / determinant
        if batch < 0:
            return OwnTime(0.0, self._xy / self._xx)
        return OwnTime(batch, request) if request >= 0 else OwnTime(self._y / self._n, 0.0)
