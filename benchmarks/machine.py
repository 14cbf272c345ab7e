"""The machine under the benchmark: its cores, its clocks, and how to name it in a report."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import pathlib
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

_WORK = ("user", "nice", "system", "irq", "softirq", "steal")

PACKAGES = ("aiohttp", "uvloop", "msgspec", "pydantic", "prometheus-client", "torch", "transformers")


@contextlib.contextmanager
def pinned(cores: set[int] | None) -> Iterator[None]:
    """Run this thread on the given cores; processes and threads started meanwhile inherit that."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def split_cores() -> tuple[set[int], set[int]] | None:
    """One core for the predictor (and the load), one for the sidecar; None on a machine that cannot give two."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return ({cores[0]}, {cores[1]}) if len(cores) > 1 else None


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children so far, with nanosecond resolution where the kernel offers it."""
    process = psutil.Process(pid)
    return sum(_own_cpu_seconds(each) for each in (process, *process.children(recursive=True)))


def _own_cpu_seconds(process: psutil.Process) -> float:
    try:
        tasks = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:  # not Linux, or a kernel without scheduler statistics: hundredths of a second have to do
        times = process.cpu_times()
        return float(times.user + times.system)


def busy_seconds(cores: set[int]) -> float:
    """How long the given cores have worked so far, for whomever (another guest of the host included)."""
    total = 0.0
    for core, times in enumerate(psutil.cpu_times(percpu=True)):
        if core in cores:
            total += sum(getattr(times, kind, 0.0) for kind in _WORK)
    return total


class Neighbours:
    """What programs other than the given ones (and their children) use of the cores, from now on."""

    def __init__(self, pids: Sequence[int], cores: set[int] | None = None) -> None:
        self._pids = pids
        self._cores = cores or set(psutil.Process().cpu_affinity() if hasattr(os, "sched_getaffinity") else ())
        self._start, self._foreign = time.monotonic(), self._foreign_seconds()

    def share(self) -> float:
        """The share of these cores that others took since the start; 0.0 where that cannot be known."""
        elapsed = time.monotonic() - self._start
        used = self._foreign_seconds() - self._foreign
        return max(0.0, used / elapsed / len(self._cores)) if self._cores and elapsed else 0.0

    def _foreign_seconds(self) -> float:
        return busy_seconds(self._cores) - sum(cpu_seconds(pid) for pid in self._pids)


def rss_megabytes(pid: int) -> float:
    """Resident memory of a process in MB (10^6 bytes), shared libraries included."""
    return float(psutil.Process(pid).memory_info().rss / 1e6)


def peak_rss_megabytes(pid: int) -> float | None:
    """The most that `rss_megabytes` was since the process began; None where the system does not tell (not Linux)."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):  # proc(5), in KiB
                return int(line.split()[1]) * 1024 / 1e6
    return None


def describe() -> dict[str, Any]:
    """Everything about this machine that a figure depends on."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "usable_cores": len(psutil.Process().cpu_affinity()) if hasattr(os, "sched_getaffinity") else None,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": _versions(),
        "wrk": _output_line("wrk", "-v"),
    }


def provenance() -> dict[str, Any]:
    """When this ran, and on which commit."""
    commit = _output_line("git", "rev-parse", "HEAD")
    changed = _output_line("git", "status", "--porcelain") if commit else None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "uncommitted_changes": bool(changed) if commit else None,
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _output_line(*command: str) -> str | None:
    """The first line that a program prints; None if there is no such program or it prints nothing."""
    if shutil.which(command[0]) is None:
        return None
    result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if result.returncode and command[0] == "git":
        return None
    lines = (result.stdout or result.stderr).splitlines()
    return lines[0].strip() if lines else None
