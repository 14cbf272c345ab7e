"""What a call returns: a `concurrent.futures.Future` that can also be awaited, in any event loop.

One object for both kinds of caller spares everybody a pair of everything. There are as many of them as there are items,
so they are made without a lock: who waits puts a waiter on the future's list and then looks at its state, who settles
the future sets its state and then takes the waiters from the list. Each waiter is taken by one of them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import os
import threading
import time
import types
from asyncio import events
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from carpool import errors as carpool_errors
from carpool.functions import errors, merging, waiting

log = logging.getLogger("carpool.functions")

R = TypeVar("R")

# The states of `concurrent.futures`, which its `wait` and `as_completed` compare with.
PENDING = "PENDING"
CANCELLED = "CANCELLED_AND_NOTIFIED"
FINISHED = "FINISHED"

_Lock = type(threading.Lock())
# Seconds after which a thread that a function may have started looks whether its wait can end, and again after twice as
# long each time.
_FIRST_LOOK = 0.1
Waiter = Any
"""A lock that a thread waits for, an asyncio future that a task awaits, or a callback."""

# Held for a moment wherever a state changes or the first lock of a future is made: then whoever has that lock has seen
# the last state before it, or will be notified. The garbage collector may come round meanwhile and settle others.
_transitions = threading.RLock()


def _after_fork() -> None:
    global _transitions  # another thread may have held it
    _transitions = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


Settling = tuple["Future[Any]", Any, BaseException | None]
"""A future with its result, or with an exception."""


class Origin(Protocol):
    """Where a future comes from, and what settles it."""

    def flush(self) -> None:
        """Let what was called before begin, in case the caller blocks its event loop."""
        ...

    def withdraw(self, call: Any) -> None:
        """Nobody waits for this call any more."""
        ...

    def check_may_block(self) -> None:
        """Raises RuntimeError if the running thread would wait for itself."""
        ...

    def needs(self, call: Any) -> Iterable[waiting.Need]:
        """What has to be answered for this call."""
        ...


class Future(concurrent.futures.Future[R]):
    """The result of one call, now or later.

    `.result(timeout)` waits for it in a thread, `await` in a task; `concurrent.futures.wait` and `as_completed`,
    `asyncio.gather` and the like take it as well. Cancelling it, or the only task that awaits it, takes the item out of
    the queue; an item that is being computed already is left to its batch. Callbacks run in the thread that has the
    result, so they should be short.
    """

    __slots__ = ("_exception", "_lock", "_notified", "_result", "_state", "_trace", "_waiting", "call", "origin")

    _trace: types.TracebackType | None
    """Of the exception, as it came; set with that."""

    # The base class's own attributes are made when they are first asked for: most futures need none of them.
    def __init__(self, origin: Origin | None = None) -> None:
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._waiting: list[Waiter] = []
        self._lock: threading.Condition | None = None
        self._notified: list[Any] | None = None
        self.origin = origin
        self.call: Any = None

    # --- what callers use --------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether there is a result, an exception, or it was cancelled."""
        origin = self.origin
        if origin is not None:
            origin.flush()
        return self._state is not PENDING

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state is CANCELLED

    def running(self) -> bool:
        """Whether its batch has left."""
        call = self.call
        return self._state is PENDING and call is not None and bool(call.rows_taken)

    def cancel(self) -> bool:
        """Cancel it; False if it is done already."""
        origin, call = self.origin, self.call
        if not settle_one(self, CANCELLED, None, None):
            return self._state is CANCELLED
        if origin is not None and call is not None:
            origin.withdraw(call)
        return True

    def result(self, timeout: float | None = None) -> R:
        """The result, waited for up to `timeout` seconds.

        Raises what the call failed with, TimeoutError if it takes longer than `timeout`, and
        `concurrent.futures.CancelledError` if it was cancelled.
        """
        if self._state is PENDING:
            self._wait(timeout)
        if self._state is CANCELLED:
            raise concurrent.futures.CancelledError
        if self._exception is not None:
            try:
                raise self._as_it_came(self._exception)
            finally:
                del self  # else the traceback keeps the future, which keeps the exception
        return self._result  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call failed with, or None; waits as `result` does."""
        if self._state is PENDING:
            self._wait(timeout)
        if self._state is CANCELLED:
            raise concurrent.futures.CancelledError
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Call `fn(future)` once it is done, at once if it is."""
        home = getattr(fn, "__module__", None)
        if home == "asyncio.futures":  # `asyncio.wrap_future`: it is to be awaited
            self._begin_for_callback(fn, fn)
        elif home == "asyncio.tasks" and (loop := events._get_running_loop()) is not None:  # `asyncio.wait`
            fn = _OnLoop(loop, fn)
            self._begin_for_callback(fn.function, lambda failed: self._fail(failed.exception()))
        self._waiting.append(fn)
        if self._state is not PENDING:
            _notify([self])

    def remove_done_callback(self, fn: Callable[[Future[R]], object]) -> int:
        """Do not call `fn`; returns how often it would have been called."""
        found = [each for each in list(self._waiting) if fn in (each, getattr(each, "function", None))]
        for each in found:
            _discard(self._waiting, each)
        return len(found)

    def __await__(self) -> Generator[Any, None, R]:
        if self._state is PENDING:
            wait = self._begin_to_wait(waiting.running_task())
            waiter = asyncio.get_running_loop().create_future()
            if wait is not None:
                wait.watch(waiter.done, waiter.set_exception)
            self._waiting.append(waiter)
            if self._state is not PENDING:
                _notify([self])
            try:
                yield from waiter
            except BaseException:  # the task was cancelled, or its coroutine closed
                self._leave(waiter)
                raise
            finally:
                if wait is not None:
                    wait.end()
        if self._state is CANCELLED:
            raise asyncio.CancelledError
        if self._exception is not None:
            try:
                raise self._as_it_came(self._exception)
            finally:
                del self
        return self._result  # type: ignore[no-any-return]

    # --- what settles it ---------------------------------------------------------------------------------------

    def forget_locks(self) -> None:
        """After a fork: whoever held them is not there any more."""
        self._lock = self._notified = None

    def set_running_or_notify_cancel(self) -> bool:
        """For executors that make futures of their own."""
        return self._state is PENDING

    def set_result(self, result: R) -> None:
        """Settle it; raises `concurrent.futures.InvalidStateError` if it is done."""
        if not settle_one(self, FINISHED, result, None):
            raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")

    def set_exception(self, exception: BaseException | None) -> None:
        """Settle it; raises `concurrent.futures.InvalidStateError` if it is done."""
        if not settle_one(self, FINISHED, None, exception):
            raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")

    # --- what `concurrent.futures.wait` and `as_completed` use -------------------------------------------------

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        origin = self.origin
        if origin is not None:
            origin.flush()
            origin.check_may_block()
            self._begin_for_condition()
        with _transitions:
            if self._lock is None:
                self._lock, self._notified = threading.Condition(), []
            return self._lock

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        with self._condition:
            return self._notified  # type: ignore[return-value] # made with the condition

    def __repr__(self) -> str:
        outcome = "cancelled" if self._state is CANCELLED else "pending" if self._state is PENDING else "finished"
        return f"<carpool.Future {outcome}>"

    # --- internals ---------------------------------------------------------------------------------------------

    def _wait(self, timeout: float | None) -> None:
        origin = self.origin
        if origin is not None:
            origin.flush()
            origin.check_may_block()
        wait = self._begin_to_wait(waiting.running_thread())
        waiter = threading.Lock()
        waiter.acquire()
        self._waiting.append(waiter)
        if self._state is not PENDING:
            _notify([self])
        end = math.inf if timeout is None else time.monotonic() + timeout
        looks = waiting.may_be_behind() if wait is None else wait.may_be_circle
        look = _FIRST_LOOK if looks else math.inf
        try:
            while not waiter.acquire(timeout=max(0.0, min(end - time.monotonic(), look, threading.TIMEOUT_MAX))):
                if self._state is not PENDING:
                    break
                if time.monotonic() >= end:
                    raise TimeoutError
                look *= 2
                with self._leaving(waiter):
                    if wait is not None:
                        wait.check()
                    elif (batch := waiting.batch_behind(self)) is not None:
                        wait = waiting.begin(self, batch)
        except BaseException:
            _discard(self._waiting, waiter)
            raise
        finally:
            if wait is not None:
                wait.end()

    def _begin_to_wait(self, by: Sequence[Any] | None) -> waiting.Wait | None:
        """As `waiting.begin`. Who gets the RuntimeError waits no longer."""
        with self._leaving(None):
            return waiting.begin(self, by=by)

    def _as_it_came(self, error: BaseException) -> BaseException:
        """An exception to be raised: without the frames of those who had it raised before, or they would pile up."""
        carpool_errors.put(error, "__traceback__", self._trace)
        return error

    def _fail(self, error: BaseException | None) -> None:
        """It is of no use to anybody any more, because of this."""
        origin, call = self.origin, self.call
        if settle_one(self, FINISHED, None, error) and origin is not None and call is not None:
            origin.withdraw(call)

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

        self._waiting.append(_EndOfWait(wait))
        wait.watch(lambda: self._state is not PENDING, fail)

    def _begin_for_condition(self) -> None:
        """Whoever asks for the condition waits, and nobody tells until when: for as long as this is open."""
        if self._state is PENDING and not any(isinstance(each, _EndOfWait) for each in list(self._waiting)):
            wait = self._begin_to_wait(None)
            if wait is not None:
                self._waiting.append(_EndOfWait(wait))
                if self._state is not PENDING:
                    _notify([self])

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
        _discard(self._waiting, waiter)
        if not self._notified and all(isinstance(other, _EndOfWait) for other in list(self._waiting)):
            self.cancel()


class _OnLoop:
    """A callback that is called on the event loop where it was added."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[Future[Any]], object]) -> None:
        self.function = function
        self._loop = loop

    def __call__(self, future: Future[Any]) -> None:
        if events._get_running_loop() is self._loop:
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


class MapFuture(Future[list[Any]]):
    """The results for many items, some of which may be `known` already, by their places."""

    __slots__ = ("_count", "known")

    def __init__(self, origin: Origin, count: int) -> None:
        super().__init__(origin)
        self.known: dict[int, Any] = {}
        self._count = count

    def answered(self, parts: Sequence[Sequence[Any]]) -> Settling:
        """What the function returned for those that were not known, in parts."""
        results: list[Any] = []
        for part in parts:
            results.extend(part)
        if self.known:
            found = iter(results)
            results = [self.known[place] if place in self.known else next(found) for place in range(self._count)]
        return _together(self, results, returns_exceptions=False)

    def refused(self, error: Exception) -> Settling:
        """Why there are none."""
        return self, None, error


class MergedFuture(Future[Any]):
    """The share of one merged item; one larger than a batch has it in parts, which `merge` puts together."""

    __slots__ = ("_merge",)

    def __init__(self, origin: Origin, merge: merging.Merge[Any, Any, Any, Any]) -> None:
        super().__init__(origin)
        self._merge = merge

    def answered(self, parts: Sequence[Sequence[Any]]) -> Settling:
        """Its share, in parts."""
        if len(parts) == 1:
            return self, parts[0][0], None
        return self, merging.rejoin(self._merge, [part[0] for part in parts]), None

    def refused(self, error: Exception) -> Settling:
        """Why there is none."""
        return self, None, error


def all_of(parts: Sequence[Future[R]], *, returns_exceptions: bool = False) -> Future[list[R]]:
    """The results of all, in their order, or the exception of the first that has one. Cancelling it cancels all."""
    future: Future[list[R]] = Future()

    def end() -> None:
        if any(part.cancelled() for part in parts):
            future.cancel()
            return
        results = [part._result if part._exception is None else part._exception for part in parts]
        settle([_together(future, results, returns_exceptions=returns_exceptions)])

    future.origin = future.call = _Parts(parts)
    _follow(parts, end)
    return future


def end_of(parts: Sequence[Future[Any]]) -> Future[None]:
    """Done with None once all are done, whatever came of them. Cancelling it does nothing to them."""
    future: Future[None] = Future()
    future.origin = _Parts(parts)
    _follow(parts, lambda: settle([(future, None, None)]))
    return future


def _follow(parts: Sequence[Future[Any]], end: Callable[[], object]) -> None:
    """Call `end` once all parts are done, at least once."""
    done: list[None] = []

    def one_is_done(part: Future[Any]) -> None:
        done.append(None)  # the last two may both see all of them, which does no harm
        if len(done) == len(parts):
            end()

    for part in parts:
        part.add_done_callback(one_is_done)
    if not parts:
        end()


class _Parts:
    """Futures that are one future's origin, and its call where that is theirs."""

    def __init__(self, parts: Sequence[Future[Any]]) -> None:
        self._parts = parts

    def flush(self) -> None:
        for part in self._parts:
            part.done()

    def check_may_block(self) -> None:
        for part in self._parts:
            if (origin := part.origin) is not None:
                origin.check_may_block()

    def needs(self, call: Any) -> Iterable[waiting.Need]:
        for part in self._parts:
            if (origin := part.origin) is not None:
                yield from origin.needs(part.call)

    def withdraw(self, call: Any) -> None:
        for part in self._parts:
            part.cancel()

    @property
    def rows_taken(self) -> int:
        """How many parts travel now."""
        return sum(part.running() for part in self._parts)


def _together(future: Future[Any], results: list[Any], *, returns_exceptions: bool) -> Settling:
    """Several results as one, unless one of them is an exception."""
    for place, result in enumerate(results):
        if errors.is_exception(result):
            results[place] = mine = errors.own(result)
            if not returns_exceptions:
                with contextlib.suppress(BaseException):  # one that takes no notes goes without
                    mine.add_note(f"item {place} of {len(results)} failed")
                return future, None, mine
    return future, results, None


def settle_one(future: Future[Any], state: str, result: Any, exception: BaseException | None) -> bool:
    """Settle a future and tell who waits for it; False if it is done already."""
    return bool(settle([(future, result, exception)], state))


def settle(outcomes: Iterable[Settling], state: str = FINISHED) -> int:
    """Settle futures with results or exceptions, and tell who waits for them. Those that are done stay as they are.

    Returns how many were settled.
    """
    settled: list[Future[Any]] = []
    locked: list[Settling] = []
    woken = 0
    here = events._get_running_loop()
    with _transitions:
        for outcome in outcomes:
            future, result, exception = outcome
            if future._state is not PENDING:
                continue
            if future._lock is not None:
                locked.append(outcome)
                continue
            future._result = result
            future._exception = exception
            if exception is not None:
                future._trace = carpool_errors.raw(exception, "__traceback__")
            future._state = state
            waiting = future._waiting
            if len(waiting) == 1:
                # The usual case, past the general one: a task of this loop awaits it, and nobody else.
                waiter = waiting.pop()
                if type(waiter) is asyncio.Future and waiter.get_loop() is here and not waiting:
                    woken += 1
                    future.call = future.origin = None
                    if not waiter.done():
                        waiter.set_result(None)
                    continue
                waiting.append(waiter)
            settled.append(future)
    for future, result, exception in locked:
        lock = future._lock
        if lock is not None and _settle_locked(future, lock, state, result, exception):
            settled.append(future)
    _notify(settled)
    return woken + len(settled)


def _settle_locked(
    future: Future[Any], lock: threading.Condition, state: str, result: Any, exception: BaseException | None
) -> bool:
    with lock:
        if future._state is not PENDING:
            return False
        future._result = result
        future._exception = exception
        if exception is not None:
            future._trace = carpool_errors.raw(exception, "__traceback__")
        future._state = state
        for waiter in future._notified or ():
            if state is CANCELLED:
                waiter.add_cancelled(future)
            elif exception is not None:
                waiter.add_exception(future)
            else:
                waiter.add_result(future)
        lock.notify_all()
    return True


def _notify(settled: Iterable[Future[Any]]) -> None:
    """Tell who waits for these futures: one call of each event loop for all tasks of it."""
    here = events._get_running_loop()
    away: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    interrupt: KeyboardInterrupt | None = None
    for future in settled:
        future.call = future.origin = None
        waiting = future._waiting
        while waiting:
            try:
                waiter = waiting.pop(0)
            except IndexError:  # another thread took it
                break
            kind = type(waiter)
            if kind is asyncio.Future or asyncio.isfuture(waiter):
                loop = waiter.get_loop()
                if loop is here:
                    if not waiter.done():
                        waiter.set_result(None)
                elif loop in away:
                    away[loop].append(waiter)
                else:
                    away[loop] = [waiter]
            elif kind is _Lock:
                waiter.release()
            else:
                try:
                    waiter(future)
                except KeyboardInterrupt as error:
                    interrupt = error  # once everybody was told
                except BaseException:
                    log.exception("a callback of a future raised an exception")
    for loop, waiters in away.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the tasks that waited are gone with it
            loop.call_soon_threadsafe(_wake, waiters)
    if interrupt is not None:
        raise interrupt


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _discard(waiting: list[Waiter], waiter: Waiter) -> None:
    with contextlib.suppress(ValueError):
        waiting.remove(waiter)
