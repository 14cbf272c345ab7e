"""One timer for many deadlines, most of which are never reached.

A timer for each would be set only to be cancelled. Whoever has deadlines keeps them, says by when to look at them, and
looks when it is called.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable


class DeadlineTimer:
    """Calls `look` with the time when the earliest deadline may have passed; it returns the next, or infinity.

    Deadlines that were met are not taken back: the timer then fires in vain, once, and learns what comes next. Times
    are seconds on `clock`, by default the running loop's.
    """

    __slots__ = ("_clock", "_context", "_look", "_timer", "due_at")

    def __init__(self, look: Callable[[float], float], clock: Callable[[], float] | None = None) -> None:
        self._look = look
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._context = contextvars.Context()  # else a timer would keep the variables of whoever set it
        self.due_at = math.inf
        """When it looks next; infinity if it is not set."""

    def look_by(self, when: float) -> None:
        """Look at `when`, or before."""
        if when >= self.due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        # libuv counts whole milliseconds and may round down; a timer that is early would fire again and again.
        delay = math.ceil(max(0.0, when - self._now(loop)) * 1000) / 1000
        self.due_at = when
        self._timer = loop.call_later(delay, self._fire, context=self._context)

    def stop(self) -> None:
        """Forget all deadlines."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.due_at = math.inf

    def _fire(self) -> None:
        self._timer = None
        self.due_at = math.inf
        self.look_by(self._look(self._now(asyncio.get_running_loop())))

    def _now(self, loop: asyncio.AbstractEventLoop) -> float:
        return loop.time() if self._clock is None else self._clock()
