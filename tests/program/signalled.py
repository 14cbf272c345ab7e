"""Runs a program and sends it a signal at a moment: `signalled.py SIGNAL MOMENT MODULE [ARGUMENT…]`.

The moment is a module, and the signal comes when it is imported; or `runner`, and it comes right before the event loop
runs for the first time; or `end`, and it comes when Python itself ends, before and after that gives up its handlers.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class Finder(importlib.abc.MetaPathFinder):
    """Finds nothing, and sends the signal when it is asked for the module."""

    def __init__(self, number: signal.Signals, name: str) -> None:
        self._number, self._name = number, name

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == self._name:
            os.kill(os.getpid(), self._number)


class Last:
    """Sends the signal when Python lets go of its modules."""

    def __init__(self, number: signal.Signals) -> None:
        self._send = functools.partial(os.kill, os.getpid(), number)

    def __del__(self) -> None:
        self._send()


def main(number: signal.Signals, moment: str, module: str, arguments: Sequence[str]) -> None:
    # As in a terminal: a shell has what it starts in the background ignore Ctrl-C, and so have those it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if moment == "runner":
        import asyncio

        run = asyncio.Runner.run

        def signalled(self: asyncio.Runner, *rest: Any, **named: Any) -> Any:
            os.kill(os.getpid(), number)
            return run(self, *rest, **named)

        asyncio.Runner.run = signalled  # type: ignore[method-assign]
    elif moment == "end":
        atexit.register(os.kill, os.getpid(), number)
        sys.last_of_all = Last(number)  # type: ignore[attr-defined]
    else:
        sys.meta_path.insert(0, Finder(number, moment))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(signal.Signals[sys.argv[1]], sys.argv[2], sys.argv[3], sys.argv[4:])
