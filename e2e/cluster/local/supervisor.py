"""Runs inside a local cluster's namespaces: starts the control plane and the nodes, and restarts what ends.

    python -m e2e.cluster.local.supervisor FOLDER     until it is killed; FOLDER/cluster.json says what to run

Started in new network, mount and process namespaces. All programs of the cluster end with the first process in there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from e2e.cluster import control_plane, interface, processes
from e2e.cluster.local import network, node

KUBE_PROXY = "system:kube-proxy"
# Seconds between two looks at whether all programs run.
WATCH_SECONDS = 0.5


def describe(plane: control_plane.ControlPlane, told: dict[str, Any], number: int) -> node.Node:
    """Writes the settings and credentials of node number 1, 2, … to the files that its program reads."""
    name, plan = told["nodes"][number - 1], network.Plan(told["family"], told["subnet"])
    folder = plane.folder / name
    made = node.Node(
        name=name,
        number=number,
        family=plan.family,
        address=plan.node(number),
        pods=plan.pods(number),
        labels=interface.GPU_NODE_LABEL if name == told["nodes"][-1] else {},
        cgroup=f"{told['cgroup']}/{name}",
        executable=told["executable"],
        kubeconfig=str(plane.kubeconfig_of(f"system:node:{name}", ["system:nodes"])),
        certificate_authority=str(plane.certificate_authority),
        folder=str(folder),
    )
    made.write()
    proxy = plane.kubeconfig_of(KUBE_PROXY).read_bytes()
    (folder / "kube-proxy.kubeconfig").write_bytes(proxy)
    return made


def start_node(made: node.Node) -> processes.Process:
    """Starts a node's programs in its network namespace and a mount namespace of its own."""
    command = ["nsenter", f"--net=/run/netns/{made.name}", "unshare", "--mount", "--uts"]
    command += [sys.executable, "-m", "e2e.cluster.local.node", made.folder]
    return processes.Process(made.name, command, Path(made.folder) / "node.log")


def main() -> None:
    folder = Path(sys.argv[1])
    told = json.loads((folder / "cluster.json").read_text())
    # ip-netns(8) keeps its names there; nobody outside sees them.
    network.run("mount", "-t", "tmpfs", "tmpfs", "/run")
    plan = network.Plan(told["family"], told["subnet"])
    network.set_up(plan, told["nodes"])
    plane = control_plane.ControlPlane(Path(told["executable"]), folder, plan.control_plane, with_nodes=True)
    plane.start()
    nodes = [describe(plane, told, number) for number in range(1, len(told["nodes"]) + 1)]
    running = {made.name: start_node(made) for made in nodes}
    while True:
        time.sleep(WATCH_SECONDS)
        plane.revive()
        for made in nodes:
            if not running[made.name].is_running:
                running[made.name] = start_node(made)


if __name__ == "__main__":
    main()
