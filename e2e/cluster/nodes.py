"""What the status of nodes tells: which are Ready, and which have GPUs.

GPUs that are not there: the scheduler and the kubelet count what the status says. Kubernetes documents this patch as
the way to announce an extended resource that no device plugin manages. No devices get into containers.
"""

from __future__ import annotations

from e2e.cluster import backends, client, processes

MERGE_PATCH = "application/merge-patch+json"
ANNOUNCED_SECONDS = 30.0


def ready(admin: client.Client) -> set[str]:
    """The names of the nodes that can run pods."""
    wanted = {"type": "Ready", "status": "True"}
    return {
        node["metadata"]["name"]
        for node in admin.list("Node")
        if any(wanted.items() <= condition.items() for condition in node.get("status", {}).get("conditions", ()))
    }


def announce_gpus(admin: client.Client, node: str, count: int) -> None:
    """Returns when the node can be asked for `count` GPUs. Raises client.Refused, and TimeoutError after 30 s."""
    amount = {backends.GPU_RESOURCE: str(count)}
    # The kubelet works out `allocatable` from `capacity` by itself, but with its next report only.
    change = {"status": {"capacity": amount, "allocatable": amount}}
    admin.call("PATCH", f"{client.path_of('Node', None, node)}/status", change, MERGE_PATCH)
    what = f"{node} has {count} {backends.GPU_RESOURCE} to give away"
    processes.eventually(lambda: gpus(admin, node) == count, ANNOUNCED_SECONDS, what)


def gpus(admin: client.Client, node: str) -> int:
    """How many GPUs the node has for pods."""
    return int(admin.get("Node", node)["status"].get("allocatable", {}).get(backends.GPU_RESOURCE, 0))
