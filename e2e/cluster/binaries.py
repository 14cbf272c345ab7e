"""Builds Kubernetes and the other programs that clusters need from their Go modules: no image registry is asked.

Kubernetes and etcd are one executable, made from main.go beside this file. Each other program is built in the folder
of its own module, where its go.mod counts with all its replacements: one module that required them all would settle on
versions that nobody has tested together. Executables are kept outside the checkout, by version or by content, so that
each is built once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.charts import helm

SOURCE = Path(__file__).parent
INPUTS = ("go.mod", "go.sum", "main.go")
# Kubernetes' own release builds set these; without them the API server calls itself v0.0.0, and clients believe it.
VERSION_PACKAGE = "k8s.io/component-base/version"
# Generics and the rest of what the other modules' sources use; a module that wants a newer Go says so in its build.
OLDEST_GO = (1, 21)
STRIPPED = "-s -w"  # of symbols and debugging information
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


def key(inputs: dict[str, bytes]) -> str:
    """A digest of these files, as a part of the name of what is built from them."""
    digest = hashlib.sha256()
    for name, content in sorted(inputs.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """A lock between processes: of two test runs started together, the second waits and finds the result."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def provide_kubernetes() -> Path:
    """The executable with Kubernetes and etcd, built now if it is not there. Raises Unavailable and BuildFailed."""
    inputs = {name: (SOURCE / name).read_bytes() for name in INPUTS}
    go_mod = inputs["go.mod"].decode()
    version = kubernetes_version(go_mod)
    target = cache_folder() / f"cluster-{version}-{key(inputs)}"

    def make() -> None:
        build_kubernetes(find_go(wanted_go(go_mod)), version, target)

    return build_once(target, cache_folder() / "lock", f"Kubernetes {version} and etcd; once, about 5 minutes", make)


def provide_kubeadm() -> Path:
    """kubeadm of the same release, for kind's nodes, built now if it is not there. Raises likewise."""
    files = (*INPUTS, "kubeadm/main.go")
    inputs = {name: (SOURCE / name).read_bytes() for name in files}
    go_mod = inputs["go.mod"].decode()
    version = kubernetes_version(go_mod)
    target = folder() / f"kubeadm-{version}-{key(inputs)}"

    def make() -> None:
        build_kubernetes(find_go(wanted_go(go_mod)), version, target, "./kubeadm")

    return build_once(target, folder() / ".kubeadm.lock", f"kubeadm {version}; once, about 1 minute", make)


def build_kubernetes(
    go: str, version: str, target: Path, package: str = ".", *, source: Path = SOURCE, options: Sequence[str] = ()
) -> None:
    """Compiles main.go, or another program of its module, into `target`. Raises as `build` does."""
    major, minor = numbers(version.removeprefix("v"))[:2]
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = " ".join([STRIPPED, *(f"-X {VERSION_PACKAGE}.{name}={value}" for name, value in values.items())])
    build(source, package, target, go=go, flags=flags, options=options)


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


# --- Other programs ---------------------------------------------------------------------------------------------------


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
# Programs of ours, each a module in the folder of its name: how long the first build takes.
PAUSE, DEVICE_PLUGIN, COREDNS = "pause", "device-plugin", "coredns"
OWN = {PAUSE: "some seconds", DEVICE_PLUGIN: "up to half a minute", COREDNS: "up to 2 minutes"}
TRAEFIK = "traefik"
DNS_PROVIDERS = "github.com/go-acme/lego/v4/providers/dns"

PROGRAMS = {
    program.name: program
    for program in (
        Program("hey", "github.com/rakyll/hey", "v0.1.4", ".", "load", 0.2),
        Program("kserve-manager", KSERVE, KSERVE_VERSION, "./cmd/manager", "InferenceServices", 2.5),
        Program("kserve-agent", KSERVE, KSERVE_VERSION, "./cmd/agent", "KServe's own batcher", 0.5),
        Program(TRAEFIK, "github.com/traefik/traefik/v3", "v3.5.3", "./cmd/traefik", "the ingress", 2.5),
        Program("prometheus-adapter", "sigs.k8s.io/prometheus-adapter", "v0.12.0", "./cmd/adapter", "autoscaling", 2),
        Program("prometheus", "github.com/prometheus/prometheus", "v0.305.0", "./cmd/prometheus", "autoscaling", 4),
    )
}
TOOLS = ("kubectl", "helm")


def provide(name: str) -> Path:
    """The executable of that name (one of PROGRAMS or OWN), built now if it is not there.

    Raises Unavailable where there is no Go or no module, BuildFailed, and KeyError for other names.
    """
    if name in OWN:
        return _provide_own(name)
    program = PROGRAMS[name]
    target = folder() / program.file

    def make() -> None:
        source = fetch(program.module, program.version)
        with tempfile.TemporaryDirectory(dir=folder()) as temporary:
            if name == TRAEFIK:
                source = without_clouds(source, Path(temporary) / "source")
            build(source, program.package, target)

    what = f"{name} {program.version} for {program.needed_for}; once, up to {program.minutes:g} minutes"
    return build_once(target, folder() / f".{name}.lock", what, make)


def without_clouds(source: Path, copy: Path) -> Path:
    """Copies Traefik's source and leaves out what it has for DNS providers and Amazon: half of all that is compiled.

    No cluster of ours uses either. The packages in the folder _traefik stand in for them.
    """
    shutil.copytree(source, copy, copy_function=shutil.copyfile)  # without the rights: Go's cache is read-only
    for folder_ in (copy, *(each for each in copy.rglob("*") if each.is_dir())):
        folder_.chmod(0o755)
    stand_ins = SOURCE / "_traefik"
    for file in stand_ins.rglob("*.go"):
        package = copy / file.parent.relative_to(stand_ins)
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(file.parent, package)
    importer = copy / "pkg" / "provider" / "acme" / "provider.go"
    text = importer.read_text()
    if DNS_PROVIDERS not in text:
        raise BuildFailed(f"{importer} does not import {DNS_PROVIDERS}; this Traefik keeps its DNS providers elsewhere")
    importer.write_text(text.replace(DNS_PROVIDERS, f"{PROGRAMS[TRAEFIK].module}/pkg/provider/acme/dns"))
    return copy


def _provide_own(name: str) -> Path:
    """A program of ours, named by the content of its source."""
    source = SOURCE / name
    inputs = {file.name: file.read_bytes() for file in source.iterdir() if file.suffix in (".go", ".mod", ".sum")}
    target = folder() / f"{name}-{key(inputs)}"

    def make() -> None:
        build(source, ".", target)

    return build_once(target, folder() / f".{name}.lock", f"{name}; once, {OWN[name]}", make)


def folder() -> Path:
    """Where the executables lie, by name and version; made if it is missing."""
    made = cache_folder() / "bin"
    made.mkdir(exist_ok=True)
    return made


def folder_for_path() -> Path:
    """A folder for PATH: hey, kubectl and helm under these names. Raises as `provide` does."""
    linked = cache_folder() / "path"
    linked.mkdir(exist_ok=True)
    link(linked / "hey", provide("hey"))
    for tool in TOOLS:
        try:
            link(linked / tool, helm.find(tool))
        except helm.Unavailable as missing:
            raise Unavailable(str(missing)) from None
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


# --- Go ---------------------------------------------------------------------------------------------------------------


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


def numbers(version: str) -> tuple[int, ...]:
    """ "1.26.8" and "go1.26rc1" as (1, 26, 8) and (1, 26): what can be compared."""
    found = re.match(r"(?:go)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def fetch(module: str, version: str) -> Path:
    """The folder with a module's source, downloaded now if it is not in Go's cache. Raises Unavailable."""
    command = [find_go(OLDEST_GO), "mod", "download", "-json", f"{module}@{version}"]
    # Outside every module: the requirements of the module in this folder must not count.
    fetched = subprocess.run(command, capture_output=True, text=True, cwd=cache_folder())
    answer = json.loads(fetched.stdout) if fetched.stdout else {}
    if not answer.get("Dir"):
        said = answer.get("Error") or fetched.stderr.strip()
        raise Unavailable(f"`{' '.join(command)}` gave no source (see `go env GOPROXY`): {said}")
    return Path(answer["Dir"])


def build(
    source: Path,
    package: str,
    target: Path,
    *,
    go: str = "",
    flags: str = STRIPPED,
    options: Sequence[str] = (),
) -> None:
    """Compiles a package into `target`, which is complete or not there. Raises BuildFailed.

    `flags` are the linker's, `options` more of `go build`. The executable is static: it needs no libraries of the image
    that it runs in.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    command = [go or find_go(OLDEST_GO), "build", "-trimpath", "-buildvcs=false", "-ldflags", flags]
    command += [*options, "-o", str(partial), package]
    environment = {**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"}
    built = subprocess.run(
        command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if built.returncode:
        partial.unlink(missing_ok=True)
        tail = "\n".join(f"  {line}" for line in built.stdout.splitlines()[-LINES_SHOWN:])
        raise BuildFailed(f"`{' '.join(command)}` in {source} ended with status {built.returncode}:\n{tail}")
    partial.replace(target)


def build_once(target: Path, lock: Path, what: str, make: Callable[[], None]) -> Path:
    """Returns `target`, made now if it is not there; of two test runs started together, the second waits for it."""
    if not target.exists():
        with one_at_a_time(lock):
            if not target.exists():
                say(f"building {what} on two cores")
                start = time.monotonic()
                make()
                say(f"built in {time.monotonic() - start:.0f} s, {target.stat().st_size / 1e6:.0f} MB: {target}")
    return target
