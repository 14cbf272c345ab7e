"""GPUs without GPUs: a node's status says that it has them, and so pods that ask for some are placed there.

The scheduler and the kubelet count what the status says. Kubernetes documents this patch as the way to announce an
extended resource that no device plugin manages; it outlives restarts of the kubelet. No devices get into containers.
"""

from __future__ import annotations

from e2e.cluster import backends, client, processes

MERGE_PATCH = "application/merge-patch+json"
ANNOUNCED_SECONDS = 30.0


def announce(admin: client.Client, node: str, count: int) -> None:
    """Returns when the node can be asked for `count` GPUs. Raises client.Refused, and TimeoutError after 30 s."""
    amount = {backends.GPU_RESOURCE: str(count)}
    # The kubelet works out `allocatable` from `capacity` by itself, but with its next report only.
    change = {"status": {"capacity": amount, "allocatable": amount}}
    admin.call("PATCH", f"{client.path_of('Node', None, node)}/status", change, MERGE_PATCH)
    what = f"{node} has {count} {backends.GPU_RESOURCE} to give away"
    processes.eventually(lambda: allocatable(admin, node) == count, ANNOUNCED_SECONDS, what)


def allocatable(admin: client.Client, node: str) -> int:
    """How many GPUs the node has for pods."""
    return int(admin.get("Node", node)["status"].get("allocatable", {}).get(backends.GPU_RESOURCE, 0))
