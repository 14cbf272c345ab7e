"""Which pods an InferenceService or a Knative Service will come to, before KServe or Knative has made them."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.objects import inference_services, kserve_pods
from tests.injector import pods as sample_pods
from tests.injector.object_samples import MODE, Object, service

# --- What is read of an InferenceService


@pytest.mark.parametrize(("name", "known"), [("kserve-sklearnserver", True), ("my-triton-23", True), ("acme", False)])
def test_a_runtime_is_known_by_a_name_within_its_own(name: str, known: bool) -> None:
    assert (inference_services.runtime_container(name) is not None) is known


def test_the_runtimes_name_counts_before_the_models_format() -> None:
    spec = {"model": {"runtime": "Kserve-Triton", "modelFormat": {"name": "onnx"}}}
    found = inference_services.read(service(spec))
    assert found.predictor.runtime == "kserve-triton"
    assert inference_services.read(service({"sklearn": {"storageUri": "gs://x"}})).predictor.runtime == "sklearn"


def test_what_stands_on_the_predictor_counts_before_metadata() -> None:
    predictor = {"labels": {"a": "p"}, "annotations": {"a": "p"}, "minReplicas": 1}
    found = inference_services.read(service(predictor, labels={"a": "m"}, metadata={"annotations": {"a": "m"}}))
    assert (found.predictor.labels["a"], found.predictor.annotations["a"]) == ("p", "p")


def test_a_lone_container_is_renamed_as_kserve_does_it_and_several_keep_their_names() -> None:
    def names(*containers: Object) -> list[str]:
        pod = inference_services.stand_in(inference_services.read(service({"containers": list(containers)})))
        return [each["name"] for each in pod["spec"]["containers"]]

    assert names({"name": "mine"}) == ["kserve-container"]
    assert names({"name": "mine"}, {"name": "other"}) == ["mine", "other"]


@pytest.mark.parametrize(("value", "number"), [(3, 3), (0, 0), (True, None), ("3", None), (3.0, None), (None, None)])
def test_a_whole_number_is_neither_a_text_nor_a_yes(value: Any, number: int | None) -> None:
    assert inference_services.whole(value) == number


def test_a_logger_makes_kserves_service_point_at_its_agent_in_the_stand_in_too() -> None:
    pod = inference_services.stand_in(inference_services.read(service({"containers": [{"name": "a"}], "logger": {}})))
    assert pod["metadata"]["annotations"] == {"internal.serving.kserve.io/logger": "true"}


# --- Pods that will be made


@pytest.mark.parametrize(
    ("annotations", "status", "default", "queue_proxy"),
    [
        ({}, None, None, False),
        ({}, None, "Knative", True),
        ({MODE: "Standard"}, None, "Knative", False),
        ({MODE: "Serverless"}, None, "Standard", True),
        ({}, "Knative", None, True),
        ({MODE: "RawDeployment"}, "Knative", None, False),
    ],
)
def test_the_mode_is_the_annotations_else_the_statuss_else_the_clusters(
    annotations: Object, status: str | None, default: Any, queue_proxy: bool
) -> None:
    more = {"status": {"deploymentMode": status}} if status else {}
    pod = kserve_pods.expect(service(metadata={"annotations": annotations}, **more), default).pod
    assert ("queue-proxy" in [each["name"] for each in pod["spec"]["containers"]]) is queue_proxy


def test_the_port_asked_is_the_transformers_else_the_servers_first() -> None:
    first = {"name": "kserve-container", "ports": [{"containerPort": 7000}, {"containerPort": 7001}]}
    both = [first, {"name": "transformer-container", "ports": [{"containerPort": 7002}]}]
    for containers, port in (([first], "7000"), (both, "7002"), ([{"name": "kserve-container"}], "8080")):
        pod = kserve_pods.expect(service({"containers": containers, "containerConcurrency": 3}), "Knative").pod
        env = {item["name"]: item["value"] for item in sample_pods.container(pod, "queue-proxy")["env"]}
        assert (env["USER_PORT"], env["CONTAINER_CONCURRENCY"]) == (port, "3")


def test_what_is_added_to_a_runtime_comes_behind_what_it_has() -> None:
    given = {"modelFormat": {"name": "sklearn"}, "args": ["--workers=2"]}
    pod = kserve_pods.expect(service({"model": given})).pod
    assert sample_pods.container(pod, "kserve-container")["args"] == ["--http_port=8080", "--workers=2"]


def test_a_knative_services_container_keeps_its_name_or_gets_the_usual_one() -> None:
    def names(container: Object) -> list[str]:
        spec = {"template": {"spec": {"containers": [container]}}}
        thing = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": spec}
        return [each["name"] for each in kserve_pods.expect(thing).pod["spec"]["containers"]]

    assert names({"image": "a"}) == ["user-container", "queue-proxy"]
    assert names({"image": "a", "name": "mine"}) == ["mine", "queue-proxy"]


def test_a_runtimes_container_is_there_once_whatever_the_manifest_adds_to_it() -> None:
    predictor = {
        "model": {"modelFormat": {"name": "sklearn"}},
        "containers": [{"name": "kserve-container"}, {"name": "x"}],
    }
    pod = kserve_pods.expect(service(predictor)).pod
    assert [each["name"] for each in pod["spec"]["containers"]] == ["kserve-container", "x"]
