"""Control planes of other releases of Kubernetes than that of go.mod: what injector and chart meet elsewhere.

A release's own go.mod says which versions of all its libraries were tested together, so nothing of that is kept here:
the module that is built is that file, with the release itself as a requirement. Only what a control plane without
nodes runs is compiled. Kubelet and kube-proxy are half of the build, and how they are called differs by release.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from e2e.cluster import binaries

VARIABLE = "CARPOOL_KUBERNETES"
MODULE = "k8s.io/kubernetes"
# main.go's lines for nodes: the imports and components whose names are these, and the import that only they need.
_OF_NODES = re.compile(r'(?m)^\t.*(?:"context"|kube-proxy|kube-scheduler|kubelet).*\n')
_STAGING = re.compile(r"(?m)^\t(k8s\.io/\S+) => \./staging/src/\1$")


def pinned() -> str:
    """The release of go.mod, such as "v1.34.4"."""
    return binaries.kubernetes_version(binaries.go_mod())


def wanted() -> str:
    """The release that the environment asks for, else the one of go.mod. Raises ValueError."""
    asked = os.environ.get(VARIABLE) or pinned()
    if re.fullmatch(r"v?1\.\d+\.\d+", asked) is None:
        raise ValueError(f"{VARIABLE} is {asked!r}; it takes a release of Kubernetes, such as {pinned()[1:]}")
    return "v" + asked.removeprefix("v")


def provide(version: str) -> Path:
    """The executable with a release's control plane and etcd, built now if it is not there.

    For the release of go.mod it is the one that nodes run too. Raises Unavailable and BuildFailed.
    """
    if version == pinned():
        return binaries.provide(binaries.KUBERNETES)
    main = without_nodes((binaries.SOURCE / "main.go").read_text())
    target = binaries.cache_folder() / f"control-plane-{version}-{binaries.key({'main.go': main.encode()})}"

    def make() -> None:
        source = binaries.fetch(MODULE, version)
        with tempfile.TemporaryDirectory(dir=binaries.cache_folder()) as temporary:
            folder = Path(temporary)
            (folder / "main.go").write_text(main)
            (folder / "go.mod").write_text(go_mod((source / "go.mod").read_text(), version))
            shutil.copyfile(source / "go.sum", folder / "go.sum")
            # The sums of the libraries in its own tree are in none of its files: the build adds them. The clients of
            # clouds, in releases before 1.31, are left out.
            options = ["-mod=mod", "-tags=providerless"]
            binaries.build_kubernetes("", version, target, source=folder, options=options)

    what = f"the control plane of Kubernetes {version}; once, 5 to 15 minutes"
    return binaries.build_once(target, binaries.cache_folder() / f".{version}.lock", what, make)


def without_nodes(main: str) -> str:
    """main.go with etcd, kube-apiserver and kube-controller-manager alone."""
    return _OF_NODES.sub("", main)


def go_mod(theirs: str, version: str) -> str:
    """A go.mod for main.go made from that of a release. Raises BuildFailed where it is not of the known form.

    Kubernetes develops some of its libraries in its own tree, at v0.36.3 for v1.36.3.
    """
    ours, renamed = re.subn(rf"(?m)^module {re.escape(MODULE)}$", "module cluster", theirs)
    ours, staged = _STAGING.subn(rf"\t\1 => \1 v0{version.removeprefix('v1')}", ours)
    if renamed != 1 or not staged or "./staging" in ours:
        raise binaries.BuildFailed(f"the go.mod of {MODULE} {version} names itself or its libraries in an unknown way")
    return f"{ours}\nrequire {MODULE} {version}\n"
