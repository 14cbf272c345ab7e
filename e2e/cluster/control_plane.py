"""A Kubernetes control plane without nodes, on loopback: etcd, kube-apiserver and kube-controller-manager.

Pods are admitted and stored, Deployments become ReplicaSets become Pods, and nothing schedules or runs them.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import binaries, credentials, other_releases, processes
from tests import loopback

HOST = "127.0.0.1"
READY_SECONDS = 90.0
# The addresses of Services.
SERVICES = "10.96.0.0/16"
POLICIES_BETA, POLICIES_STABLE = (f"admissionregistration.k8s.io/{version}" for version in ("v1beta1", "v1"))
# As on GKE: pods of the system's classes are for namespaces with a ResourceQuota that names the class.
LIMITED_CLASSES = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - {scopeName: PriorityClass, operator: In, values: [system-cluster-critical, system-node-critical]}
"""


class Component(NamedTuple):
    """One of the executable's programs: its flags, and the question that tells when it is ready."""

    name: str
    flags: Mapping[str, object]
    is_ready: Callable[[], bool]


class ControlPlane:
    """The components as one thing to start and stop. All files (certificates, data, logs) lie in `folder`."""

    def __init__(self, executable: Path, folder: Path, version: str) -> None:
        """`version` is the executable's, such as "v1.36.3"."""
        self.folder = folder
        self.version = version
        major, minor, *_ = binaries.numbers(self.version.removeprefix("v"))
        self.release = (major, minor)
        self.server = f"https://{HOST}:{loopback.free_port()}"
        self._executable = executable
        self._authority = credentials.Authority(folder)
        self._admin = self._authority.issue("admin", "admin", ["system:masters"])
        self.kubeconfig = self._write_kubeconfig("admin", self._admin)
        # All that changes: what runs, in the order it was started, and who has a kubeconfig.
        self._running: dict[str, processes.Process] = {}
        self._users: dict[str, Path] = {}
        self._users_lock = threading.Lock()
        self._components: dict[str, Component] = {}

    def start(self) -> None:
        """Returns when API server and controllers are ready. Raises processes.ProcessFailed with a log's end."""
        etcd = f"http://{HOST}:{loopback.free_port()}"
        components = (self._etcd(etcd), self._api_server(etcd), self._controllers())
        self._components = {each.name: each for each in components}
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
        """A kubeconfig for a user of that name, with the rights that RBAC grants to it."""
        with self._users_lock:
            if user not in self._users:
                file = "user-" + user.replace(":", "-")
                self._users[user] = self._write_kubeconfig(file, self._authority.issue(file, user))
            return self._users[user]

    def server_certificate(self, file: str, *hosts: str) -> credentials.Issued:
        """A certificate for a server that a test runs."""
        return self._authority.issue(file, hosts[0], hosts=hosts)

    @property
    def validating_policies(self) -> bool:
        """Whether ValidatingAdmissionPolicy is served in the form that the chart uses."""
        return self.release >= (1, 30)

    @property
    def mutating_policies(self) -> str:
        """The API in which MutatingAdmissionPolicy is served as the chart uses it; empty where it is not."""
        if self.release < (1, 34):
            return ""
        return POLICIES_BETA if self.release < (1, 36) else POLICIES_STABLE

    @property
    def certificate_authority(self) -> Path:
        """The certificate, as a PEM file, that verifies what `server_certificate` makes."""
        return self._authority.bundle

    def _write_kubeconfig(self, file: str, identity: credentials.Issued) -> Path:
        path = self.folder / f"{file}.kubeconfig"
        path.write_text(credentials.render(self.server, self._authority.bundle, identity))
        return path

    def _run(self, name: str) -> None:
        component = self._components[name]
        command = [str(self._executable), name, *processes.flags(component.flags)]
        self._running[name] = processes.Process(name, command, self.folder / f"{name}.log")
        self._running[name].wait_until_ready(component.is_ready, READY_SECONDS)

    def _answers_admin(self, url: str) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.bundle))
        context.load_cert_chain(self._admin.certificate, self._admin.key)
        return processes.answers_ok(url, context)

    def _etcd(self, client: str) -> Component:
        peer = f"http://{HOST}:{loopback.free_port()}"
        values = {
            "data-dir": self.folder / "etcd",
            "unsafe-no-fsync": "true",  # the data need not survive a crash, and a flush for each write is slow
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "warn",
        }
        return Component("etcd", values, lambda: processes.answers_ok(f"{client}/health"))

    def _api_server(self, etcd: str) -> Component:
        serving = self._authority.issue("kube-apiserver", "kube-apiserver", hosts=[HOST])
        limits = self.folder / "admission.yaml"
        limits.write_text(LIMITED_CLASSES)
        accounts = self.folder / "service-accounts"
        credentials.write_public_key(accounts.with_suffix(".pub"), credentials.write_key(accounts.with_suffix(".key")))
        values = {
            "etcd-servers": etcd,
            "bind-address": HOST,
            "advertise-address": HOST,
            "secure-port": self.server.rpartition(":")[2],
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "client-ca-file": self._authority.bundle,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",  # on top of the defaults, PodSecurity among them
            "admission-control-config-file": limits,
            "allow-privileged": "true",
            "service-cluster-ip-range": SERVICES,
            # The reconciler that announces the API server as the Service `kubernetes` refuses loopback addresses.
            "endpoint-reconciler-type": "none",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": accounts.with_suffix(".pub"),
            "service-account-signing-key-file": accounts.with_suffix(".key"),
            "shutdown-delay-duration": "0s",
            "profiling": "false",
            "v": 1,
            **self._policies(),
        }
        return Component("kube-apiserver", values, lambda: self._answers_admin(f"{self.server}/readyz"))

    def _policies(self) -> dict[str, object]:
        """Switches MutatingAdmissionPolicy on where it is there and off: the chart's mode policy is made of it."""
        if self.mutating_policies != POLICIES_BETA:
            return {}
        return {"feature-gates": "MutatingAdmissionPolicy=true", "runtime-config": f"{POLICIES_BETA}=true"}

    def _controllers(self) -> Component:
        name, port = "kube-controller-manager", loopback.free_port()
        serving = self._authority.issue(name, name, hosts=[HOST])
        values = {
            # A user named as in every cluster: the API server brings the roles for it.
            "kubeconfig": self.kubeconfig_of(f"system:{name}"),
            "bind-address": HOST,
            "secure-port": port,
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "leader-elect": "false",
            "root-ca-file": self._authority.bundle,
            "service-account-private-key-file": self.folder / "service-accounts.key",
            "use-service-account-credentials": "true",
            "v": 1,
        }
        return Component(name, values, lambda: self._answers_admin(f"https://{HOST}:{port}/healthz"))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ControlPlane]:
    """A control plane without nodes, of the release that the environment asks for, removed after the block.

    Raises what binaries and processes raise, and ValueError where CARPOOL_KUBERNETES is no release.
    """
    version = other_releases.wanted()
    plane = ControlPlane(other_releases.provide(version), folder, version)
    start = time.monotonic()
    try:
        plane.start()
        binaries.say(f"the control plane {version} was ready after {time.monotonic() - start:.0f} s: {plane.server}")
        yield plane
    finally:
        plane.stop()
