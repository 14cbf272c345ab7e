"""What this machine lacks to host a cluster and to build its images, told at once, and what the first time costs."""

from __future__ import annotations

from collections.abc import Callable

from e2e.cluster import binaries, engines, node_image, processes, product_images

Look = Callable[[], engines.Machine]
Trial = Callable[[engines.Engine], str]

# What is built from source before the first cluster is up.
FIRST = (
    *(binaries.KUBERNETES, binaries.KUBEADM, binaries.COREDNS, binaries.PAUSE, binaries.DEVICE_PLUGIN, binaries.KIND),
    *(binaries.TRAEFIK, binaries.KSERVE_MANAGER, binaries.KSERVE_AGENT, binaries.HEY),
)
GIGABYTES = 12


def missing(
    run: processes.Run = processes.run, machine: Look = engines.look, trial: Trial = engines.failing_trial
) -> list[str]:
    """The reasons why this machine cannot host a cluster, each with what to do; empty where it can."""
    found = missing_go() + engines.lacking(run, machine)
    if packages := missing_packages(run, machine) if found else []:
        found.append(f"packages of Debian for all of it, the images too: apt-get install {' '.join(packages)}")
    if not found:
        engine = engines.demand(run, machine)
        if words := trial(engine):
            found.append(f"{engine.name} cannot run a node: {words}")
    return found


def missing_packages(run: processes.Run = processes.run, machine: Look = engines.look) -> list[str]:
    """The Debian packages that are missing here for an engine, for a node image that is made here, and our images."""
    return sorted({*engines.missing_packages(run, machine), *product_images.missing_packages()})


def missing_go() -> list[str]:
    """A reason if there is no Go that can build Kubernetes from source."""
    try:
        binaries.find_go(binaries.wanted_go(binaries.go_mod()))
    except binaries.Unavailable as unavailable:
        return [str(unavailable)]
    return []


def cost() -> str:
    """What is built before the first cluster is up and is not here yet, with the time it takes; empty if nothing."""
    unmade = {name: binaries.PROGRAMS[name].minutes for name in FIRST if not binaries.path_of(name).exists()}
    if not node_image.archive().exists():
        unmade["an image for nodes, unless it can be pulled"] = node_image.MINUTES
    if not unmade:
        return ""
    takes = f"up to {sum(unmade.values()):.0f} minutes on two cores, {GIGABYTES} GB of disk"
    return f"first it makes, once: {', '.join(unmade)}; {takes}"
