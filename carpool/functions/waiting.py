"""Which batches wait for which calls, so that a wait that would never end fails at once, or ends.

A function may call batched functions and wait for their answers, itself among them. What it waits for is noted with its
batch, which the context of whoever waits leads to: tasks take that along, and so does `asyncio.to_thread`. A batch ends
once all is answered that its own code waits for, by itself or by way of those: not what a task waits for that nobody
awaits. A call is answered once its batch ends, or, before it has one, if there is room for one more batch or one
of those under way ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import gc
import os
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from carpool import errors
from carpool.functions import current
from carpool.runtime import timer_thread
from carpool.scheduling import limits, messages, scheduler


class Batcher(Protocol):
    """What answers calls, on a `hosts.Host`."""

    name: str
    limits: limits.Limits
    host: Any

    @property
    def core(self) -> scheduler.Scheduler:
        """Who decides when a call is answered."""
        ...

    def flush(self, running: asyncio.AbstractEventLoop | None = None) -> None:
        """As that of a `Source`."""
        ...

    def come_to_rest(self) -> None:
        """Return once what happens to it now has happened."""
        ...

    def hasten(self) -> None:
        """Ask the policy again, as a batch that is under way waits for one that is not."""
        ...


Need = tuple[Batcher, "messages.Request | None"]
"""A call that is to be answered, or None for all that the batcher has."""


class Source(Protocol):
    """Where an outcome, or a stream, comes from."""

    def needs(self) -> Iterable[Need]:
        """What has to be answered for it."""
        ...

    def withdraw(self, future: Any) -> None:
        """Nobody waits for this outcome any more."""
        ...

    @property
    def is_under_way(self) -> bool:
        """Whether its batch has left."""
        return any(call is not None and bool(call.rows_taken) for _, call in self.needs())

    def flush(self, running: asyncio.AbstractEventLoop | None = None) -> None:
        """Let what was called before begin, in case the caller blocks its event loop.

        What was called in the turn of a loop that is `running` on begins by itself.
        """
        for batcher, _ in self.needs():
            batcher.flush(running)

    def check_may_block(self) -> None:
        """Raises RuntimeError if the running thread would wait for itself."""
        for batcher, _ in self.needs():
            batcher.host.check_may_block(batcher.name)


class Awaited(Protocol):
    """A future or a stream; it has a source for as long as it is open."""

    source: Any


_CIRCLE = "waits_for_itself"
_CALLBACKS = (types.FunctionType, types.MethodType, types.BuiltinMethodType, functools.partial)
_THREADS = ("threading", "concurrent.futures._base", "concurrent.futures.thread")
_HOMES = (*_THREADS, "asyncio.runners", "asyncio.base_events")
_BLOCKING = ("join", "result", "exception", "wait", "run", "run_until_complete")
# Seconds after which it is looked again whether a wait can end, and then after twice as long each time.
_FIRST_LOOK = 0.05

# Held while a wait is noted and looked at: of several that wait for each other the last one sees the others.
_noting = threading.RLock()


def _after_fork() -> None:
    """Another thread may have held it, and is not there any more."""
    global _noting
    _noting = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Waits(list["Wait"]):
    """What the code of a batch waits for; `task` is a reference to the task that the batch runs in, if it has one."""

    task: Callable[[], asyncio.Task[Any] | None] | None = None


class Wait:
    """Code that a batch's function runs, or started, waits for something: from `begin` until `end`."""

    __slots__ = ("_batch", "_by", "awaited", "may_be_circle")

    def __init__(self, awaited: Awaited, batch: messages.Batch, by: Sequence[Any] | None) -> None:
        self.awaited = awaited
        self.may_be_circle = False
        """Whether it would never end if the batch ended only after it: to be looked at again, as that may change."""
        self._batch = batch
        self._by = by

    def __call__(self, awaited: Any) -> None:
        """As a future's callback: it ends with that."""
        self.end()

    def end(self) -> None:
        """It has ended."""
        with contextlib.suppress(ValueError):
            self._batch.about.remove(self)

    def holds_batch(self) -> bool:
        """Whether the batch ends only after it, as far as can be seen: its own code waits for who waits."""
        if self._by is None:
            return True
        batch = self._batch
        task = None if batch.about.task is None else batch.about.task()
        if task is not None:
            return _leads_to(self._by, task)
        thread = _thread_of(batch)
        return thread is not None and (
            getattr(self._by[0], "ident", None) == thread or _is_awaited_by_thread(thread, self._by)
        )

    def check(self) -> None:
        """Raises RuntimeError if it would never end."""
        if not self.holds_batch():
            return
        batch, needs = self._batch, _needs(self.awaited)
        with _noting:
            stuck = _stuck({batch: needs}, if_held=True)
        if batch not in stuck:
            return
        # As far as it can be seen while other threads are at it: an answer may be on its way.
        for batcher, _ in [*needs, *(need for each in stuck for need in _needs_of(each))]:
            batcher.come_to_rest()
        with _noting:
            needs = _needs(self.awaited)
            if batch in _stuck({batch: needs}, if_held=True):
                raise _circle(needs)

    def watch(
        self, is_over: Callable[[], bool], fail: Callable[[RuntimeError], object], delay: float = _FIRST_LOOK
    ) -> None:
        """While it may be a circle, look from time to time until it `is_over`; `fail` it once it is one."""
        if not self.may_be_circle:
            return

        def look() -> None:
            if is_over():
                return
            try:
                self.check()
            except RuntimeError as error:
                fail(error.with_traceback(None))
            else:
                self.watch(is_over, fail, 2 * delay)

        loop = current.loop()
        if loop is None:
            timer_thread.shared.call_at(time.monotonic() + delay, look)
        else:
            loop.call_later(delay, look, context=contextvars.Context())


def begin(awaited: Awaited, batch: messages.Batch | None = None, by: Sequence[Any] | None = None) -> Wait | None:
    """The code that runs now waits for this from here on.

    None outside of batched functions. `batch` is the one for which it runs, if its context does not tell; `by` is who
    waits, a task, callback or thread, or None if the batch certainly does.
    Raises RuntimeError if that would never be answered, as all that could answer it waits for this very batch.
    """
    batch = batch or current.running()
    if batch is None or batch.about is None:
        return None
    wait = Wait(awaited, batch, by)
    with _noting:
        batch.about.append(wait)
        needs = _needs(awaited)
        has_room = all(call is not None and _has_room(batcher) for batcher, call in needs)
        wait.may_be_circle = not has_room and batch in _stuck({batch: needs})
    if wait.may_be_circle:
        try:
            wait.check()
        except RuntimeError:
            wait.end()
            raise
    for batcher, call in needs:
        if call is not None and call.rows_taken < max(1, call.rows) and is_stuck(batcher):
            # The room may be in any of those that it depends on.
            reached = _reached({each: _needs_of(each) for each in batcher.core.in_flight.copy()})[1]
            for each in filter(is_stuck, {batcher, *reached}):
                each.hasten()
    return wait


def running_task() -> Sequence[Any]:
    """Who waits in a coroutine."""
    return (asyncio.current_task(),)


def running_thread() -> Sequence[Any] | None:
    """Who waits where a thread is blocked; None if that blocks an event loop, and with it all tasks of that."""
    if current.loop() is not None:
        return None
    return (threading.current_thread(), *_computed_here())


def _leads_to(by: Sequence[Any], task: asyncio.Future[Any]) -> bool:
    """Whether a task goes on only after one of these, as far as futures, their callbacks and asyncio's objects tell."""
    left = list(by)
    seen = {id(each) for each in left}
    for each in left:
        if each is task:
            return True
        for follower in _followers(each):
            if id(follower) not in seen:
                seen.add(id(follower))
                left.append(follower)
    return False


def _followers(one: Any) -> Iterator[Any]:
    """What may go on once this is done or called."""
    if asyncio.isfuture(one):
        yield from _callbacks_of(one)
        if isinstance(one, asyncio.Task):  # its code may set a future or an event
            coroutine: Any = one.get_coro()
            while (frame := getattr(coroutine, "cr_frame", None)) is not None:
                yield from filter(_is_of_asyncio, list(frame.f_locals.values()))
                coroutine = coroutine.cr_await
    elif isinstance(one, concurrent.futures.Future):
        yield from _callbacks_of(one)
    elif isinstance(one, functools.partial):
        yield from (one.func, *one.args)
    elif isinstance(one, types.FunctionType):
        for cell in one.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                yield cell.cell_contents
    elif isinstance(one, types.MethodType | types.BuiltinMethodType):
        yield one.__self__
    else:
        for value in list(getattr(one, "__dict__", {}).values()):
            for each in list(value) if isinstance(value, deque) else [value]:
                if _is_of_asyncio(each):
                    yield each


def _callbacks_of(one: Any) -> Iterator[Any]:
    """What a future calls once it is done, of all that it keeps: no future tells that itself."""
    left = gc.get_referents(one)
    for each in left:
        if isinstance(each, _CALLBACKS):
            yield each
        elif type(each) is dict:  # of a future that is written in Python
            left += each.values()
        elif type(each) in (list, tuple):
            left += each


def _is_of_asyncio(value: Any) -> bool:
    """Whether it is a future, or what tasks wait for and tell each other by."""
    if isinstance(value, asyncio.AbstractEventLoop):
        return False
    return isinstance(value, asyncio.Future) or type(value).__module__.startswith("asyncio.")


def may_be_behind() -> bool:
    """Whether a function may have started the running thread, which is then a daemon, or given it work."""
    thread = threading.current_thread()
    return thread is not threading.main_thread() and (thread.daemon or bool(_computed_here()))


def batch_behind(awaited: Awaited) -> messages.Batch | None:
    """The batch for which the running thread waits for this, if that is one that could answer it.

    A thread that a function started has no context that tells. But then the function's own thread waits for it: until
    it ends, or for the future that it computes in an executor.
    """
    mine = [threading.current_thread(), *_computed_here()]
    begun = [other for batcher, _ in _needs(awaited) for other in batcher.core.in_flight.copy()]
    for batch in _reached({each: _needs_of(each) for each in begun})[0]:
        thread = _thread_of(batch)
        if thread is not None and _is_awaited_by_thread(thread, mine):
            return batch
    return None


def _thread_of(batch: messages.Batch) -> int | None:
    """The identifier of the thread that works on a batch, if that has one of its own."""
    found: int | None = batch.parts[0].request.replier.host.thread_of(batch)
    return found


def _is_awaited_by_thread(thread: int, those: Sequence[Any]) -> bool:
    """Whether a thread is blocked until one of these threads ends, or one of these futures is done.

    Or runs an event loop until a task is done that goes on only after one of these.
    """
    return any(
        any(value is each for each in those) or (asyncio.isfuture(value) and _leads_to(those, value))
        for frame in _frames_of(sys._current_frames().get(thread), *_BLOCKING)
        for name in ("self", "fs", "task", "future")
        for value in _listed(frame.f_locals.get(name))
    )


def _computed_here() -> list[Any]:
    """The futures of executors that the running thread computes."""
    found = [getattr(frame.f_locals["self"], "future", None) for frame in _frames_of(sys._getframe(), "run")]
    return [future for future in found if future is not None]


def _frames_of(frame: types.FrameType | None, *names: str) -> Iterator[types.FrameType]:
    """This frame and its callers, where they are functions of these names of threads, executors, and event loops."""
    while frame is not None:
        if frame.f_code.co_name in names and frame.f_globals.get("__name__") in _HOMES:
            yield frame
        frame = frame.f_back


def _listed(value: Any) -> Sequence[Any]:
    return list(value) if isinstance(value, list | set) else [value]


def is_stuck(batcher: Batcher) -> bool:
    """Whether no batch under way ends before a call is answered that waits for the next one."""
    under_way = batcher.core.in_flight.copy()
    for batch in under_way:
        if batch.about:
            break
    else:  # none waits for anything, as nearly always when a policy asks
        return False
    return under_way.keys() <= _stuck({batch: _needs_of(batch) for batch in under_way}, if_policies_wait=True)


_Needs = dict[messages.Batch, list[Need]]
_Travelling = dict[Batcher, dict[messages.Request, set[messages.Batch]]]


def _needs_of(batch: messages.Batch, *, if_held: bool = False) -> list[Need]:
    """All that the code of a batch waits for, or what the batch ends only after."""
    waits: list[Wait] = list(batch.about or ())
    return [need for wait in waits if not if_held or wait.holds_batch() for need in _needs(wait.awaited)]


def _reached(begun: Mapping[messages.Batch, list[Need]], *, if_held: bool = False) -> tuple[_Needs, _Travelling]:
    """What these batches need, and all on which they depend; and in which batches the calls of each batcher are."""
    needs = dict(begun)
    travelling: _Travelling = {}
    left = list(needs)
    for batch in left:
        for batcher in {batcher for batcher, _ in needs[batch]} - travelling.keys():
            calls = travelling[batcher] = {}
            for other in batcher.core.in_flight.copy():
                for part in other.parts:
                    calls.setdefault(part.request, set()).add(other)
                if other not in needs:
                    needs[other] = _needs_of(other, if_held=if_held)
                    left.append(other)
    return needs, travelling


def _stuck(
    begun: Mapping[messages.Batch, list[Need]], *, if_policies_wait: bool = False, if_held: bool = False
) -> set[messages.Batch]:
    """Those of these batches, with what they need, and of all that they depend on, that never end.

    Or do not `if_policies_wait` for what is under way, also where there is room for more; or do not if they end only
    after all waits of code that they started, except `if_held` says to leave out those that do not hold them.
    """
    needs, travelling = _reached(begun, if_held=if_held)

    def is_answered(batcher: Batcher, call: messages.Request | None) -> bool:
        under_way = travelling[batcher]
        if call is None:
            return stuck.isdisjoint(*under_way.values()) if under_way else True
        if call in under_way:
            return stuck.isdisjoint(under_way[call])
        if not call.open and hasattr(call, "sequence"):
            return True  # it was accepted once, so it has an answer
        has_room = not under_way if if_policies_wait else _has_room(batcher)
        return has_room or any(not each <= stuck for each in under_way.values())

    stuck = set(needs)  # unless it is found to end; what begins from here on does
    while ending := [batch for batch in stuck if all(is_answered(*need) for need in needs[batch])]:
        stuck.difference_update(ending)
    return stuck


def _has_room(batcher: Batcher) -> bool:
    """Whether one more batch may be under way."""
    return len(batcher.core.in_flight) < batcher.limits.max_in_flight


def _needs(awaited: Awaited) -> list[Need]:
    source: Source | None = awaited.source
    return [] if source is None else list(source.needs())


def is_circle(error: BaseException) -> bool:
    """Whether an exception, or one of a group, is what `begin` raised, or a copy of that."""
    if issubclass(type(error), BaseExceptionGroup):
        return any(is_circle(each) for each in vars(BaseExceptionGroup)["exceptions"].__get__(error))
    return _CIRCLE in errors.raw(error, "__dict__")


def _circle(needs: Sequence[Need]) -> RuntimeError:
    names = " and ".join(dict.fromkeys(batcher.name for batcher, _ in needs))
    most = " and ".join(dict.fromkeys(f"{batcher.limits.max_in_flight:.0f}" for batcher, _ in needs))
    error = RuntimeError(
        f"{names} would never answer: as many batches as may run at once ({most}) wait for this answer themselves; "
        "call the plain function (__wrapped__), or allow more batches at once with max_in_flight"
    )
    setattr(error, _CIRCLE, True)
    return error
