"""Every kind of workload gives its pod and takes it back, and nothing else of it changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from carpool_injector.core import refusals
from carpool_injector.objects import workloads

POD_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "app", "image": "app:1"}], "futureField": 1},
}


def workload(kind: str, version: str, *path: str) -> dict[str, Any]:
    inner: dict[str, Any] = copy.deepcopy(POD_TEMPLATE)
    for key in reversed(path):
        inner = {key: inner, "other": "stays"}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "web", "namespace": "shop"}, **inner}


WORKLOADS = [
    workload("Deployment", "apps/v1", "spec", "template"),
    workload("StatefulSet", "apps/v1", "spec", "template"),
    workload("DaemonSet", "apps/v1", "spec", "template"),
    workload("ReplicaSet", "apps/v1", "spec", "template"),
    workload("ReplicationController", "v1", "spec", "template"),
    workload("Job", "batch/v1", "spec", "template"),
    workload("CronJob", "batch/v1", "spec", "jobTemplate", "spec", "template"),
    workload("PodTemplate", "v1", "template"),
    workload("Rollout", "argoproj.io/v1alpha1", "spec", "template"),
    workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "spec", "leaderWorkerTemplate", "workerTemplate"),
    workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "spec", "leaderWorkerTemplate", "leaderTemplate"),
]
by_kind = pytest.mark.parametrize("thing", WORKLOADS, ids=lambda thing: thing["kind"])


def inference_service(**metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris", **metadata},
        "spec": {"predictor": {}},
    }


@by_kind
def test_the_pod_of_a_workload_is_its_template_in_the_workloads_namespace(thing: dict[str, Any]) -> None:
    found = workloads.template(thing)
    assert found is not None
    assert found.pod == {"apiVersion": "v1", "kind": "Pod", **POD_TEMPLATE}
    assert found.namespace == "shop"


@by_kind
def test_a_changed_pod_is_put_back_and_the_rest_stays(thing: dict[str, Any]) -> None:
    before = copy.deepcopy(thing)
    found = workloads.template(thing)
    assert found is not None
    after = workloads.replaced(thing, {**found.pod, "spec": {"containers": []}})
    again = workloads.template(after)
    assert again is not None
    assert again.pod == {**found.pod, "spec": {"containers": []}}
    assert thing == before, "the input was changed"
    assert workloads.replaced(after, found.pod) == before


@by_kind
def test_the_same_pod_put_back_is_the_same_object(thing: dict[str, Any]) -> None:
    found = workloads.template(thing)
    assert found is not None
    assert workloads.replaced(thing, found.pod) is thing


def test_a_pod_is_its_own_template() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **POD_TEMPLATE}
    assert workloads.template(pod) == (pod, "")
    assert workloads.replaced(pod, {"changed": 1}) == {"changed": 1}


def test_the_templates_own_namespace_goes_first() -> None:
    thing = workload("Deployment", "apps/v1", "spec", "template")
    thing["spec"]["template"]["metadata"]["namespace"] = "other"
    found = workloads.template(thing)
    assert found is not None
    assert found.namespace == "other"


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {}}])
def test_a_template_without_metadata_gets_some_only_when_the_pod_has_some(metadata: dict[str, Any]) -> None:
    thing = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {**metadata, "spec": {}}}}
    found = workloads.template(thing)
    assert found is not None
    assert found.pod["metadata"] == {}
    assert workloads.replaced(thing, found.pod) is thing
    after = workloads.replaced(thing, {**found.pod, "metadata": {"labels": {"a": "b"}}})
    assert after["spec"]["template"]["metadata"] == {"labels": {"a": "b"}}


@pytest.mark.parametrize(
    "thing",
    [
        {"apiVersion": "v1", "kind": "Service"},
        {"apiVersion": "example.com/v1", "kind": "Deployment"},
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service"},
        {"kind": "Pod"},
        {"apiVersion": 1, "kind": ["Pod"]},
        {},
    ],
)
def test_other_objects_have_no_pod(thing: dict[str, Any]) -> None:
    assert workloads.template(thing) is None


@pytest.mark.parametrize("spec", [{}, {"template": None}, {"template": "x"}, [], None, {"template": {"metadata": "x"}}])
def test_a_workload_without_a_template_is_malformed_and_says_where(spec: Any) -> None:
    with pytest.raises(refusals.Malformed, match=r"^Deployment/web: spec\.template"):
        workloads.template({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})


@pytest.mark.parametrize("kind", ["List", "PodList", "DeploymentList"])
def test_lists_hold_items(kind: str) -> None:
    assert workloads.items({"apiVersion": "v1", "kind": kind, "items": [1]}) == [1]
    assert workloads.items({"apiVersion": "v1", "kind": kind}) is None


def test_an_object_that_only_has_items_is_no_list() -> None:
    assert workloads.items({"apiVersion": "v1", "kind": "ConfigMap", "items": [1]}) is None


def test_an_inference_service_is_labelled_on_itself() -> None:
    before = inference_service()
    after = workloads.labelled(before, "carpool.dev/inject", "true")
    assert after["metadata"] == {"name": "iris", "labels": {"carpool.dev/inject": "true"}}
    assert workloads.texts_for_pods(after, "labels") == {"carpool.dev/inject": "true"}
    assert "labels" not in before["metadata"]
    assert workloads.labelled(after, "carpool.dev/inject", None) == before


def test_a_knative_service_is_labelled_on_its_template_because_its_own_labels_do_not_reach_pods() -> None:
    before = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": {"template": {"spec": {}}}}
    after = workloads.labelled(before, "carpool.dev/inject", "true")
    assert after["spec"]["template"] == {"spec": {}, "metadata": {"labels": {"carpool.dev/inject": "true"}}}
    assert workloads.labelled(after, "carpool.dev/inject", None) == before


def test_a_label_that_is_there_already_changes_nothing() -> None:
    before = inference_service(labels={"carpool.dev/inject": "true", "a": "b"})
    assert workloads.labelled(before, "carpool.dev/inject", "true") is before
    assert workloads.labelled(before, "carpool.dev/inject", None)["metadata"]["labels"] == {"a": "b"}


def test_only_served_kinds_are_opted_in() -> None:
    assert workloads.is_opted_in_only(inference_service())
    assert not any(workloads.is_opted_in_only(thing) for thing in [*WORKLOADS, None, "x", {}])
    assert workloads.texts_for_pods(inference_service(annotations={"a": "b"}), "annotations") == {"a": "b"}


def test_metadata_that_only_the_sidecar_brought_goes_with_it() -> None:
    thing = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {}}}}
    found = workloads.template(thing)
    assert found is not None
    injected = workloads.replaced(thing, {**found.pod, "metadata": {"annotations": {"a": "b"}}})
    assert workloads.replaced(injected, {**found.pod, "metadata": {}}) == thing
