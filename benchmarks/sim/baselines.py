"""How others decide when a batch leaves, written from their published rules, for the same engine as our scheduler.

Each has the surface of `planning.engine.Scheduler`. Times are seconds; the requests of the grid have one
instance each, so a queue's length is its instances except where a rule counts them.
"""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from carpool import errors
from carpool.scheduling import messages

Effects = list[messages.Effect]


class Baseline(abc.ABC):
    """A queue, first in, first out, and a rule in `_step` that says what leaves it now and when to be asked again."""

    def __init__(self, clock: Callable[[], float], size: int) -> None:
        self._clock = clock
        self._size = size
        self._queue: deque[messages.Request] = deque()
        self._in_flight = 0
        self._wake: float | None = None

    def submit(self, request: messages.Request) -> Sequence[messages.Effect]:
        now = self._clock()
        request.arrived = now
        request.deadline = now + (request.timeout or math.inf)
        self._queue.append(request)
        return self._step(now)

    def submit_all(self, requests: Sequence[messages.Request]) -> Sequence[messages.Effect]:
        return [effect for request in requests for effect in self.submit(request)]

    def done(self, batch: messages.Batch, predictions: Sequence[Any]) -> Sequence[messages.Effect]:
        now = self._clock()
        self._in_flight -= 1
        self._learn(batch, now)
        return [*self._step(now), *(messages.Answer(part.request, ()) for part in batch.parts)]

    def poll(self) -> Sequence[messages.Effect]:
        return self._step(self._clock())

    def next_deadline(self) -> float | None:
        return self._wake

    @abc.abstractmethod
    def _step(self, now: float) -> Effects:
        """What leaves now; sets `_wake`."""

    def _learn(self, batch: messages.Batch, now: float) -> None:  # noqa: B027 - most learn nothing
        """A batch came back."""

    def _send(self, requests: int, now: float) -> messages.Dispatch:
        members = [self._queue.popleft() for _ in range(requests)]
        batch = messages.Batch(
            "", None, [messages.Part(request, 0, request.rows) for request in members], messages.Reason.DUE
        )
        batch.dispatched = now
        self._in_flight += 1
        return messages.Dispatch(batch)

    def _drop(self, error: errors.CarpoolError) -> messages.Refuse:
        return messages.Refuse(self._queue.popleft(), error)


class KServe(Baseline):
    """KServe's agent (pkg/batcher/handler.go): one loop that receives, and does not receive during a predictor call.

    So the window starts when the free loop takes the first request, not when that arrived. A batch goes when the
    requests taken have `size` instances or more: the size is a trigger, not a cap.
    """

    def __init__(self, clock: Callable[[], float], size: int, window: float) -> None:
        super().__init__(clock, size)
        self._window = window
        self._started: float | None = None

    def _step(self, now: float) -> Effects:
        self._wake = None
        if self._in_flight or not self._queue:
            return []
        self._started = now if self._started is None else self._started
        taken, rows = self._received()
        if rows < self._size and now < self._started + self._window:
            self._wake = self._started + self._window
            return []
        self._started = None
        return [self._send(taken, now)]

    def _received(self) -> tuple[int, int]:
        rows = 0
        for taken, request in enumerate(self._queue, 1):
            rows += request.rows
            if rows >= self._size:
                return taken, rows
        return len(self._queue), rows


class EagerWindow(Baseline):
    """MLServer's and Ray Serve's batching: a full or old batch is sealed though the predictor is busy.

    Sealed batches queue at the predictor, where nobody can join them any more.
    """

    def __init__(self, clock: Callable[[], float], size: int, window: float) -> None:
        super().__init__(clock, size)
        self._window = window

    def _step(self, now: float) -> Effects:
        if not self._queue:
            return []
        if self._wake is None:
            self._wake = now + self._window
        if len(self._queue) < self._size and now < self._wake:
            return []
        self._wake = None
        return [self._send(len(self._queue), now)]


class Clipper(Baseline):
    """Clipper (NSDI 2017, section 4.3): the batch cap grows by one and shrinks by a tenth around a latency objective.

    One batch in flight; requests that have expired are dropped before dispatch.
    """

    def __init__(self, clock: Callable[[], float], size: int, objective: float) -> None:
        super().__init__(clock, size)
        self._objective = objective
        self._cap = 1.0

    def _step(self, now: float) -> Effects:
        effects: Effects = []
        while not self._in_flight and self._queue:
            if self._queue[0].deadline <= now:
                effects.append(self._drop(errors.DeadlineExceeded()))
            else:
                effects.append(self._send(min(len(self._queue), self._size, int(self._cap)), now))
        return effects

    def _learn(self, batch: messages.Batch, now: float) -> None:
        if now - batch.dispatched > self._objective:
            self._cap = max(1.0, 0.9 * self._cap)
        elif batch.rows >= int(self._cap):
            self._cap = min(float(self._size), self._cap + 1)


class Sample(NamedTuple):
    """A batch that came back: its size, its round trip, and how long its first request had waited."""

    rows: int
    seconds: float
    waited: float


class Phase(NamedTuple):
    """A part of BentoML's training: so many batches, at best of `rows`, keeping so many requests."""

    batches: int
    rows: int
    required: int


class BentoML(Baseline):
    """BentoML's CorkDispatcher: waits while that is cheaper than what waits usually costs, sheds heads that are late.

    It looks at its queue once a millisecond, has one batch in flight, fits `a * rows + b` to its last 50 batches every
    5 s, and first trains itself with batches of 1, 1, 2 and 3.
    """

    TICK = 0.001
    DECAY = 0.95
    REFIT_EVERY = 5.0
    SKIPPED, KEPT = 2, 50
    TRAINING = (Phase(8, 1, 2), Phase(1, 1, 6), Phase(1, 2, 5), Phase(1, 3, 3))

    def __init__(self, clock: Callable[[], float], size: int, max_latency: float) -> None:
        super().__init__(clock, size)
        self._max_latency = max_latency
        self._per_row, self._fixed = min(2.0, max_latency * 2 / 30), min(1.0, max_latency / 30)
        self._usual_wait = 0.0
        self._samples: deque[Sample] = deque(maxlen=self.KEPT)
        self._seen = 0
        self._fitted = -math.inf
        self._waited = 0.0  # of the batch in flight
        self._phase = self._trained = 0

    def _step(self, now: float) -> Effects:
        if self._wake is not None and now < self._wake:
            return []  # asleep until the next tick
        self._wake = None
        effects: Effects = []
        while self._queue:
            effect = self._train(now) if self._phase < len(self.TRAINING) else self._serve(now)
            if effect is None:
                self._wake = now + self.TICK
                break
            effects.append(effect)
        return effects

    def _serve(self, now: float) -> messages.Effect | None:
        waiting = len(self._queue)
        oldest, newest = now - self._queue[0].arrived, now - self._queue[-1].arrived
        if waiting > 1 and oldest + self._cost(waiting) >= self._max_latency:
            return self._drop(errors.Overloaded())
        if self._in_flight:
            lone = waiting == 1 and oldest >= self._max_latency
            return self._drop(errors.Overloaded()) if lone else None
        if waiting < self._size and waiting * (newest + self.TICK + self._per_row) <= self.DECAY * self._usual_wait:
            return None
        self._waited = oldest
        return self._send(min(waiting, self._size), now)

    def _train(self, now: float) -> messages.Effect | None:
        phase = self.TRAINING[self._phase]
        rows = min(phase.rows, self._size)
        waiting, oldest = len(self._queue), now - self._queue[0].arrived
        if waiting > phase.required - self._trained and oldest >= self._max_latency:
            return self._drop(errors.Overloaded())
        longest = min(self.DECAY * self._max_latency, (2 * rows + 1) * self._per_row + self._fixed)
        if rows > 1 and waiting < rows and self._cost(rows) + oldest <= longest:
            return None
        if self._in_flight:
            return None
        self._waited = 0.0
        self._trained += 1
        if self._trained == phase.batches:
            self._phase, self._trained = self._phase + 1, 0
            if self._phase > 1:
                self._fit()
        return self._send(min(waiting, self._size), now)

    def _learn(self, batch: messages.Batch, now: float) -> None:
        self._seen += 1
        if self._seen <= self.SKIPPED:
            return
        self._samples.append(Sample(batch.rows, now - batch.dispatched, self._waited))
        if now - self._fitted >= self.REFIT_EVERY:
            self._fitted = now
            self._fit()

    def _cost(self, rows: int) -> float:
        return self._per_row * rows + self._fixed

    def _fit(self) -> None:
        """Least squares; of the many solutions for batches of one size the smallest, as numpy's lstsq has it."""
        count = len(self._samples)
        if not count:
            return
        rows = sum(sample.rows for sample in self._samples) / count
        seconds = sum(sample.seconds for sample in self._samples) / count
        spread = sum((sample.rows - rows) ** 2 for sample in self._samples)
        if spread:
            slope = sum((sample.rows - rows) * (sample.seconds - seconds) for sample in self._samples) / spread
            fixed = seconds - slope * rows
        else:
            slope = seconds * rows / (rows * rows + 1)
            fixed = seconds / (rows * rows + 1)
        self._per_row, self._fixed = max(1e-6, slope), max(0.0, fixed)
        self._usual_wait = sum(sample.waited for sample in self._samples) / count
