"""A model that answers what it was sent, for tests and benchmarks.

Its service time is affine (so much for a call, so much for each instance) and serial, which is how one GPU stream
behaves and what makes batching pay. It works on JSON text, so every byte of an instance comes back as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from carpool_predictor import model

# time.sleep returns up to 0.1 ms late on Linux (timer slack), so the last stretch is spun instead.
_SPIN = 0.2e-3


class ServiceTime:
    """The busy-until clock of one serial device. Times are in seconds; the clock and sleep can be replaced."""

    def __init__(
        self,
        fixed: float,
        per_instance: float,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._fixed = fixed
        self._per_instance = per_instance
        self._now = now
        self._sleep = sleep
        self._busy_until = 0.0

    def spend(self, instances: int) -> None:
        """Return when the device would finish a call of so many instances, handed over now."""
        cost = self._fixed + instances * self._per_instance
        if cost <= 0:
            return
        now = self._now()
        self._busy_until = max(now, self._busy_until) + cost
        if self._busy_until - now > _SPIN:
            self._sleep(self._busy_until - now - _SPIN)
        while self._now() < self._busy_until:
            pass


class Echo:
    """Answers each instance with itself, or with its length in bytes so that large bodies get small answers.

    An instance written exactly as `poison` makes the whole call fail with 400; empty means no instance does.
    """

    def __init__(self, service_time: ServiceTime, *, as_length: bool = False, poison: bytes = b"") -> None:
        self._time = service_time
        self._as_length = as_length
        self._poison = poison

    def load(self) -> None:
        """There is nothing to load."""

    def warm_up(self) -> None:
        """There is nothing to warm up."""

    def predict_rows(self, rows: Sequence[model.Row]) -> Sequence[model.Row]:
        """See `model.RawModel`."""
        if self._poison:
            self._refuse_poison(rows)
        self._time.spend(len(rows))
        if self._as_length:
            return [b"%d" % memoryview(row).nbytes for row in rows]
        return rows

    def _refuse_poison(self, rows: Sequence[model.Row]) -> None:
        for place, row in enumerate(rows):
            if memoryview(row) == self._poison:
                raise model.InvalidInstances(f"instance {place} is poison")
