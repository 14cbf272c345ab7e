"""Programs in Go, ours and others': built once for their sources, their pins and the compiler."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

_SOURCES = ("go.mod", "go.sum", "main.go")


@dataclass(frozen=True)
class Program:
    """A program, as `title` calls it; `built` is the absolute path of its executable.

    Its own sources are in the folder `source`, or the pins of the module that has its `package`.
    """

    source: pathlib.Path
    built: pathlib.Path
    title: str
    package: str = "."

    def prepare(self, say: Callable[[str], None]) -> None:
        """Build it, unless exactly that is built. Raises `OSError` with the compiler's complaint if that fails."""
        folder = self.built.parent
        stamp, wanted = folder / "built", self._fingerprint()
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        say(f"building {self.title}; the first time, this downloads and compiles for a minute or two")
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        # Only what go.sum names, and nothing taken from a workspace, a vendor folder or the checkout's history.
        settings = {"GOWORK": "off", "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath"}
        self._go("build", "-o", str(self.built), self.package, settings=settings)
        stamp.write_text(wanted)

    def compiler(self) -> str:
        """The version of Go that built it."""
        return self._go("version", str(self.built)).rpartition(": go")[2].strip()

    def _fingerprint(self) -> str:
        """Changes with the program, its pins and the compiler."""
        paths = [self.source / name for name in _SOURCES]
        sources = b"".join(path.read_bytes() for path in paths if path.is_file()) + self.package.encode()
        return f"{hashlib.sha256(sources).hexdigest()} {self._go('env', 'GOVERSION', 'GOARCH').split()}\n"

    def _go(self, *arguments: str, settings: dict[str, str] | None = None) -> str:
        command, env = ["go", *arguments], os.environ | (settings or {})
        result = subprocess.run(command, cwd=self.source, env=env, capture_output=True, text=True, check=False)
        if result.returncode:
            raise OSError(f"go {arguments[0]} failed:\n{result.stderr.strip()}")
        return result.stdout


def missing() -> str | None:
    """Why nothing can be built here; None if it can."""
    return None if shutil.which("go") else "no Go toolchain on PATH"
