"""An injector in the wrong hands can write caBundle into its own webhook configurations, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.charts import releases
from e2e.cluster import client, control_plane, processes

NewRelease = Callable[[], releases.Release]
SETTLED_SECONDS = 20.0
BUNDLE = "LS0tLS1CRUdJTg=="
ENTRY = "/webhooks/0"
CHANGES: dict[str, Any] = {
    "all objects": (f"{ENTRY}/rules/0/resources", ["*"]),
    "another server": (f"{ENTRY}/clientConfig/service/namespace", "default"),
    "another path": (f"{ENTRY}/clientConfig/service/path", "/other"),
    "all namespaces": (f"{ENTRY}/namespaceSelector", {}),
    "all pods": (f"{ENTRY}/objectSelector", {}),
    "no conditions": (f"{ENTRY}/matchConditions", []),
    "blocking": (f"{ENTRY}/failurePolicy", "Fail"),
    "waiting": (f"{ENTRY}/timeoutSeconds", 30),
    "side effects": (f"{ENTRY}/sideEffects", "None"),
    "once": (f"{ENTRY}/reinvocationPolicy", "Never"),
    "exactly": (f"{ENTRY}/matchPolicy", "Exact"),
    "another name": (f"{ENTRY}/name", "other.carpool.dev"),
    "labels": ("/metadata/labels", {}),
    "annotations": ("/metadata/annotations", {"a": "b"}),
    "finalizers": ("/metadata/finalizers", ["a.example.com/b"]),
}


@pytest.fixture
def released(plane: control_plane.ControlPlane, new_release: NewRelease) -> releases.Release:
    if not plane.validating_policies:
        pytest.skip(f"the chart guards webhook configurations from Kubernetes 1.30 on, and this is {plane.version}")
    release = new_release()
    release.install()
    return release


@pytest.fixture
def injector(released: releases.Release, plane: control_plane.ControlPlane) -> Iterator[client.Client]:
    """Calls as the injector's service account."""
    account = f"system:serviceaccount:{released.namespace}:{released.name}-carpool-injector"
    with contextlib.closing(client.Client(plane.kubeconfig_of(account))) as made:
        yield made


def refusal(caller: client.Client, path: str, *changes: tuple[str, Any]) -> str:
    """Why the API server does not make the changes; empty where it would."""
    body = [{"op": "add", "path": where, "value": value} for where, value in changes]
    try:
        caller.call("PATCH", f"{path}?dryRun=All", body, "application/json-patch+json")
    except client.Refused as refused:
        return refused.message
    return ""


def test_the_injector_writes_ca_bundles_and_changes_nothing_else(
    released: releases.Release, injector: client.Client, admin: client.Client
) -> None:
    name = f"{released.name}-carpool-injector"
    path = client.path_of("MutatingWebhookConfiguration", None, f"zz-{name}")
    other = client.path_of("ValidatingWebhookConfiguration", None, name)
    bundle = (f"{ENTRY}/clientConfig/caBundle", BUNDLE)
    processes.eventually(
        lambda: "ca-bundle-only" in refusal(injector, path, CHANGES["blocking"]),
        SETTLED_SECONDS,
        "the policy is in force",
    )
    told = {what: refusal(injector, path, change, bundle) for what, change in CHANGES.items()}
    assert [what for what, message in told.items() if "ca-bundle-only" not in message] == []
    assert "add and remove no webhooks" in refusal(injector, path, ("/webhooks", []))
    assert "ca-bundle-only" in refusal(injector, other, CHANGES["all objects"])
    assert refusal(injector, path, bundle) == refusal(injector, other, bundle) == ""
    # Everybody else may change what RBAC lets them: Helm has to.
    assert refusal(admin, path, CHANGES["all objects"]) == ""


def test_with_the_policy_in_force_the_injector_gets_ready(released: releases.Release) -> None:
    released.start_injector()
    assert None not in released.ca_bundles()
