"""Results that are kept: what makes two items the same, under which key a cache has a result, and caches that fail."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Hashable
from typing import Any

from carpool.functions import calls, options, parameters

log = logging.getLogger("carpool.functions")


def identity(chosen: options.Options, item: Any) -> Hashable:
    """What two items have in common that have the same result. Raises what `key` raises, and TypeError without a hash.

    The item itself, unless something of another type may equal it, or `key` says what.
    """
    if chosen.key is not None:
        found = chosen.of_item(chosen.key)(item)
    elif chosen.each:
        found = tuple([parameters.typed(value) for value in item])
    else:
        found = item if type(item) in (str, bytes, int) else (type(item), item)
    hash(found)
    return found  # type: ignore[no-any-return] # it has a hash


def key(chosen: options.Options, item: Any, under: calls.Key | None) -> Hashable | None:
    """What a cache has an item's result under; None if it can have none. Raises what `key` raises."""
    if under is None:
        return None
    try:
        found = identity(chosen, item)
    except TypeError:
        if chosen.key is not None:
            raise
        return None
    return (found, under) if under else found


def get(cache: options.Cache, under: Hashable | None) -> Any:
    """What a cache has, or None. A cache that fails is logged and has nothing."""
    if under is None:
        return None
    try:
        return cache.get(under)
    except Exception:
        return _failed("get")


def put(cache: options.Cache, under: Hashable | None, result: Any) -> Any:
    """Have a cache keep a result; what its `set` returns. A failure is logged."""
    if under is None:
        return None
    try:
        return cache.set(under, result)
    except Exception:
        return _failed("keep")


async def waited(answer: Awaitable[Any] | None, what: str) -> Any:
    """What a cache with coroutine methods answers. A failure is logged, and as good as None."""
    try:
        return None if answer is None else await answer
    except Exception:
        return _failed(what)


def _failed(what: str) -> None:
    log.warning("a cache failed to %s a result", what, exc_info=True)
