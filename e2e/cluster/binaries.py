"""Builds the cluster's executable once: from main.go beside this file, kept by content outside the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).parent
INPUTS = ("go.mod", "go.sum", "main.go")
# Kubernetes' own release builds set these; without them the API server calls itself v0.0.0, and clients believe it.
VERSION_PACKAGE = "k8s.io/component-base/version"
LINES_SHOWN = 30


class Unavailable(Exception):
    """This machine cannot build the cluster. The message says why and what to install: a reason to skip."""


class BuildFailed(Exception):
    """The build was tried and failed. The message ends with what the compiler said."""


def say(words: str) -> None:
    print(f"cluster: {words}", file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Where built executables are kept; made if it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "carpool" / "e2e"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def kubernetes_version(go_mod: str) -> str:
    """The release of Kubernetes that a go.mod asks for, such as "v1.34.4"."""
    found = re.search(r"(?m)^\s*k8s\.io/kubernetes (v\S+)", go_mod)
    if found is None:
        raise BuildFailed(f"{SOURCE / 'go.mod'} requires no k8s.io/kubernetes")
    return found[1]


def wanted_go(go_mod: str) -> tuple[int, ...]:
    """The oldest Go that a go.mod allows, such as (1, 24, 0)."""
    found = re.search(r"(?m)^go (\d+(?:\.\d+)*)$", go_mod)
    if found is None:
        raise BuildFailed(f"{SOURCE / 'go.mod'} names no version of Go")
    return numbers(found[1])


def numbers(version: str) -> tuple[int, ...]:
    """ "1.26.8" and "go1.26rc1" as (1, 26, 8) and (1, 26): what can be compared."""
    found = re.match(r"(?:go)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def key(inputs: dict[str, bytes]) -> str:
    """A name for what is built from these files: the same files, the same name."""
    digest = hashlib.sha256()
    for name, content in sorted(inputs.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def find_go(wanted: tuple[int, ...]) -> str:
    """The path of a Go that is new enough. Raises Unavailable where there is none."""
    oldest = ".".join(map(str, wanted))
    go = shutil.which("go")
    if go is None:
        raise Unavailable(
            f"there is no `go` on PATH; the cluster is built with Go {oldest} or newer (https://go.dev/dl)"
        )
    # In the source folder `go` may fetch the toolchain that go.mod wants, if its settings allow that.
    asked = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, cwd=SOURCE)
    if asked.returncode or numbers(asked.stdout.strip()) < wanted:
        found = asked.stdout.strip() or asked.stderr.strip() or "of no known version"
        raise Unavailable(f"{go} is {found}; the cluster is built with Go {oldest} or newer (https://go.dev/dl)")
    return go


def build(go: str, version: str, target: Path) -> None:
    """Compiles into `target`. Raises BuildFailed with the compiler's words."""
    major, minor = numbers(version.removeprefix("v"))[:2]
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s -w", *(f"-X {VERSION_PACKAGE}.{name}={value}" for name, value in values.items())])
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(partial), "."]
    built = subprocess.run(command, cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if built.returncode:
        tail = "\n".join(f"  {line}" for line in built.stdout.splitlines()[-LINES_SHOWN:])
        raise BuildFailed(f"`{' '.join(command)}` in {SOURCE} ended with status {built.returncode}:\n{tail}")
    partial.rename(target)


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Two test runs started together build once: the second waits and finds the result."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def provide() -> Path:
    """The path of the executable, built now if it is not there. Raises Unavailable and BuildFailed."""
    inputs = {name: (SOURCE / name).read_bytes() for name in INPUTS}
    go_mod = inputs["go.mod"].decode()
    version = kubernetes_version(go_mod)
    target = cache_folder() / f"cluster-{version}-{key(inputs)}"
    if target.exists():
        return target
    go = find_go(wanted_go(go_mod))
    with one_at_a_time(cache_folder() / "lock"):
        if not target.exists():
            say(f"building Kubernetes {version} and etcd with {go}; once, some minutes (5 on two cores)")
            start = time.monotonic()
            build(go, version, target)
            say(f"built in {time.monotonic() - start:.0f} s, {target.stat().st_size / 1e6:.0f} MB: {target}")
    return target
