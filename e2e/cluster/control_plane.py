"""A Kubernetes control plane on loopback: etcd, kube-apiserver and kube-controller-manager, without nodes.

Pods are admitted and stored, Deployments become ReplicaSets become Pods; nothing schedules or runs them.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import authority, binaries, processes

HOST = "127.0.0.1"
READY_SECONDS = 90.0
SERVICE_RANGE = "10.96.0.0/16"
# What a certificate of the API server has to say for clients outside and inside a cluster. 10.96.0.1 is the address
# that the range above gives to the service named kubernetes.
API_SERVER_NAMES = (HOST, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1")


def flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def kubeconfig(server: str, bundle: Path, identity: authority.Issued) -> str:
    """A kubeconfig (JSON, which is YAML) for whoever `identity` is. Names files, so it lives as long as they do."""
    user = {"client-certificate": str(identity.certificate), "client-key": str(identity.key)}
    context = {"cluster": "e2e", "user": "e2e", "namespace": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": str(bundle)}}],
        "users": [{"name": "e2e", "user": user}],
        "contexts": [{"name": "e2e", "context": context}],
        "current-context": "e2e",
    }
    return json.dumps(document, indent=2) + "\n"


def answers_ok(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a GET is answered with 200 now."""
    try:
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


class Component(NamedTuple):
    """One of the executable's programs: its flags, and the question that tells when it is ready."""

    name: str
    flags: Mapping[str, object]
    is_ready: Callable[[], bool]


class ControlPlane:
    """The components as one thing to start and stop. All files (certificates, data, logs) lie in `folder`."""

    def __init__(self, executable: Path, folder: Path) -> None:
        self.folder = folder
        self.server = f"https://{HOST}:{processes.free_port()}"
        self._executable = executable
        self._authority = authority.Authority(folder)
        self._admin = self._authority.issue("admin", "admin", ["system:masters"])
        self.kubeconfig = self._write_kubeconfig("admin", self._admin)
        # All that changes: what runs, in the order it was started, and who has a kubeconfig.
        self._running: dict[str, processes.Process] = {}
        self._users: dict[str, Path] = {}
        self._users_lock = threading.Lock()
        self._components: dict[str, Component] = {}

    def start(self) -> None:
        """Returns when API server and controllers are ready. Raises processes.ProcessFailed with a log's end."""
        etcd = f"http://{HOST}:{processes.free_port()}"
        self._components = {each.name: each for each in (self._etcd(etcd), self._api_server(etcd), self._controllers())}
        for name in self._components:
            self._run(name)

    def stop(self) -> None:
        """Ends the components, the last one started first."""
        while self._running:
            self._running.popitem()[1].stop()

    def restart(self, component: str) -> None:
        """Stops a component and starts it again, with the same address, certificates and data."""
        self._running[component].stop()
        self._run(component)

    def kubeconfig_of(self, user: str) -> Path:
        """A kubeconfig for a user of that name, who may do what RBAC grants it and no more."""
        with self._users_lock:
            if user not in self._users:
                file = "user-" + user.replace(":", "-")
                self._users[user] = self._write_kubeconfig(file, self._authority.issue(file, user))
            return self._users[user]

    def server_certificate(self, file: str, *hosts: str) -> authority.Issued:
        """A certificate for a server of the tests' own."""
        return self._authority.issue(file, hosts[0], hosts=hosts)

    @property
    def certificate_authority(self) -> Path:
        """The certificate, as a PEM file, that verifies what `server_certificate` makes."""
        return self._authority.bundle

    def _write_kubeconfig(self, file: str, identity: authority.Issued) -> Path:
        path = self.folder / f"{file}.kubeconfig"
        path.write_text(kubeconfig(self.server, self._authority.bundle, identity))
        return path

    def _run(self, name: str) -> None:
        component = self._components[name]
        command = [str(self._executable), name, *flags(component.flags)]
        self._running[name] = processes.Process(name, command, self.folder / f"{name}.log")
        self._running[name].wait_until_ready(component.is_ready, READY_SECONDS)

    def _answers_admin(self, url: str) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.bundle))
        context.load_cert_chain(self._admin.certificate, self._admin.key)
        return answers_ok(url, context)

    def _etcd(self, client: str) -> Component:
        peer = f"http://{HOST}:{processes.free_port()}"
        values = {
            "data-dir": self.folder / "etcd",
            "unsafe-no-fsync": "true",  # nobody misses the data, and a flush per write is slow
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "warn",
        }
        return Component("etcd", values, lambda: answers_ok(f"{client}/health"))

    def _api_server(self, etcd: str) -> Component:
        serving = self._authority.issue("kube-apiserver", "kube-apiserver", hosts=API_SERVER_NAMES)
        accounts = self.folder / "service-accounts"
        authority.write_public_key(accounts.with_suffix(".pub"), authority.write_key(accounts.with_suffix(".key")))
        values = {
            "etcd-servers": etcd,
            "bind-address": HOST,
            "advertise-address": HOST,
            "endpoint-reconciler-type": "none",  # it refuses to announce a loopback address
            "secure-port": self.server.rpartition(":")[2],
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "client-ca-file": self._authority.bundle,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",  # on top of the defaults, PodSecurity among them
            "allow-privileged": "true",
            "service-cluster-ip-range": SERVICE_RANGE,
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": accounts.with_suffix(".pub"),
            "service-account-signing-key-file": accounts.with_suffix(".key"),
            "shutdown-delay-duration": "0s",
            "profiling": "false",
            "v": 1,
        }
        return Component("kube-apiserver", values, lambda: self._answers_admin(f"{self.server}/readyz"))

    def _controllers(self) -> Component:
        port = processes.free_port()
        serving = self._authority.issue("kube-controller-manager", "kube-controller-manager", hosts=[HOST])
        values = {
            # Named as in every cluster: the API server brings the roles for this user and for its controllers.
            "kubeconfig": self.kubeconfig_of("system:kube-controller-manager"),
            "bind-address": HOST,
            "secure-port": port,
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "root-ca-file": self._authority.bundle,
            "service-account-private-key-file": self.folder / "service-accounts.key",
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            "v": 1,
        }
        healthy = f"https://{HOST}:{port}/healthz"
        return Component("kube-controller-manager", values, lambda: self._answers_admin(healthy))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ControlPlane]:
    """A control plane that is ready inside the block and gone after it. Raises what binaries and processes raise."""
    plane = ControlPlane(binaries.provide(), folder)
    start = time.monotonic()
    try:
        plane.start()
        binaries.say(f"the control plane was ready after {time.monotonic() - start:.0f} s: {plane.server}")
        yield plane
    finally:
        plane.stop()
