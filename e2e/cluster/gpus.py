"""GPUs on the last node of a cluster: none is real, but a device plugin hands them out as a vendor's does its own."""

from __future__ import annotations

import contextlib
import time

from e2e.cluster import archives, binaries, client, clusters, installing, processes
from e2e.cluster import kubectl as kubectls

NAMESPACE = "devices"
WORKLOAD = "daemonset/device-plugin"
READY_SECONDS, COUNTED_SECONDS = 60.0, 30.0


def image() -> archives.Image:
    """The plugin's image; builds the program if it is not there. Raises as binaries.provide does."""
    program = binaries.provide(binaries.DEVICE_PLUGIN)
    return archives.Image(
        f"carpool-{binaries.DEVICE_PLUGIN}:{program.name.rpartition('-')[2]}", program, f"/{binaries.DEVICE_PLUGIN}"
    )


def objects(tag: str) -> list[installing.Object]:
    """All that is applied, with the image of that tag."""
    documents = kubectls.load(installing.MANIFESTS / "device-plugin.yaml")
    for document in documents:
        if document["kind"] == "DaemonSet":
            pod = document["spec"]["template"]["spec"]
            pod["nodeSelector"] = dict(clusters.GPU_NODE_LABEL)
            options = {"resource": clusters.GPU_RESOURCE, "count": clusters.GPUS}
            pod["containers"][0] |= {"image": tag, "args": processes.flags(options)}
    return documents


def install(cluster: clusters.Cluster) -> None:
    """Returns when the last node has clusters.GPUS to give away; at once if it does.

    Raises clusters.Problem, and binaries.Unavailable and BuildFailed where the plugin has to be built and cannot.
    """
    start = time.monotonic()
    made = image()
    node = cluster.nodes[-1]
    with contextlib.closing(client.Client(cluster.kubeconfig)) as admin:
        installing.load(cluster, admin, made)
        installing.apply(cluster, objects(made.tag))
        kubectl = kubectls.Kubectl(cluster.kubeconfig, NAMESPACE)
        kubectl.wait_for_rollout(WORKLOAD, READY_SECONDS)
        try:
            processes.eventually(
                lambda: counted(admin, node) == clusters.GPUS, COUNTED_SECONDS, f"{node} has {clusters.GPUS} GPUs"
            )
        except TimeoutError as late:
            raise clusters.Problem(f"{late}\n{kubectl.explain(WORKLOAD)}") from None
    binaries.say(f"{node} has {clusters.GPUS} {clusters.GPU_RESOURCE} (after {time.monotonic() - start:.0f} s)")


def counted(admin: client.Client, node: str) -> int:
    """How many GPUs the node has for pods."""
    return int(admin.get("Node", node)["status"].get("allocatable", {}).get(clusters.GPU_RESOURCE, 0))
