"""A kind, an engine and an API server for the tests of clusters: they remember what they were asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3

from e2e.cluster import client, engines, processes

PORT = 41327
# A machine, and a podman, that need nothing of ours.
ORDINARY = engines.Machine(helpers=frozenset({"netavark", "aardvark-dns", "iptables", "crun", "runc"}))
FACTS: dict[str, Any] = {
    "cgroupManager": "systemd",
    "eventLogger": "journald",
    "networkBackend": "netavark",
    "ociRuntime": {"name": "crun"},
}
SUFFIXES = ("control-plane", "worker", "worker2")


class Machine:
    """Programs as clusters call them (`processes.Run`), and the clusters that they make.

    Set `tools` to what is installed and answers, `broken` to words of commands that fail, `images` to what the engine
    has, `facts` to what podman tells of itself. `asked` has every command line in order, but for the questions whether
    kind and the engine are there.
    """

    def __init__(self, *tools: str) -> None:
        self.tools = tools or ("kind", "docker")
        self.broken: tuple[str, ...] = ()
        self.images = {"docker.io/kindest/node@sha256:7416a61b42b1662ca6ca89f02028ac133a309a2a30ba309614e8ec94d976dc5a"}
        self.facts = dict(FACTS)
        self.networks: set[str] = set()
        self.asked: list[str] = []
        self.environments: list[dict[str, str]] = []
        self.clusters: dict[str, ApiServer] = {}
        self._containers: dict[tuple[str, str], int] = {}

    def __call__(
        self, *words: str, seconds: float = 0, show: bool = False, environment: Mapping[str, str] | None = None
    ) -> processes.Done:
        if words[0] not in self.tools:
            # Docker's client, without its engine, prints nothing of use and fails.
            return processes.Done(1 if words[0] == "docker" else processes.NO_SUCH_PROGRAM, errors="cannot connect")
        if words[1] in ("version", "info"):
            return processes.Done(0, json.dumps({"host": self.facts}) if words[0] == "podman" else "28.2.2\n")
        self.asked.append(" ".join(words))
        self.environments.append(dict(environment or {}))
        if any(word in self.broken for word in words):
            return processes.Done(1, errors=f"ERROR: no {words[1]} today\n")
        return self._kind(*words[1:]) if words[0] == "kind" else self._engine(*words[1:])

    def connect(self, kubeconfig: Path) -> client.Client:
        server: Any = self.clusters.get(kubeconfig.read_text()) or Nobody()
        return server  # type: ignore[no-any-return]

    def _kind(self, *words: str) -> processes.Done:
        options = dict(zip(words[2::2], words[3::2], strict=False))
        name = options.get("--name", "")
        if words[:2] == ("get", "clusters"):
            return processes.Done(0, "".join(f"{each}\n" for each in self.clusters))
        if words[:2] == ("create", "cluster"):
            if name in self.clusters:
                return processes.Done(1, errors=f'node(s) already exist for a cluster with the name "{name}"')
            self.clusters[name] = ApiServer([f"{name}-{suffix}" for suffix in SUFFIXES])
            self.networks |= {value for key, value in self.environments[-1].items() if key.endswith("_NETWORK")}
        if words[:2] == ("delete", "cluster"):
            self.clusters.pop(name, None)
        if "--kubeconfig" in options and name in self.clusters:
            Path(options["--kubeconfig"]).write_text(name)
        return processes.Done(0)

    def _engine(self, *words: str) -> processes.Done:
        if words[:2] == ("image", "inspect"):
            return processes.Done(0 if words[-1] in self.images else 1)
        if words[0] == "images":
            return processes.Done(0, "".join(f"{image}\n" for image in sorted(self.images)))
        if words[:2] == ("network", "inspect"):
            return processes.Done(0 if words[-1] in self.networks else 1)
        if words[:2] == ("network", "rm"):
            self.networks.remove(words[-1])
        if words[0] == "port":
            return processes.Done(0, f"127.0.0.1:{PORT}\n")
        return self._inside(words[1], *words[2:]) if words[0] == "exec" else processes.Done(0)

    def _inside(self, node: str, *program: str) -> processes.Done:
        if program[0] != "ctr":
            return processes.Done(0)
        words = program[3:]
        if words[:2] == ("containers", "list"):
            component = words[-1].partition("==")[2]
            latest = self._containers.setdefault((node, component), 1)
            # The kubelet keeps the last one that has ended.
            return processes.Done(0, "".join(f"{component}-{number}\n" for number in range(1, latest + 1)))
        if words[:2] == ("tasks", "list"):
            running = (f"{name}-{latest} 1 RUNNING\n" for (at, name), latest in self._containers.items() if at == node)
            return processes.Done(0, "".join(["TASK PID STATUS\n", *running]))
        if words[:2] == ("tasks", "kill"):
            self._containers[(node, words[-1].rpartition("-")[0])] += 1
        return processes.Done(0)


class ApiServer:
    """Nodes that are Ready; `answers` False: nobody listens."""

    def __init__(self, nodes: list[str]) -> None:
        self.nodes = {name: node(name) for name in nodes}
        self.answers = True

    def call(self, method: str, path: str) -> client.Answer:
        if not self.answers:
            Nobody().call(method, path)
        return client.Answer({}, ())

    def get(self, kind: str, name: str) -> client.Object:
        assert kind == "Node"
        copied: client.Object = json.loads(json.dumps(self.nodes[name]))
        return copied

    def list(self, kind: str) -> list[client.Object]:
        return [self.get(kind, name) for name in self.nodes]

    def close(self) -> None:
        pass


class Nobody:
    """An address where no API server listens."""

    def call(self, method: str, path: str) -> client.Answer:
        raise urllib3.exceptions.MaxRetryError(None, path)  # type: ignore[arg-type]

    def close(self) -> None:
        pass


def node(name: str) -> client.Object:
    ready = {"type": "Ready", "status": "True"}
    return {"metadata": {"name": name}, "status": {"conditions": [ready]}}
