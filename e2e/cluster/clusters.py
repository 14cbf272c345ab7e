"""Clusters to test in: nodes in containers of Docker or Podman, made by kind (https://kind.sigs.k8s.io)."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import kubernetes.config
import urllib3

from e2e.cluster import binaries, client, engines, node_image, processes

DEFAULT_NAME = "carpool"
# Files, networks and hosts are named after a cluster, and it must not lead out of the clusters' folder.
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,49}")
# On every node, for callers outside the cluster.
INGRESS_NODE_PORT = 30080
GPU_NODE_LABEL = {"carpool.dev/gpu": "true"}
GPU_RESOURCE = "nvidia.com/gpu"
GPUS = 2
CREATE_SECONDS, CONTROL_PLANE_READY = 600.0, "3m"
DELETE_SECONDS = 180.0  # gigabytes of layers, on a busy disk
NODES_SECONDS, LOAD_SECONDS = 180.0, 300.0
RESTART_SECONDS = 120.0
# The network of a cluster's nodes. In one that clusters shared, pods of two could have the same address.
NETWORKS = {
    engines.DOCKER: "KIND_EXPERIMENTAL_DOCKER_NETWORK",
    engines.PODMAN: "KIND_EXPERIMENTAL_PODMAN_NETWORK",
}
API_SERVER = "kube-apiserver"

Connect = Callable[[Path], client.Client]


class Problem(Exception):
    """A cluster cannot be made or used as asked. The message says why and what to look at."""


class Cluster:
    """A cluster by its name, which may not exist yet: a control plane, and two workers, on which pods are placed.

    The object has no state. Everything about a cluster is asked of kind and the engine; the kubeconfig, of a user with
    all rights, is a copy that can be had again, and exists while the cluster is up.
    """

    def __init__(
        self,
        name: str = "",
        *,
        run: processes.Run = processes.run,
        connect: Connect = client.Client,
        machine: Callable[[], engines.Machine] = engines.look,
        trial: Callable[[engines.Engine], str] = engines.failing_trial,
        kind: Callable[[], str] = lambda: str(binaries.provide(binaries.KIND)),
    ) -> None:
        """Without a name it is the one that $CARPOOL_CLUSTER names, else `carpool`. Raises Problem for no name."""
        self.name = check_name(name or os.environ.get("CARPOOL_CLUSTER", "") or DEFAULT_NAME)
        self.nodes = (f"{self.name}-worker", f"{self.name}-worker2")  # the last one is the GPU node
        self._folder = binaries.cache_folder() / "kind" / "clusters" / self.name
        self.kubeconfig = self._folder / "kubeconfig"
        self._control_plane = f"{self.name}-control-plane"
        self._run = run
        self._connect = connect
        self._machine = machine
        self._trial = trial
        self._program = kind

    @property
    def ingress(self) -> str:
        """ "http://HOST:PORT", where the ingress controller answers. Raises Problem while the cluster is not up.

        Its port is a free one, chosen when the cluster is made.
        """
        mapped = self._ask_engine("port", self._control_plane, f"{INGRESS_NODE_PORT}/tcp")
        port = mapped.output.partition("\n")[0].rpartition(":")[2]
        if mapped.status or not port.isdigit():
            raise Problem(f"{self._control_plane} has no port for the ingress: {mapped.words}")
        return f"http://127.0.0.1:{port}"

    # --- Up and down -------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Returns when all nodes are Ready; at once if they are. Clears away what a crash left.

        Raises Problem, and binaries.Unavailable where this machine cannot host a cluster.
        """
        start = time.monotonic()
        _ = self._engine
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._is_known():
            self._kind("write the kubeconfig", "export", "kubeconfig", *self._names)
        if self.is_up():
            binaries.say(f"{self.name} is up already")
        else:
            self.down()  # removes what a crash left or what does not answer
            if words := self._trial(self._engine):
                raise binaries.Unavailable(f"{self._engine.name} cannot run a node: {words}")
            self._folder.mkdir(parents=True)
            image = node_image.provide(self._engine, self._run)
            start = time.monotonic()
            options = ("--config", str(node_image.CONFIG), "--image", image, "--wait", CONTROL_PLANE_READY)
            self._kind("make the cluster", "create", "cluster", *self._names, *options, seconds=CREATE_SECONDS)
        with self._admin() as admin:
            self._wait_for_nodes(admin)
        binaries.say(f"the nodes of {self.name} are Ready after {time.monotonic() - start:.0f} s")

    def down(self) -> None:
        """Removes every trace. Does nothing where there is none."""
        if not self._folder.exists():
            return
        self._kind("remove the cluster", "delete", "cluster", *self._names, seconds=DELETE_SECONDS)
        if self._ask_engine("network", "inspect", self._network).status == 0:
            self._demand("remove its network", (self._engine.name, "network", "rm", self._network))
        shutil.rmtree(self._folder)

    def is_up(self) -> bool:
        """Whether the API server answers now."""
        if not self.kubeconfig.exists():
            return False
        try:
            with self._admin() as admin:
                admin.call("GET", "/version")
        # The errors of a server that is gone, one that is not ours, and a kubeconfig cut short.
        except (client.Refused, urllib3.exceptions.HTTPError, kubernetes.config.ConfigException, OSError):
            return False
        return True

    def _is_known(self) -> bool:
        """Whether kind knows a cluster of that name, in whatever state."""
        return self.name in self._kind("list the clusters", "get", "clusters").splitlines()

    def _wait_for_nodes(self, admin: client.Client) -> None:
        wanted = {self._control_plane, *self.nodes}
        try:
            processes.eventually(lambda: ready_nodes(admin) >= wanted, NODES_SECONDS, "all nodes are Ready")
        except TimeoutError as late:
            lacking = ", ".join(sorted(wanted - ready_nodes(admin)))
            raise Problem(f"{late}: not {lacking}; see: kind export logs --name {self.name}") from None

    # --- Use ---------------------------------------------------------------------------------------------------------

    def load(self, archive: Path) -> None:
        """Loads the images of a docker archive into all nodes, under their names in the archive. Raises Problem."""
        if not archive.is_file():
            raise Problem(f"there is no archive {archive}; `make images ARGS='--output FOLDER'` makes some")
        words = ("load", "image-archive", str(archive), "--name", self.name)
        self._kind(f"load {archive.name}", *words, seconds=LOAD_SECONDS)

    def restart_api_server(self) -> None:
        """Kills the API server, as a crash does. Returns when the kubelet has replaced it and the new one answers."""
        before = self._api_servers()
        if not before:
            raise Problem(f"no {API_SERVER} runs in {self._control_plane}; see: kubectl get pods --all-namespaces")
        for each in sorted(before):
            # One that gets SIGTERM takes a minute to end.
            kill = (self._engine.name, *self._ctr, "tasks", "kill", "--signal", "SIGKILL", each)
            self._demand(f"kill {API_SERVER}", kill)

        def is_replaced() -> bool:
            now = self._api_servers()
            return bool(now) and not now & before and self.is_up()

        processes.eventually(is_replaced, RESTART_SECONDS, f"{API_SERVER} runs again")

    def _api_servers(self) -> set[str]:
        """The ids of its running containers; none also while the node's runtime does not answer."""
        named = f'labels."io.kubernetes.container.name"=={API_SERVER}'
        listed = set(self._ask_engine(*self._ctr, "containers", "list", "--quiet", named).output.split())
        tasks = (line.split() for line in self._ask_engine(*self._ctr, "tasks", "list").output.splitlines())
        return listed & {words[0] for words in tasks if words[-1:] == ["RUNNING"]}

    # --- Programs ----------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[str, ...]:
        """The cluster's, and our own kubeconfig: kind would write to the user's."""
        return ("--name", self.name, "--kubeconfig", str(self.kubeconfig))

    @property
    def _network(self) -> str:
        return f"kind-{self.name}"

    @property
    def _ctr(self) -> tuple[str, ...]:
        """The engine's words for containerd's client on the control plane. Not crictl: a node made here has none."""
        return ("exec", self._control_plane, "ctr", "--namespace", "k8s.io")

    @functools.cached_property
    def _engine(self) -> engines.Engine:
        """Raises binaries.Unavailable where none works."""
        return engines.demand(self._run, self._machine)

    def _ask_engine(self, *words: str) -> processes.Done:
        return self._run(self._engine.name, *words, environment=self._engine.environment)

    def _admin(self) -> contextlib.closing[client.Client]:
        return contextlib.closing(self._connect(self.kubeconfig))

    def _kind(self, purpose: str, *words: str, seconds: float = processes.SECONDS) -> str:
        """Runs kind and returns its output. Making a cluster takes minutes, and kind shows its progress itself."""
        return self._demand(purpose, (self._program(), *words), seconds=seconds, show=words[0] == "create")

    def _demand(
        self, purpose: str, words: tuple[str, ...], seconds: float = processes.SECONDS, show: bool = False
    ) -> str:
        environment = {**self._engine.environment, NETWORKS[self._engine.name]: self._network}
        done = self._run(*words, seconds=seconds, show=show, environment=environment)
        if done.status:
            said = done.words if done.errors or not show else "what it said is above"
            raise Problem(f"cannot {purpose}: `{' '.join(words)}` failed: {said}")
        return done.output


def check_name(name: str) -> str:
    """Returns `name`. Raises Problem where it cannot be a cluster's."""
    if not NAME.fullmatch(name):
        raise Problem(f"{name!r} cannot be a cluster's name: up to 50 of a-z, 0-9 and, not first, '.' and '-'")
    return name


def ready_nodes(admin: client.Client) -> set[str]:
    """The names of the nodes that can run pods."""
    wanted = {"type": "Ready", "status": "True"}
    return {
        node["metadata"]["name"]
        for node in admin.list("Node")
        if any(wanted.items() <= condition.items() for condition in node.get("status", {}).get("conditions", ()))
    }
