"""The kind backend: nodes in containers of Docker or Podman, made by kind (https://kind.sigs.k8s.io)."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import kubernetes.config
import urllib3

from e2e.cluster import binaries, client, interface, processes, product_images
from e2e.cluster.kind import engines, node_image

CONFIG = Path(__file__).parents[2] / "kind" / "config.yaml"
CREATE_SECONDS, CONTROL_PLANE_READY = 600.0, "3m"
DELETE_SECONDS = 180.0  # gigabytes of layers, on a busy disk
NODES_SECONDS, LOAD_SECONDS = 180.0, 300.0
# The network of a cluster's nodes. In one that clusters shared, pods of two could have the same address.
NETWORKS = {
    engines.DOCKER: "KIND_EXPERIMENTAL_DOCKER_NETWORK",
    engines.PODMAN: "KIND_EXPERIMENTAL_PODMAN_NETWORK",
}

Connect = Callable[[Path], client.Client]
NO_KIND = (
    f"there is no kind; `go install {node_image.MODULE}@{node_image.VERSION}` and put Go's bin folder on PATH, see"
    " https://kind.sigs.k8s.io"
)
# ctr, and not crictl: an image made here has no other.
CTR = ("ctr", "--namespace", "k8s.io")
# Services of a node's systemd, and what succeeds in the node once they are at work.
SERVICES = {
    "containerd": (*CTR, "version"),
    "kubelet": ("kubectl", "--server", "http://127.0.0.1:10248", "get", "--raw", "/healthz"),
}
# Containers, which the kubelet starts again: static pods of the control plane, and of a DaemonSet on all nodes.
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
ON_ALL_NODES = ("kube-proxy",)
RESTART_SECONDS = 120.0


class Kind:
    """See interface.Cluster. `nodes` are the two workers: pods are not placed on the control plane.

    Everything about a cluster is asked of kind and the engine; the kubeconfig is a copy that can be had again.
    """

    address = "127.0.0.1"
    family = "ipv4"

    def __init__(
        self,
        name: str,
        family: str = "",
        run: processes.Run = processes.run,
        connect: Connect = client.Client,
        machine: Callable[[], engines.Machine] = engines.look,
        trial: Callable[[engines.Engine], str] = engines.failing_trial,
    ) -> None:
        if family not in ("", self.family):
            raise interface.Problem(f"kind's clusters here are of IPv4, {family} is what BACKEND=local makes")
        self.name = interface.check_name(name)
        self.nodes = (f"{name}-worker", f"{name}-worker2")
        self._folder = binaries.cache_folder() / "kind" / "clusters" / name
        self.kubeconfig = self._folder / "kubeconfig"
        self._control_plane = f"{name}-control-plane"
        self._run = run
        self._connect = connect
        self._machine = machine
        self._trial = trial

    @property
    def ingress(self) -> str:
        """Its port is a free one, chosen when the cluster is made. Raises interface.Problem while that is not up."""
        words = (self._engine.name, "port", self._control_plane, f"{interface.INGRESS_NODE_PORT}/tcp")
        mapped = self._demand("look up the port of the ingress", words)
        port = mapped.partition("\n")[0].rpartition(":")[2]
        if not port.isdigit():
            raise interface.Problem(f"{self._control_plane} has no port for the ingress; was it made from {CONFIG}?")
        return f"http://{self.address}:{port}"

    # --- Up and down -------------------------------------------------------------------------------------------------

    def up(self) -> None:
        self._demand_kind()
        start = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._is_known():
            self._kind("write the kubeconfig", "export", "kubeconfig", *self._names)
        if self.is_up():
            binaries.say(f"{self.name} is up already")
        else:
            self.down()  # removes what a crash left or what does not answer
            if words := self._trial(self._engine):
                raise interface.Problem(f"{self._engine.name} cannot run a node: {words}")
            self._folder.mkdir(parents=True)
            image = node_image.provide(self._engine, CONFIG, self._run)
            start = time.monotonic()
            options = ("--config", str(CONFIG), "--image", image, "--wait", CONTROL_PLANE_READY)
            self._kind("make the cluster", "create", "cluster", *self._names, *options, seconds=CREATE_SECONDS)
        with self._admin() as admin:
            self._wait_for_nodes(admin)
        binaries.say(f"the nodes of {self.name} are Ready after {time.monotonic() - start:.0f} s")

    def down(self) -> None:
        if self._has_kind and engines.find(self._run, self._machine):
            self._kind("remove the cluster", "delete", "cluster", *self._names, seconds=DELETE_SECONDS)
            if self._ask_engine("network", "inspect", self._network).status == 0:
                self._demand("remove its network", (self._engine.name, "network", "rm", self._network))
        elif self.kubeconfig.exists():
            self._demand_kind()  # a cluster existed, and its state cannot be read
        shutil.rmtree(self._folder, ignore_errors=not self._folder.exists())

    def exists(self) -> bool:
        return self._folder.exists()

    def is_up(self) -> bool:
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
            processes.eventually(lambda: interface.ready(admin) >= wanted, NODES_SECONDS, "all nodes are Ready")
        except TimeoutError as late:
            lacking = ", ".join(sorted(wanted - interface.ready(admin)))
            raise interface.Problem(f"{late}: not {lacking}; see: kind export logs --name {self.name}") from None

    def missing(self) -> list[str]:
        """The reasons why this machine cannot host a cluster of kind's, each with what to do; empty where it can."""
        found = [] if self._has_kind else [NO_KIND]
        found += engines.lacking(self._run, self._machine)
        if not found and (words := self._trial(self._engine)):
            found.append(f"{self._engine.name} cannot run a node: {words}")
        return found

    def missing_packages(self) -> list[str]:
        """The Debian packages that are missing here for an engine, a node image if it is made, and our images."""
        is_there = node_image.archive().exists() or node_image.can_be_pulled()
        packages = {*engines.missing_packages(self._run, self._machine), *product_images.missing_packages()}
        return sorted(packages.union([] if is_there else node_image.missing_packages()))

    # --- Use ---------------------------------------------------------------------------------------------------------

    def load(self, archive: Path) -> None:
        if not archive.is_file():
            raise interface.Problem(f"there is no archive {archive}; `make images ARGS='--output FOLDER'` makes some")
        words = ("load", "image-archive", str(archive), "--name", self.name)
        self._kind(f"load {archive.name}", *words, seconds=LOAD_SECONDS)

    def restart(self, component: str) -> None:
        every = Nodes(self._ask_engine, (self._control_plane, *self.nodes))
        every.restart(component, self.is_up)

    # --- Programs ----------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[str, ...]:
        """The cluster's, and our own kubeconfig: kind would write to the user's."""
        return ("--name", self.name, "--kubeconfig", str(self.kubeconfig))

    @property
    def _network(self) -> str:
        return f"kind-{self.name}"

    @functools.cached_property
    def _engine(self) -> engines.Engine:
        """Raises interface.Problem where none works."""
        return engines.demand(self._run, self._machine)

    def _ask_engine(self, *words: str) -> processes.Done:
        return self._run(self._engine.name, *words, environment=self._engine.environment)

    @property
    def _has_kind(self) -> bool:
        return self._run("kind", "version").status == 0

    def _demand_kind(self) -> None:
        """Raises interface.Problem where kind or an engine is missing."""
        if not self._has_kind:
            raise interface.Problem(f"{NO_KIND}, or take the other backend: BACKEND=local")
        _ = self._engine

    def _admin(self) -> contextlib.closing[client.Client]:
        return contextlib.closing(self._connect(self.kubeconfig))

    def _kind(self, purpose: str, *words: str, seconds: float = processes.SECONDS) -> str:
        """Runs kind and returns its output. Making a cluster takes minutes, and kind shows its progress itself."""
        show = words[0] == "create"
        return self._demand(purpose, ("kind", *words), seconds=seconds, show=show)

    def _demand(
        self, purpose: str, words: tuple[str, ...], seconds: float = processes.SECONDS, show: bool = False
    ) -> str:
        environment = {**self._engine.environment, NETWORKS[self._engine.name]: self._network}
        done = self._run(*words, seconds=seconds, show=show, environment=environment)
        if done.status:
            said = done.words if done.errors or not show else "what it said is above"
            raise interface.Problem(f"cannot {purpose}: `{' '.join(words)}` failed: {said}")
        return done.output


class Nodes:
    """The containers of one cluster's nodes, the control plane's first, reached through the engine they run in."""

    def __init__(self, ask: Callable[..., processes.Done], names: Sequence[str]) -> None:
        """`ask` runs the engine with these words."""
        self.names = tuple(names)
        self._ask = ask

    def restart(self, component: str, is_up: Callable[[], bool]) -> None:
        """Ends a component wherever it runs, one node after the other. Returns when it runs and `is_up` answers true.

        Raises interface.Problem for an unknown component, and where it does not come back within two minutes.
        """
        if component in SERVICES:
            for node in self.names:
                self._restart_service(node, component)
        elif component in CONTROL_PLANE:
            self._restart_container(self.names[0], component, is_up)
        elif component in ON_ALL_NODES:
            for node in self.names:
                self._restart_container(node, component, is_up)
        else:
            known = ", ".join(sorted([*SERVICES, *CONTROL_PLANE, *ON_ALL_NODES]))
            raise interface.Problem(f"there is no {component!r} to restart; there are: {known}")

    def _restart_service(self, node: str, service: str) -> None:
        # Not by a signal: containers whose containerd was killed wait with what they write to their logs.
        self._demand(node, "systemctl", "restart", service)
        self._wait(node, service, lambda: self._inside(node, *SERVICES[service]).status == 0)

    def _restart_container(self, node: str, component: str, is_up: Callable[[], bool]) -> None:
        before = self._containers(node, component)
        if not before:
            raise interface.Problem(f"{component} does not run in {node}; see: kubectl get pods --all-namespaces")
        for each in sorted(before):
            # As a crash does; an API server takes a minute to end after SIGTERM.
            self._demand(node, *CTR, "tasks", "kill", "--signal", "SIGKILL", each)

        def is_replaced() -> bool:
            now = self._containers(node, component)
            return bool(now) and not now & before and is_up()

        self._wait(node, component, is_replaced)

    def _containers(self, node: str, component: str) -> set[str]:
        """The ids of a component's running containers; none also while the node's runtime does not answer."""
        named = f'labels."io.kubernetes.container.name"=={component}'
        listed = set(self._inside(node, *CTR, "containers", "list", "--quiet", named).output.split())
        tasks = (line.split() for line in self._inside(node, *CTR, "tasks", "list").output.splitlines())
        return listed & {words[0] for words in tasks if words[-1:] == ["RUNNING"]}

    def _inside(self, node: str, *words: str) -> processes.Done:
        return self._ask("exec", node, *words)

    def _demand(self, node: str, *words: str) -> None:
        done = self._inside(node, *words)
        if done.status:
            raise interface.Problem(f"`{' '.join(words)}` failed in {node}: {done.words}")

    def _wait(self, node: str, component: str, question: Callable[[], bool]) -> None:
        try:
            processes.eventually(question, RESTART_SECONDS, f"{component} of {node} runs again")
        except TimeoutError as late:
            raise interface.Problem(f"{late}; see the journal of {node}: kind export logs") from None
