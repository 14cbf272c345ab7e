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
from collections.abc import Callable, Iterable, Iterator, Sequence
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


# --- What is built ----------------------------------------------------------------------------------------------------


class Program(NamedTuple):
    """One executable: how long its first build takes on two cores, what it is for, and what it is made of.

    Without a module it is one of ours: of the module in this folder, or of one in the folder of its name.
    """

    name: str
    minutes: float
    needed_for: str
    module: str = ""
    version: str = ""
    package: str = "."

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".strip()


KUBERNETES, KUBEADM = "kubernetes", "kubeadm"
PAUSE, DEVICE_PLUGIN, COREDNS = "pause", "device-plugin", "coredns"
KIND, HEY, TRAEFIK = "kind", "hey", "traefik"
KSERVE = "github.com/kserve/kserve"
KSERVE_VERSION = "v0.20.0"
KSERVE_MANAGER, KSERVE_AGENT = "kserve-manager", "kserve-agent"
PROGRAMS = {
    program.name: program
    for program in (
        Program(KUBERNETES, 7, "every cluster, with etcd"),
        Program(KUBEADM, 1, "nodes", package="./kubeadm"),
        Program(PAUSE, 0.1, "nodes"),
        Program(COREDNS, 2, "nodes"),
        Program(DEVICE_PLUGIN, 0.5, "GPUs"),
        Program(KIND, 0.5, "nodes", "sigs.k8s.io/kind", "v0.30.0"),
        Program(TRAEFIK, 2.5, "the ingress", "github.com/traefik/traefik/v3", "v3.5.3", "./cmd/traefik"),
        Program(KSERVE_MANAGER, 2.5, "InferenceServices", KSERVE, KSERVE_VERSION, "./cmd/manager"),
        Program(KSERVE_AGENT, 0.5, "KServe's own batcher", KSERVE, KSERVE_VERSION, "./cmd/agent"),
        Program(HEY, 0.2, "load", "github.com/rakyll/hey", "v0.1.4"),
        Program("prometheus-adapter", 2, "autoscaling", "sigs.k8s.io/prometheus-adapter", "v0.12.0", "./cmd/adapter"),
        Program("prometheus", 4, "autoscaling", "github.com/prometheus/prometheus", "v0.305.0", "./cmd/prometheus"),
    )
}
# Of the module in this folder.
OF_KUBERNETES = (KUBERNETES, KUBEADM)
TOOLS = ("kubectl", "helm")
DNS_PROVIDERS = "github.com/go-acme/lego/v4/providers/dns"


def provide(name: str) -> Path:
    """The executable of that name (one of PROGRAMS), built now if it is not there.

    Raises Unavailable where there is no Go or no module, BuildFailed, and KeyError for other names.
    """
    program, target = PROGRAMS[name], path_of(name)
    what = f"{program.title} for {program.needed_for}; once, up to {program.minutes:g} minutes"
    return build_once(target, folder() / f".{name}.lock", what, lambda: _make(program, target))


def path_of(name: str) -> Path:
    """Where the executable is, or will be: named by its version, one of ours by the content of its source."""
    program = PROGRAMS[name]
    if program.module:
        return folder() / f"{name}-{program.version}"
    if name in OF_KUBERNETES:
        files = [*(SOURCE / each for each in INPUTS), *(SOURCE / program.package).glob("*.go")]
        return folder() / f"{name}-{kubernetes_version(go_mod())}-{_key_of(files, SOURCE)}"
    files = [file for file in (SOURCE / name).iterdir() if file.suffix in (".go", ".mod", ".sum")]
    return folder() / f"{name}-{_key_of(files, SOURCE / name)}"


def _key_of(files: Iterable[Path], source: Path) -> str:
    return key({str(file.relative_to(source)): file.read_bytes() for file in files})


def _make(program: Program, target: Path) -> None:
    if program.name in OF_KUBERNETES:
        build_kubernetes(find_go(wanted_go(go_mod())), kubernetes_version(go_mod()), target, program.package)
    elif not program.module:
        build(SOURCE / program.name, program.package, target)
    else:
        source = fetch(program.module, program.version)
        with tempfile.TemporaryDirectory(dir=folder()) as temporary:
            if program.name == TRAEFIK:
                source = without_clouds(source, Path(temporary) / "source")
            build(source, program.package, target)


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def go_mod() -> str:
    """The go.mod of Kubernetes and etcd."""
    return (SOURCE / "go.mod").read_text()


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


# --- Traefik ----------------------------------------------------------------------------------------------------------


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


# --- Where they are ---------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Where the executables lie, by name and version; made if it is missing."""
    made = cache_folder() / "bin"
    made.mkdir(exist_ok=True)
    return made


def folder_for_path() -> Path:
    """A folder for PATH: kind, hey, kubectl and helm under these names. Raises as `provide` does."""
    linked = cache_folder() / "path"
    linked.mkdir(exist_ok=True)
    for name in (KIND, HEY):
        link(linked / name, provide(name))
    for name in TOOLS:
        link(linked / name, tool(name))
    return linked


def tool(name: str) -> Path:
    """One of TOOLS, which are not built here. Raises Unavailable."""
    try:
        return Path(helm.find(name))
    except helm.Unavailable as missing:
        raise Unavailable(str(missing)) from None


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
