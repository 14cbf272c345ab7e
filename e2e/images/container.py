"""Containers of the images under test, by runc and with less than a restricted pod allows.

The image's own user, no capability, no new privileges, and a root file system without a single writable place. The
network is the one of the tests, so that containers reach each other over loopback as those of one pod do.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import processes

ONE_SHOT_SECONDS = 60.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Image:
    """An unpacked image: its root file system, and its configuration as the OCI image specification has it."""

    name: str
    root: Path
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Ended:
    """How a program in a container ended."""

    status: int
    output: str
    errors: str


def bundle(image: Image, arguments: Sequence[str], folder: Path, mounts: Mapping[str, Path]) -> Path:
    """A folder that runc starts a container from: its entry point with `arguments`; `mounts` maps places to folders."""
    told = image.config["config"]
    user, _, group = told["User"].partition(":")
    kernel = [("/proc", "proc", ["nosuid", "noexec", "nodev"]), ("/dev", "tmpfs", ["nosuid", "ro", "mode=755"])]
    spec = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": int(user), "gid": int(group)},
            "args": [*told["Entrypoint"], *arguments],
            "env": list(told["Env"]),
            "cwd": told.get("WorkingDir") or "/",
            "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
            "noNewPrivileges": True,
        },
        "root": {"path": str(image.root), "readonly": True},
        "mounts": [
            *({"destination": at, "type": kind, "source": kind, "options": how} for at, kind, how in kernel),
            *(
                {"destination": at, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
                for at, source in mounts.items()
            ),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc", "uts")]},
    }
    made = folder / f"{image.name}-{next(_numbers)}"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(spec))
    return made


def runc(folder: Path, *words: str) -> list[str]:
    return ["runc", "--root", str(folder / "state"), *words]


def run(
    image: Image, arguments: Sequence[str], folder: Path, stdin: str = "", mounts: Mapping[str, Path] | None = None
) -> Ended:
    """Runs a container to its end."""
    made = bundle(image, arguments, folder, mounts or {})
    command = runc(folder, "run", "--bundle", str(made), made.name)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=ONE_SHOT_SECONDS)
    return Ended(done.returncode, done.stdout, done.stderr)


class Container(processes.Process):
    """A running container."""

    def __init__(
        self, image: Image, arguments: Sequence[str], folder: Path, mounts: Mapping[str, Path] | None = None
    ) -> None:
        self._folder = folder
        self._bundle = bundle(image, arguments, folder, mounts or {})
        command = runc(folder, "run", "--bundle", str(self._bundle), self._bundle.name)
        super().__init__(self._bundle.name, command, self._bundle / "log")

    def execute(self, *words: str) -> Ended:
        """Runs a program in the container, beside its own: as `kubectl exec` and preStop hooks do."""
        command = runc(self._folder, "exec", self._bundle.name, *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=ONE_SHOT_SECONDS)
        return Ended(done.returncode, done.stdout, done.stderr)

    def terminate(self, within: float) -> int:
        """Sends SIGTERM to the program in the container; returns its exit status. Raises subprocess.TimeoutExpired."""
        subprocess.run(runc(self._folder, "kill", self._bundle.name, "TERM"), check=True, capture_output=True)
        return self._watchdog.wait(within)

    def stop(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(runc(self._folder, "delete", "--force", self._bundle.name), check=True, capture_output=True)
        super().stop()
