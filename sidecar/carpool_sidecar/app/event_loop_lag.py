"""How late the event loop is: all callers share it, so whatever holds it up holds all of them up.

A timer is set again and again, and how much later than asked it ran is one value of a histogram. A stall is seen only
if a timer falls due in it, so the histogram samples what a request would have met that came at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

INTERVAL = 0.25
"""Seconds between samples, usually: four wake-ups a second cost less than a thousandth of a core."""


class Histogram(Protocol):
    """Where the values go."""

    def observe(self, value: float) -> None:
        """One more value, in seconds."""
        ...


class Monitor:
    """Samples every `interval` seconds from `start()` to `stop()`. `clock` returns seconds and never goes back.

    libuv's timers count whole milliseconds and may be up to one early, which counts as no lag.
    """

    # State: the timer, and when it is due on `clock`.
    def __init__(self, histogram: Histogram, clock: Callable[[], float], interval: float = INTERVAL) -> None:
        self._histogram = histogram
        self._clock = clock
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin, on the running loop; does nothing if it has begun."""
        if self._timer is None:
            self._set()

    def stop(self) -> None:
        """End; does nothing if it has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._due = self._clock() + self._interval
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._sample)

    def _sample(self) -> None:
        self._histogram.observe(max(0.0, self._clock() - self._due))
        self._set()
