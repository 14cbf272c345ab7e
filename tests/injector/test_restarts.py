"""What makes new pods in place of old ones is told by who made them, and names what is there."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.objects import restarts


def pod(owner: dict[str, str] | None = None, **labels: str) -> dict[str, Any]:
    references = [{"apiVersion": "apps/v1", "uid": "1", "controller": True, **owner}] if owner else []
    return {"metadata": {"namespace": "ml", "name": "p", "labels": labels, "ownerReferences": references}}


REPLICA_SET = {"kind": "ReplicaSet", "name": "web-5d4"}
KSERVE = "serving.kserve.io/inferenceservice"


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (pod(REPLICA_SET, **{"pod-template-hash": "5d4"}), "kubectl -n ml rollout restart deployment/web"),
        (pod(REPLICA_SET, **{"rollouts-pod-template-hash": "5d4"}), "kubectl argo rollouts restart web -n ml"),
        (pod(REPLICA_SET), "delete the pods one by one: ReplicaSet web-5d4 makes new ones"),
        (pod({"kind": "StatefulSet", "name": "db"}), "kubectl -n ml rollout restart statefulset/db"),
        (pod({"kind": "DaemonSet", "name": "d"}), "kubectl -n ml rollout restart daemonset/d"),
        (pod({"kind": "Job", "name": "j"}), "leave the pods of Job j to end; those of the next Job get it"),
        (pod(), "delete the pod and create it again, as nobody else does"),
    ],
)
def test_each_kind_of_owner_has_its_own_way(given: dict[str, Any], advice: str) -> None:
    assert restarts.advice(given) == advice


def test_of_an_inference_service_the_deployment_is_not_restarted_which_kserve_undoes() -> None:
    told = restarts.advice(pod(REPLICA_SET, **{"pod-template-hash": "5d4", KSERVE: "iris"}))
    assert told.startswith('kubectl -n ml annotate inferenceservice iris restarted-at="$(date)" --overwrite')
    assert "KServe undoes a rollout restart" in told


def test_a_knative_service_gets_a_new_revision() -> None:
    told = restarts.advice(pod(REPLICA_SET, **{"serving.knative.dev/service": "iris"}))
    assert told.startswith("kubectl -n ml patch ksvc iris --type merge --patch '{")


@pytest.mark.parametrize("owner", [{"kind": "ReplicaSet", "name": "x" * 400}, {"kind": "ReplicaSet", "name": ""}])
def test_an_owner_that_cannot_be_named_is_none(owner: dict[str, str]) -> None:
    assert restarts.owner_of(pod(owner)) is None
