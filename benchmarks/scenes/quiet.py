"""What the programs of a scene take of the cores, what all others take, and waiting until that is little.

`machine.Neighbours` adds up threads, to the nanosecond; servers here end threads by the dozen, whose times would then
count as somebody else's. A hundredth of a second is exact enough for a share.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import psutil

from benchmarks import machine

QUIET, GLANCE_SECONDS = 0.25, 1.0  # the share that others may take when a round begins; how long one looks

Look = Callable[[Sequence[int]], float]
"""The share of all cores that programs other than these take."""


class Cores:
    """The work of the given programs with their children, and of all others, from now on."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._cores = set(range(psutil.cpu_count() or 1))
        self._start, self._busy, self._own = time.monotonic(), machine.busy_seconds(self._cores), self._seconds()

    def own(self) -> float:
        """Seconds of processor time that the given programs took since the start."""
        return max(0.0, self._seconds() - self._own)

    def others(self) -> float:
        """The share of all cores that others took since the start."""
        elapsed = time.monotonic() - self._start
        busy = machine.busy_seconds(self._cores) - self._busy - self.own()
        return min(1.0, max(0.0, busy / elapsed / len(self._cores))) if elapsed else 0.0

    def _seconds(self) -> float:
        return sum(map(_seconds_of, self._pids))


def glance(pids: Sequence[int]) -> float:
    """What others take over a second."""
    cores = Cores(pids)
    time.sleep(GLANCE_SECONDS)
    return cores.others()


def wait(
    pids: Sequence[int], patience: float, look: Look = glance, clock: Callable[[], float] = time.monotonic
) -> float:
    """Return once others take little of the cores, or after so many seconds; gives their share.

    Nobody looks, and the share is 0, without any patience.
    """
    deadline, share = clock() + patience, 0.0
    while patience and (share := look(pids)) > QUIET and clock() < deadline:
        pass
    return share


def _seconds_of(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
    return total
