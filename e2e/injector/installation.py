"""What the Helm chart puts into a cluster, for an injector that runs beside the tests instead of in a pod.

The registration names a Service, as in production, so the API server asks for that Service's name in the injector's
certificate. The Service is an external name for this machine, which needs no pods and no kube-proxy.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from ruamel import yaml

from e2e.cluster import client, control_plane

FOLDER = Path(__file__).parent
# As in the files; every installation gets names of its own, made from these.
NAME = "carpool-injector"
NAMESPACE = "carpool-system"
# Installations in one API server must not meet each other's pods: each acts in the namespaces that name it.
ACTS_HERE = "e2e.carpool.dev/installation"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


class Installation:
    """One injector's objects in the cluster. Several live side by side: `name` becomes a part of all their names."""

    def __init__(self, admin: client.Client, name: str) -> None:
        self._admin = admin
        self.name = f"{NAME}-{name}"
        self.namespace = f"{NAMESPACE}-{name}"
        self.secret = f"{self.name}-certificates"
        self.labels = {ACTS_HERE: name}
        """A namespace with these labels is in this installation's reach."""

    def install(self, port: int, failure_policy: str = "Ignore") -> None:
        """Creates everything, with webhooks that are called at `port` of this machine."""
        self._admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        service = {"type": "ExternalName", "externalName": control_plane.HOST}
        metadata = {"name": self.name, "namespace": self.namespace}
        self._admin.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
        for thing in self._read("access.yaml"):
            self._admin.create(thing)
        for configuration in self._read("webhooks.yaml"):
            for entry in configuration["webhooks"]:
                self._point(entry, port)
                if configuration["kind"] == WEBHOOKS[0]:
                    entry["failurePolicy"] = failure_policy
            self._admin.create(configuration)

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
            entries = self._admin.get(kind, self.name)["webhooks"]
            changes = [
                {"op": "replace", "path": f"/webhooks/{index}/clientConfig/service/port", "value": port}
                for index in range(len(entries))
            ]
            path = client.path_of(kind, None, self.name)
            self._admin.call("PATCH", path, changes, "application/json-patch+json")

    def _read(self, file: str) -> Iterator[client.Object]:
        text = (FOLDER / file).read_text().replace(NAME, self.name).replace(NAMESPACE, self.namespace)
        for document in yaml.YAML(typ="safe").load_all(text):
            # An alias in YAML is one object in several places; by way of JSON each place gets its own.
            yield json.loads(json.dumps(document))

    def _point(self, entry: client.Object, port: int) -> None:
        entry["clientConfig"]["service"]["port"] = port
        matches = entry["namespaceSelector"]["matchExpressions"]
        matches.append({"key": ACTS_HERE, "operator": "In", "values": list(self.labels.values())})
