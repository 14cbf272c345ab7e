"""Which backend makes a cluster: the one place that knows them all."""

from __future__ import annotations

import os
import shutil

from e2e.cluster import interface, kind
from e2e.cluster.local import backend as local

DEFAULT_NAME = "carpool"
BACKENDS = {"kind": kind.Kind, "local": local.Local}


def choose(name: str = "", backend: str = "") -> interface.Cluster:
    """The cluster of that name (default: $CARPOOL_CLUSTER, else carpool), made by that backend.

    The default backend is $CARPOOL_CLUSTER_BACKEND, else kind where it is installed and a container engine answers,
    else local. Raises interface.Problem for a backend that does not exist, and for what cannot be a name.
    """
    name = name or os.environ.get("CARPOOL_CLUSTER", "") or DEFAULT_NAME
    backend = backend or os.environ.get("CARPOOL_CLUSTER_BACKEND", "") or default()
    if backend not in BACKENDS:
        raise interface.Problem(f"there is no backend {backend!r}; there are: {', '.join(sorted(BACKENDS))}")
    return BACKENDS[backend](name)


def default() -> str:
    """kind where it can work, else local."""
    return "kind" if shutil.which("kind") and kind.engine() else "local"
