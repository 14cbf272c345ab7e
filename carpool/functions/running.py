"""How a batched function is run with a batch, by its kind: called, awaited, or stepped through.

Nothing that a function raises, returns or yields gets past these: each ends with an outcome for every row, or why there
is none. `carpool.inline()`, for people's tests, has it run at once, in the thread that calls: what a function does with
its items is then tested without threads or waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from carpool import errors as carpool_errors
from carpool.functions import current, streams, work
from carpool.functions import errors as failures
from carpool.runtime import driver
from carpool.workers import errors as worker_errors
from carpool.workers import pool


def compute(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """Call a function that returns a list."""
    try:
        returned = batch.context().run(batch.call, function)
        return batch.outcome(returned)
    except BaseException as error:
        return batch.raised(error)
    finally:
        batch.forget()


def compute_there(function: pool.Processes[..., Any], batch: work.Work) -> driver.Outcome:
    """As `compute`, in another process."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except worker_errors.WorkerDied as error:
            if carpool_errors.raw(error, "__cause__") is None:  # else the model raised it, of another pool
                batch.own_error = error
            raise

    return compute(call, batch)


async def compute_async(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """Await a function that returns a list. Raises CancelledError only if its task was cancelled."""
    try:
        asks_cache = batch.cache_is_async
        if asks_cache and not await batch.ask_cache():
            return batch.outcome([])
        returned = batch.call(function)
        if inspect.isawaitable(returned):  # a plain function may wrap a coroutine function and await it itself
            returned = await returned
        outcome = batch.outcome(returned)
        if asks_cache:
            await batch.tell_cache()
        return outcome
    except BaseException as error:
        if _cancels_task(error):
            raise
        return batch.raised(error)
    finally:
        batch.forget()


def generate(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """Run a function that yields lists, and hand each list out. It is closed early if nobody reads any more."""
    context, rows = batch.context(), batch.batch.rows
    pace = streams.Pace(batch.tags, batch.most_ahead)
    try:
        steps: Iterator[Any] = context.run(batch.call, function)
        while pace.is_read:
            try:
                step = context.run(next, steps)
            except StopIteration:
                break
            batch.hand_out(step)
            pace.wait()
        else:
            context.run(steps.close)  # type: ignore[attr-defined]
        return [None] * rows
    except BaseException as error:
        return batch.raised(error)
    finally:
        batch.forget()


async def generate_async(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """As `generate`, for an async generator."""
    rows, pace = batch.batch.rows, streams.Pace(batch.tags, batch.most_ahead)
    try:
        steps: AsyncGenerator[Any, None] = batch.call(function)
        async with contextlib.aclosing(steps):
            async for step in steps:
                batch.hand_out(step)
                await pace.wait_async()
                if not pace.is_read:
                    break
        return [None] * rows
    except BaseException as error:
        if _cancels_task(error):
            raise
        return batch.raised(error)
    finally:
        batch.forget()


def _cancels_task(error: BaseException) -> bool:
    task = asyncio.current_task() if issubclass(type(error), asyncio.CancelledError) else None
    return task is not None and task.cancelling() > 0


# --- which of these --------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """How a function is called: what runs it with a batch, whether on an event loop, and whether it yields lists."""

    run: Callable[..., Any]
    is_async: bool = False
    is_stream: bool = False


def kind_of(function: Callable[..., Any]) -> Kind:
    """Of which kind a function is, as it tells itself: what it may wrap runs as it pleases."""
    if isinstance(function, pool.Processes):
        return Kind(compute_there)
    plain: Any = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    own_call = None if inspect.isroutine(plain) or isinstance(plain, type) else type(plain).__call__
    for each in (plain, own_call):
        if inspect.isasyncgenfunction(each):
            return Kind(generate_async, is_async=True, is_stream=True)
        if inspect.iscoroutinefunction(each) or _is_marked(each):
            return Kind(compute_async, is_async=True)
        if inspect.isgeneratorfunction(each):
            return Kind(generate, is_stream=True)
    return Kind(compute)


def _is_marked(function: Any) -> bool:
    """Whether something that is no coroutine function says that it acts like one; `inspect` knows from 3.12 on."""
    return sys.version_info < (3, 12) and asyncio.iscoroutinefunction(function)


# --- at once, for tests ------------------------------------------------------------------------------------------

# Mutable: how many blocks are open, and the tasks of calls made in them.
inline_depth = 0
_inline_lock = threading.Lock()
_inline_tasks: set[asyncio.Task[Sequence[driver.Outcome]]] = set()


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """While the block is open, in the whole process, every call runs at once as a batch of its own.

    A call of more items than `max_batch_size` is as many batches as they need. A coroutine function runs as a task
    where an event loop runs, else with `asyncio.run`.
    """
    global inline_depth
    with _inline_lock:
        inline_depth += 1
        current.may_be_apart = True
    try:
        yield
    finally:
        with _inline_lock:
            inline_depth -= 1


def run_inline(
    compute: Callable[[work.Work], Any], batches: Sequence[work.Work], done: Callable[[Sequence[driver.Outcome]], None]
) -> None:
    """Compute batches one after the other, and call `done` with their outcomes."""
    if not inspect.iscoroutinefunction(getattr(compute, "func", compute)):
        done([compute(batch) for batch in batches])
        return
    loop = current.loop()
    if loop is None:
        with asyncio.Runner() as runner:
            done([runner.run(compute(batch), context=batch.context()) for batch in batches])
        return
    task = asyncio.Task(_compute_each(compute, batches), loop=loop)
    _inline_tasks.add(task)
    task.add_done_callback(_inline_tasks.discard)
    lost = [failures.Closed("its event loop is ending")] * len(batches)
    task.add_done_callback(lambda ended: done(lost if ended.cancelled() else ended.result()))


async def _compute_each(compute: Callable[[work.Work], Any], batches: Sequence[work.Work]) -> Sequence[driver.Outcome]:
    loop = asyncio.get_running_loop()
    return [await asyncio.Task(compute(batch), loop=loop, context=batch.context()) for batch in batches]
