"""The image of kind's nodes: the published one, or one made here where no registry has it to offer.

The one made here is kind's recipe with other ingredients: a root of Debian's packages instead of kind's base image,
the files of that base from kind's Go module, and Kubernetes built from its Go modules. It is kept by the content of all
that it is made of, as a docker archive that either engine takes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from e2e.cluster import archives, binaries, engines, processes

# kind's configuration, whichever image its nodes are made from, and what one made here has beside kind's own files.
CONFIG = Path(__file__).parent / "kind" / "config.yaml"
SOURCE = Path(__file__).parent / "kind" / "node"
KIND = binaries.PROGRAMS[binaries.KIND]
PROGRAMS = (binaries.KIND, binaries.KUBERNETES, binaries.KUBEADM, binaries.COREDNS, binaries.PAUSE)
NAME = "localhost/carpool-kind-node"
# kind's base is of the same release of Debian. Later ones have a systemd that refuses control groups of version 1.
SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "containerd", "runc", "containernetworking-plugins", "conntrack", "ethtool"),
    *("iproute2", "iptables", "nftables", "kmod", "mount", "procps", "socat", "util-linux", "ca-certificates"),
)
NOT_NEEDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
UNITS = ("containerd", "kubelet", "undo-mount-hacks", "images", "pod-network")
MINUTES = 3
# Without it mmdebstrap writes the time into the root.
EPOCH = "0"
PULL_SECONDS, LOAD_SECONDS = 600.0, 300.0
SHELL_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KUBERNETES_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler")


def published() -> str:
    """The image that kind's configuration names, with its digest."""
    found = re.search(r"image: &\S+ (\S+)", CONFIG.read_text())
    if found is None:
        raise ValueError(f"{CONFIG} names no node image")
    return found[1]


def provide(engine: engines.Engine, run: processes.Run = processes.run) -> str:
    """The name of an image that the engine has, for `kind create cluster --image`; made now if it has to be.

    The published one is taken where the engine has it, or no other has been made and a registry offers it. Raises
    binaries.Unavailable and BuildFailed where one has to be made and cannot.
    """
    wanted, made = published(), f"{NAME}:{state()}"
    if has(engine, by_digest(wanted), run):
        return wanted
    if has(engine, made, run):
        return made
    if not archive().exists():
        binaries.say(f"pulling {wanted}")
        pulled = ask(engine, "pull", "--quiet", by_digest(wanted), run=run, seconds=PULL_SECONDS)
        if pulled.status == 0:
            return wanted
        binaries.say(f"it cannot be pulled ({pulled.words[-200:]}), so one is made here")
        make()
    binaries.say(f"loading {made} into {engine.name}")
    loaded = ask(engine, "load", "--input", str(archive()), run=run, seconds=LOAD_SECONDS)
    if loaded.status:
        raise binaries.BuildFailed(f"{engine.name} does not load {archive()}: {loaded.words}")
    forget_others(engine, made, run)
    return made


def forget_others(engine: engines.Engine, made: str, run: processes.Run) -> None:
    """Removes images that were made of other content, less those that nodes are made from."""
    listed = ask(engine, "images", "--format", "{{.Repository}}:{{.Tag}}", run=run).output.split()
    for image in listed:
        if image.startswith(f"{NAME}:") and image != made:
            ask(engine, "rmi", image, run=run)


def by_digest(image: str) -> str:
    """A name with tag and digest in the one form that both engines take: in full, and without the tag."""
    name, _, digest = image.partition("@")
    return f"docker.io/{name.partition(':')[0]}@{digest}"


def has(engine: engines.Engine, image: str, run: processes.Run) -> bool:
    return ask(engine, "image", "inspect", "--format", "{{.Id}}", image, run=run).status == 0


def ask(engine: engines.Engine, *words: str, run: processes.Run, seconds: float = processes.SECONDS) -> processes.Done:
    return run(engine.name, *words, seconds=seconds, environment=engine.environment)


# --- What it is made of, and where it is kept -------------------------------------------------------------------------


def state() -> str:
    """The release of Kubernetes, and a digest of all that decides what is in an image made here."""
    inputs = {str(file.relative_to(SOURCE)): file.read_bytes() for file in files_below(SOURCE)}
    inputs["programs"] = " ".join(binaries.path_of(name).name for name in PROGRAMS).encode()
    inputs |= {"node_image.py": Path(__file__).read_bytes(), "machine": archives.architecture().encode()}
    return f"{kubernetes_version()}-{binaries.key(inputs)}"


def kubernetes_version() -> str:
    return binaries.kubernetes_version(binaries.go_mod())


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def folder() -> Path:
    made = binaries.cache_folder() / "kind"
    made.mkdir(exist_ok=True)
    return made


def archive() -> Path:
    """Where the image is, or would be, as a docker archive."""
    return folder() / f"node-{state()}.tar"


# --- Making it --------------------------------------------------------------------------------------------------------


def make() -> Path:
    """Returns the archive, made now if it is not there. Raises binaries.Unavailable and BuildFailed."""
    target = archive()
    with binaries.one_at_a_time(folder() / ".lock"):
        if not target.exists():
            binaries.say(f"making a node image; once, up to {MINUTES} minutes on two cores beside its programs")
            start = time.monotonic()
            root = provide_root()
            with tempfile.TemporaryDirectory(dir=folder()) as temporary:
                write(root, Path(temporary), target)
            for old in folder().glob("node-*.tar"):
                if old != target:
                    old.unlink()
            binaries.say(f"made in {time.monotonic() - start:.0f} s, {target.stat().st_size / 1e6:.0f} MB: {target}")
    return target


def provide_root() -> Path:
    """Debian's part of the node, as an archive of files, made now if it is not there."""
    command = ["mmdebstrap", "--variant=minbase", "--components=main", f"--include={','.join(PACKAGES)}"]
    command += ["--aptopt=Apt::Install-Recommends false", "--format=tar"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in NOT_NEEDED]
    trim = SOURCE / "trim.sh"
    decided = {"command": "\n".join([*command, SUITE]).encode(), "trim": trim.read_bytes()}
    target = folder() / f"root-{binaries.key(decided)}.tar"
    if target.exists():
        return target
    if shutil.which("mmdebstrap") is None:
        raise binaries.Unavailable(
            "the published node image cannot be pulled, and mmdebstrap, which makes one without a registry, is not"
            " here; Debian, Ubuntu: apt-get install mmdebstrap"
        )
    binaries.say(f"making a root of Debian {SUITE}; about a minute")
    partial = target.with_name(f".{os.getpid()}.{target.name}")
    command += [f"--customize-hook={trim}", SUITE, str(partial)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise binaries.BuildFailed(f"`{' '.join(command)}` ended with status {done.returncode}:\n{done.stderr}")
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def write(root: Path, temporary: Path, target: Path) -> None:
    """Writes the image: Debian's root as one layer, all that is kind's and Kubernetes' on top of it."""
    unpack(root, "./kind/", temporary)
    kind = binaries.fetch(KIND.module, KIND.version) / "images" / "base" / "files"
    containerd = (kind / "etc" / "containerd" / "config.toml").read_text()
    images = temporary / "images.tar"
    archives.pack(kubernetes_images(temporary, sandbox(containerd)), images)
    layer = temporary / "node.tar"
    files = [
        *(file for file in base_files(kind) if file.path != "etc/containerd/config.toml"),
        *our_files(),
        archives.File("etc/containerd/config.toml", adapted(containerd).encode(), 0o644),
        archives.File("etc/containerd/cri-base.json", without_limits(temporary / "kind" / "container.json"), 0o644),
        *program_files(),
        archives.File("kind/version", kubernetes_version().encode(), 0o644),
        archives.File("kind/images.tar", images, 0o644),
        archives.File("etc/kubernetes/manifests", None),
        *(
            archives.File(f"etc/systemd/system/multi-user.target.wants/{unit}.service", None, link=f"../{unit}.service")
            for unit in UNITS
        ),
    ]
    archives.write_layer(files, layer)
    started = {
        "Entrypoint": ["/usr/local/bin/entrypoint", "/sbin/init"],
        "Env": [SHELL_PATH, "container=docker"],
        "StopSignal": "SIGRTMIN+3",
    }
    config = {"architecture": archives.architecture(), "os": "linux", "config": started}
    archives.pack([archives.Packed((f"{NAME}:{state()}",), config, (root, layer))], target)


def unpack(root: Path, below: str, target: Path) -> None:
    """The files of an archive whose names begin with `below`, as plain files."""
    with tarfile.open(root) as opened:
        for member in opened:
            if member.name.startswith(below) and member.isfile():
                file = target / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                content = opened.extractfile(member)
                assert content is not None
                with file.open("wb") as copy:
                    shutil.copyfileobj(content, copy)
                file.chmod(member.mode)


def base_files(kind: Path) -> Iterator[archives.File]:
    """The files of kind's own base image. Go's modules do not keep rights: programs are known by their folders."""
    for file in files_below(kind):
        path = str(file.relative_to(kind))
        mode = 0o755 if path.startswith(("usr/local/bin/", "kind/bin/")) else 0o644
        yield archives.File(path, file, mode)


def our_files() -> Iterator[archives.File]:
    for file in files_below(SOURCE / "files"):
        path = str(file.relative_to(SOURCE / "files"))
        yield archives.File(path, file, 0o755 if path.startswith("kind/bin/") else 0o644)


def program_files() -> Iterator[archives.File]:
    """Kubernetes' programs under the names by which kubeadm and kind's units call them, and Debian's likewise."""
    yield archives.File("usr/local/bin/cluster", binaries.provide(binaries.KUBERNETES))
    yield archives.File("usr/bin/kubelet", None, link="/usr/local/bin/cluster")
    yield archives.File("usr/bin/kubeadm", binaries.provide(binaries.KUBEADM))
    yield archives.File("usr/bin/kubectl", binaries.tool("kubectl"))
    yield archives.File("usr/local/bin/containerd", None, link="/usr/bin/containerd")
    yield archives.File("opt/cni/bin", None, link="/usr/lib/cni")


# --- containerd, and the images in the node ---------------------------------------------------------------------------


def sandbox(configuration: str) -> str:
    """The name of the sandbox container's image in kind's configuration of containerd."""
    found = re.search(r'(?m)^\s*sandbox_image = "(\S+)"$', configuration)
    if found is None:
        raise binaries.BuildFailed(f"{KIND.title} configures containerd in another way: no sandbox_image")
    return found[1]


def adapted(configuration: str) -> str:
    """kind's configuration of containerd, for a machine that may not lower a process' OOM score, and with our CNI."""
    kept = "restrict_oom_score_adj = false"
    if configuration.count(f"\n  {kept}") != 1:
        raise binaries.BuildFailed(f"{KIND.title} configures containerd in another way: no {kept!r}")
    network = '[plugins."io.containerd.grpc.v1.cri".cni]\n  conf_template = "/etc/cni/pods.conflist.template"\n'
    return f"{configuration.replace(kept, kept.replace('false', 'true'))}\n{network}"


def without_limits(container: Path) -> bytes:
    """The container that others are made like, without limits of its own: 1,024 open files are too few for a server."""
    described: dict[str, Any] = json.loads(container.read_text())
    described["process"].pop("rlimits", None)
    return json.dumps(described).encode()


def kubernetes_images(temporary: Path, sandbox_image: str) -> list[archives.Packed]:
    """The images that kubeadm and containerd ask for, by their names in the registry that is not asked."""
    program = archives.File("usr/local/bin/cluster", binaries.provide(binaries.KUBERNETES))
    links = [archives.File(f"usr/local/bin/{name}", None, link="cluster") for name in KUBERNETES_COMPONENTS]
    proxy = temporary / "kind" / "proxy"
    packets = [archives.File(str(file.relative_to(proxy)), file) for file in files_below(proxy)]
    layers = {
        "kubernetes": [program, *links],
        "proxy": packets,
        "coredns": [archives.File("coredns", binaries.provide(binaries.COREDNS))],
        "pause": [archives.File("pause", binaries.provide(binaries.PAUSE))],
    }
    written = {name: temporary / f"layer-{name}.tar" for name in layers}
    for name, files in layers.items():
        archives.write_layer(files, written[name])
    names = wanted_images()

    def image(wanted: Iterable[str], *parts: str, starts: str = "") -> archives.Packed:
        tags = tuple(each for each in names if each.rpartition("/")[2].partition(":")[0] in wanted)
        started = {"Env": [SHELL_PATH], "WorkingDir": "/", **({"Entrypoint": [starts]} if starts else {})}
        config = {"architecture": archives.architecture(), "os": "linux", "config": started}
        return archives.Packed(tags, config, tuple(written[part] for part in parts))

    pause = image(["pause"], "pause", starts="/pause")
    return [
        image([name for name in KUBERNETES_COMPONENTS if name != "kube-proxy"], "kubernetes"),
        image(["kube-proxy"], "kubernetes", "proxy"),
        image(["coredns"], "coredns", starts="/coredns"),
        pause._replace(tags=tuple(sorted({*pause.tags, sandbox_image}))),
    ]


def wanted_images() -> list[str]:
    command = [str(binaries.provide(binaries.KUBEADM)), "config", "images", "list", "--kubernetes-version"]
    asked = subprocess.run([*command, kubernetes_version()], capture_output=True, text=True)
    if asked.returncode:
        raise binaries.BuildFailed(f"`{' '.join(command)}` does not say which images it needs: {asked.stderr.strip()}")
    return asked.stdout.split()
