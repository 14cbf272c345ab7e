"""Counts what is kept of large messages, with the garbage collector off: in production it hardly ever comes round."""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

_PATIENCE = 5.0
_PAUSE = 0.005


@contextmanager
def counted() -> Iterator[None]:
    """Within it, bytes are counted, and only references free them. Nothing is logged: pytest keeps records."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()
        logging.disable(logging.NOTSET)


async def kept(run: Callable[[], Awaitable[object]], times: int, most: int) -> int:
    """Bytes that are allocated after so many runs and were not before; more than `most` only if that lasts.

    And only if as many runs again keep as much: a table of the process that grows, grows once.
    """
    found = await _kept(run, times, most)
    return found if found <= most else await _kept(run, times, most)


async def _kept(run: Callable[[], Awaitable[object]], times: int, most: int) -> int:
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(times):
        await run()
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while (found := tracemalloc.get_traced_memory()[0] - before) > most:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(_PAUSE)
    return found
