"""SIGINT and SIGTERM from a program's first line to its last: never a traceback, and an exit status that is meant.

Python's own way is a KeyboardInterrupt wherever the program happens to be, an import included, and for SIGTERM an end
without a word; as process 1 of a container, which has no default for SIGTERM, nothing at all until the kubelet kills.
So a program that serves calls `at_start` before it imports what takes time, `while_serving` in its event loop, and
`at_end` when its exit status is settled, also where that is one for bad settings: Python takes a while to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable

INTERRUPTED = 130
"""The exit status of a program that SIGINT ended, as shells have it."""

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


def at_start(prog: str) -> None:
    """From here on a signal ends the process with a line on standard error: SIGTERM with 0, as an end in order, since
    nothing was accepted; SIGINT with 130.
    """

    def end(number: int, _: object) -> None:
        # Nothing is open that would need closing, and an exception may be swallowed by the import that it comes to.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{prog}: {signal.Signals(number).name} before it served: ends\n")
            sys.stderr.flush()
        os._exit(INTERRUPTED if number == signal.SIGINT else 0)

    for each in _NUMBERS:
        signal.signal(each, end)


def while_serving(received: Callable[[signal.Signals], None]) -> None:
    """From here on `received` is called in the running event loop for each signal; once that is closed, for none."""
    import asyncio  # a tenth of a second, which `at_start` has no use for

    loop = asyncio.get_running_loop()

    def tell(number: int, _: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this is the end already
            loop.call_soon_threadsafe(received, signal.Signals(number))

    for each in _NUMBERS:  # not the loop's handlers, which end with the loop, a moment before the process
        signal.signal(each, tell)


def at_end() -> None:
    """From here on signals do nothing: the process ends already, and a last one must not change its exit status."""
    for each in _NUMBERS:
        signal.signal(each, signal.SIG_IGN)
