"""Tests by trying whether this machine can host a local cluster, and says what to do where it cannot."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import binaries, processes, product_images
from e2e.cluster.local import cgroups

# What the cluster and its images call by name, and the Debian package that brings it.
PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}
PLUGINS = Path("/usr/lib/cni")
PLUGIN_PACKAGE = "containernetworking-plugins"
PLUGIN_PROGRAMS = ("loopback", "ptp", "host-local", "portmap")
CONTROLLERS = ("cpu", "memory", "pids")
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc")

Which = Callable[[str], str | None]


class Probe(NamedTuple):
    """An operation that a cluster needs: its description, a shell script that tries it, and what to do if it fails."""

    what: str
    script: str
    way_out: str


AS_CONTAINER = "in a container, start that one with --privileged"
PROBES = (
    Probe("make network, mount and process namespaces", "true", AS_CONTAINER),
    Probe(
        "make bridges and veth pairs",
        "ip link add bridge type bridge && ip link add one type veth peer name other",
        "load the kernel modules bridge and veth",
    ),
    Probe("filter packets with nftables", "nft add table ip carpool", "load the kernel module nf_tables"),
    Probe("forward packets", "echo 1 > /proc/sys/net/ipv4/ip_forward", AS_CONTAINER),
    Probe(
        "mount overlays on {folder}",
        "cd '{folder}' && mkdir lower upper work all"
        " && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work all",
        "load the kernel module overlay, or set XDG_CACHE_HOME to a folder on a disk (not on an overlay itself)",
    ),
)


def missing() -> list[str]:
    """The reasons why this machine cannot host a local cluster, each with what to do; empty where it can."""
    if sys.platform != "linux":
        return [f"a local cluster is made of Linux namespaces, and this is {sys.platform}; use kind (BACKEND=kind)"]
    found = missing_programs()
    if os.geteuid() != 0:
        return [*found, "a local cluster is made by root; become root, or use kind (BACKEND=kind)"]
    if not found:  # the probes use the programs
        found += failing_probes()
    return found + unusable_cgroups() + missing_go()


def missing_programs(which: Which = shutil.which, plugins: Path = PLUGINS) -> list[str]:
    """One reason that names all missing programs and what to install, for the images as well; or none."""
    programs = [name for name in PROGRAMS if which(name) is None]
    programs += [str(plugins / name) for name in PLUGIN_PROGRAMS if not (plugins / name).exists()]
    if not programs:
        return []
    packages = " ".join(missing_packages(which, plugins))
    return [f"there is no {', '.join(programs)}; Debian: apt-get install {packages}"]


def missing_packages(which: Which = shutil.which, plugins: Path = PLUGINS) -> list[str]:
    """The Debian packages that are missing here, with those that build images."""
    packages = {package for name, package in PROGRAMS.items() if which(name) is None}
    packages.update(product_images.missing_packages(which))
    if any(not (plugins / name).exists() for name in PLUGIN_PROGRAMS):
        packages.add(PLUGIN_PACKAGE)
    return sorted(packages)


def failing_probes(run: processes.Run = processes.run, probes: Iterable[Probe] = PROBES) -> list[str]:
    """Tries the operations that a cluster needs, and leaves nothing. Without namespaces it tries nothing else."""
    found = []
    for probe in probes:
        with tempfile.TemporaryDirectory(prefix="probe-", dir=binaries.cache_folder()) as folder:
            done = run(*NAMESPACES, "sh", "-ec", probe.script.format(folder=folder))
            if done.status:
                found.append(f"cannot {probe.what.format(folder=folder)} ({done.words}); {probe.way_out}")
        if found and probe is PROBES[0]:
            break
    return found


def unusable_cgroups(root: Path = cgroups.ROOT) -> list[str]:
    """Tries to make a control group, and checks that it can limit pods."""
    name = f"carpool-probe-{os.getpid()}"
    try:
        cgroups.make(name, root)
        lacking = [one for one in CONTROLLERS if not has_controller(one, name, root)]
        cgroups.remove(name, root)
    except OSError as error:
        return [f"cannot make control groups in {root} ({error.strerror}); {AS_CONTAINER} --cgroupns=private"]
    if lacking:
        return [f"control groups in {root} cannot limit {', '.join(lacking)}; see {root}/cgroup.subtree_control"]
    return []


def has_controller(controller: str, group: str, root: Path) -> bool:
    """Whether the group has the controller: version 2 lists it in a file, version 1 has a hierarchy for it."""
    listed = root / group / "cgroup.controllers"
    if listed.exists():
        return controller in listed.read_text().split()
    return any(controller in each.name.split(",") for each in cgroups.hierarchies(root))


def missing_go() -> list[str]:
    """A reason if there is no Go that can build Kubernetes from source."""
    try:
        binaries.find_go(binaries.wanted_go((binaries.SOURCE / "go.mod").read_text()))
    except binaries.Unavailable as unavailable:
        return [str(unavailable)]
    return []
