"""An injector that runs beside the tests, not in a pod: its process, and its rights and webhooks from the Helm chart.

The registration names a Service, as in production, so the API server looks for that Service's name in the injector's
certificate. The Service is an external name for this machine and needs no pods and no kube-proxy.
"""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import client, control_plane, processes
from e2e.cluster import kubectl as kubectls
from tests import loopback
from tests.charts import helm

# Installations in one API server must not meet each other's pods: each acts in the namespaces that name it.
ACTS_HERE = "e2e.carpool.dev/installation"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
RIGHTS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
READY_SECONDS = 60.0
# The admin's choices that every injector here is started with.
CONFIG = {"image": "registry.example.com/carpool-sidecar:e2e"}


def narrowed_to(name: str) -> tuple[str, ...]:
    """Helm's words for webhooks that act only in the namespaces that name an installation."""
    expression = {"key": ACTS_HERE, "operator": "In", "values": [name]}
    return ("--set-json", f"webhook.namespaceSelector={json.dumps([expression])}")


def send_reviews_to(admin: client.Client, kind: str, name: str, port: int) -> None:
    """Has the API server call another port for the webhooks of a configuration, and leaves all else as it is."""
    entries = admin.get(kind, name)["webhooks"]
    changes = [
        {"op": "replace", "path": f"/webhooks/{index}/clientConfig/service/port", "value": port}
        for index in range(len(entries))
    ]
    admin.call("PATCH", client.path_of(kind, None, name), changes, "application/json-patch+json")


class Installation:
    """One injector's objects in the cluster. Several live side by side: `name` becomes a part of all their names."""

    def __init__(self, admin: client.Client, name: str) -> None:
        self._admin = admin
        self._release = f"carpool-{name}"
        self.name = f"{self._release}-injector"
        self.namespace = f"e2e-{name}"
        self.secret = f"{self.name}-certificates"
        self.user = f"system:serviceaccount:{self.namespace}:{self.name}"
        """Who the chart gives the injector's rights to."""
        self.labels = {ACTS_HERE: name}
        """A namespace with these labels is in this installation's reach."""

    def install(self, port: int, failure_policy: str = "Ignore") -> None:
        """Creates everything, with webhooks that are called at `port` of this machine."""
        self._admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        service = {"type": "ExternalName", "externalName": control_plane.HOST}
        metadata = {"name": self.name, "namespace": self.namespace}
        self._admin.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
        for thing in self._of_the_chart(failure_policy):
            for entry in thing.get("webhooks", ()):
                entry["clientConfig"]["service"]["port"] = port
            self._admin.create(thing)

    def uninstall(self) -> None:
        """Takes the webhooks away; what else is left does nothing."""
        for kind in WEBHOOKS:
            with contextlib.suppress(client.Refused):
                self._admin.delete(kind, self.name)

    def ca_bundles(self) -> list[str | None]:
        """The caBundle (base64) of every webhook, None where there is none yet."""
        configurations = [self._admin.get(kind, self.name) for kind in WEBHOOKS]
        return [entry["clientConfig"].get("caBundle") for each in configurations for entry in each["webhooks"]]

    def call_at(self, port: int) -> None:
        """Sends reviews to another port from now on, and leaves all else as it is."""
        for kind in WEBHOOKS:
            send_reviews_to(self._admin, kind, self.name, port)

    def _of_the_chart(self, failure_policy: str) -> list[client.Object]:
        """The rights and webhooks that a release of the chart has."""
        name = self.labels[ACTS_HERE]
        words = (f"--set=webhook.failurePolicy={failure_policy}", "--set=webhook.namePrefix=", *narrowed_to(name))
        rendered = kubectls.load(helm.template(*words, release=self._release, namespace=self.namespace))
        return [each for each in rendered if each["kind"] in (*RIGHTS, *WEBHOOKS)]


class Injector:
    """A running `carpool-injector serve` for one installation. Several may serve the same one."""

    def __init__(
        self,
        installed: Installation,
        kubeconfig: Path,
        folder: Path,
        more: Sequence[str] = (),
        port: int = 0,
    ) -> None:
        """Listens on a free port, or on `port`. `more` are further flags of `serve`."""
        self.port = port or loopback.free_port()
        self._metrics_port = loopback.free_port()
        self._installed = installed
        self._command = [
            *(sys.executable, "-m", "carpool_injector", "serve"),
            *("--kubeconfig", str(kubeconfig)),
            *("--host", control_plane.HOST),
            *("--port", str(self.port)),
            *("--config", str(self._write_config(folder))),
            *("--metrics-port", str(self._metrics_port)),
            *("--service-name", installed.name),
            *("--namespace", installed.namespace),
            *("--secret-name", installed.secret),
            *("--mutating-webhook", installed.name),
            *("--validating-webhook", installed.name),
            *("--quiet-period", "0"),  # no endpoints here that would have to forget it first
            *more,
        ]
        self._log = folder / f"{installed.name}-{self.port}.log"
        self._process: processes.Process | None = None

    @staticmethod
    def _write_config(folder: Path) -> Path:
        path = folder / "config.yaml"
        path.write_text(json.dumps(CONFIG))
        return path

    def start(self, within: float = READY_SECONDS) -> None:
        """Returns when the injector says that the API server can call it. Raises processes.ProcessFailed."""
        # From the root of the checkout, where `-m carpool_injector` finds this tree's injector and no installed one.
        self._process = processes.Process(self._installed.name, self._command, self._log, helm.ROOT)
        self._process.wait_until_ready(self.is_ready, within)

    def stop(self) -> None:
        """Ends it as a kubelet does, and waits. A second call does nothing."""
        if self._process is not None:
            self._process.stop()

    close = stop

    def is_ready(self) -> bool:
        return processes.answers_ok(self._url("readyz"))

    def readiness(self) -> str:
        """The answer to a readiness probe, in words."""
        try:
            return self._get("readyz")
        except urllib.error.HTTPError as not_ready:
            with not_ready:
                return not_ready.read().decode()

    def metrics(self) -> str:
        return self._get("metrics")

    def _url(self, path: str) -> str:
        return f"http://{control_plane.HOST}:{self._metrics_port}/{path}"

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url(path), timeout=5) as answer:
            return str(answer.read().decode())
