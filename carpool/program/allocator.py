"""Memory that large bodies leave behind: reused while they come, given back when they stop.

By default glibc maps large blocks one by one, and every page of every body is faulted in anew: two thirds of the CPU
time at 1.5 MB. Told to keep them on its heap it reuses the same pages, but small blocks in between would pin hundreds
of megabytes for good. So large blocks stay on the heap, and a while after the last large body the heap is trimmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Callable
from typing import Any

LARGE = 64 * 1024
"""Bytes from which on a body counts as large."""

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MOST = 32 * 1024 * 1024  # the largest threshold glibc takes on 64-bit systems
_NEVER = 1 << 30

_QUIET_SECONDS = 1.0
_BUSY_LOOKS = 30
"""So often no quiet moment may be found in a row until the collector runs all the same. It takes 2 ms with 11,000
objects, of 500 connections, and nothing that can be measured with few."""


def settle() -> None:
    """For a program on the data path: its garbage collector and its allocator from the end of start-up on.

    What start-up made is here to stay. Requests make no reference cycles, so reference counting frees them and the
    collector may come round less often: by itself once in 100,000 objects, which may keep gigabytes. So a `Trimmer`
    calls it as well. Large blocks are kept.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    _libc("mallopt", _M_MMAP_THRESHOLD, _MOST)
    _libc("mallopt", _M_TRIM_THRESHOLD, _NEVER)


def give_back() -> None:
    """Give memory that is free back to the system."""
    _libc("malloc_trim", 0)


class Trimmer:
    """Gives freed memory back once large bodies have stopped coming and none is held any more.

    Before that the garbage collector runs, and now and then while they do not stop: should a reference cycle keep some
    of them, for a bug here or in a library, that is not for good. `held` tells how many bytes of bodies there are now.
    No timer runs unless a large body came.
    """

    # State: the timer, while one is due; how often it was due since the collector ran.
    def __init__(
        self,
        held: Callable[[], int],
        trim: Callable[[], object] = give_back,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._held = held
        self._trim = trim
        self._collect = collect
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def large_body(self) -> None:
        """A large body was read, or let go."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._due)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        self._looks += 1
        is_quiet = self._held() <= LARGE
        if is_quiet or self._looks >= _BUSY_LOOKS:
            self._looks = 0
            self._collect()
        if is_quiet:
            self._trim()
        else:
            self.large_body()


def _libc(function: str, *arguments: Any) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        getattr(ctypes.CDLL(None), function)(*arguments)
