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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, cast

from carpool import errors as carpool_errors
from carpool.functions import current, errors, waiting

log = logging.getLogger("carpool.functions")

R = TypeVar("R")

PENDING = "pending"
CANCELLED = "cancelled"
FINISHED = "finished"

_batch_here = current.variable.get
_running_loop = current.loop
_Lock = type(threading.Lock())
# Seconds after which a thread that a function may have started looks whether its wait can end, and again after twice as
# long each time.
_FIRST_LOOK = 0.1
Waiter = Any
"""A lock that a thread waits for, an asyncio future that a task awaits, or a callback."""

# Held for a moment wherever a status changes. The garbage collector or a handler of a signal may come round meanwhile
# and settle others. Who waits does not need it, or crowds of threads would queue for it: a waiter is put on the list
# of a future before the status is looked at, and taken from there after that has changed, by one of the two.
_transitions = threading.RLock()


def _after_fork() -> None:
    global _transitions  # another thread may have held it
    _transitions = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


Settling = tuple["Future[Any]", Any, BaseException | None]
"""A future with its result, or with an exception."""


class Source(Protocol):
    """Where an outcome comes from."""

    @property
    def is_under_way(self) -> bool:
        """Whether its batch has left."""
        ...

    def flush(self) -> None:
        """Let what was called before begin, in case the caller blocks its event loop."""
        ...

    def withdraw(self, future: Any) -> None:
        """Nobody waits for this outcome any more."""
        ...

    def check_may_block(self) -> None:
        """Raises RuntimeError if the running thread would wait for itself."""
        ...

    def needs(self) -> Iterable[waiting.Need]:
        """What has to be answered for it."""
        ...


class Future(concurrent.futures.Future[R]):
    """The result of one call, now or later.

    `.result(timeout)` waits for it in a thread, `await` in a task; `concurrent.futures.wait` and `as_completed`,
    `asyncio.gather` and the like take it as well. Cancelling it, or the only task that awaits it, takes the item out of
    the queue; an item that is being computed already is left to its batch. Callbacks run in the thread that has the
    result, so they should be short.
    """

    # What most futures never change is the class's. `source` is there for as long as it is pending. `_first_waiter`, of
    # a call on an event loop, is told whatever happens, so the first task of its loop awaits it without a further word,
    # and then it `_is_awaited`.
    _status = PENDING
    _value: Any = None
    _error: BaseException | None = None
    _trace: types.TracebackType | None = None  # of the exception, as it came
    _untold: _Untold | None = None  # while nobody has asked for the exception
    _waiting: list[Waiter] | None = None
    _first_waiter: asyncio.Future[None] | None = None
    _is_awaited = False
    _is_mirrored = False  # the base class's own state is there as well

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

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

    def __await__(self) -> Generator[Any, None, R]:
        if self._status is PENDING:
            waiter = self._first_waiter
            # Most who wait belong to no batch, and need not be noted. A task of another loop that asked for this waiter
            # would be refused by asyncio, and so would be all who ask for it afterwards. The loop is asked first: it
            # leaves one thread, so that nobody comes between the look at who awaits and the mark.
            if (
                waiter is None
                or waiter.get_loop() is not _running_loop()
                or self._is_awaited
                or _batch_here(None) is not None
            ):
                yield from self._wait_in_task()
            else:
                self._is_awaited = True
                try:
                    yield from waiter
                except BaseException:  # the task was cancelled, or its coroutine closed
                    self._leave(waiter)
                    raise
        if self._status is CANCELLED:
            raise asyncio.CancelledError
        if self._error is not None:
            try:
                raise self._as_it_came(self._error)
            finally:
                del self
        return self._value  # type: ignore[no-any-return]

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
        found = [each for each in list(self._waiting or ()) if fn in (each, getattr(each, "function", None))]
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

    def __repr__(self) -> str:
        return f"<carpool.Future {self._status}>"

    # --- what `concurrent.futures.wait` and `as_completed` use -------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """What the base class keeps for itself, and its functions look at: it begins to keep that now."""
        if self._is_mirrored or not name.startswith("_") or name.endswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._begin_for_base()
        with _transitions:
            if not self._is_mirrored:
                self._is_told()
                vars(self).setdefault("_waiting", [])  # so that it is looked at once this is settled
                super().__init__()
                self._is_mirrored = True
            is_done = self._status is not PENDING
        if is_done:
            self._mirror()
        return getattr(self, name)

    def _mirror(self) -> None:
        """Let those know that look at the base class's state."""
        if super().done():
            return
        if self._status is CANCELLED:
            super().cancel()
            super().set_running_or_notify_cancel()
        elif self._error is not None:
            super().set_exception(self._error)
        else:
            super().set_result(self._value)

    def forget_locks(self) -> None:
        """After a fork: whoever held them is not there any more."""
        if self._is_mirrored:
            super().__init__()

    # --- internals ---------------------------------------------------------------------------------------------

    def _add_waiter(self, waiter: Waiter) -> None:
        """Tell it once this is done, at once if it is."""
        if self._waiting is None:
            vars(self).setdefault("_waiting", [])  # one list, whoever is first
        cast(list[Waiter], self._waiting).append(waiter)
        self._is_told()
        if self._status is not PENDING:
            _tell([self], [])

    def _wait_in_task(self) -> Generator[Any, None, None]:
        wait = self._begin_to_wait(waiting.running_task())
        waiter = asyncio.get_running_loop().create_future()
        self._add_waiter(waiter)
        if wait is not None:
            wait.watch(waiter.done, waiter.set_exception)
        try:
            yield from waiter
        except BaseException:  # as above
            self._leave(waiter)
            raise
        finally:
            if wait is not None:
                wait.end()

    def _wait(self, timeout: float | None) -> None:
        source = self.source
        if source is not None:
            source.flush()
            source.check_may_block()
        wait = None if current.variable.get(None) is None else self._begin_to_wait(waiting.running_thread())
        waiter = threading.Lock()
        waiter.acquire()
        self._add_waiter(waiter)
        end = math.inf if timeout is None else time.monotonic() + timeout
        looks = waiting.may_be_behind() if wait is None else wait.may_be_circle
        look = _FIRST_LOOK if looks else math.inf
        is_green = type(waiter) is not _Lock  # of gevent or eventlet: whoever has the result may not be able to wake it
        most = _FIRST_LOOK if is_green else threading.TIMEOUT_MAX
        try:
            while not waiter.acquire(timeout=max(0.0, min(end - time.monotonic(), look, most))):
                if self._status is not PENDING:
                    break
                if time.monotonic() >= end:
                    raise TimeoutError
                if is_green:
                    continue
                look *= 2
                with self._leaving(waiter):
                    if wait is not None:
                        wait.check()
                    elif (batch := waiting.batch_behind(self)) is not None:
                        wait = waiting.begin(self, batch)
        except BaseException:
            self._discard(waiter)
            raise
        finally:
            if wait is not None:
                wait.end()

    def _begin_to_wait(self, by: Sequence[Any] | None) -> waiting.Wait | None:
        """As `waiting.begin`. Who gets the RuntimeError waits no longer."""
        with self._leaving(None):
            return waiting.begin(self, by=by)

    def _begin_for_callback(self, fn: Callable[[Any], object], tell: Callable[[Future[Any]], object]) -> None:
        """Whoever awaits what this callback of asyncio's settles waits for this; if that is for ever, `tell` fails."""
        wait = self._begin_to_wait((fn,))
        if wait is None:
            return

        def fail(error: RuntimeError) -> None:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            tell(failed)
            wait.end()
            self._leave(fn)

        self._add_waiter(_EndOfWait(wait))
        wait.watch(lambda: self._status is not PENDING, fail)

    def _begin_for_base(self) -> None:
        """Whoever looks at the base class's state waits, and nobody tells until when: for as long as this is open."""
        source = self.source
        if source is None:
            return
        source.flush()
        source.check_may_block()
        wait = self._begin_to_wait(None)
        if wait is not None:
            self._add_waiter(_EndOfWait(wait))

    @contextlib.contextmanager
    def _leaving(self, waiter: Waiter) -> Iterator[None]:
        """Whoever gets a RuntimeError waits no longer; `waiter` is what it waited with, if it did already."""
        try:
            yield
        except RuntimeError:
            self._leave(waiter)  # or it would be computed for nobody, and do the same again
            raise

    def _leave(self, waiter: Waiter) -> None:
        """A task that awaited it was cancelled; if nobody else waits, nobody needs it."""
        self._discard(waiter)
        if waiter is self._first_waiter:
            self._first_waiter = None
        elif self._is_awaited and self._first_waiter is not None:
            return
        if not self._is_mirrored and all(isinstance(other, _EndOfWait) for other in self._waiting or ()):
            self.cancel()

    def _discard(self, waiter: Waiter) -> None:
        with contextlib.suppress(ValueError):
            if self._waiting is not None:
                self._waiting.remove(waiter)

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


class _Untold:
    """What a call failed with that nobody has asked for: it goes to the log when the future is let go."""

    def __init__(self, error: BaseException, source: Source | None) -> None:
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


class _EndOfWait:
    """Among a future's callbacks: it ends a wait."""

    def __init__(self, wait: waiting.Wait) -> None:
        self._wait = wait

    def __call__(self, future: Future[Any]) -> None:
        self._wait.end()


# --- the one place that hands over outcomes ---------------------------------------------------------------------


def settle(outcomes: Iterable[Settling], status: str = FINISHED) -> int:
    """Settle futures with results or exceptions, and tell who waits for them. Those that are done stay as they are.

    Returns how many were settled.
    """
    count = 0
    watched: list[Future[Any]] = []
    waiters: list[asyncio.Future[None]] = []
    try:
        with _transitions:
            for future, result, error in outcomes:
                if future._status is not PENDING:
                    continue
                count += 1
                if future._first_waiter is not None:
                    waiters.append(future._first_waiter)
                future._value = result
                if error is not None:
                    future._error = error
                    future._trace = carpool_errors.raw(error, "__traceback__")
                    if not (future._is_awaited or future._waiting or future._is_mirrored):
                        future._untold = _Untold(error, future.source)
                future._status = status
                future.source = None
                if future._waiting is not None:
                    watched.append(future)
    finally:  # also after an interrupt
        _tell(watched, waiters)
    return count


def settle_all(settled: Sequence[Future[Any]], results: Sequence[Any], loop: asyncio.AbstractEventLoop) -> None:
    """As `settle`, for many results that are no exceptions, of futures that were all made for this loop."""
    watched: list[Future[Any]] = []
    waiters: list[asyncio.Future[None] | None] = []
    try:
        with _transitions:
            for future, result in zip(settled, results, strict=True):
                if future._status is PENDING:
                    waiters.append(future._first_waiter)
                    future._value = result
                    future._status = FINISHED
                    future.source = None
                    if future._waiting is not None:
                        watched.append(future)
    finally:
        if watched:
            _tell(watched, [waiter for waiter in waiters if waiter is not None])
        else:
            _wake_on(loop, waiters)


def _tell(settled: Iterable[Future[Any]], waiters: list[asyncio.Future[None]]) -> None:
    """Tell threads and callbacks, and wake the tasks that await these or `waiters`, those of a loop by one call."""
    interrupt: KeyboardInterrupt | None = None
    for future in settled:
        if future._is_mirrored:
            future._mirror()
        waiting = future._waiting if future._waiting is not None else []
        while waiting:
            try:
                waiter = waiting.pop(0)
            except IndexError:  # another thread took it
                break
            kind = type(waiter)
            if kind is not _Lock and asyncio.isfuture(waiter):
                waiters.append(waiter)
            elif kind is _Lock or not callable(waiter):  # gevent and eventlet have locks of their own
                waiter.release()
            else:
                try:
                    waiter(future)
                except KeyboardInterrupt as error:
                    interrupt = error  # once everybody was told
                except BaseException:
                    log.exception("a callback of a future raised an exception")
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None] | None]] = {}
    for waiter in waiters:
        by_loop.setdefault(waiter.get_loop(), []).append(waiter)
    for loop, those in by_loop.items():
        _wake_on(loop, those)
    if interrupt is not None:
        raise interrupt


def _wake_on(loop: asyncio.AbstractEventLoop, waiters: Sequence[asyncio.Future[None] | None]) -> None:
    if loop is current.loop():
        _wake(waiters)
    else:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the tasks that waited are gone with it
            loop.call_soon_threadsafe(_wake, waiters)


def _wake(waiters: Iterable[asyncio.Future[None] | None]) -> None:
    for waiter in waiters:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
