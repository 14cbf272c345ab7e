"""The network of a local cluster: a bridge, the control plane on it, a network namespace for each node.

Pods of a node have routed addresses (CNI's ptp), so that traffic between two pods of one node passes the node's tables
as well: with a bridge it would not, on kernels without br_netfilter.

         this machine  .254 ──┐ (a veth pair, the one thing outside the namespaces)
        control plane    .1 ──┤ bridge, 198.18.N.0/24
               node-1   .11 ──┤     pods 10.244.1.0/24
               node-2   .12 ──┘     pods 10.244.2.0/24
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import interface, processes

# Kept for benchmarks of network devices (RFC 2544): no network that a machine is in uses it.
RANGE = "198.18"
SUBNETS = range(1, 255)
UPLINK = "uplink"
BRIDGE = "carpool"
UPLINK_SECONDS = 10.0


def run(*words: str) -> str:
    """Runs a command and returns its output. Raises interface.Problem with its errors."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise interface.Problem(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def free_subnet() -> int:
    """The N of a 198.18.N.0/24 that this machine has no route to, except for the default one."""
    routes = json.loads(run("ip", "-json", "route"))
    taken = {str(route["dst"]) for route in routes}
    for number in SUBNETS:
        if f"{RANGE}.{number}.0/24" not in taken:
            return number
    raise interface.Problem(f"all of {RANGE}.0.0/16 is in use here; look at `ip route`")


def control_plane_address(subnet: int) -> str:
    return f"{RANGE}.{subnet}.1"


def node_address(subnet: int, node: int) -> str:
    """Of the first node (1), the second node (2), …"""
    return f"{RANGE}.{subnet}.{10 + node}"


def pod_range(node: int) -> str:
    return f"10.244.{node}.0/24"


def link_to_this_machine(name: str, subnet: int, holder: int) -> None:
    """Makes the veth pair between this machine and the namespace of the process `holder`; gone with that namespace."""
    outside = f"cp-{subnet}"
    run("ip", "link", "add", outside, "type", "veth", "peer", "name", UPLINK, "netns", str(holder))
    run("ip", "link", "set", outside, "alias", alias(name))
    run("ip", "address", "add", f"{RANGE}.{subnet}.254/24", "dev", outside)
    run("ip", "link", "set", outside, "up")


def unlink_from_this_machine(name: str, subnet: int) -> None:
    """Removes the veth pair if it is there, and with it its addresses and routes.

    The pair of a cluster that crashed went with its namespace: one that is there may be another cluster's by now.
    """
    device = f"cp-{subnet}"
    shown = subprocess.run(["ip", "-json", "link", "show", device], capture_output=True, text=True)
    if shown.returncode == 0 and is_of(name, shown.stdout):
        subprocess.run(["ip", "link", "delete", device], capture_output=True)


def is_of(name: str, shown: str) -> bool:
    """Whether the device in the output of `ip -json link show` belongs to the cluster; one without a name does."""
    return all(device.get("ifalias", alias(name)) == alias(name) for device in json.loads(shown))


def alias(name: str) -> str:
    return f"cluster {name}"


def set_up(subnet: int, nodes: Sequence[str]) -> None:
    """Inside the cluster's own namespaces: the bridge, the nodes' namespaces, and routes to the pods of each."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{control_plane_address(subnet)}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    processes.eventually(lambda: has(UPLINK), UPLINK_SECONDS, "the link to this machine is there")
    run("ip", "link", "set", UPLINK, "master", BRIDGE, "up")
    forward()
    numbers = list(range(1, len(nodes) + 1))
    for number, node in zip(numbers, nodes, strict=True):
        join(subnet, number, node)
        run("ip", "route", "add", pod_range(number), "via", node_address(subnet, number))
    for number, node in zip(numbers, nodes, strict=True):
        for other in numbers:
            if other != number:
                run("ip", "-netns", node, "route", "add", pod_range(other), "via", node_address(subnet, other))


def has(device: str) -> bool:
    """Whether this network namespace has the device: /sys shows the devices of the namespace it was mounted in."""
    return subprocess.run(["ip", "link", "show", device], capture_output=True).returncode == 0


def join(subnet: int, number: int, node: str) -> None:
    """Makes a node's network namespace, of that name, with one interface on the bridge."""
    run("ip", "netns", "add", node)
    run("ip", "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", node)
    run("ip", "link", "set", node, "master", BRIDGE, "up")
    run("ip", "-netns", node, "link", "set", "lo", "up")
    run("ip", "-netns", node, "link", "set", "eth0", "up")
    run("ip", "-netns", node, "address", "add", f"{node_address(subnet, number)}/24", "dev", "eth0")
    # Nothing is behind it: kubelet and kube-proxy take the address to announce from the default route.
    run("ip", "-netns", node, "route", "add", "default", "via", control_plane_address(subnet))


def forward() -> None:
    """Lets this network namespace forward packets."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
