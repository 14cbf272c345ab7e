"""One node of a local cluster: containerd, kubelet and kube-proxy, in namespaces of their own.

    python -m e2e.cluster.local.node FOLDER     runs the node that FOLDER/node.json describes, until it is killed

Whoever starts it has put it into the node's network namespace and a new mount namespace.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from e2e.cluster import archives, interface, processes
from e2e.cluster.local import network

READY_SECONDS = 60.0
# Seconds between two looks at whether all programs run.
WATCH_SECONDS = 0.5
CNI_PROGRAMS = "/usr/lib/cni"
PAUSE_IMAGE = f"docker.io/library/{archives.PAUSE_TAG}"
# Folders that programs of a node use by fixed names: each node has its own, and they go with it. What /var/lib has on
# this machine shows through.
EMPTY_FOLDERS = ("/run", "/var/log")
COVERED_FOLDER = "/var/lib"


@dataclasses.dataclass(frozen=True)
class Node:
    """The settings of a node. `folder` holds its data and logs, `kubeconfig` its credentials."""

    name: str
    number: int
    family: str
    address: str
    pods: str
    labels: dict[str, str]
    cgroup: str
    executable: str
    kubeconfig: str
    certificate_authority: str
    folder: str

    def write(self) -> None:
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        (Path(self.folder) / "node.json").write_text(json.dumps(dataclasses.asdict(self)))


def read(folder: Path) -> Node:
    return Node(**json.loads((folder / "node.json").read_text()))


def socket_of(folder: Path) -> Path:
    """The socket of a node's containerd, which `ctr` can use from anywhere on this machine."""
    return folder / "containerd.sock"


def containerd_configuration(node: Node) -> str:
    folder = Path(node.folder)
    return f"""version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
address = "{socket_of(folder)}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
# A container engine around us may forbid what kubelet asks for.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PROGRAMS}"
conf_dir = "{folder}/cni"
"""


def network_configuration(node: Node) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": network.FAMILIES[node.family].everywhere}],
    }
    routed = {"type": "ptp", "mtu": 1500, "ipam": addresses}
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [routed, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def kubelet_configuration(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": node.certificate_authority},
        },
        "authorization": {"mode": "Webhook"},
        "address": node.address,
        "containerRuntimeEndpoint": f"unix://{socket_of(Path(node.folder))}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,  # from Kubernetes 1.35 on it is True by default
        "failSwapOn": False,
        "enforceNodeAllocatable": ["pods"],
        # The cluster shares the disk: other files on it must not evict pods.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": "/var/log/pods",
        "volumePluginDir": f"{node.folder}/volume-plugins",
        "resolvConf": "",
        "registerNode": True,
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "4s",
        "syncFrequency": "10s",
    }


def proxy_configuration(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{node.folder}/kube-proxy.kubeconfig"},
        "mode": "nftables",
        "nftables": {"minSyncPeriod": "0.1s", "syncPeriod": "30s"},
        "hostnameOverride": node.name,
        "clusterCIDR": network.FAMILIES[node.family].pods,
        # The limits of connection tracking are the whole machine's.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": f"{interface.in_url(node.address)}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def write_configuration(node: Node) -> None:
    folder = Path(node.folder)
    (folder / "cni").mkdir(exist_ok=True)
    (folder / "containerd.toml").write_text(containerd_configuration(node))
    (folder / "cni" / "pods.conflist").write_text(json.dumps(network_configuration(node)))
    (folder / "kubelet.json").write_text(json.dumps(kubelet_configuration(node)))
    (folder / "kube-proxy.json").write_text(json.dumps(proxy_configuration(node)))


def commands(node: Node) -> dict[str, list[str]]:
    """The node's programs by name, in the order they are started."""
    folder = Path(node.folder)
    kubelet = {
        "config": folder / "kubelet.json",
        "kubeconfig": node.kubeconfig,
        "root-dir": folder / "kubelet",
        "cert-dir": folder / "kubelet-certificates",
        "hostname-override": node.name,
        "node-ip": node.address,
        "node-labels": ",".join(f"{name}={value}" for name, value in node.labels.items()),
        "v": 1,
    }
    proxy = {"config": folder / "kube-proxy.json", "v": 1}
    return {
        "containerd": ["containerd", "--config", str(folder / "containerd.toml")],
        "kubelet": [node.executable, "kubelet", *processes.flags(kubelet)],
        "kube-proxy": [node.executable, "kube-proxy", *processes.flags(proxy)],
    }


def prepare_namespaces(node: Node) -> None:
    """Mounts the node's own folders in this mount namespace, and sets the node's host name."""
    # Kubelet hands some mounts on to containers that are running already; nothing goes out of this namespace.
    network.run("mount", "--make-rshared", "/")
    for empty in EMPTY_FOLDERS:
        network.run("mount", "-t", "tmpfs", "tmpfs", empty)
    upper, work = Path(node.folder) / "var-lib", Path(node.folder) / "var-lib-work"
    for each in (upper, work):
        each.mkdir(exist_ok=True)
    layers = f"lowerdir={COVERED_FOLDER},upperdir={upper},workdir={work}"
    network.run("mount", "-t", "overlay", "overlay", "-o", layers, COVERED_FOLDER)
    network.run("hostname", node.name)
    network.forward(node.family)


def main() -> None:
    node = read(Path(sys.argv[1]))
    prepare_namespaces(node)
    write_configuration(node)
    folder = Path(node.folder)
    wanted = commands(node)
    running = {}
    for name, command in wanted.items():
        running[name] = processes.Process(name, command, folder / f"{name}.log")
        if name == "containerd":
            running[name].wait_until_ready(socket_of(folder).exists, READY_SECONDS)
    while True:
        time.sleep(WATCH_SECONDS)
        for name, command in wanted.items():
            if not running[name].is_running:
                running[name] = processes.Process(name, command, folder / f"{name}.log")


if __name__ == "__main__":
    main()
