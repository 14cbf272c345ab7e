"""A model that answers what it was sent, for tests and benchmarks.

Its service time is affine (so much for a call, so much for each instance) and serial, which is how one GPU stream
behaves and what makes batching pay. As there, a call that waits begins the moment the one before it is done, not when
that one's answer is on its way. It works on JSON text, so every byte of an instance comes back as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

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

    @property
    def is_none(self) -> bool:
        """Whether calls take no time."""
        return self._fixed + self._per_instance <= 0

    def queue(self, instances: int) -> float:
        """Put a call of so many instances behind those before it; gives when the device finishes it."""
        self._busy_until = max(self._now(), self._busy_until) + self._fixed + instances * self._per_instance
        return self._busy_until

    def wait(self, until: float) -> None:
        """Return at that time."""
        left = until - self._now()
        if left > _SPIN:
            self._sleep(left - _SPIN)
        while self._now() < until:
            pass

    def spend(self, instances: int) -> None:
        """Return when the device would finish a call of so many instances, handed over now."""
        if not self.is_none:
            self.wait(self.queue(instances))


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
        answers = self._answers(rows)
        self._time.spend(len(rows))
        return answers

    def _answers(self, rows: Sequence[model.Row]) -> Sequence[model.Row]:
        if self._poison:
            self._refuse_poison(rows)
        if self._as_length:
            return [b"%d" % memoryview(row).nbytes for row in rows]
        return rows

    def _refuse_poison(self, rows: Sequence[model.Row]) -> None:
        for place, row in enumerate(rows):
            if memoryview(row) == self._poison:
                raise model.InvalidInstances(f"instance {place} is poison")


class Queued(NamedTuple):
    """A call on its way through the device: what it is answered, and when."""

    answers: Sequence[model.Row]
    finished_at: float


class QueuedEcho(Echo):
    """The same on a device that has a queue, as a GPU's stream is: it goes on with the next call without a pause.

    A `model.StagedModel`: a call takes its place when it comes, and its answer is written while the next one runs.
    """

    def prepare(self, rows: Sequence[model.Row]) -> Queued:
        """Take a place on the device."""
        answers = self._answers(rows)
        return Queued(answers, self._time.queue(len(rows)))

    def compute(self, prepared: Queued) -> Queued:
        """The device does this by itself."""
        return prepared

    def finish(self, computed: Queued) -> Sequence[model.Row]:
        """Wait for the device."""
        self._time.wait(computed.finished_at)
        return computed.answers
