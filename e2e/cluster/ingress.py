"""The ingress controller: Traefik on every node, behind the NodePort that clusters.Cluster.ingress names."""

from __future__ import annotations

import contextlib
import time
import urllib.error
import urllib.request

from e2e.cluster import archives, binaries, client, clusters, installing, processes
from e2e.cluster import kubectl as kubectls

NAMESPACE = "ingress"
CLASS = "traefik"
WORKLOAD = "daemonset/traefik"
READY_SECONDS = 120.0
ANSWERS_SECONDS = 30.0


def image() -> archives.Image:
    """Traefik's image; builds the program if it is not there. Raises as binaries.provide does."""
    version = binaries.PROGRAMS[binaries.TRAEFIK].version
    return archives.Image(f"traefik:{version}", binaries.provide(binaries.TRAEFIK), "/traefik")


def objects(tag: str) -> list[installing.Object]:
    """All that is applied, with the image of that tag."""
    documents = kubectls.load(installing.MANIFESTS / "traefik.yaml")
    for document in documents:
        if document["kind"] == "DaemonSet":
            document["spec"]["template"]["spec"]["containers"][0]["image"] = tag
        if document["kind"] == "Service":
            document["spec"]["ports"][0]["nodePort"] = clusters.INGRESS_NODE_PORT
    return documents


def install(cluster: clusters.Cluster) -> None:
    """Returns when Traefik answers at `cluster.ingress`; at once if it does.

    Raises clusters.Problem, and binaries.Unavailable and BuildFailed where it has to be built and cannot.
    """
    start = time.monotonic()
    made = image()
    with contextlib.closing(client.Client(cluster.kubeconfig)) as admin:
        installing.load(cluster, admin, made)
    installing.apply(cluster, objects(made.tag))
    kubectls.Kubectl(cluster.kubeconfig, NAMESPACE).wait_for_rollout(WORKLOAD, READY_SECONDS)
    try:
        processes.eventually(lambda: answers(cluster.ingress), ANSWERS_SECONDS, f"an answer from {cluster.ingress}")
    except TimeoutError as late:
        words = f"{late}; Traefik's pods are ready, so look at kube-proxy and at the way from here to the nodes"
        raise clusters.Problem(words) from None
    binaries.say(f"the ingress answers at {cluster.ingress} (after {time.monotonic() - start:.0f} s)")


def answers(url: str) -> bool:
    """Whether an HTTP server answers there, with any status: Traefik answers 404 for a host without a rule."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
