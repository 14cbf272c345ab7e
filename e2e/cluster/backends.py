"""Which backend makes a cluster: the one place that knows them all."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

from e2e.cluster import interface
from e2e.cluster.kind import backend as kind
from e2e.cluster.kind import engines, node_image
from e2e.cluster.local import backend as local

DEFAULT_NAME = "carpool"
BACKENDS = {"kind": kind.Kind, "local": local.Local}


class Decision(NamedTuple):
    """A backend by its name, and why it is that one."""

    backend: str
    reason: str


def choose(name: str = "", backend: str = "", family: str = "") -> interface.Cluster:
    """The cluster of that name (default: $CARPOOL_CLUSTER, else carpool), made by the backend that `decide` names.

    `family` is that of its addresses (default: $CARPOOL_CLUSTER_FAMILY, else that of the cluster that is there, else
    IPv4). Raises interface.Problem for a backend or a family that does not exist, and for what cannot be a name.
    """
    name = name or os.environ.get("CARPOOL_CLUSTER", "") or DEFAULT_NAME
    family = family or os.environ.get("CARPOOL_CLUSTER_FAMILY", "")
    if family and family not in interface.FAMILIES:
        known = ", ".join(interface.FAMILIES)
        raise interface.Problem(f"there is no family {family!r} of addresses; there are: {known}")
    return BACKENDS[decide(name, backend, family).backend](name, family)


def decide(name: str, backend: str = "", family: str = "") -> Decision:
    """The backend that somebody named ($CARPOOL_CLUSTER_BACKEND), else the one that made the cluster, else the default.

    A cluster of IPv6 alone is made by one backend.

    Raises interface.Problem for a backend that does not exist.
    """
    wanted = backend or os.environ.get("CARPOOL_CLUSTER_BACKEND", "")
    if wanted and wanted not in BACKENDS:
        raise interface.Problem(f"there is no backend {wanted!r}; there are: {', '.join(sorted(BACKENDS))}")
    if wanted:
        return Decision(wanted, "somebody has said so")
    for title, made_by in BACKENDS.items():
        if made_by(name).exists():
            return Decision(title, f"it has made {name}")
    if family == "ipv6":
        return Decision("local", "no other makes clusters of IPv6")
    return default()


def default() -> Decision:
    """kind where it works already and its node image has not to be made first: that takes minutes. Else local."""
    if shutil.which("kind") is None:
        return Decision("local", "there is no kind on PATH")
    engine = engines.find()
    if engine is None:
        return Decision("local", f"kind has no container engine: {'; '.join(engines.lacking())}")
    if node_image.at_hand(engine, kind.CONFIG):
        return Decision("kind", f"{engine.name} works, and a node image is here")
    if node_image.can_be_pulled():
        return Decision("kind", f"{engine.name} works, and the node image can be pulled")
    return Decision("local", "a node image for kind would have to be made first (BACKEND=kind makes it)")
