"""Results that are kept: by what items are told apart, under which key a cache has a result, and caches that fail.

`LRU` is the cache that comes with the library: what was asked for last is kept, for as long as it holds.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar, overload

from carpool.functions import calls, options, parameters

log = logging.getLogger("carpool.functions")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")

# Expired values that a call frees: one more than `set` adds, so that they do not pile up.
_FREED = 2


class LRU(Generic[K, V]):
    """Keeps at most `maxsize` values, those that were used last, each for at most `ttl` seconds from its `set`.

    `ttl=None`: as long as there is room. `clock` returns seconds and never goes back. Any thread may use it, and after
    a fork the child has a copy of its own. An expired value is never returned. Its memory is given back by the calls
    that follow: each `set`, and each `get` that meets an expired value, frees two, and `len` all of them. While there
    are expired values none that still holds has to make room.

    Keys must be hashable: TypeError otherwise, as with a dict. (`carpool.batched` does not ask its cache for items that
    are not.) Raises TypeError or ValueError for a `maxsize` or `ttl` that makes no sense.
    """

    # Mutable state, under the lock: the values with the time at which each expires, last used last; and, where there is
    # a ttl, the keys in the order of those times.
    def __init__(
        self, maxsize: int = 1024, ttl: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.maxsize = options.whole("maxsize", maxsize, 1)
        checked = None if ttl is None else options.number("ttl", ttl, "a number, or None for none")
        self.ttl = options.seconds("ttl", checked)
        self._clock = clock
        self._start()
        _caches.add(self)

    def _start(self) -> None:
        # Reentrant: freeing a value may run code that comes back here.
        self._lock = threading.RLock()
        self._values: OrderedDict[K, tuple[V, float]] = OrderedDict()
        self._expiring: OrderedDict[K, float] = OrderedDict()

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: D, /) -> V | D: ...
    def get(self, key: K, default: D | None = None, /) -> V | D | None:
        """The value, which counts as used now; `default` if there is none that still holds."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return default
            if self.ttl is not None and entry[1] <= (now := self._clock()):
                self._free(now, _FREED)
                return default
            self._values.move_to_end(key)
            return entry[0]

    def set(self, key: K, value: V, /) -> None:
        """Keep a value, in place of the one that this key had."""
        with self._lock:
            expires = math.inf
            if self.ttl is not None:
                now = self._clock()
                self._free(now, _FREED)
                expires = now + self.ttl
                self._expiring[key] = expires
                self._expiring.move_to_end(key)
            self._values[key] = value, expires
            self._values.move_to_end(key)
            if len(self._values) > self.maxsize:
                oldest, _ = self._values.popitem(last=False)
                self._expiring.pop(oldest, None)

    def delete(self, key: K, /) -> None:
        """Forget the value of this key, if there is one."""
        with self._lock:
            self._values.pop(key, None)
            self._expiring.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._expiring.clear()

    def __contains__(self, key: K) -> bool:
        """Whether there is a value that still holds; asking does not count as use."""
        with self._lock:
            entry = self._values.get(key)
            return entry is not None and (self.ttl is None or entry[1] > self._clock())

    def __len__(self) -> int:
        """How many values there are that still hold."""
        with self._lock:
            if self.ttl is not None:
                self._free(self._clock(), len(self._values))
            return len(self._values)

    def __repr__(self) -> str:
        return f"LRU(maxsize={self.maxsize}, ttl={self.ttl})"

    def _free(self, now: float, most: int) -> None:
        """Free so many of the values that have expired."""
        while most and self._expiring:
            key = next(iter(self._expiring))
            if self._expiring[key] > now:
                break
            del self._expiring[key], self._values[key]
            most -= 1

    def _after_fork(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:  # a thread that is not in this process was at work, perhaps half done
            self._start()


_caches: weakref.WeakSet[LRU[Any, Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- what a batched function asks of any cache --------------------------------------------------------------------


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
