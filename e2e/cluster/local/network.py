"""The network of a local cluster: a bridge, the control plane on it, a network namespace for each node.

Pods of a node have routed addresses (CNI's ptp), so that traffic between two pods of one node passes the node's tables
as well: with a bridge it would not, on kernels without br_netfilter.

         this machine  .254 ──┐ (a veth pair, the one thing outside the namespaces)
        control plane    .1 ──┤ bridge, 198.18.N.0/24
               node-1   .11 ──┤     pods 10.244.1.0/24
               node-2   .12 ──┘     pods 10.244.2.0/24

A cluster is of IPv4 alone or of IPv6 alone: then the same numbers are in 2001:2:0:N::/64 and fd00:10:244:N::/64, and no
interface but the loopback has an address of IPv4.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import interface, processes

SUBNETS = range(1, 255)
UPLINK = "uplink"
BRIDGE = "carpool"
UPLINK_SECONDS = 10.0


class Family(NamedTuple):
    """The addresses of a cluster: its network, and where pods are. `{}` stands for the numbers of both."""

    option: str  # of `ip`
    link: str  # this machine's device that leads into the cluster
    address: str
    network: str
    bits: int
    pods_of_a_node: str
    pods: str
    everywhere: str
    forwarding: str


# Both networks are kept for benchmarks of network devices (RFC 2544, RFC 5180): no network that a machine is in uses
# them. An address of IPv6 is tentative until nobody else has claimed it, which takes a second: nobody else is there.
FAMILIES = {
    "ipv4": Family(
        option="-4",
        link="cp-{}",
        address="198.18.{}.{}",
        network="198.18.{}.0/24",
        bits=24,
        pods_of_a_node="10.244.{}.0/24",
        pods="10.244.0.0/16",
        everywhere="0.0.0.0/0",
        forwarding="/proc/sys/net/ipv4/ip_forward",
    ),
    "ipv6": Family(
        option="-6",
        link="cp6-{}",
        address="2001:2:0:{}::{}",
        network="2001:2:0:{}::/64",
        bits=64,
        pods_of_a_node="fd00:10:244:{}::/64",
        pods="fd00:10:244::/48",
        everywhere="::/0",
        forwarding="/proc/sys/net/ipv6/conf/all/forwarding",
    ),
}


class Plan(NamedTuple):
    """The addresses of one cluster: `subnet` is the N of its network."""

    family: str
    subnet: int

    @property
    def numbers(self) -> Family:
        return FAMILIES[self.family]

    @property
    def link(self) -> str:
        return self.numbers.link.format(self.subnet)

    @property
    def control_plane(self) -> str:
        return self.numbers.address.format(self.subnet, 1)

    @property
    def this_machine(self) -> str:
        return self.numbers.address.format(self.subnet, 254)

    def node(self, number: int) -> str:
        """Of the first node (1), the second node (2), …"""
        return self.numbers.address.format(self.subnet, 10 + number)

    def pods(self, number: int) -> str:
        """The range of the pods of the first node (1), the second node (2), …"""
        return self.numbers.pods_of_a_node.format(number)


def run(*words: str) -> str:
    """Runs a command and returns its output. Raises interface.Problem with its errors."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise interface.Problem(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def free_subnet(family: str) -> int:
    """The N of a network of that family that this machine has no route to, except for the default one."""
    numbers = FAMILIES[family]
    taken = {str(route["dst"]) for route in json.loads(run("ip", "-json", numbers.option, "route"))}
    for number in SUBNETS:
        if numbers.network.format(number) not in taken:
            return number
    raise interface.Problem(f"all of {numbers.network.format('N')} is in use here; look at `ip {numbers.option} route`")


def link_to_this_machine(name: str, plan: Plan, holder: int) -> None:
    """Makes the veth pair between this machine and the namespace of the process `holder`; gone with that namespace."""
    outside = plan.link
    run("ip", "link", "add", outside, "type", "veth", "peer", "name", UPLINK, "netns", str(holder))
    run("ip", "link", "set", outside, "alias", alias(name))
    add_address(plan, plan.this_machine, outside)
    run("ip", "link", "set", outside, "up")


def unlink_from_this_machine(name: str, plan: Plan) -> None:
    """Removes the veth pair if it is there, and with it its addresses and routes.

    The pair of a cluster that crashed went with its namespace: one that is there may be another cluster's by now.
    """
    shown = subprocess.run(["ip", "-json", "link", "show", plan.link], capture_output=True, text=True)
    if shown.returncode == 0 and is_of(name, shown.stdout):
        subprocess.run(["ip", "link", "delete", plan.link], capture_output=True)


def is_of(name: str, shown: str) -> bool:
    """Whether the device in the output of `ip -json link show` belongs to the cluster; one without a name does."""
    return all(device.get("ifalias", alias(name)) == alias(name) for device in json.loads(shown))


def alias(name: str) -> str:
    return f"cluster {name}"


def add_address(plan: Plan, address: str, device: str, *where: str) -> None:
    """Gives a device an address of the cluster's network; `where` is an option of ip for the namespace."""
    at_once = ["nodad"] if plan.family == "ipv6" else []
    run("ip", *where, "address", "add", f"{address}/{plan.numbers.bits}", "dev", device, *at_once)


def set_up(plan: Plan, nodes: Sequence[str]) -> None:
    """Inside the cluster's own namespaces: the bridge, the nodes' namespaces, and routes to the pods of each."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    add_address(plan, plan.control_plane, BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    processes.eventually(lambda: has(UPLINK), UPLINK_SECONDS, "the link to this machine is there")
    run("ip", "link", "set", UPLINK, "master", BRIDGE, "up")
    forward(plan.family)
    numbers = list(range(1, len(nodes) + 1))
    for number, node in zip(numbers, nodes, strict=True):
        join(plan, number, node)
        run("ip", "route", "add", plan.pods(number), "via", plan.node(number))
    for number, node in zip(numbers, nodes, strict=True):
        for other in numbers:
            if other != number:
                run("ip", "-netns", node, "route", "add", plan.pods(other), "via", plan.node(other))


def has(device: str) -> bool:
    """Whether this network namespace has the device: /sys shows the devices of the namespace it was mounted in."""
    return subprocess.run(["ip", "link", "show", device], capture_output=True).returncode == 0


def join(plan: Plan, number: int, node: str) -> None:
    """Makes a node's network namespace, of that name, with one interface on the bridge."""
    run("ip", "netns", "add", node)
    run("ip", "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", node)
    run("ip", "link", "set", node, "master", BRIDGE, "up")
    run("ip", "-netns", node, "link", "set", "lo", "up")
    run("ip", "-netns", node, "link", "set", "eth0", "up")
    add_address(plan, plan.node(number), "eth0", "-netns", node)
    # Nothing is behind it: kubelet and kube-proxy take the address to announce from the default route.
    run("ip", "-netns", node, plan.numbers.option, "route", "add", "default", "via", plan.control_plane)


def forward(family: str) -> None:
    """Lets this network namespace forward packets of that family."""
    Path(FAMILIES[family].forwarding).write_text("1")
