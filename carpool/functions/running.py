"""How a batched function is run with a batch, by its kind: called, awaited, or stepped through.

Nothing that a function raises, returns or yields gets past these: each ends with an outcome for every row, or why there
is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from carpool import errors as carpool_errors
from carpool.functions import errors as failures
from carpool.functions import streams, work
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
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return batch.raised(error)
    except BaseException as error:
        return batch.raised(error)
    finally:
        batch.forget()


def generate(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """Run a function that yields lists, and hand each list out. It is closed early if nobody reads any more."""
    context, tags, rows = batch.context(), batch.tags, batch.batch.rows
    pace = streams.Pace(tags, batch.most_ahead)
    has_begun = False
    try:
        steps: Iterator[Any] = context.run(batch.call, function)
        while any(tag.is_open for tag in tags):
            try:
                step = context.run(next, steps)
            except StopIteration:
                break
            _hand_out(tags, batch.shares(step))
            has_begun = True
            pace.wait()
        else:
            context.run(steps.close)  # type: ignore[attr-defined]
        return [None] * rows
    except BaseException as error:
        return _raised(batch, error, has_begun)
    finally:
        batch.forget()
        tags = []


async def generate_async(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """As `generate`, for an async generator."""
    tags, rows = batch.tags, batch.batch.rows
    pace = streams.Pace(tags, batch.most_ahead)
    has_begun = False
    try:
        steps: AsyncGenerator[Any, None] = batch.call(function)
        async with contextlib.aclosing(steps):
            async for step in steps:
                _hand_out(tags, batch.shares(step))
                has_begun = True
                await pace.wait_async()
                if not any(tag.is_open for tag in tags):
                    break
        return [None] * rows
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return _raised(batch, error, has_begun)
    except BaseException as error:
        return _raised(batch, error, has_begun)
    finally:
        batch.forget()
        tags = []


def _hand_out(tags: Sequence[Any], results: Sequence[Any]) -> None:
    for tag, result in zip(tags, results, strict=True):
        tag.push(result)


def _raised(batch: work.Work, error: BaseException, has_begun: bool) -> driver.Outcome:
    """Once results were handed out, nothing can be tried again."""
    outcome = batch.raised(error)
    if has_begun and isinstance(outcome, failures.RaisedForOne):
        return failures.Raised(outcome.original)
    return outcome


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
