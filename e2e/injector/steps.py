"""Steps that several tests take, and the types of the fixtures that make things for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from e2e.cluster import client, processes
from e2e.injector import installation, manifests

Building = Callable[[str], contextlib.AbstractContextManager[None]]
NewInstallation = Callable[[], installation.Installation]
NewNamespace = Callable[..., str]
StartInjector = Callable[..., installation.Injector]

# The API server learns of registrations and labels by watching itself; a controller makes service accounts.
SETTLED_SECONDS = 20.0


def create_namespace(admin: client.Client, name: str, labels: dict[str, str]) -> str:
    """Returns its name when pods can be created in it: it has the service account that they run as."""
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    processes.eventually(lambda: admin.list("ServiceAccount", name), SETTLED_SECONDS, f"{name} has a service account")
    return name


def wait_until_effective(admin: client.Client, namespace: str) -> None:
    """Returns when a pod that asks for the sidecar there would get it."""

    def is_injected() -> bool:
        try:
            answer = admin.create(manifests.pod(namespace), dry_run=True)
        except client.Refused:  # by failurePolicy Fail, as long as the API server does not trust the injector
            return False
        return manifests.has_sidecar(answer.object)

    processes.eventually(is_injected, SETTLED_SECONDS, f"pods in {namespace} get the sidecar")


def is_refused(admin: client.Client, pod: client.Object) -> bool:
    """Whether the pod would be refused now for want of an injector. Any other refusal is raised."""
    try:
        admin.create(pod, dry_run=True)
    except client.Refused as refused:
        if "failed calling webhook" not in refused.message:
            raise
        return True
    return False


def wait_until_refused(admin: client.Client, pod: client.Object) -> None:
    """Returns when the API server knows a registration with failurePolicy Fail that nobody answers for."""
    processes.eventually(lambda: is_refused(admin, pod), SETTLED_SECONDS, "pods are refused")
