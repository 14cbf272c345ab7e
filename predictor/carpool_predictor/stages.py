"""Workers that have several calls under way: a model in stages, with a thread for each, or in steps.

The first stage of a call runs in the thread that reads it, the others in threads of their own; each hands its result to
the next. So several calls of a model on a GPU may be under way: one is read while the GPU has another and a third is
written. Calls stay in their order. A stage that raises fails its own call alone, which passes the later stages.

A model in three steps (read, predict, write) has one thread: where it waits for long, as for a device, that gets the
next batch, if there is one, before the last one's answer is written.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from carpool_predictor.calls import Calls

_SWITCH_INTERVAL = 0.0002  # seconds; Python's own is 0.005

# A call that waited for so many seconds without computing leaves time for another thread to write its answer.
_WORTH_A_THREAD = 0.001

# Calls that may lie between two stages. More would be read and held while they could as well wait on the socket.
_BETWEEN = 1

Stage = Callable[[Any], Any]


class Outcome(NamedTuple):
    """What a call has become so far: a value, or an error."""

    value: Any
    error: BaseException | None


class Stages:
    """Calls on their way through at least one stage. `answer` is called with what each of them has become, in order.

    `answer` must not raise. To be used by one thread, as a context manager: at its end all calls are answered.
    """

    # Mutable state: what lies between the stages.
    def __init__(self, stages: Sequence[Stage], answer: Callable[[Outcome], None]) -> None:
        self._first = stages[0]
        self._answer = answer
        self._queues: list[queue.Queue[Outcome | None]] = [queue.Queue(_BETWEEN) for _ in stages[1:]]
        self._threads = [
            threading.Thread(target=self._run, args=(place, stage), name=f"carpool-stage-{place + 2}", daemon=True)
            for place, stage in enumerate(stages[1:])
        ]

    def __enter__(self) -> Stages:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._queues:
            self._queues[0].put(None)
        for thread in self._threads:
            thread.join()

    def call(self, value: Any) -> None:
        """Take a call through the first stage and hand it on. Waits while the next one has enough to do."""
        self._hand_on(0, after(self._first, Outcome(value, None)))

    def _run(self, place: int, stage: Stage) -> None:
        while True:
            outcome = self._queues[place].get()
            if outcome is None:
                break
            self._hand_on(place + 1, after(stage, outcome))
            del outcome  # a batch takes much memory, and the next one may be long in coming
        if place + 1 < len(self._queues):
            self._queues[place + 1].put(None)

    def _hand_on(self, place: int, outcome: Outcome) -> None:
        if place < len(self._queues):
            self._queues[place].put(outcome)
        else:
            self._answer(outcome)


class Behind:
    """The last step of calls, taken at once or by a thread of its own while the model has the next call.

    `answer` is called with what each of them has become, in order, and must not raise. To be used by one thread, as a
    context manager: at its end all calls are answered.
    """

    # Mutable state: the thread, once there is one, and what it has not begun with.
    def __init__(self, last: Stage, answer: Callable[[Outcome], None]) -> None:
        self._last = last
        self._answer = answer
        self._queue: queue.Queue[Outcome | None] = queue.Queue(_BETWEEN)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Behind:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def now(self, outcome: Outcome) -> None:
        """Take it in this thread, after all that came before."""
        self._queue.join()
        self._answer(after(self._last, outcome))

    def later(self, outcome: Outcome) -> None:
        """Have it taken in the other thread. Waits while that has enough to do."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="carpool-behind", daemon=True)
            self._thread.start()
        self._queue.put(outcome)

    def _run(self) -> None:
        while True:
            outcome = self._queue.get()
            if outcome is None:
                break
            self._answer(after(self._last, outcome))
            del outcome  # a batch takes much memory, and the next one may be long in coming
            self._queue.task_done()


def after(stage: Stage, outcome: Outcome) -> Outcome:
    """What a call becomes in a stage; one that has failed passes it as it is."""
    if outcome.error is not None:
        return outcome
    try:
        return Outcome(stage(outcome.value), None)
    except BaseException as error:
        return Outcome(None, error)


def serve_in_stages(calls: Calls, stages: Sequence[Stage]) -> NoReturn:
    """Serve until the socket ends. Raises `carpool.workers.messages.Ended`."""
    # A thread that has something for the device waits for the interpreter no longer than a small batch takes there.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with Stages(stages, _answering(calls)) as under_way:
        while True:
            under_way.call(calls.next())


def serve_in_steps(calls: Calls, read: Stage, predict: Stage, write: Stage) -> NoReturn:
    """Serve until the socket ends. Raises `carpool.workers.messages.Ended`."""
    sys.setswitchinterval(_SWITCH_INTERVAL)
    took = waited = 0.0  # of the last call; only where it took long it is worth asking how much of that was waiting
    with Behind(write, _answering(calls)) as behind:
        predicted: Outcome | None = None
        while True:
            request = None if waited < _WORTH_A_THREAD else calls.next_now()
            if predicted is not None and request is None:
                behind.now(predicted)
                predicted = None  # a batch takes much memory, and the next one may be long in coming
            outcome = after(read, Outcome(calls.next() if request is None else request, None))
            del request
            if predicted is not None:
                # Nothing that wakes another process comes before the device has the next batch: on a busy core that
                # would get its turn first. To wake a thread does no harm, as it needs this interpreter.
                behind.later(predicted)
            began, used = time.perf_counter(), time.thread_time() if took >= _WORTH_A_THREAD else math.inf
            predicted = after(predict, outcome)
            del outcome
            if predicted.error is not None:
                behind.now(predicted)  # there is nothing to write, and it may be the last of this process
                predicted = None
            took = time.perf_counter() - began
            waited = took - (time.thread_time() - used) if used < math.inf else 0.0


def _answering(calls: Calls) -> Callable[[Outcome], None]:
    return lambda outcome: calls.answer(outcome.value) if outcome.error is None else calls.fail(outcome.error)
