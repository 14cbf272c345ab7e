"""Builds the wheels of a release, and tries them: `make wheels`.

    python .ci/wheels.py dist                                        compiled ones for this interpreter, and plain ones
    python .ci/wheels.py dist --python python3.12 --python python3.13        for these interpreters
    python .ci/wheels.py dist --only plain                           which needs no compiler
    python .ci/wheels.py dist --only compiled                        beside what is in the folder already

All four distributions get a source distribution and a wheel of plain Python, which runs everywhere. carpool and
carpool-sidecar get one with compiled modules for each interpreter as well, which pip prefers where it fits. Its tag is
manylinux with the oldest glibc that it runs on; `linux` where auditwheel finds none, and no index takes those.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import compiled as hot_path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "carpool": ".",
    "carpool_sidecar": "sidecar",
    "carpool_injector": "injector",
    "carpool_predictor": "predictor",
}
COMPILED = ("carpool", "carpool_sidecar")
PINS = (".ci/compiled.txt", ".ci/wheels.txt", "sidecar/requirements.txt")
LINES_SHOWN = 30


class Problem(Exception):
    """Wheels cannot be built as asked, or do not work; the message says why and what to do."""


def say(words: str) -> None:
    print(f"wheels: {words}", flush=True)


def run(command: Sequence[str | Path], folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """What the command prints. Raises Problem with its last words if it fails."""
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ended.returncode:
        words = "\n".join(f"  {line}" for line in ended.stdout.splitlines()[-LINES_SHOWN:])
        raise Problem(f"`{' '.join(map(str, command))}` ended with status {ended.returncode}:\n{words}")
    return ended.stdout


def build(name: str, python: str | Path, into: Path, *targets: str, compiled: bool) -> None:
    """Have hatchling build one distribution. `python` has hatchling and, for a compiled one, all that it needs."""
    words = [word for target in targets for word in ("-t", target)]
    run(
        [python, "-m", "hatchling", "build", *words, "-d", into],
        ROOT / FOLDERS[name],
        {"CARPOOL_COMPILE": "1" if compiled else "0"},
    )


def interpreter(wanted: str) -> str:
    """The path of an interpreter that was asked for. Raises Problem if it is not here."""
    found = shutil.which(wanted)
    if found is None:
        raise Problem(f"there is no interpreter {wanted} here; install it, or leave it out")
    return found


def plain(out: Path) -> None:
    """Source distributions and wheels of plain Python."""
    for name in FOLDERS:
        build(name, sys.executable, out, "sdist", "wheel", compiled=False)
    say(f"{len(FOLDERS)} source distributions and wheels of plain Python")


class Interpreter:
    """An environment of one interpreter with the compiler and what the sidecar needs, in `folder`."""

    def __init__(self, python: str, uv: str, folder: Path) -> None:
        self._uv = uv
        self._folder = folder
        self._environment = folder / "environment"
        run([uv, "venv", "--quiet", "--python", python, self._environment])
        self.python = self._environment / "bin" / "python"
        self.version = run([self.python, "-c", "import platform; print(platform.python_version())"]).strip()
        pins = [word for file in PINS for word in ("--requirement", file)]
        self._install("--require-hashes", *pins)

    def build(self) -> list[Path]:
        """Both compiled wheels, a core for each."""
        made = self._folder / "made"
        with concurrent.futures.ThreadPoolExecutor() as pool:
            building = [pool.submit(build, each, self.python, made, "wheel", compiled=True) for each in COMPILED]
            for each in building:
                each.result()
        return sorted(made.glob("*.whl"))

    def tag(self, wheels: Sequence[Path]) -> list[Path]:
        """The same wheels, named for the oldest glibc they run on; unchanged where nobody can tell."""
        tagged = self._folder / "tagged"
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        try:
            run([self.python, "-m", "auditwheel", "repair", "-w", tagged, *wheels], environment={"PATH": path})
        except Problem as problem:
            say(f"  no tag but {platform.system().lower()}, which no index takes: {problem}")
            return list(wheels)
        return sorted(tagged.glob("*.whl"))

    def check(self, wheels: Sequence[Path], expected: str) -> None:
        """Install wheels of carpool and carpool-sidecar, and see which build runs. Raises Problem if it is another.

        All modules that are compiled are imported: what an interpreter does not take of one shows there at the least.
        """
        self._install("--no-deps", "--reinstall", *map(str, wheels))
        names = {package: hot_path.MODULES[package] + hot_path.NATIVE[package] for package in COMPILED}
        modules = " ".join(f"{package}.{name}" for package in COMPILED for name in names[package].split())
        importing = "import importlib, os; [*map(importlib.import_module, os.environ['MODULES'].split())]"
        run([self.python, "-c", importing], self._folder, {"MODULES": modules})
        program = [self.python.parent / "carpool-sidecar", "--version"]
        told = run(program, self._folder).strip()
        if not told.endswith(f"({expected})"):
            names = ", ".join(wheel.name for wheel in wheels)
            raise Problem(f"{names}: `carpool-sidecar --version` says {told!r}, not {expected!r}")
        as_python = run(program, self._folder, {"CARPOOL_PURE_PYTHON": "1"}).strip()
        if not as_python.endswith("(python)"):
            raise Problem(f"with CARPOOL_PURE_PYTHON=1 `carpool-sidecar --version` says {as_python!r}")

    def _install(self, *words: str) -> None:
        run([self._uv, "pip", "install", "--quiet", "--python", self.python, *words])


def compiled(python: str, uv: str, out: Path) -> None:
    """The compiled wheels of one interpreter, tried beside each other; the plain ones that are there are tried too."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="carpool-wheels-") as folder:
        made = Interpreter(python, uv, Path(folder))
        say(f"compiling for Python {made.version} ({python})")
        wheels = made.tag(made.build())
        made.check(wheels, "compiled")
        if others := [wheel for name in COMPILED for wheel in out.glob(f"{name}-*-py3-none-any.whl")]:
            made.check(others, "python")
        for wheel in wheels:
            shutil.copy(wheel, out)
            say(f"  {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
    say(f"  built and tried in {time.monotonic() - start:.0f} s")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when all wheels are built and work, and 1 when one is not or does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder for them, made if it is missing")
    parser.add_argument("--python", action="append", help="compile for this interpreter; may be repeated (this one)")
    parser.add_argument("--only", choices=["plain", "compiled"], help="these wheels (both)")
    parser.add_argument("--uv", default="uv", help="where uv is (on PATH)")
    wanted = parser.parse_args(argv)
    out = wanted.out.resolve()
    try:
        if wanted.only != "compiled" and out.is_dir() and any(out.iterdir()):
            raise Problem(f"{wanted.out} is not empty: what lies there would be taken for part of this release")
        out.mkdir(parents=True, exist_ok=True)
        pythons = [] if wanted.only == "plain" else [interpreter(each) for each in wanted.python or [sys.executable]]
        if pythons:
            run([sys.executable, ".ci/compiled.py", "--check"])
        if wanted.only != "compiled":
            plain(out)
        for python in pythons:
            compiled(python, wanted.uv, out)
    except Problem as problem:
        print(f"wheels: error: {problem}", file=sys.stderr)
        return 1
    say(f"{len(list(out.iterdir()))} files in {wanted.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
