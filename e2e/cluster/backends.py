"""What a cluster to test in can do, whichever way it was made: `local` in network namespaces, `kind` in containers."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Protocol

DEFAULT_NAME = "carpool"
# On every node, for whoever is outside the cluster.
INGRESS_NODE_PORT = 30080
GPU_NODE_LABEL = {"carpool.dev/gpu": "true"}
GPU_RESOURCE = "nvidia.com/gpu"
GPUS = 2
# Files, control groups and, with kind, hosts are named after a cluster.
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,49}")


class Problem(Exception):
    """A cluster cannot be made or used as asked. The message says why and what to look at."""


class Cluster(Protocol):
    """A cluster by its name; there or not there yet. Objects are cheap: all state lies in the cluster itself."""

    name: str
    kubeconfig: Path  # of somebody who may do everything; there while the cluster is up
    address: str  # where NodePorts answer, seen from this machine
    ingress: str  # "http://HOST:PORT", where the ingress controller answers
    nodes: tuple[str, ...]  # the last one is the GPU node

    def up(self) -> None:
        """Returns when all nodes are Ready; at once if they are. Clears away what a crash left.

        Raises Problem, and binaries.Unavailable where this machine cannot host a cluster.
        """

    def down(self) -> None:
        """Removes every trace. Does nothing where there is none."""

    def is_up(self) -> bool:
        """Whether the API server answers now."""

    def load(self, archive: Path) -> None:
        """Brings the images of a docker archive to all nodes, under the names that they have in it. Raises Problem."""

    def restart(self, component: str) -> None:
        """Kills a program of Kubernetes', such as kube-apiserver; something starts it again. Returns when it runs."""


def choose(name: str = "", kind: str = "") -> Cluster:
    """The cluster of that name (default: $CARPOOL_CLUSTER, else carpool) in the backend of that kind.

    The default is $CARPOOL_CLUSTER_BACKEND, else kind where it is installed and a container engine answers, else
    local. Raises Problem for a kind that does not exist, and for what cannot be a name.
    """
    from e2e.cluster import kind as kind_backend
    from e2e.cluster.local import backend as local_backend

    name = name or os.environ.get("CARPOOL_CLUSTER", "") or DEFAULT_NAME
    kind = kind or os.environ.get("CARPOOL_CLUSTER_BACKEND", "") or guess()
    made = {"kind": kind_backend.Kind, "local": local_backend.Local}
    if kind not in made:
        raise Problem(f"there is no backend {kind!r}; there are: {', '.join(sorted(made))}")
    return made[kind](name)


def check_name(name: str) -> str:
    """Returns `name`. Raises Problem where it cannot be a cluster's: it must not lead out of the clusters' folder."""
    if not NAME.fullmatch(name):
        raise Problem(f"{name!r} cannot be a cluster's name: up to 50 of a-z, 0-9 and, not first, '.' and '-'")
    return name


def guess() -> str:
    """kind where it can work, else local."""
    from e2e.cluster import kind as kind_backend

    return "kind" if shutil.which("kind") and kind_backend.engine() else "local"
