"""A client of the API server for plain JSON: it sends objects unchanged, and returns the warnings of the answer.

The typed models of the official client drop fields they do not know, and its calls drop the Warning headers. So only
its transport and its reading of kubeconfigs are used.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes.config

Object = dict[str, Any]

# The folder of each kind's API and its plural: all that a URL needs.
RESOURCES = {
    "ConfigMap": ("api/v1", "configmaps"),
    "LimitRange": ("api/v1", "limitranges"),
    "Namespace": ("api/v1", "namespaces"),
    "Node": ("api/v1", "nodes"),
    "Pod": ("api/v1", "pods"),
    "PodTemplate": ("api/v1", "podtemplates"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Event": ("api/v1", "events"),
    "EndpointSlice": ("apis/discovery.k8s.io/v1", "endpointslices"),
    "DaemonSet": ("apis/apps/v1", "daemonsets"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "ReplicaSet": ("apis/apps/v1", "replicasets"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "CronJob": ("apis/batch/v1", "cronjobs"),
    "Job": ("apis/batch/v1", "jobs"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "RuntimeClass": ("apis/node.k8s.io/v1", "runtimeclasses"),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "MutatingWebhookConfiguration": ("apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
    "ValidatingWebhookConfiguration": ("apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "InferenceService": ("apis/serving.kserve.io/v1beta1", "inferenceservices"),
}
WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
# Admission is slow on a busy machine: ten webhook calls of 5 s each still end before this.
TIMEOUT_SECONDS = 60.0


class Answer(NamedTuple):
    """What the API server stored or found, and the warnings it sent along."""

    object: Object
    warnings: tuple[str, ...]


class Refused(Exception):
    """The API server's answer was not a success: the HTTP status, its message, and the warnings it sent along."""

    def __init__(self, status: int, message: str, warnings: tuple[str, ...] = ()) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.warnings = warnings


def warnings_in(headers: list[str]) -> tuple[str, ...]:
    """The texts in Warning headers (RFC 7234: `299 AGENT "TEXT"`, one or several in a header)."""
    texts = [text for header in headers for text in WARNING.findall(header)]
    return tuple(re.sub(r"\\(.)", r"\1", text) for text in texts)


def path_of(kind: str, namespace: str | None, name: str | None = None) -> str:
    folder, plural = RESOURCES[kind]
    parts = [folder, *(["namespaces", namespace] if namespace else []), plural, *([name] if name else [])]
    return "/" + "/".join(parts)


class Client:
    """Calls as the user of one kubeconfig. Every method raises Refused where the API server does not say yes."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api: Any = kubernetes.config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._api.rest_client.pool_manager.clear()

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Answer:
        url = self._api.configuration.host + path
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        answer = self._api.call_api(method, url, headers, body, _request_timeout=TIMEOUT_SECONDS)
        text = answer.read()
        warnings = warnings_in(answer.headers.getlist("Warning"))
        if not 200 <= answer.status <= 299:
            raise Refused(answer.status, message_in(text), warnings)
        return Answer(json.loads(text), warnings)

    def create(self, thing: Object, *, dry_run: bool = False) -> Answer:
        namespace = thing["metadata"].get("namespace")
        query = "?dryRun=All" if dry_run else ""
        return self.call("POST", path_of(thing["kind"], namespace) + query, thing)

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        return self.call("GET", path_of(kind, namespace, name)).object

    def list(self, kind: str, namespace: str | None = None, labels: str = "") -> list[Object]:
        query = f"?labelSelector={labels}" if labels else ""
        items: list[Object] = self.call("GET", path_of(kind, namespace) + query).object["items"]
        return items

    def patch(self, kind: str, name: str, change: Object, namespace: str | None = None) -> Answer:
        """A JSON merge patch: members are replaced, null removes."""
        return self.call("PATCH", path_of(kind, namespace, name), change, "application/merge-patch+json")

    def replace(self, thing: Object) -> Answer:
        metadata = thing["metadata"]
        return self.call("PUT", path_of(thing["kind"], metadata.get("namespace"), metadata["name"]), thing)

    def delete(self, kind: str, name: str, namespace: str | None = None) -> None:
        """Deletes at once: on a cluster without nodes nobody would end a pod's grace period."""
        path = path_of(kind, namespace, name) + "?gracePeriodSeconds=0&propagationPolicy=Background"
        self.call("DELETE", path)


def message_in(body: str | bytes | None) -> str:
    """The message in a Status object, or the whole body of another answer."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, TypeError, KeyError):
        return text
