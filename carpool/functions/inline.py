"""`carpool.inline()`: calls that run at once, in the thread that makes them, for people's tests.

Each call is a batch of its own. What a function does with its items is then tested without threads or waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from carpool.functions import current, work
from carpool.runtime import driver

# Mutable: how many blocks are open, and the tasks of calls made in them.
depth = 0
_lock = threading.Lock()
_tasks: set[asyncio.Task[Sequence[driver.Outcome]]] = set()


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """While the block is open, in the whole process, every call runs at once as a batch of its own.

    A call of more items than `max_batch_size` is as many batches as they need. A coroutine function runs as a task
    where an event loop runs, else with `asyncio.run`.
    """
    global depth
    with _lock:
        depth += 1
        current.may_be_apart = True
    try:
        yield
    finally:
        with _lock:
            depth -= 1


def run(
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
    task = asyncio.Task(_each(compute, batches), loop=loop)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    task.add_done_callback(
        lambda ended: done([batch.cancelled() for batch in batches] if ended.cancelled() else ended.result())
    )


async def _each(compute: Callable[[work.Work], Any], batches: Sequence[work.Work]) -> Sequence[driver.Outcome]:
    loop = asyncio.get_running_loop()
    return [await asyncio.Task(compute(batch), loop=loop, context=batch.context()) for batch in batches]
