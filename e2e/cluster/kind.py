"""The kind backend: nodes in containers of Docker or Podman, made by kind (https://kind.sigs.k8s.io)."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import kubernetes.config
import urllib3

from e2e.cluster import binaries, client, interface, processes

CONFIG = Path(__file__).parents[1] / "kind" / "config.yaml"
VERSION = "v0.30.0"
# Each engine, and a question that only a running one can answer.
ENGINES = {
    "docker": ("docker", "info", "--format", "{{.ServerVersion}}"),
    "podman": ("podman", "info", "--format", "{{.Version.Version}}"),
}
PROVIDER = "KIND_EXPERIMENTAL_PROVIDER"
ANSWER_SECONDS = 15.0
# A node image of a gigabyte may have to be pulled first.
CREATE_SECONDS, CONTROL_PLANE_READY = 900.0, "3m"
NODES_SECONDS, LOAD_SECONDS = 180.0, 300.0

Connect = Callable[[Path], client.Client]
# Services of a node's systemd, and what succeeds in the node once they are at work.
SERVICES = {
    "containerd": ("crictl", "info"),
    "kubelet": ("curl", "--fail", "--silent", "http://127.0.0.1:10248/healthz"),
}
# Containers, which the kubelet starts again: static pods of the control plane, and of a DaemonSet on all nodes.
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
ON_ALL_NODES = ("kube-proxy",)
GRACE_SECONDS = 10
RESTART_SECONDS = 120.0


def engine(run: processes.Run = processes.run) -> str:
    """The container engine that answers, docker or podman; "" if none does.

    KIND_EXPERIMENTAL_PROVIDER, with which kind itself is told what to use, leaves only the one that it names.
    """
    wanted = os.environ.get(PROVIDER, "")
    for name, question in ENGINES.items():
        if wanted in ("", name):
            done = run(*question, seconds=ANSWER_SECONDS)
            if done.status == 0 and done.output.strip():
                return name
    return ""


class Kind:
    """See interface.Cluster. `nodes` are the two workers: pods are not placed on the control plane.

    Everything about a cluster is asked of kind and the engine; the kubeconfig is a copy that can be had again.
    """

    address = "127.0.0.1"

    def __init__(self, name: str, run: processes.Run = processes.run, connect: Connect = client.Client) -> None:
        self.name = interface.check_name(name)
        self.nodes = (f"{name}-worker", f"{name}-worker2")
        self.kubeconfig = binaries.cache_folder() / "kind" / f"{name}.kubeconfig"
        self._control_plane = f"{name}-control-plane"
        self._run = run
        self._connect = connect

    @property
    def ingress(self) -> str:
        """Its port is a free one, chosen when the cluster is made. Raises interface.Problem while that is not up."""
        words = (self._engine, "port", self._control_plane, f"{interface.INGRESS_NODE_PORT}/tcp")
        mapped = self._demand("look up the port of the ingress", words)
        port = mapped.partition("\n")[0].rpartition(":")[2]
        if not port.isdigit():
            raise interface.Problem(f"{self._control_plane} has no port for the ingress; was it made from {CONFIG}?")
        return f"http://{self.address}:{port}"

    # --- Up and down -------------------------------------------------------------------------------------------------

    def up(self) -> None:
        self._demand_kind()
        start = time.monotonic()
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        if self._exists():
            self._kind("write the kubeconfig", "export", "kubeconfig", *self._names)
        if self.is_up():
            binaries.say(f"{self.name} is up already")
        else:
            self.down()  # removes what a crash left or what does not answer
            options = ("--config", str(CONFIG), "--wait", CONTROL_PLANE_READY)
            self._kind("make the cluster", "create", "cluster", *self._names, *options, seconds=CREATE_SECONDS)
        with self._admin() as admin:
            self._wait_for_nodes(admin)
            interface.announce_gpus(admin, self.nodes[-1], interface.GPUS)
        binaries.say(f"the nodes of {self.name} are Ready after {time.monotonic() - start:.0f} s")

    def down(self) -> None:
        if self._has_kind and engine(self._run):
            self._kind("remove the cluster", "delete", "cluster", *self._names)
        elif self.kubeconfig.exists():
            self._demand_kind()  # a cluster existed, and its state cannot be read
        self.kubeconfig.unlink(missing_ok=True)

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

    def _exists(self) -> bool:
        """Whether kind knows a cluster of that name, in whatever state."""
        return self.name in self._kind("list the clusters", "get", "clusters").splitlines()

    def _wait_for_nodes(self, admin: client.Client) -> None:
        wanted = {self._control_plane, *self.nodes}
        try:
            processes.eventually(lambda: interface.ready(admin) >= wanted, NODES_SECONDS, "all nodes are Ready")
        except TimeoutError as late:
            lacking = ", ".join(sorted(wanted - interface.ready(admin)))
            raise interface.Problem(f"{late}: not {lacking}; see: kind export logs --name {self.name}") from None

    # --- Use ---------------------------------------------------------------------------------------------------------

    def load(self, archive: Path) -> None:
        if not archive.is_file():
            raise interface.Problem(f"there is no archive {archive}; `make images ARGS='--output FOLDER'` makes some")
        words = ("load", "image-archive", str(archive), "--name", self.name)
        self._kind(f"load {archive.name}", *words, seconds=LOAD_SECONDS)

    def restart(self, component: str) -> None:
        every = Nodes(self._engine, (self._control_plane, *self.nodes), self._run)
        every.restart(component, self.is_up)

    # --- Programs ----------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[str, ...]:
        """The cluster's, and our own kubeconfig: kind would write to the user's."""
        return ("--name", self.name, "--kubeconfig", str(self.kubeconfig))

    @functools.cached_property
    def _engine(self) -> str:
        """Raises interface.Problem where none answers."""
        if found := engine(self._run):
            return found
        wanted = os.environ.get(PROVIDER)
        who = f"{wanted}, which {PROVIDER} names, does not answer" if wanted else "neither docker nor podman answers"
        raise interface.Problem(
            f"{who}, and kind needs one; start it (`docker info` tells more), or take BACKEND=local"
        )

    @property
    def _has_kind(self) -> bool:
        return self._run("kind", "version").status == 0

    def _demand_kind(self) -> None:
        """Raises interface.Problem where kind or an engine is missing."""
        if not self._has_kind:
            raise interface.Problem(
                f"there is no kind; `go install sigs.k8s.io/kind@{VERSION}` and put Go's bin folder on PATH,"
                " see https://kind.sigs.k8s.io, or take the other backend: BACKEND=local"
            )
        _ = self._engine

    def _admin(self) -> contextlib.closing[client.Client]:
        return contextlib.closing(self._connect(self.kubeconfig))

    def _kind(self, purpose: str, *words: str, seconds: float = processes.SECONDS) -> str:
        """Runs kind and returns its output. Making a cluster takes minutes, and kind shows its progress itself."""
        # By default kind uses Docker where its client is installed, even if the engine does not answer.
        environment = {PROVIDER: "podman"} if self._engine == "podman" else {}
        show = words[0] == "create"
        return self._demand(purpose, ("kind", *words), seconds=seconds, show=show, environment=environment)

    def _demand(
        self,
        purpose: str,
        words: tuple[str, ...],
        seconds: float = processes.SECONDS,
        show: bool = False,
        environment: dict[str, str] | None = None,
    ) -> str:
        done = self._run(*words, seconds=seconds, show=show, environment=environment)
        if done.status:
            said = done.words if done.errors or not show else "what it said is above"
            raise interface.Problem(f"cannot {purpose}: `{' '.join(words)}` failed: {said}")
        return done.output


class Nodes:
    """The containers of one cluster's nodes, the control plane's first, reached through the engine they run in."""

    def __init__(self, engine: str, names: Sequence[str], run: processes.Run) -> None:
        self.names = tuple(names)
        self._engine = engine
        self._run = run

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
        self._demand(node, "systemctl", "restart", service)
        self._wait(node, service, lambda: self._inside(node, *SERVICES[service]).status == 0)

    def _restart_container(self, node: str, component: str, is_up: Callable[[], bool]) -> None:
        before = self._containers(node, component)
        if not before:
            raise interface.Problem(f"{component} does not run; see: {self._engine} exec {node} crictl ps --all")
        self._demand(node, "crictl", "stop", "--timeout", str(GRACE_SECONDS), *sorted(before))

        def is_replaced() -> bool:
            now = self._containers(node, component)
            return bool(now) and not now & before and is_up()

        self._wait(node, component, is_replaced)

    def _containers(self, node: str, component: str) -> set[str]:
        """The ids of a component's running containers; none also while the node's runtime does not answer."""
        return set(self._inside(node, "crictl", "ps", "--quiet", "--name", f"^{component}$").output.split())

    def _inside(self, node: str, *words: str) -> processes.Done:
        return self._run(self._engine, "exec", node, *words)

    def _demand(self, node: str, *words: str) -> None:
        done = self._inside(node, *words)
        if done.status:
            raise interface.Problem(f"`{' '.join(words)}` failed in {node}: {done.words}")

    def _wait(self, node: str, component: str, question: Callable[[], bool]) -> None:
        try:
            processes.eventually(question, RESTART_SECONDS, f"{component} of {node} runs again")
        except TimeoutError as late:
            raise interface.Problem(f"{late}; see: {self._engine} exec {node} journalctl --lines 50") from None
