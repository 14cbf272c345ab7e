"""Which pods an InferenceService or a Knative Service will come to, before KServe or Knative has made them."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.objects import explanation, inference_services, kserve_pods, kserve_runtimes, manifests, parts
from tests.injector import pods as sample_pods
from tests.injector.object_samples import MODE, Object, service

# --- What is read of an InferenceService


@pytest.mark.parametrize(("name", "known"), [("kserve-sklearnserver", True), ("my-triton-23", True), ("acme", False)])
def test_a_runtime_is_known_by_a_name_within_its_own(name: str, known: bool) -> None:
    assert (kserve_runtimes.named(name) is not None) is known


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
    assert parts.whole(value) == number


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


# --- Old-style predictors: `tensorflow`, `triton` and the like in place of `model`


def server_of(predictor: Object) -> Object:
    return sample_pods.container(kserve_pods.expect(service(predictor)).pod, "kserve-container")


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("sklearn", "kserve-sklearnserver"),
        ("xgboost", "kserve-xgbserver"),
        ("lightgbm", "kserve-lgbserver"),
        ("pmml", "kserve-pmmlserver"),
        ("paddle", "kserve-paddleserver"),
        ("huggingface", "kserve-huggingfaceserver"),
        ("triton", "kserve-tritonserver"),
        ("pytorch", "kserve-torchserve"),
        ("onnx", "kserve-openvino"),
        ("tensorflow", "kserve-openvino"),
    ],
)
def test_an_old_style_field_means_the_runtime_that_kserve_chooses_for_it(name: str, runtime: str) -> None:
    for given in ({"storageUri": "gs://m"}, {"storage": {"key": "m"}}, {"runtimeVersion": "1"}, {}):
        found = inference_services.read(service({name: given})).predictor
        assert found.kserves_runtime is not None
        assert found.kserves_runtime.name == runtime
        assert (
            found.kserves_runtime is inference_services.read(service({"model": found.model})).predictor.kserves_runtime
        )


def test_ports_arguments_and_variables_of_an_old_style_field_are_those_of_the_container() -> None:
    given = {
        "storageUri": "gs://m",
        "name": "mine",
        "args": ["--log-verbose=1"],
        "env": [{"name": "A", "value": "b"}],
        "ports": [{"containerPort": 9000, "name": "h2c"}],
        "readinessProbe": {"tcpSocket": {"port": 9000}},
        "resources": {"limits": {"cpu": "1"}},
    }
    found = server_of({"triton": given})
    assert found["args"] == ["tritonserver", "--grpc-port=9000", "--http-port=8080", "--log-verbose=1"]
    assert found["name"] == "kserve-container"
    for key in ("env", "ports", "readinessProbe", "resources"):
        assert found[key] == given[key]


def test_what_an_old_style_field_sets_again_takes_the_place_of_the_runtimes() -> None:
    runtime = {"modelFormat": {"name": "sklearn"}, "protocolVersion": "v2", "image": "mine/mlserver:1"}
    found = server_of({"model": {**runtime, "env": [{"name": "MLSERVER_HTTP_PORT", "value": "8000"}]}})
    assert found["image"] == "mine/mlserver:1"
    assert [(each["name"], each["value"]) for each in found["env"]] == [
        ("MLSERVER_GRPC_PORT", "9000"), ("MLSERVER_HTTP_PORT", "8000"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "protocol", "runtime"),
    [
        ("sklearn", "v1", "kserve-sklearnserver"),
        ("sklearn", "v2", "kserve-mlserver"),
        ("tensorflow", "grpc-v1", "kserve-tensorflow-serving"),
        ("onnx", "grpc-v2", "kserve-openvino"),
        ("tensorrt", "v2", "kserve-tritonserver"),
        ("pytorch", "v2", "kserve-torchserve"),
        ("vllm", "v2", "kserve-vllmserver"),
    ],
)
def test_the_protocol_decides_with_the_format_which_runtime_it_is(name: str, protocol: str, runtime: str) -> None:
    given = {"model": {"modelFormat": {"name": name}, "protocolVersion": protocol}}
    found = inference_services.read(service(given)).predictor.kserves_runtime
    assert found is not None
    assert found.name == runtime


def test_a_runtime_that_older_releases_lack_is_said_to_be_one() -> None:
    said = " ".join(kserve_pods.expect(service({"onnx": {"storageUri": "gs://m"}})).expected)
    assert "kserve-openvino came with KServe v0.17, older ones choose kserve-tritonserver" in said
    assert "spec.predictor.model.runtime makes it certain" in said
    told = {"model": {"modelFormat": {"name": "onnx"}, "runtime": "kserve-tritonserver"}}
    assert "older" not in " ".join(kserve_pods.expect(service(told)).expected)


def test_a_multi_node_predictors_head_is_started_by_a_shell_as_kserve_does_it() -> None:
    predictor = {"model": {"modelFormat": {"name": "huggingface"}}, "workerSpec": {}}
    assert server_of(predictor)["command"][0] == "bash"
    assert "workers get none" in " ".join(kserve_pods.expect(service(predictor)).certain)


# --- Canaries (KServe v0.20), and what modes and pods are called


def with_canary(canary: Object, **predictor: Any) -> Object:
    stable = {"model": {"modelFormat": {"name": "triton"}, "storageUri": "gs://old", "args": ["--x"]}, **predictor}
    return service(stable, spec={"canary": [{"predictor": {"name": "next", **canary}, "trafficPercent": 10}]})


def test_a_canary_is_the_predictor_with_what_it_says_itself() -> None:
    thing = with_canary({"model": {"storageUri": "gs://new", "args": ["--y"]}, "labels": {"a": "c"}}, labels={"b": "p"})
    [(name, merged)] = inference_services.canaries(thing)
    found = inference_services.read(merged).predictor
    assert (name, found.model["storageUri"], found.model["args"]) == ("next", "gs://new", ["--y"])
    assert found.model["modelFormat"] == {"name": "triton"}
    assert (found.labels["a"], found.labels["b"]) == ("c", "p")


def test_every_canary_is_explained_beside_the_predictor() -> None:
    thing = with_canary({"annotations": {"carpool.dev/takeover": "none"}})
    stable, canary = explanation.explain_all(thing, manifests.Injector())
    assert (stable.name, canary.name) == ("InferenceService/iris", "InferenceService/iris, canary next")
    assert stable.plan is not None
    assert canary.plan is not None
    assert (stable.plan.takeover, canary.plan.takeover) == ("port-swap", "none")


def test_a_canary_whose_calls_go_past_kserves_agent_is_told_of() -> None:
    told = "\n".join(validation_warnings(with_canary({}, batcher={})))
    assert "canary 'next' has spec.predictor.batcher" in told
    assert "takeover: port-swap" in told
    swapped = with_canary({"annotations": {"carpool.dev/takeover": "port-swap"}}, batcher={})
    assert "canary" not in "\n".join(validation_warnings(swapped))


def validation_warnings(thing: Object) -> tuple[str, ...]:
    found = explanation.explain(thing, manifests.Injector())
    assert found is not None
    return found.warnings


@pytest.mark.parametrize(("mode", "older"), [("Standard", "RawDeployment"), ("Knative", "Serverless")])
def test_a_mode_that_older_releases_do_not_know_is_said_to_be_one(mode: str, older: str) -> None:
    def said(value: str) -> str:
        return " ".join(kserve_pods.expect(service(metadata={"annotations": {MODE: value}})).expected)

    assert f"v0.15 and older know {older} only" in said(mode)
    assert "v0.15" not in said(older)


# --- Pods of ModelMesh: one answer everywhere


def test_explain_and_inject_say_the_same_of_modelmesh() -> None:
    thing = service(metadata={"annotations": {MODE: "ModelMesh"}})
    explained = explanation.explain(thing, manifests.Injector())
    assert explained is not None
    assert explained.plan is None
    assert explained.refusal is not None
    for injector in (manifests.Injector(), manifests.Injector(without_webhook=True)):
        after, report = manifests.inject(thing, injector)
        assert after is thing
        assert report is not None
        assert (report.result, report.text) == ("refused", explained.refusal.message)
    assert explained.result == "refused"
    assert explanation.explain(service(labels={}, metadata={"annotations": {MODE: "ModelMesh"}}), manifests.Injector())


def test_modelmesh_that_asks_for_nothing_is_left_alone_where_only_those_that_ask_are_meant() -> None:
    thing = service(labels={}, metadata={"annotations": {MODE: "ModelMesh"}})
    assert manifests.inject(thing, manifests.Injector(opted_in_only=True)) == (thing, None)


# --- Knative Services


def knative_service(*containers: Object) -> Object:
    template = {"metadata": {"labels": {"carpool.dev/inject": "true"}}, "spec": {"containers": list(containers)}}
    spec = {"template": template}
    return {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}


def test_of_several_containers_in_a_knative_service_the_one_with_the_port_is_the_app() -> None:
    app = {"name": "app", "image": "a", "ports": [{"containerPort": 9000}]}
    found = explanation.explain(knative_service({"name": "helper", "image": "b"}, app), manifests.Injector())
    assert found is not None
    assert found.plan is not None
    assert (found.plan.takeover, found.plan.container, found.plan.app_port) == ("queue-proxy", "app", 9000)


@pytest.mark.parametrize("name", ["h2c", "h2c-api"])
def test_an_app_that_knative_sends_http2_to_is_refused(name: str) -> None:
    """Knative calls the port user-port whatever it was called, so only queue-proxy tells."""
    thing = knative_service({"image": "a", "ports": [{"containerPort": 9000, "name": name}]})
    found = explanation.explain(thing, manifests.Injector())
    assert found is not None
    assert found.refusal is not None
    assert (found.result, found.refusal.code) == ("refused", "not-http")
    assert "queue-proxy sends HTTP/2" in found.refusal.message
