"""What batching itself takes: processor time for each batch, and for each request in it.

Where a predictor is fast, this is what limits a sidecar on its one core, and small batches cost it more than large
ones. Whoever drives the scheduler reads a processor clock now and then, and tells what was used since. `Pace` then
tells how far apart batches should be, so that the core has time for what comes.
"""

from __future__ import annotations

import math
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


class Pace:
    """How often batches may leave, for a core that has hardly any time left.

    A core that sends a batch whenever it can never rests: what comes meanwhile is what the next batch has, so batches
    stay small, and what each costs by itself takes the time in which requests would be read and answered. With batches
    `t` apart, a core that spends c on each, and has a share s of its time left by the requests, lets a request wait
    about t/2 for its batch and c / (2 (s t / c - 1)) for the core (one server, random arrivals). The sum is least at
    t = c (1 + sqrt(s)) / s.
    """

    # State: running means of the batches that left, of requests in one and of seconds from one to the next; when the
    # last one left, and when the next may.
    def __init__(self, own: OwnTimeModel) -> None:
        self.next_at = -math.inf
        """When the next batch should leave, if it is not full; in the past where the core has time to spare."""
        self._own = own
        self._requests = 0.0
        self._apart = 0.0
        self._sent_at = math.inf

    def sent(self, requests: int, now: float, longest: float) -> None:
        """A batch of so many requests left. The next one is to wait for `longest` seconds at most."""
        apart = now - self._sent_at
        self._sent_at = now
        self._apart += tuning.PACE_WEIGHT * ((apart if apart > 0.0 else 0.0) - self._apart)
        self._requests += tuning.PACE_WEIGHT * (requests - self._requests)
        if self._own.samples < tuning.ENOUGH:
            self.next_at = now
            return
        wanted = min(self._wanted(), longest)
        # A batch that was late leaves the next one so much earlier: it is their number that costs.
        self.next_at = min(max(self.next_at + wanted, now), now + wanted)

    def _wanted(self) -> float:
        """Seconds from one batch to the next, 0 if they may leave at any time."""
        own, apart = self._own.now, self._apart
        if not apart or own.of(self._requests) < tuning.BUSY_CORE * apart:
            return 0.0
        left = max(tuning.LEAST_LEFT, 1 - own.request * self._requests / apart)
        return own.batch * (1 + math.sqrt(left)) / left
