"""What a cluster to test in can do, whichever backend made it: `local` in network namespaces, `kind` in containers.

The backends know this module and nothing of each other; backends.py knows them both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from e2e.cluster import client

# On every node, for callers outside the cluster.
INGRESS_NODE_PORT = 30080
GPU_NODE_LABEL = {"carpool.dev/gpu": "true"}
GPU_RESOURCE = "nvidia.com/gpu"
GPUS = 2
# A cluster's addresses are all of one family.
FAMILIES = ("ipv4", "ipv6")
# Files, control groups and, with kind, hosts are named after a cluster.
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,49}")


class Problem(Exception):
    """A cluster cannot be made or used as asked. The message says why and what to look at."""


class Cluster(Protocol):
    """A cluster by its name, which may not exist yet. The object has no state: that is in the cluster itself."""

    name: str
    family: str  # of all addresses in it: one of FAMILIES
    kubeconfig: Path  # of a user with all rights; exists while the cluster is up
    address: str  # where NodePorts answer, seen from this machine
    ingress: str  # "http://HOST:PORT", where the ingress controller answers
    nodes: tuple[str, ...]  # the last one is the GPU node

    def up(self) -> None:
        """Returns when all nodes are Ready; at once if they are. Clears away what a crash left.

        Raises Problem, and binaries.Unavailable where this machine cannot host a cluster.
        """

    def down(self) -> None:
        """Removes every trace. Does nothing where there is none."""

    def exists(self) -> bool:
        """Whether this backend has made it and not removed it, as far as its own files tell."""

    def is_up(self) -> bool:
        """Whether the API server answers now."""

    def load(self, archive: Path) -> None:
        """Loads the images of a docker archive into all nodes, under their names in the archive. Raises Problem."""

    def restart(self, component: str) -> None:
        """Kills a component of Kubernetes, such as kube-apiserver. Returns when it has been restarted."""


def in_url(address: str) -> str:
    """An address as it stands before the port: one of IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def check_name(name: str) -> str:
    """Returns `name`. Raises Problem where it cannot be a cluster's: it must not lead out of the clusters' folder."""
    if not NAME.fullmatch(name):
        raise Problem(f"{name!r} cannot be a cluster's name: up to 50 of a-z, 0-9 and, not first, '.' and '-'")
    return name


def ready(admin: client.Client) -> set[str]:
    """The names of the nodes that can run pods."""
    wanted = {"type": "Ready", "status": "True"}
    return {
        node["metadata"]["name"]
        for node in admin.list("Node")
        if any(wanted.items() <= condition.items() for condition in node.get("status", {}).get("conditions", ()))
    }
