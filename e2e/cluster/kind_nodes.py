"""What runs inside the node containers of a kind cluster, and how each of it is made to start again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from e2e.cluster import backends, commands, processes

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


class Nodes:
    """The containers of one cluster's nodes, the control plane's first, reached through the engine they run in."""

    def __init__(self, engine: str, names: Sequence[str], run: commands.Run) -> None:
        self.names = tuple(names)
        self._engine = engine
        self._run = run

    def restart(self, component: str, is_up: Callable[[], bool]) -> None:
        """Ends a component wherever it runs, one node after the other. Returns when it runs and `is_up` answers true.

        Raises backends.Problem for an unknown component, and where it does not come back within two minutes.
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
            raise backends.Problem(f"there is no {component!r} to restart; there are: {known}")

    def _restart_service(self, node: str, service: str) -> None:
        self._demand(node, "systemctl", "restart", service)
        self._wait(node, service, lambda: self._inside(node, *SERVICES[service]).status == 0)

    def _restart_container(self, node: str, component: str, is_up: Callable[[], bool]) -> None:
        before = self._containers(node, component)
        if not before:
            raise backends.Problem(f"{component} does not run; see: {self._engine} exec {node} crictl ps --all")
        self._demand(node, "crictl", "stop", "--timeout", str(GRACE_SECONDS), *sorted(before))

        def is_replaced() -> bool:
            now = self._containers(node, component)
            return bool(now) and not now & before and is_up()

        self._wait(node, component, is_replaced)

    def _containers(self, node: str, component: str) -> set[str]:
        """The ids of a component's running containers; none also while the node's runtime does not answer."""
        return set(self._inside(node, "crictl", "ps", "--quiet", "--name", f"^{component}$").output.split())

    def _inside(self, node: str, *words: str) -> commands.Done:
        return self._run(self._engine, "exec", node, *words)

    def _demand(self, node: str, *words: str) -> None:
        done = self._inside(node, *words)
        if done.status:
            raise backends.Problem(f"`{' '.join(words)}` failed in {node}: {done.words}")

    def _wait(self, node: str, component: str, question: Callable[[], bool]) -> None:
        try:
            processes.eventually(question, RESTART_SECONDS, f"{component} of {node} runs again")
        except TimeoutError as late:
            raise backends.Problem(f"{late}; see: {self._engine} exec {node} journalctl --lines 50") from None
