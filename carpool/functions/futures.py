"""What a call returns: a `concurrent.futures.Future` that can also be awaited, in any event loop.

There are as many of them as there are items, so all that most of them never need is made when it is asked for: a task
that awaits one waits for a future of its own loop, a thread for a lock, and what the base class keeps for
`concurrent.futures.wait` is made at its first look.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import os
import sys
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from carpool import errors as carpool_errors
from carpool.functions import current, errors, waiting

log = logging.getLogger("carpool.functions")

R = TypeVar("R")

PENDING = "pending"
CANCELLED = "cancelled"
FINISHED = "finished"
FAILED = "finished with an exception"

_batch_here = current.variable.get
_running_loop = current.loop
_Lock = type(threading.Lock())
# Seconds after which a thread that a function may have started looks whether its wait can end, and again after twice as
# long each time.
_FIRST_LOOK = 0.1
LATE = 0.004
"""Seconds after which a thread that was woken is late: others hold the interpreter's lock, for 5 ms each."""
# So many are woken at once then. More would keep the machine busy with looking for that lock, where there are hundreds.
_IF_LATE = 8
# Held for a moment wherever a status changes. The garbage collector or a handler of a signal may come round meanwhile
# and settle others. Who waits does not need it, or crowds of threads would queue for it: a waiter is put on the list
# of a future before the status is looked at, and taken from there after that has changed, by one of the two.
_transitions = threading.RLock()
# After which this process came to be: threads that waited before one are in its parent.
_forks = 0


Settling = tuple["Future[Any]", Any, BaseException | None]
"""A future with its result, or with an exception."""


# Among who waits: the base class's own state.
_MIRROR = object()
# Those that have such a state.
_mirrored: weakref.WeakSet[Future[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    """Other threads may have held these locks, and are not there any more."""
    global _transitions, _forks
    _transitions = threading.RLock()
    _forks += 1
    for future in list(_mirrored):
        concurrent.futures.Future.__init__(future)
        future._mirror()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Sleeper:
    """A thread that waits: for its lock, which whoever has the result lets go, or the thread before it in a `queue`.

    Greenlets of gevent and eventlet, whose locks are others, do not queue, nor does the main thread, where a signal may
    raise an exception at any moment.
    """

    __slots__ = ("forks", "has_left", "lock", "may_queue", "queues")

    def __init__(self) -> None:
        self.lock: Any = threading.Lock()
        self.lock.acquire()
        self.may_queue = type(self.lock) is _Lock and threading.get_ident() != threading.main_thread().ident
        self.queues: list[_WakingQueue] = []
        self.has_left, self.forks = False, _forks

    def wake(self) -> None:
        """Let it go on. It may be told more than once."""
        with contextlib.suppress(RuntimeError):
            self.lock.release()

    def leave(self) -> None:
        """It has stopped waiting, for whatever reason: the next one's turn."""
        self.has_left = True  # before the look: who puts it in a queue looks in the other order, so that one sees it
        for queue in self.queues:
            queue.wake_next()


class _WakingQueue:
    """Threads that have their results, each woken by the one before.

    If all were woken at once, nearly all would go to sleep again until they have the interpreter's lock. But where
    others compute in Python and hold that, so that whoever is woken is late, several queue for it at once. Each calls
    `wake_next` as it stops waiting, so that all have their turn; those that have left before count for nothing.
    """

    # Whether the first thread that was woken was late, the last time.
    are_late = False

    def __init__(self, sleepers: Sequence[_Sleeper]) -> None:
        self._sleepers = deque(sleepers)
        self._is_first = True
        self._woken_at = time.monotonic()
        for sleeper in sleepers:
            sleeper.queues.append(self)
        self._wake(_IF_LATE if self.are_late else 1)

    def wake_next(self) -> None:
        """A thread has stopped waiting: wake one more, or several if this one is late."""
        now = time.monotonic()
        is_late = now - self._woken_at > LATE
        self._woken_at = now
        if self._is_first:
            self._is_first = False
            _WakingQueue.are_late = is_late
        self._wake(_IF_LATE if is_late else 1)

    def _wake(self, count: int) -> None:
        with contextlib.suppress(IndexError):  # there is none, or another thread took it
            while count:
                sleeper = self._sleepers.popleft()
                sleeper.wake()
                count -= not sleeper.has_left


class Future(concurrent.futures.Future[R]):
    """The result of one call, now or later.

    `.result(timeout)` waits for it in a thread, `await` in a task; `concurrent.futures.wait` and `as_completed`,
    `asyncio.gather` and the like take it as well. Cancelling it, or the only task that awaits it, takes the item out of
    the queue; an item that is being computed already is left to its batch. Callbacks run in a thread that hands out
    results, those of one batch maybe beside those of the next, so they should be short. It is awaited in tasks of
    asyncio only: a coroutine that is driven by something else and given up leaves it as a cancelled task does.
    """

    # What most futures never change is the class's. `source` is there for as long as it is pending. In `_waiting` are
    # threads and futures of loops, which stay until they have gone on, and callbacks, which stay until they are called.
    _status: str
    _value: Any = None
    _error: BaseException | None = None
    _trace: types.TracebackType | None = None  # of the exception, as it came
    _untold: _Untold | None = None  # while nobody has asked for the exception
    _is_mirrored = False  # the base class's own state is there as well

    def __init__(self, source: waiting.Source | None = None) -> None:
        self.source = source
        self._status = PENDING
        self._waiting: list[Any] = []

    # --- what callers use --------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether there is a result, an exception, or it was cancelled."""
        source = self.source
        if source is not None:
            source.flush()
        return self._status is not PENDING

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._status is CANCELLED

    def running(self) -> bool:
        """Whether its batch has left."""
        source = self.source
        return source is not None and source.is_under_way

    def cancel(self) -> bool:
        """Cancel it; False if it is done already."""
        self._withdraw(CANCELLED, None)
        return self._status is CANCELLED

    def result(self, timeout: float | None = None) -> R:
        """The result, waited for up to `timeout` seconds.

        Raises what the call failed with, TimeoutError if it takes longer than `timeout`, and
        `concurrent.futures.CancelledError` if it was cancelled.
        """
        if self._status is PENDING:
            self._wait(timeout)
        if self._status is CANCELLED:
            raise concurrent.futures.CancelledError
        if self._error is not None:
            try:
                raise self._as_it_came(self._error)
            finally:
                del self  # else the traceback keeps the future, which keeps the exception
        return self._value  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call failed with, or None; waits as `result` does."""
        if self._status is PENDING:
            self._wait(timeout)
        if self._status is CANCELLED:
            raise concurrent.futures.CancelledError
        self._is_told()
        return self._error

    def __await__(
        self, loop: asyncio.AbstractEventLoop | None = None, wait: waiting.Wait | None = None
    ) -> Generator[Any, None, R]:
        if self._status is PENDING:
            # Most who wait belong to no batch, and need not be noted.
            if wait is None and _batch_here(None) is not None and (wait := self._begin_to_wait(waiting.running_task())):
                try:
                    return (yield from self.__await__(loop, wait))
                finally:
                    wait.end()
                    del self, wait
            # It is awaited where it was called, nearly always, and to ask which loop runs would take longer than all of
            # this: where it is another one, its task says so.
            if loop is None:
                loop = getattr(self.source, "loop", None)
            if loop is None:
                loop = asyncio.get_running_loop()
                self._begin_if_elsewhere(loop)
            waiter, elsewhere = loop.create_future(), None
            self._waiting.append(waiter)
            if wait is not None:
                wait.watch(waiter.done, waiter.set_exception)
            try:
                if self._status is PENDING:  # else since it was looked at
                    yield from waiter
            except BaseException as error:  # the task was cancelled, or its coroutine closed
                elsewhere = _running_loop() if type(error) is RuntimeError else None
                if elsewhere is None or elsewhere is loop:
                    self._leave(waiter)
                    raise
            if elsewhere is not None:
                self._begin_if_elsewhere(elsewhere)
                try:
                    return (yield from self.__await__(elsewhere, wait))
                finally:
                    self._leave(waiter)  # not before: somebody waits all the while
                    del self, wait
            self._waiting.remove(waiter)
        if self._status is FINISHED:
            return self._value  # type: ignore[no-any-return]
        if self._error is None:
            raise asyncio.CancelledError
        try:
            raise self._as_it_came(self._error)
        finally:
            del self, wait

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Call `fn(future)` once it is done, at once if it is."""
        home = getattr(fn, "__module__", None)
        if home == "asyncio.futures":  # `asyncio.wrap_future`: it is to be awaited
            self._begin_for_callback(fn, fn)
        elif home == "asyncio.tasks" and (loop := current.loop()) is not None:  # `asyncio.wait`
            fn = _OnLoop(loop, fn)
            self._begin_for_callback(fn.function, lambda failed: self._withdraw(FINISHED, failed.exception()))
        self._add_waiter(fn)

    def remove_done_callback(self, fn: Callable[[Future[R]], object]) -> int:
        """Do not call `fn`; returns how often it would have been called."""
        found = [each for each in list(self._waiting) if fn in (each, getattr(each, "function", None))]
        for each in found:
            self._discard(each)
        return len(found)

    def set_running_or_notify_cancel(self) -> bool:
        """For executors that make futures of their own."""
        return self._status is PENDING

    def set_result(self, result: R) -> None:
        """Settle it; raises `concurrent.futures.InvalidStateError` if it is done."""
        if not settle([(self, result, None)]):
            raise concurrent.futures.InvalidStateError(f"{self!r} is done")

    def set_exception(self, exception: BaseException | None) -> None:
        """Settle it; raises `concurrent.futures.InvalidStateError` if it is done."""
        if not settle([(self, None, exception)]):
            raise concurrent.futures.InvalidStateError(f"{self!r} is done")

    def __dir__(self) -> Iterable[str]:
        """Without what the base class keeps, unless it is there: who looks at all that is named would have it made."""
        hidden = () if self._is_mirrored else _OF_BASE
        return [name for name in super().__dir__() if name not in hidden]

    def __reduce__(self) -> Any:
        """Raises TypeError, as for any future of `concurrent.futures`."""
        raise TypeError("cannot pickle a future")

    def __repr__(self) -> str:
        return f"<carpool.Future {FINISHED if self._status is FAILED else self._status}>"

    # --- what `concurrent.futures.wait` and `as_completed` use -------------------------------------------------

    def _begin_to_mirror(self) -> None:
        """Keep the base class's state as well, from now on: its functions look at that."""
        self._begin_for_base()
        with _transitions:
            if not self._is_mirrored:
                self._is_told()
                super().__init__()
                self._is_mirrored = True
                self._waiting.append(_MIRROR)
                _mirrored.add(self)
        self._mirror()

    def _mirror(self) -> None:
        """Let those know that look at the base class's state, if it is done."""
        if self._status is PENDING or super().done():
            return
        if self._status is CANCELLED:
            super().cancel()
            super().set_running_or_notify_cancel()
        elif self._error is not None:
            super().set_exception(self._error)
        else:
            super().set_result(self._value)

    # --- internals ---------------------------------------------------------------------------------------------

    def _add_waiter(self, waiter: Any) -> None:
        """Tell it once this is done, at once if it is."""
        self._waiting.append(waiter)
        self._is_told()
        if self._status is not PENDING:
            _tell([self])

    def _wait(self, timeout: float | None) -> None:
        source = self.source
        if source is not None:
            source.flush()
            source.check_may_block()
        wait = None if current.variable.get(None) is None else self._begin_to_wait(waiting.running_thread())
        waiter = _Sleeper()
        lock = waiter.lock
        self._waiting.append(waiter)
        end = math.inf if timeout is None else time.monotonic() + timeout
        looks = waiting.may_be_behind() if wait is None else wait.may_be_circle
        look = _FIRST_LOOK if looks or type(lock) is not _Lock else threading.TIMEOUT_MAX
        try:
            while self._status is PENDING:
                if lock.acquire(timeout=max(0.0, min(end - time.monotonic(), look))) or self._status is not PENDING:
                    break
                if time.monotonic() >= end:
                    raise TimeoutError
                if type(lock) is not _Lock:  # of gevent or eventlet: whoever has the result may not be able to wake it
                    continue
                look *= 2
                with self._leaving(waiter):
                    if wait is not None:
                        wait.check()
                    elif (batch := waiting.batch_behind(self)) is not None:
                        wait = waiting.begin(self, batch)
        finally:
            self._discard(waiter)
            waiter.leave()
            if wait is not None:
                wait.end()

    def _begin_to_wait(self, by: Sequence[Any] | None) -> waiting.Wait | None:
        """As `waiting.begin`. Who gets the RuntimeError waits no longer."""
        with self._leaving(None):
            return waiting.begin(self, by=by)

    def _begin_for_callback(self, fn: Callable[[Any], object], tell: Callable[[Future[Any]], object]) -> None:
        """Whoever awaits what this callback of asyncio's settles waits for this; if that is for ever, `tell` fails."""
        self._begin_if_elsewhere(current.loop())
        wait = self._begin_to_wait((fn,))
        if wait is None:
            return

        def fail(error: RuntimeError) -> None:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            tell(failed)
            wait.end()
            self._leave(fn)

        self._add_waiter(wait)
        wait.watch(lambda: self._status is not PENDING, fail)

    def _begin_if_elsewhere(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Who waits on this loop does not wait for the end of a turn of another, which may be blocked or stopped."""
        source = self.source
        if source is not None:
            source.flush(loop)

    def _begin_for_base(self) -> None:
        """Whoever looks at the base class's state waits, and nobody tells until when: for as long as this is open."""
        source = self.source
        if source is None:
            return
        source.flush()
        source.check_may_block()
        wait = self._begin_to_wait(None)
        if wait is not None:
            self._add_waiter(wait)

    @contextlib.contextmanager
    def _leaving(self, waiter: Any) -> Iterator[None]:
        """Whoever gets a RuntimeError waits no longer; `waiter` is what it waited with, if it did already."""
        try:
            yield
        except RuntimeError:
            self._leave(waiter)  # or it would be computed for nobody, and do the same again
            raise

    def _leave(self, waiter: Any) -> None:
        """Whoever waited with this does not any more; if nobody else waits, nobody needs it."""
        self._discard(waiter)
        if not self._is_mirrored and all(isinstance(other, waiting.Wait) for other in self._waiting):
            self.cancel()

    def _discard(self, waiter: Any) -> bool:
        """Do not tell it; False if it is not there any more."""
        try:
            self._waiting.remove(waiter)
        except ValueError:
            return False
        return True

    def _withdraw(self, status: str, error: BaseException | None) -> None:
        """It is of no use to anybody any more."""
        source = self.source
        if settle([(self, None, error)], status) and source is not None:
            source.withdraw(self)

    def _as_it_came(self, error: BaseException) -> BaseException:
        """An exception to be raised: without the frames of those who had it raised before, or they would pile up."""
        self._is_told()
        carpool_errors.put(error, "__traceback__", self._trace)
        return error

    def _is_told(self) -> None:
        """Somebody has asked for the exception, or will be called with it."""
        if self._untold is not None:
            self._untold.is_told = True
            self._untold = None


class _OfBase:
    """An attribute of the base class's, until a future has it: it is made at the first look.

    Not by `__getattr__`, with which every look at any attribute would take several times as long.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, future: Future[Any] | None, _: type) -> Any:
        if future is None or future._is_mirrored:
            raise AttributeError(f"a future has no attribute {self._name!r}")
        future._begin_to_mirror()
        return getattr(future, self._name)


_OF_BASE = frozenset(vars(concurrent.futures.Future()))
for _name in _OF_BASE:
    setattr(Future, _name, _OfBase(_name))


class _Untold:
    """What a call failed with that nobody has asked for: it goes to the log when the future is let go."""

    def __init__(self, error: BaseException, source: waiting.Source | None) -> None:
        self.is_told = type(error) is errors.Closed  # of which whoever closes knows
        self._words = errors.describe(error)
        self._name = getattr(getattr(source, "replier", None), "name", "a batched function")

    def __del__(self) -> None:
        if not self.is_told and not sys.is_finalizing():
            log.error("%s failed, and nobody asked for the outcome of that call: %s", self._name, self._words)


class _OnLoop:
    """A callback that is called on the event loop where it was added."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[Future[Any]], object]) -> None:
        self.function = function
        self._loop = loop

    def __call__(self, future: Future[Any]) -> None:
        if current.loop() is self._loop:
            self.function(future)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.function, future)


# --- the one place that hands over outcomes ---------------------------------------------------------------------


def settle(outcomes: Iterable[Settling], status: str = FINISHED) -> bool:
    """Settle futures with results or exceptions, and tell who waits for them. Those that are done stay as they are.

    All of them have their outcomes before the first callback runs. Returns whether any was settled. After an interrupt
    it may be called again: who was not told is told then.
    """
    is_any = False
    told: list[Future[Any]] = []
    try:
        with _transitions:
            for future, result, error in outcomes:
                told.append(future)
                if future._status is not PENDING:
                    continue
                future._value = result
                if error is not None:
                    future._error = error
                    future._trace = carpool_errors.raw(error, "__traceback__")
                    if not future._waiting:
                        future._untold = _Untold(error, future.source)
                future._status = status if error is None else FAILED
                future.source = None
                is_any = True
    finally:
        _tell(told)
    return is_any


def settle_with(results: Iterable[Any], those: Sequence[Future[Any]]) -> None:
    """As `settle`, with a result for each of those: most are settled so, and it takes the least time."""
    try:
        with _transitions:
            for future, result in zip(those, results, strict=True):
                if future._status is PENDING:
                    future._value = result
                    future._status = FINISHED
                    future.source = None
    finally:
        _tell(those)


def _tell(those: Sequence[Future[Any]]) -> None:
    """Wake threads and tasks that wait for those that are done, tasks of a loop by one call; then call the callbacks.

    Each callback is called once, however often and wherever this is done; who is woken twice does not mind.
    """
    try:
        _tell_all(those)
    except BaseException:  # an interrupt in the midst of it
        _tell_all(those)
        raise


def _tell_all(those: Sequence[Future[Any]]) -> None:
    waiters: list[Any] = []
    for future in those:
        if future._status is not PENDING:
            waiters += future._waiting
    # Where all are tasks, or threads, as nearly always, they need not be looked at one by one.
    kinds = set(map(id, map(type, waiters)))
    if kinds == _TASKS:
        loops = set(map(_loop_of, waiters))
        if len(loops) == 1:
            _wake_on(loops.pop(), waiters)
            return
    if kinds == _THREADS:
        _wake_threads(waiters)
    elif kinds:
        _tell_each(those)


def _tell_each(those: Iterable[Future[Any]]) -> None:
    threads: list[_Sleeper] = []
    tasks: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    callbacks: list[tuple[Callable[[Future[Any]], object], Future[Any]]] = []
    for future in those:
        if future._status is PENDING:
            continue
        for waiter in list(future._waiting):
            if waiter is _MIRROR:
                future._mirror()
            elif type(waiter) is _Sleeper:
                threads.append(waiter)
            elif asyncio.isfuture(waiter):
                tasks.setdefault(waiter.get_loop(), []).append(waiter)
            else:
                callbacks.append((waiter, future))
    _wake_threads(threads)
    for loop, waiters in tasks.items():
        _wake_on(loop, waiters)
    interrupt: KeyboardInterrupt | None = None
    for callback, future in callbacks:
        try:
            if future._discard(callback):
                callback(future)
        except KeyboardInterrupt as error:
            interrupt = error  # once everybody was told
        except BaseException:
            log.exception("a callback of a future raised an exception")
    if interrupt is not None:
        raise interrupt


def _wake_threads(sleepers: Iterable[_Sleeper]) -> None:
    queueing: list[_Sleeper] = []
    for sleeper in sleepers:
        queueing.append(sleeper) if sleeper.may_queue and sleeper.forks == _forks else sleeper.wake()
    if queueing:
        _WakingQueue(queueing)


def _wake_on(loop: asyncio.AbstractEventLoop, waiters: Iterable[asyncio.Future[None]]) -> None:
    if loop is current.loop():
        _wake(loop, waiters)
    else:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the tasks that waited are gone with it
            loop.call_soon_threadsafe(_wake, loop, waiters)


def _wake(loop: asyncio.AbstractEventLoop, waiters: Iterable[asyncio.Future[None]]) -> None:
    try:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
    except BaseException:  # the loop ends with it, and may be run again
        loop.call_soon(_wake, loop, waiters)
        raise


_TASKS, _THREADS = {id(asyncio.Future)}, {id(_Sleeper)}
_loop_of = asyncio.Future.get_loop
