"""Gives memory back that large reviews leave behind: glibc keeps what was freed below a block that is still in use."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Callable

LARGE = 256 * 1024  # bytes; below it what one review leaves serves the next
_QUIET_SECONDS = 1.0


def settle() -> None:
    """Tell the collector that what start-up made is here to stay, and give back what start-up needed only once."""
    _trim()
    gc.freeze()


class Trimmer:
    """Gives memory back a moment after the last large review, while none is held. `held` tells how many bytes are."""

    def __init__(self, held: Callable[[], int], trim: Callable[[], None] | None = None) -> None:
        self._held = held
        self._trim = trim or _trim
        # All mutable state: the timer, while one is due.
        self._timer: asyncio.TimerHandle | None = None

    def freed(self, size: int) -> None:
        """A review of so many bytes was answered."""
        if size >= LARGE and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._held() >= LARGE:
            self.freed(LARGE)
        else:
            self._trim()


def _trim() -> None:
    gc.collect()  # after `settle` there is little to look at
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
