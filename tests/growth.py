"""How much an object keeps alive: the count behind the tests that nothing grows with what callers choose."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import sys
import types
from typing import Any

_NOT_ENTERED = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType,
    types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType, types.TracebackType, logging.Logger,
    logging.Handler, logging.Manager, asyncio.AbstractEventLoop, asyncio.Future, asyncio.Handle, asyncio.BaseTransport,
    contextvars.Context, contextvars.ContextVar,
)  # fmt: skip


def kept(root: object) -> tuple[int, int]:
    """Objects that are reached from `root`, and their bytes: without code, what tasks are at, and the event loop."""
    gc.collect()
    seen: set[int] = {id(root)}
    waiting: list[Any] = [root]
    count = size = 0
    while waiting:
        found = waiting.pop()
        count += 1
        size += sys.getsizeof(found)
        for each in gc.get_referents(found):
            if id(each) not in seen and not isinstance(each, _NOT_ENTERED):
                seen.add(id(each))
                waiting.append(each)
    return count, size
