"""How many CPUs this process may use, which inside a container is not how many the node has.

torch starts one thread for each CPU of the node; under a CPU limit that means most of them wait for each other.
"""

from __future__ import annotations

import os
import pathlib

# cgroup v2: "QUOTA PERIOD" in microseconds, or "max PERIOD" without a limit.
# https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
CPU_MAX = pathlib.Path("/sys/fs/cgroup/cpu.max")


def available(cpu_max: pathlib.Path = CPU_MAX) -> int:
    """The CPUs of the affinity mask, or fewer if the container's CPU limit (rounded up) is lower; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, _limit(cpu_max) or allowed))


def _limit(cpu_max: pathlib.Path) -> int | None:
    try:
        quota, period = cpu_max.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else -(-int(quota) // int(period))
