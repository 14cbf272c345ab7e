"""The `__main__` of the process that starts workers, for models that are defined in it.

A worker is a fresh interpreter with a `__main__` of its own. Only when something of the other's is needed, it runs that
program's file or module once more under the name `__mp_main__`, as multiprocessing's spawn does; so what a program does
must stand under `if __name__ == "__main__":`. A session without a file (a prompt, a notebook, `python -c`) cannot be
run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from multiprocessing import spawn
from typing import Any

_WHERE = ("init_main_from_name", "init_main_from_path")
_KEPT = (*_WHERE, "sys_argv")
_is_running_again = False  # in a worker: while it does that


def describe() -> dict[str, Any]:
    """What a worker needs to run this process's main module again."""
    found = spawn.get_preparation_data("carpool worker")
    return {key: found[key] for key in _KEPT if found.get(key) is not None}


def can_run_again() -> bool:
    """Whether this process's main module has a file or a name by which a worker can find it."""
    return any(key in describe() for key in _WHERE)


class MainModule:
    """In a worker: the main module of its starter, of which `described` tells where it is."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described: Mapping[str, Any] | None = described

    def prepare(self) -> None:
        """Have it as `__main__` from now on. Raises what the module raises while it is imported."""
        if self._described:
            with _running_again():
                spawn.prepare(dict(self._described))
        self._described = None


@contextlib.contextmanager
def _running_again() -> Iterator[None]:
    global _is_running_again
    _is_running_again = True
    try:
        yield
    finally:
        _is_running_again = False


def check_that_workers_may_start() -> None:
    """Raises RuntimeError in a worker that would start workers only because it runs the main module again."""
    if _is_running_again:
        raise RuntimeError(
            "a worker process imports the program that started it, and the program calls a model in worker processes"
            ' while it is imported; put what the program does under: if __name__ == "__main__":'
        )
