"""The steps of every installation into a cluster: load images on all nodes, apply objects.

Objects are applied as an admin would: with kubectl, on the server's side, so that a second time changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster import archives, binaries, client, clusters
from e2e.cluster import kubectl as kubectls

MANIFESTS = Path(__file__).parent / "manifests"
FIELD_MANAGER = "carpool-e2e"
# Fully qualified, as nodes tell what they have.
LOCAL_REGISTRY = "docker.io/library"
# Of one command: 2 MB of definitions take 20 s on a machine that builds something else meanwhile.
SECONDS = 120.0

Object = client.Object


def load(cluster: clusters.Cluster, admin: client.Client, image: archives.Image) -> None:
    """Loads an image into every node, unless all of them report that they have it. Raises clusters.Problem."""
    if is_loaded(admin.list("Node"), image.tag):
        return
    binaries.say(f"loading {image.tag}")
    cluster.load(archives.provide(image))


def is_loaded(nodes: Iterable[Object], tag: str) -> bool:
    """Whether every node lists the image. The list is some seconds late: then the image is loaded once more."""
    wanted = {tag, f"{LOCAL_REGISTRY}/{tag}"}
    return all(wanted & names_on(node) for node in nodes)


def names_on(node: Object) -> set[str]:
    return {name for image in node.get("status", {}).get("images", []) for name in image.get("names") or []}


def apply(cluster: clusters.Cluster, objects: list[Object] | str) -> list[str]:
    """Applies objects (a string: as YAML) in this order; what others have changed in our fields is changed back.

    Returns them as kubectl names them: "namespace/ingress". Raises kubectl.Failed.
    """
    text = objects if isinstance(objects, str) else json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    words = ("apply", "--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}", "--filename=-")
    applied = kubectls.Kubectl(cluster.kubeconfig).run(*words, "--output=name", stdin=text, timeout=SECONDS)
    return applied.output.splitlines()
