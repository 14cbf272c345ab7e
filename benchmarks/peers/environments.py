"""A virtual environment for each peer, from a file that pins everything, outside the checkout.

A peer's dependencies must neither meet Carpool's own nor another peer's, and a run a month later has to measure the
same versions. So each peer has `requirements/NAME.txt`, compiled from `NAME.in`, and nothing else is installed.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements")
_STAMP = "installed"


def default_cache() -> pathlib.Path:
    """Where peers are installed unless told otherwise: the user's cache folder (XDG Base Directory Specification)."""
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root, "carpool", "peers")


def missing(name: str) -> str | None:
    """Why the environment of `name` cannot be made here; None if it can."""
    return not_installable(name, [requirements(name)])


def not_installable(name: str, pins: Sequence[pathlib.Path]) -> str | None:
    """Why `install` cannot work here; None if it can. `name` is what the pins are for."""
    if sys.platform not in ("linux", "darwin"):
        return f"no pinned requirements for {sys.platform}"
    if not all(file.is_file() for file in pins):
        return f"no pinned requirements for {name}"
    return None if _uv() else "uv is not on PATH"


def requirements(name: str) -> pathlib.Path:
    """The file that pins everything that the peer needs."""
    return REQUIREMENTS / f"{name}.txt"


def program(cache: pathlib.Path, name: str, executable: str = "python") -> pathlib.Path:
    """A program of the environment of `name`."""
    return cache / name / "environment" / "bin" / executable


def prepare(cache: pathlib.Path, name: str, say: Callable[[str], None]) -> None:
    """Install what is pinned for `name`, unless exactly that is installed.

    Raises `OSError` without uv, and when the installation fails, with what it printed.
    """
    install(cache, name, [requirements(name)], say)


def install(cache: pathlib.Path, name: str, pins: Sequence[pathlib.Path], say: Callable[[str], None]) -> None:
    """`prepare`, with the requirements of these files together."""
    stamp, wanted = cache / name / _STAMP, _fingerprint(pins)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    uv = _uv()
    if uv is None:
        raise OSError("uv is not on PATH")
    say(f"installing {name}")
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    environment = str(cache / name / "environment")
    _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, environment])
    # The pins are complete, so nothing but them is wanted.
    files = [word for file in pins for word in ("--requirement", str(file))]
    _run([uv, "pip", "install", "--quiet", "--no-deps", "--python", str(program(cache, name)), *files])
    stamp.write_text(wanted)


def pinned_version(name: str, package: str | None = None) -> str:
    """The version that the requirements of `name` pin for a package, by default the one of that name.

    Raises `LookupError` if that is not pinned.
    """
    wanted = (package or name).replace("_", "-").lower()
    for line in requirements(name).read_text().splitlines():
        found, separator, rest = line.partition("==")
        if separator and found.partition("[")[0].strip().lower() == wanted:
            return rest.partition(";")[0].strip()
    raise LookupError(f"{requirements(name).name} does not pin {wanted}")


def _fingerprint(pins: Sequence[pathlib.Path]) -> str:
    """Changes with the pins and with the Python they are installed for."""
    content = hashlib.sha256(b"".join(file.read_bytes() for file in pins)).hexdigest()
    return f"{content} {platform.python_version()} {platform.machine()}\n"


def _uv() -> str | None:
    """uv from PATH, or the one beside this Python, where `make` puts its own."""
    return shutil.which("uv") or shutil.which("uv", path=pathlib.Path(sys.executable).parent)


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"{' '.join(command[1:3])} failed:\n{result.stderr.strip()}")
