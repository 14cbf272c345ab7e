"""One thread that keeps deadlines for code without an event loop.

It starts with the first deadline, and sleeps between. Times are seconds of `time.monotonic`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable

log = logging.getLogger("carpool.runtime")


# Seconds of the longest sleep; the operating system has a limit of its own.
_LONG = 24 * 3600.0


class TimerThread:
    """Calls functions at their times, from its thread; they must be short. Any thread may ask."""

    # Mutable state: the heap of (when, number, function), the thread, and when that wakes up; all under the condition.
    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, Callable[[], object] | None]] = []  # None ends the thread
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Call `function` at `when` or a little later. It cannot be taken back: let it look whether it is still due."""
        with self._condition:
            heapq.heappush(self._heap, (when, next(self._numbers), function))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="carpool timer", daemon=True)
                thread.start()  # which may not be possible
                self._thread = thread
            elif self._heap[0][0] == when:
                self._condition.notify()

    def stop(self, timeout: float) -> None:
        """End the thread, before the interpreter does; waits for so many seconds at most."""
        with self._condition:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            heapq.heappush(self._heap, (-math.inf, next(self._numbers), None))
            self._condition.notify()
        thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._heap or self._heap[0][0] > time.monotonic():
                    self._condition.wait(min(self._heap[0][0] - time.monotonic(), _LONG) if self._heap else None)
                _, _, function = heapq.heappop(self._heap)
            if function is None:
                return
            try:
                function()
            except Exception:
                log.exception("a timer's function failed for a reason that is a bug")
            del function


shared = TimerThread()
"""The one of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared._forget)
