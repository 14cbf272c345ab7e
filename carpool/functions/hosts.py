"""Where batched functions run: in threads of their own, or on an event loop.

A host carries out a batcher's batches and keeps its deadline. Whatever happens later, in a thread or a task, it hands
to the batcher's `post`, which puts one thing after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import itertools
import logging
import math
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from carpool import errors as carpool_errors
from carpool.functions import current, errors, futures, work
from carpool.runtime import deadline_timer, driver, timer_thread
from carpool.scheduling import messages

Post = Callable[..., None]
"""Takes a function and its arguments, and calls it while nothing else happens to the batcher. Never blocks."""

Run = Callable[[work.Work], driver.Outcome]
"""Calls the function with a batch, and waits for its end."""


class Host:
    """What a batcher needs of it.

    All but `is_here` and `call_there` are called while nothing else happens. Those that are not overridden are as in
    threads, where the sequence may go on in any of them.
    """

    @property
    def timer(self) -> driver.Timer:
        """What keeps the driver's deadline: itself, if it is one."""
        return self  # type: ignore[return-value]

    def begin(self, batch: work.Work, done: Callable[[driver.Outcome], None]) -> driver.Execution:
        """Run the function with a batch; `done` is called with the outcome by way of `post`."""
        raise NotImplementedError

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Call a function later; it is no part of the batcher's sequence."""
        raise NotImplementedError

    def end(self) -> None:
        """Nothing is begun any more; what runs goes on until its end."""
        raise NotImplementedError

    def join(self, give_up: float) -> None:
        """Return once its threads have ended, but for those that still run something, or at a time."""

    def is_running(self) -> bool:
        """Whether what was begun will end."""
        return True

    def watch(self) -> None:
        """Something is put in."""

    def after_fork(self) -> None:
        """This is a child process, where other threads are not."""

    def is_here(self) -> bool:
        """Whether the batcher's sequence may go on in the running thread."""
        return True

    def call_there(self, function: Callable[[], None]) -> bool:
        """Call it where the sequence may go on; False if that place is gone."""
        function()
        return True

    def call_soon(self, function: Callable[[], None]) -> bool:
        """Call it in a moment, where a batch could begin, so that others can come meanwhile; False if there is no need.

        It may be called while something else happens.
        """
        return False

    def call_next(self, function: Callable[[], None], is_urgent: bool) -> bool:
        """Call it once the function has the batch that was begun last; False if there is no need, or it is urgent."""
        return False

    def thread_of(self, batch: messages.Batch) -> int | None:
        """The identifier of the thread that works on a batch and on nothing else."""
        return None

    def check_may_block(self, name: str) -> None:
        """Raises RuntimeError if the running thread must not wait for a result."""


# asyncio makes its policy with the first loop, and holds a lock that is not reentrant meanwhile: a handler of a signal
# that made a loop then would wait for itself.
if sys.version_info < (3, 14):
    asyncio.get_event_loop_policy()

log = logging.getLogger("carpool.functions")

PATIENCE = 10.0
"""Seconds for which an interpreter that exits waits for the next answer."""
GRACE = 1.0
"""Seconds that it leaves batches that nobody waits for, and then the event loop for callers without one."""

# Seconds of a timer that is not meant to come.
_LONG = 24 * 3600.0
# Seconds after a deadline by which a thread that handed out results when it was set has looked, or runs callbacks.
_HANDED_OUT = 0.02
# Seconds in which a thread is woken and hands out results; and those that a batch is thought to take at first.
_SLOW, _FIRST_GUESS = 0.001, 1e-7

_WAKE_UP = object()
_STOP = object()
_numbers = itertools.count(1)


_Begun = tuple[work.Work, Callable[[driver.Outcome], None]]


def nothing(batch: work.Work) -> driver.Outcome:
    """In place of the function once it is closed, to let go of it."""
    return errors.Closed()


def _nothing_soon() -> None:
    """In place of what is to be called soon."""


class Threads(Host):
    """Runs batches in daemon threads of its own, which start with the first batch or deadline, and sleep when idle.

    An idle thread keeps the deadline: it would run the batch that is due then. While all are busy the process's timer
    thread does. One that hands out results is busy, as it may run callbacks, which may take long. If the function takes
    longer than that mostly does, a spare thread hands out results while the next batch, if one waits, is run.
    """

    # Mutable state, changed while nothing else happens to the batcher: _begun, batches that are not done yet, _threads,
    # due_at. By the threads: _inbox, _running, what each works on, _handing, those that may run callbacks, and
    # _takes, the seconds of a batch or less; under the lock _spare_is_free also _has_spare and _to_tell, what the spare
    # thread is to call. By callers: _soon, what is to be called. _has_ended is for good.
    due_at = math.inf

    def __init__(self, name: str, run: Run, post: Post, poll: Callable[[], None]) -> None:
        """`poll` looks at deadlines; it is called in the batcher's sequence."""
        self._name = name
        self._run = run
        self._post = post
        self._poll = poll
        self._takes = _FIRST_GUESS
        self._has_spare = self._has_ended = False
        self._spare_is_free = threading.Lock()
        self._to_tell: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: dict[threading.Thread, _Begun | None] = {}
        self._begun: set[_Begun] = set()
        self._handing: set[int] = set()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._timed_at = math.inf  # when the timer thread will look
        self._soon: Callable[[], None] = _nothing_soon

    def begin(self, batch: work.Work, done: Callable[[driver.Outcome], None]) -> driver.Execution:
        begun = (batch, done)
        self._begun.add(begun)
        if len(self._begun) > len(self._threads):
            self._start_thread()
        self._inbox.put(begun)
        # The driver tells of the next deadline after each batch; an older one may not hold any more.
        self.due_at = math.inf
        return self

    def cancel(self) -> bool:
        """As an `Execution`: what a thread works on cannot be broken off."""
        return False

    def look_by(self, when: float) -> None:
        if when >= self.due_at:
            return
        self.due_at = when
        if not self._threads:
            self._start_thread()  # which reads when to wake up
        elif self._has_idle():
            self._inbox.put(_WAKE_UP)
        else:
            # A thread that asks this itself is likely to be idle by then, and keeps the deadline.
            self._time(when + _HANDED_OUT if threading.get_ident() in self._handing else when)

    def stop(self) -> None:
        self.due_at = math.inf

    def call_soon(self, function: Callable[[], None]) -> bool:
        """In an idle thread, which would begin the batch: until it has the interpreter's lock, others may call."""
        self._soon = function  # before the look: should all threads end now, the last one calls it
        if not self._has_idle():
            return False
        self._inbox.put(function)
        return self._has_idle()  # still, or the caller does it as well

    def call_next(self, function: Callable[[], None], is_urgent: bool) -> bool:
        """In the spare thread, so that this one can go on with the batch."""
        if self._takes < _SLOW or threading.get_ident() not in self._handing or not self._spare_is_free.acquire(False):
            return False
        if not self._has_spare:
            spare = threading.Thread(target=self._serve_spare, name=f"carpool {self._name} answers", daemon=True)
            self._running[spare], self._has_spare = None, True
            try:
                spare.start()
            except RuntimeError:  # there can be no more threads; it is not tried again, as the lock is kept
                del self._running[spare]
                return False
        self._to_tell.put((function, time.perf_counter()))
        return not self._has_ended  # else the spare thread may be gone, and the caller does it as well

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        timer_thread.shared.call_at(when, function)

    def end(self) -> None:
        self._has_ended = True
        for _ in self._threads:
            self._inbox.put(_STOP)
        self._to_tell.put(_STOP)
        if not self._begun:
            self._run = nothing

    def join(self, give_up: float) -> None:
        for thread, begun in list(self._running.items()):
            if begun is None and thread is not threading.current_thread():
                thread.join(max(0.0, give_up - time.monotonic()))

    def thread_of(self, batch: messages.Batch) -> int | None:
        for thread, begun in list(self._running.items()):
            if begun is not None and getattr(begun[0], "batch", None) is batch:  # until it is forgotten
                return thread.ident
        return None

    def _has_idle(self) -> bool:
        return len(self._begun) + len(self._handing) < len(self._threads)

    # --- its threads -------------------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        name = f"carpool {self._name} {next(_numbers)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        self._running[thread] = None
        thread.start()

    def _serve(self) -> None:
        thread = threading.current_thread()
        error: BaseException | None = None
        try:
            while (begun := self._next()) is not None:
                self._running[thread] = begun
                begun_at = time.perf_counter()
                outcome = self._run(begun[0])
                self._takes = min(time.perf_counter() - begun_at, 2 * self._takes)  # any one may wait for the lock
                self._hand(self._post, self._finish, begun, outcome)
                self._running[thread] = begun = outcome = None  # type: ignore[assignment] # an idle thread keeps nothing
        except BaseException as raised:  # out of a callback, or into the thread from outside
            error = raised
            carpool_errors.put(error, "__traceback__", None)
        with contextlib.suppress(BaseException):  # out of another callback: all was done meanwhile
            self._post(self._ended, thread, error)

    def _serve_spare(self) -> None:
        try:
            while (found := self._to_tell.get()) is not _STOP:
                function, asked_at = found
                if time.perf_counter() - asked_at > futures.LATE:  # the function holds the interpreter's lock,
                    self._takes = _FIRST_GUESS  # so results come sooner without this
                function()
                self._spare_is_free.release()
        except BaseException:  # out of a callback, or into the thread from outside: another one takes its place
            self._has_spare = False
            with contextlib.suppress(BaseException):  # out of another callback
                self._post(_nothing_soon)  # which hands out what is left
            with contextlib.suppress(RuntimeError):  # it was free
                self._spare_is_free.release()
        finally:
            del self._running[threading.current_thread()]

    def _next(self) -> _Begun | None:
        """The next batch, or None to end the thread; looks at deadlines meanwhile."""
        while True:
            timeout = None
            if self.due_at < math.inf:
                timeout = min(max(0.0, self.due_at - time.monotonic()), _LONG)
            try:
                found = self._inbox.get(timeout=timeout)
            except queue.Empty:
                self._hand(self._look)
                continue
            if found is _STOP:
                return None
            if type(found) is tuple:
                return found
            if found is not _WAKE_UP:
                self._hand(found)

    def _hand(self, function: Callable[..., None], *args: Any) -> None:
        """Call what may end in callbacks."""
        ident = threading.get_ident()
        self._handing.add(ident)
        try:
            function(*args)
        finally:
            self._handing.discard(ident)

    def _time(self, when: float) -> None:
        """Have the timer thread look at `when`; what it was told before cannot be taken back."""
        if when < self._timed_at:
            self._timed_at = when
            timer_thread.shared.call_at(when, self._timer_is_up)

    def _timer_is_up(self) -> None:
        self._timed_at = math.inf
        self._look()

    def _look(self) -> None:
        self._post(self._due)

    def _due(self) -> None:
        if self.due_at <= time.monotonic():
            self.due_at = math.inf
            self._poll()
        elif self.due_at < math.inf and not self._has_idle():
            self._time(self.due_at)

    def _finish(self, begun: _Begun, outcome: driver.Outcome) -> None:
        if begun in self._begun:
            self._begun.discard(begun)
            begun[1](outcome)

    def _ended(self, thread: threading.Thread, error: BaseException | None) -> None:
        """A thread ended. If it should not have, its batch fails, and another thread takes its place."""
        self._threads.remove(thread)
        self._running.pop(thread)
        self._soon()
        if error is None:
            return
        queued: list[Any] = []
        while not self._inbox.empty():
            queued.append(self._inbox.get())
        for found in queued:
            self._inbox.put(found)
        safe = {*(found for found in queued if type(found) is tuple), *self._running.values()}
        for begun in self._begun - safe:
            self._finish(begun, errors.Raised(error))
        if len(self._begun) > len(self._threads) or (self.due_at < math.inf and not self._threads):
            self._start_thread()


async def _nothing_async(batch: work.Work) -> driver.Outcome:
    return nothing(batch)


class EventLoop(Host):
    """Runs batches as tasks of one event loop. The loop keeps it alive, not the other way round."""

    # Mutable state: the timer, how many batches are under way, and whether the end of the loop is watched for; `run`,
    # until the function is closed.
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Callable[[work.Work], Coroutine[Any, Any, driver.Outcome]],
        post: Post,
        poll: Callable[[], None],
        on_loop_end: Callable[[], None],
    ) -> None:
        """`poll` looks at deadlines. `on_loop_end` is called when the loop cancels its tasks, as it does at its end."""
        self.loop = loop
        self.run = run
        self._post = post
        self._poll = poll
        self._on_loop_end = on_loop_end
        self._timer = deadline_timer.DeadlineTimer(self._look, time.monotonic)
        self._under_way = 0
        self._ident = threading.get_ident() if self.is_here() else None
        self._is_watching = False
        self._is_copy = False  # of a loop that runs in the parent process

    def watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            _LoopEnd(self)

    def loop_closed(self) -> None:
        """The loop let go of everything."""
        self._on_loop_end()

    def begin(self, batch: work.Work, done: Callable[[driver.Outcome], None]) -> driver.Execution:
        self._under_way += 1
        return _Task(self, batch, done)

    @property
    def timer(self) -> driver.Timer:
        return self._timer

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        self.loop.call_later(max(0.0, when - time.monotonic()), function)

    def end(self) -> None:
        self.run = _nothing_async

    def is_running(self) -> bool:
        return self.loop.is_running() and not self._is_copy

    def after_fork(self) -> None:
        self._is_copy = True

    def is_here(self) -> bool:
        return current.loop() is self.loop

    def call_there(self, function: Callable[[], None]) -> bool:
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True

    call_soon = call_there

    def call_next(self, function: Callable[[], None], is_urgent: bool) -> bool:
        if not is_urgent:
            self.loop.call_soon(function)
        return not is_urgent

    def check_may_block(self, name: str) -> None:
        if self.is_here() or (threading.get_ident() == self._ident and not self.loop.is_running()):
            raise RuntimeError(
                f"{name} runs on this thread's event loop, which would wait for itself; await the future instead"
            )

    def _look(self, _: float) -> float:
        self._post(self._poll)
        return math.inf

    def carried(self, task: _Task, outcome: driver.Outcome) -> None:
        """A batch has its outcome. Other batches go on first: they may have waited for what this one let go of."""
        if self._under_way > 1:
            self.loop.call_soon(self.task_ended, task, outcome)
        else:
            self.task_ended(task, outcome)

    def task_ended(self, task: _Task, outcome: driver.Outcome | None) -> None:
        """A batch is over, or its task was cancelled from outside, if there is no outcome."""
        self._under_way -= 1
        if outcome is None:
            self._post(self._on_loop_end)
        else:
            self._post(task.done, outcome)


class _LoopEnd:
    """Kept by nothing but a loop's list of timers, which the loop forgets when it is closed."""

    def __init__(self, host: EventLoop) -> None:
        self._host = weakref.ref(host)
        # In a context of its own, or the timer would keep the variables of whoever called first.
        host.loop.call_later(_LONG, self._again, context=contextvars.Context())

    def _again(self) -> None:
        host = self._host()
        if host is not None:
            _LoopEnd(host)

    def __del__(self) -> None:
        host = self._host()
        if host is not None and host.loop.is_closed():
            host.loop_closed()


class _Task:
    """A batch in a task."""

    def __init__(self, host: EventLoop, batch: work.Work, done: Callable[[driver.Outcome], None]) -> None:
        self.done = done
        self._host = host
        self._is_abandoned = False
        # Not by the loop's factory: an eager task would run at once, in the midst of the sequence.
        self._task = asyncio.Task(self._carry(batch), loop=host.loop, name="carpool batch", context=batch.context())
        batch.batch.about.task = weakref.ref(self._task)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> bool:
        self._is_abandoned = True
        self._task.cancel()
        return False  # it may have to clean up, and keeps its slot until then

    async def _carry(self, batch: work.Work) -> None:
        outcome = await self._host.run(batch)
        # As the task's last act, and not by its callback, which would be a turn of the loop later.
        self._task.remove_done_callback(self._ended)
        self._host.carried(self, carpool_errors.Abandoned() if self._is_abandoned else outcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """It was cancelled, perhaps before it began."""
        error = None if task.cancelled() else task.exception()
        outcome = None if error is None else errors.Raised(error)
        self._host.task_ended(self, carpool_errors.Abandoned() if self._is_abandoned else outcome)


class _Background:
    """An event loop in a thread, for callers that have none. It starts with the first of them."""

    # Mutable state, under the lock: the loop and its thread.
    def __init__(self) -> None:
        self._forget()

    def stop(self) -> None:
        """End the loop, before the interpreter does."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(GRACE)

    def _forget(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may come round and call
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs. Raises RuntimeError where no thread can have one."""
        with self._lock:
            if self._loop is None:
                _check_that_threads_are_threads()
                loop = asyncio.new_event_loop()
                target = functools.partial(self._run, loop)
                thread = threading.Thread(target=target, name="carpool loop", daemon=True)
                thread.start()  # which may not be possible
                self._loop, self._thread = loop, thread
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            if tasks := asyncio.all_tasks(loop):  # that nobody waits for
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks))
        except BaseException:  # raised into the thread, from outside
            log.exception("the event loop for callers without one has ended; the next call starts another")
        with self._lock:
            self._loop = None
        loop.close()


def _check_that_threads_are_threads() -> None:
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    for name, is_patched in (
        ("gevent", gevent is not None and gevent.is_module_patched("threading")),
        ("eventlet", eventlet is not None and eventlet.is_monkey_patched("thread")),
    ):
        if is_patched:
            raise RuntimeError(
                f"{name} made all threads greenlets of one, so none can run the event loop that an async def needs "
                "if its caller has none; batch a def instead"
            )


background = _Background()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=background._forget)
