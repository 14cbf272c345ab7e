"""The control groups of a cluster's pods: made before it starts, removed after it, in version 1 and version 2."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# In version 1 a new group of cpuset lacks these, and cannot hold a process without them.
CPUSET = ("cpuset.cpus", "cpuset.mems")
# Processes that were just killed stay in their groups for a moment.
REMOVAL_SECONDS = 10.0


def hierarchies(root: Path = ROOT) -> list[Path]:
    """Where groups are made: one folder in version 2, one for each controller in version 1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return [folder for folder in sorted(root.iterdir()) if (folder / "cgroup.procs").exists()]


def make(name: str, root: Path = ROOT) -> None:
    """Makes the group `name` (may have slashes) in all hierarchies. Raises OSError."""
    for hierarchy in hierarchies(root):
        group = hierarchy
        for part in Path(name).parts:
            inherit_controllers(group)
            above, group = group, group / part
            group.mkdir(exist_ok=True)
            for file in CPUSET:
                if (group / file).exists() and not (group / file).read_text().strip():
                    (group / file).write_text((above / file).read_text())


def inherit_controllers(group: Path) -> None:
    """In version 2: lets the groups in this one have the controllers that it has."""
    if (group / "cgroup.controllers").exists():
        wanted = " ".join(f"+{name}" for name in (group / "cgroup.controllers").read_text().split())
        # The root of a container's own hierarchy may hold processes, and then passes nothing on: kubelet will tell.
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(wanted)


def remove(name: str, root: Path = ROOT) -> None:
    """Removes the group and all below it from all hierarchies, once its processes have ended. Raises OSError."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    for hierarchy in hierarchies(root):
        for group in below(hierarchy / name):
            while True:
                try:
                    group.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


def below(group: Path) -> Iterator[Path]:
    """The group and those in it, the innermost first."""
    for folder, _, _ in os.walk(group, topdown=False):
        yield Path(folder)
