"""What this process and its children have used so far: CPU time, wake-ups, threads. Standard library only."""

from __future__ import annotations

import os
import pathlib
import resource
import threading
import time


def cpu_seconds() -> float:
    """CPU time of all threads of this process, and of its children that live."""
    return time.process_time() + cpu_of_children()


def cpu_of_children() -> float:
    """CPU time of the children that live, and theirs."""
    return sum(_scheduled(pid) for pid in descendants())


def wakeups() -> int:
    """How often a thread of this process, or of a child that lives, went to sleep and was woken."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    return own + sum(_switches(pid) for pid in descendants())


def threads() -> int:
    """Threads of this process besides the main one, and child processes."""
    return threading.active_count() - 1 + len(descendants())


def descendants() -> list[int]:
    """Process ids of the children of this process, and theirs."""
    found, waiting = [], [os.getpid()]
    while waiting:
        for task in _tasks(waiting.pop()):
            children = _read(task / "children").split()
            found += map(int, children)
            waiting += map(int, children)
    return found


def _tasks(pid: int) -> list[pathlib.Path]:
    try:
        return list(pathlib.Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has just ended, or this is not Linux
        return ""


def _scheduled(pid: int) -> float:
    return sum(int((_read(task / "schedstat").split() or ["0"])[0]) for task in _tasks(pid)) / 1e9


def _switches(pid: int) -> int:
    lines = [line for task in _tasks(pid) for line in _read(task / "status").splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
