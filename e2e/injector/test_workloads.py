"""Pods that the cluster's controllers make get the sidecar, and `kubectl apply` of a workload shows warnings."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster import client, processes
from e2e.injector import installation, manifests, steps
from tests.injector import pods

KINDS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")
SECONDS = 30.0


def pods_of(admin: client.Client, namespace: str, count: int = 1) -> list[client.Object]:
    """The pods that controllers have made there, once there are so many."""
    processes.eventually(lambda: len(admin.list("Pod", namespace)) >= count, SECONDS, f"{count} pods in {namespace}")
    return admin.list("Pod", namespace)


def template(**members: Any) -> client.Object:
    return pods.plain(pods.sklearn(), **members)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job"])
def test_pods_that_a_controller_makes_get_the_sidecar(admin: client.Client, namespace: str, kind: str) -> None:
    admin.create(manifests.workload(kind, namespace, template()))
    [pod] = pods_of(admin, namespace)
    assert manifests.sidecar(pod)["restartPolicy"] == "Always"
    assert manifests.status(pod)["takeover"] == "port-swap"


def test_a_workload_itself_is_stored_as_it_was_applied(admin: client.Client, namespace: str) -> None:
    deployment = manifests.workload("Deployment", namespace, template())
    stored = admin.create(deployment).object
    assert [each["name"] for each in stored["spec"]["template"]["spec"]["containers"]] == ["kserve-container"]
    assert "initContainers" not in stored["spec"]["template"]["spec"]


def test_a_changed_setting_rolls_out_with_the_next_pods(admin: client.Client, namespace: str) -> None:
    deployment = manifests.workload("Deployment", namespace, template())
    name = admin.create(deployment).object["metadata"]["name"]
    pods_of(admin, namespace)
    change = {"spec": {"template": {"metadata": {"annotations": {"carpool.dev/max-batch-size": "7"}}}}}
    admin.patch("Deployment", name, change, namespace)
    found = [manifests.sidecar_flags(pod).get("--max-batch-size") for pod in pods_of(admin, namespace, 2)]
    assert "7" in found


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_that_cannot_be_used_is_refused_when_the_workload_is_applied(
    admin: client.Client, namespace: str, kind: str
) -> None:
    bad = template(annotations={"carpool.dev/max-batch-size": "many"})
    with pytest.raises(client.Refused) as refused:
        admin.create(manifests.workload(kind, namespace, bad))
    for word in ("carpool.dev/max-batch-size", "'many'", "whole number"):
        assert word in refused.value.message


def test_a_setting_that_cannot_be_used_is_refused_on_update_too(admin: client.Client, namespace: str) -> None:
    name = admin.create(manifests.workload("Deployment", namespace, template())).object["metadata"]["name"]
    change = {"spec": {"template": {"metadata": {"annotations": {"carpool.dev/max-latency": "-1"}}}}}
    with pytest.raises(client.Refused, match=r"carpool\.dev/max-latency"):
        admin.patch("Deployment", name, change, namespace)


def test_a_refused_workload_is_not_stored(admin: client.Client, namespace: str) -> None:
    bad = manifests.workload("Deployment", namespace, template(annotations={"carpool.dev/max-batch-size": "0"}))
    with pytest.raises(client.Refused):
        admin.create(bad)
    assert admin.list("Deployment", namespace) == []


def test_a_workload_that_was_wrong_before_can_still_be_scaled(
    admin: client.Client, new_namespace: steps.NewNamespace, shared: installation.Installation
) -> None:
    namespace = new_namespace()
    bad = manifests.workload("Deployment", namespace, template(annotations={"carpool.dev/max-batch-size": "many"}))
    name = admin.create(bad).object["metadata"]["name"]
    admin.patch("Namespace", namespace, {"metadata": {"labels": shared.labels}})
    scaled = admin.patch("Deployment", name, {"spec": {"replicas": 2}}, namespace)
    assert scaled.object["spec"]["replicas"] == 2


def test_a_workload_that_a_controller_applies_is_never_refused(admin: client.Client, namespace: str) -> None:
    owner = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "name": "iris", "uid": "1-2-3"}
    bad = manifests.workload("Deployment", namespace, template(annotations={"carpool.dev/max-batch-size": "many"}))
    bad["metadata"]["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": False}]
    answer = admin.create(bad, dry_run=True)
    assert any("carpool.dev/max-batch-size" in warning for warning in answer.warnings)


def test_an_unknown_key_warns_whoever_applies_the_workload(admin: client.Client, namespace: str) -> None:
    misspelt = template(annotations={"carpool.dev/max-batchsize": "8"})
    answer = admin.create(manifests.workload("Deployment", namespace, misspelt))
    assert any("did you mean carpool.dev/max-batch-size" in warning for warning in answer.warnings)


def test_an_annotation_that_pods_will_not_see_warns_whoever_applies_the_workload(
    admin: client.Client, namespace: str
) -> None:
    beside = manifests.workload("Deployment", namespace, template(labels={}), {"carpool.dev/inject": "true"})
    answer = admin.create(beside)
    assert any("template" in warning for warning in answer.warnings)


def test_a_server_that_is_not_recognised_is_told_when_the_workload_is_applied(
    admin: client.Client, namespace: str
) -> None:
    unknown = pods.plain(pods.custom())
    try:
        told = " ".join(admin.create(manifests.workload("Deployment", namespace, unknown)).warnings)
    except client.Refused as refused:
        told = refused.message
    assert "carpool.dev/" in told


def test_workloads_that_do_not_speak_of_carpool_hear_nothing_of_it(admin: client.Client, namespace: str) -> None:
    answer = admin.create(manifests.workload("Deployment", namespace, template(labels={})))
    [pod] = pods_of(admin, namespace)
    assert answer.warnings == ()
    assert not manifests.has_sidecar(pod)


def test_an_event_tells_the_owner_why_a_pod_that_asked_has_no_sidecar(admin: client.Client, namespace: str) -> None:
    # Nobody looks at a ReplicaSet that is applied, as a rule they are made by Deployments.
    admin.create(manifests.workload("ReplicaSet", namespace, template(hostNetwork=True)))
    pods_of(admin, namespace)

    def told() -> list[client.Object]:
        return [event for event in admin.list("Event", namespace) if "hostNetwork" in event.get("message", "")]

    processes.eventually(told, SECONDS, "an event speaks of hostNetwork")
    assert {event["involvedObject"]["kind"] for event in told()} == {"ReplicaSet"}
