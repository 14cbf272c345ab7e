"""The sidecar's requests and limits under the rules of a namespace, and the class of the pod that it is in."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster import client
from e2e.injector import manifests
from tests.injector import pods

BURSTABLE = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}


def limit_range(admin: client.Client, namespace: str, **rules: Any) -> None:
    """Rules for the containers of a namespace."""
    spec = {"limits": [{"type": "Container", **rules}]}
    admin.create(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r", "namespace": namespace}, "spec": spec}
    )


def burstable(namespace: str, **annotations: str) -> client.Object:
    """A pod whose own container keeps a ratio of 2."""
    server = {**pods.sklearn(), "resources": BURSTABLE}
    found = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return manifests.pod(namespace, server, annotations=found)


def resources(stored: client.Object) -> client.Object:
    found: client.Object = manifests.sidecar(stored)["resources"]
    return found


def test_a_guaranteed_pod_is_guaranteed_with_the_sidecar_in_it(admin: client.Client, namespace: str) -> None:
    stored = admin.create(manifests.pod(namespace)).object
    assert manifests.has_sidecar(stored)
    assert stored["status"]["qosClass"] == "Guaranteed"
    assert resources(stored)["requests"] == resources(stored)["limits"] == {"cpu": "500m", "memory": "512Mi"}


def test_a_quota_that_demands_requests_and_limits_is_met(admin: client.Client, namespace: str) -> None:
    hard = {"requests.cpu": "4", "requests.memory": "8Gi", "limits.cpu": "8", "limits.memory": "16Gi"}
    metadata = {"name": "q", "namespace": namespace}
    admin.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}})
    assert manifests.has_sidecar(admin.create(burstable(namespace)).object)
    with pytest.raises(client.Refused, match=r"must specify limits\.cpu.* carpool"):
        admin.create(burstable(namespace, resources_limits_cpu="none"))


def test_a_limit_that_the_namespace_gives_by_default_stays_where_ours_is_left_out(
    admin: client.Client, namespace: str
) -> None:
    """The API server fills it in after our answer, asks us once more, and then wants it to be there."""
    limit_range(admin, namespace, default={"cpu": "2"}, max={"cpu": "2"})
    stored = admin.create(burstable(namespace, resources_limits_cpu="none")).object
    assert resources(stored)["limits"] == {"cpu": "2", "memory": "1Gi"}
    assert resources(stored)["requests"] == {"cpu": "100m", "memory": "128Mi"}


def test_a_ratio_that_the_defaults_do_not_keep_is_kept_by_annotation(admin: client.Client, namespace: str) -> None:
    limit_range(admin, namespace, maxLimitRequestRatio={"cpu": "2", "memory": "2"})
    with pytest.raises(client.Refused, match="max limit to request ratio"):
        admin.create(burstable(namespace))
    kept = burstable(namespace, resources_requests_cpu="500m", resources_requests_memory="512Mi")
    assert manifests.has_sidecar(admin.create(kept).object)
    assert manifests.has_sidecar(admin.create(manifests.pod(namespace)).object), "a Guaranteed pod keeps any ratio"
