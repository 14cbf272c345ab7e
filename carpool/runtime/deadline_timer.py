"""One timer for many deadlines, most of which are never reached."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Calls `ring` with the loop's time when the earliest deadline may have passed; it returns the next, or infinity.

    Deadlines that were met are not taken back: the alarm then rings in vain, once, and finds out what comes next.
    All times are the running loop's, in seconds.
    """

    # State: the timer, and when it fires.
    def __init__(self, ring: Callable[[float], float]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def ring_by(self, when: float) -> None:
        """Make sure it rings at `when`, or before."""
        if when >= self._at:
            return
        self.stop()
        loop = asyncio.get_running_loop()
        # libuv counts whole milliseconds and may round down; an alarm that is early would ring again and again.
        delay = math.ceil(max(0.0, when - loop.time()) * 1000) / 1000
        self._at = when
        self._timer = loop.call_later(delay, self._on_timer)

    def stop(self) -> None:
        """Forget all deadlines."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._at = math.inf

    def _on_timer(self) -> None:
        self._timer = None
        self._at = math.inf
        self.ring_by(self._ring(asyncio.get_running_loop().time()))
