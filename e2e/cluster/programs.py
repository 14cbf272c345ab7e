"""Other people's programs that the cluster needs, built from their own Go modules: no image registry is asked.

Each is built in its module's folder, so its own go.mod counts, with all that it replaces; one module that required
them all would settle on versions that nobody has tested together. What is built is static, and kept by version
outside the checkout.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import binaries
from tests.charts import helm

# Generics and the rest of what these modules' sources use; a module that wants a newer Go says so in its build.
OLDEST_GO = (1, 21)
LINES_SHOWN = 30


class Program(NamedTuple):
    """One executable: the package that it is made of, and how long its first build takes on two cores."""

    name: str
    module: str
    version: str
    package: str
    needed_for: str
    minutes: float

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}"


KSERVE = "github.com/kserve/kserve"
KSERVE_VERSION = "v0.20.0"
PAUSE = "pause"
OUR_SOURCES = Path(__file__).parent

PROGRAMS = {
    program.name: program
    for program in (
        Program("hey", "github.com/rakyll/hey", "v0.1.4", ".", "load", 0.2),
        Program("kserve-manager", KSERVE, KSERVE_VERSION, "./cmd/manager", "InferenceServices", 2.5),
        Program("kserve-agent", KSERVE, KSERVE_VERSION, "./cmd/agent", "KServe's own batcher", 0.5),
        Program("traefik", "github.com/traefik/traefik/v3", "v3.5.3", "./cmd/traefik", "the ingress", 5),
        Program("prometheus-adapter", "sigs.k8s.io/prometheus-adapter", "v0.12.0", "./cmd/adapter", "autoscaling", 2),
        Program("prometheus", "github.com/prometheus/prometheus", "v0.305.0", "./cmd/prometheus", "autoscaling", 4),
    )
}
TOOLS = ("kubectl", "helm")


def provide(name: str) -> Path:
    """The executable of that name (one of PROGRAMS, or `pause`), built now if it is not there.

    Raises binaries.Unavailable where there is no Go or no module, binaries.BuildFailed, and KeyError for other names.
    """
    if name == PAUSE:
        return _provide_pause()
    program = PROGRAMS[name]
    target = folder() / program.file
    if not target.exists():
        with binaries.one_at_a_time(folder() / f".{name}.lock"):
            if not target.exists():
                _build_program(program, target)
    return target


def folder() -> Path:
    """Where the executables lie, by name and version; made if it is missing."""
    made = binaries.cache_folder() / "bin"
    made.mkdir(exist_ok=True)
    return made


def folder_for_path() -> Path:
    """A folder for PATH: hey, kubectl and helm under these names. Raises as `provide` does."""
    linked = binaries.cache_folder() / "path"
    linked.mkdir(exist_ok=True)
    link(linked / "hey", provide("hey"))
    for tool in TOOLS:
        try:
            link(linked / tool, helm.find(tool))
        except helm.Unavailable as missing:
            raise binaries.Unavailable(str(missing)) from None
    return linked


def link(path: Path, target: Path) -> None:
    """Makes `path` a symbolic link to `target`, whatever it was before, without a moment in which it is missing."""
    target = target.absolute()
    # A tool that was itself found through this folder must not become a link to itself.
    if target == path.absolute() or (path.is_symlink() and path.readlink() == target):
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(path)


def fetch(module: str, version: str) -> Path:
    """The folder with a module's source, downloaded now if it is not in Go's cache. Raises binaries.Unavailable."""
    command = [binaries.find_go(OLDEST_GO), "mod", "download", "-json", f"{module}@{version}"]
    # Outside every module: what this one requires is not our cluster's business.
    fetched = subprocess.run(command, capture_output=True, text=True, cwd=binaries.cache_folder())
    answer = json.loads(fetched.stdout) if fetched.stdout else {}
    if not answer.get("Dir"):
        said = answer.get("Error") or fetched.stderr.strip()
        raise binaries.Unavailable(f"`{' '.join(command)}` gave no source (see `go env GOPROXY`): {said}")
    return Path(answer["Dir"])


def build(source: Path, package: str, target: Path) -> None:
    """Compiles a static executable into `target`, which is complete or not there. Raises binaries.BuildFailed."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    command = [binaries.find_go(OLDEST_GO), "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"]
    command += ["-o", str(partial), package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    built = subprocess.run(
        command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if built.returncode:
        partial.unlink(missing_ok=True)
        tail = "\n".join(f"  {line}" for line in built.stdout.splitlines()[-LINES_SHOWN:])
        raise binaries.BuildFailed(f"`{' '.join(command)}` in {source} ended with status {built.returncode}:\n{tail}")
    partial.replace(target)


def _build_program(program: Program, target: Path) -> None:
    binaries.say(
        f"building {program.name} {program.version} for {program.needed_for}; "
        f"once, up to {program.minutes:g} minutes on two cores"
    )
    start = time.monotonic()
    build(fetch(program.module, program.version), program.package, target)
    binaries.say(f"built in {time.monotonic() - start:.0f} s, {target.stat().st_size / 1e6:.0f} MB: {target}")


def _provide_pause() -> Path:
    """Our own, so its source is its version."""
    source = OUR_SOURCES / PAUSE
    inputs = {file.name: file.read_bytes() for file in sorted(source.iterdir()) if file.suffix in (".go", ".mod")}
    target = folder() / f"{PAUSE}-{binaries.key(inputs)}"
    if not target.exists():
        build(source, ".", target)
    return target
