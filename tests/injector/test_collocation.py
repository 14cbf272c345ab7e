"""The sidecar declared in an InferenceService: what KServe and Knative demand is kept, or refused with the fix."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from carpool_injector.core import config, refusals
from carpool_injector.objects import collocation

STANDARD = {"serving.kserve.io/deploymentMode": "Standard"}


def service(predictor: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris", **metadata},
        "spec": {"predictor": predictor},
    }


def model(**members: Any) -> dict[str, Any]:
    return {"model": {"modelFormat": {"name": "sklearn"}, **members}}


def custom(name: str = "kserve-container", **members: Any) -> dict[str, Any]:
    return {"containers": [{"name": name, "image": "mine:1", **members}]}


def declared(thing: dict[str, Any]) -> dict[str, Any]:
    found, _ = collocation.declared(thing, config.Config())
    containers: list[dict[str, Any]] = found["spec"]["predictor"]["containers"]
    return next(each for each in containers if each["name"] == "transformer-container")


def test_kserve_sends_to_the_first_port_and_the_sidecar_to_the_model_server() -> None:
    sidecar = declared(service(model()))
    assert sidecar["ports"] == [{"name": "http1", "containerPort": 9083, "protocol": "TCP"}]
    assert sidecar["args"][:3] == ["--port=9083", "--component-port=8080", "--admin-port=9082"]


def test_knative_finds_nothing_that_it_forbids() -> None:
    sidecar = declared(service(model()))
    assert {"lifecycle", "livenessProbe", "startupProbe"}.isdisjoint(sidecar)
    assert sidecar["readinessProbe"]["httpGet"]["port"] == sidecar["ports"][0]["containerPort"]


def test_the_readiness_probe_asks_the_sidecar_itself_as_kserves_agent_is_asked() -> None:
    headers = declared(service(model()))["readinessProbe"]["httpGet"]["httpHeaders"]
    assert headers == [{"name": "K-Network-Probe", "value": "queue"}]


def test_the_container_comes_behind_those_that_are_there() -> None:
    found, _ = collocation.declared(service(custom(), annotations=STANDARD), config.Config())
    assert [each["name"] for each in found["spec"]["predictor"]["containers"]] == [
        "kserve-container", "transformer-container",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("thing", "port"),
    [
        (service(model()), 8080),
        (service(custom(ports=[{"containerPort": 9000}]), annotations=STANDARD), 9000),
        (service(model(ports=[{"containerPort": 8501, "name": "http1"}]), annotations=STANDARD), 8501),
        (service(model(), annotations={"carpool.dev/port": "7000"}), 7000),
    ],
)
def test_the_model_servers_port_is_the_one_kserve_would_have_sent_to(thing: dict[str, Any], port: int) -> None:
    assert f"--component-port={port}" in declared(thing)["args"]


def test_settings_come_from_annotations_and_the_admins_defaults() -> None:
    admin = config.Config(defaults={"max-latency": "20"})
    found, _ = collocation.declared(service(model(), annotations={"carpool.dev/max-batch-size": "16"}), admin)
    arguments = found["spec"]["predictor"]["containers"][0]["args"]
    assert {"--max-batch-size=16", "--max-latency=20"} <= set(arguments)


@pytest.mark.parametrize(
    ("thing", "code", "fix"),
    [
        (service(custom(ports=[{"containerPort": 9000}])), "declares-a-port", "remove its ports"),
        (service(custom(readinessProbe={"tcpSocket": {"port": 8080}})), "has-probes", "remove it"),
        (service(model(livenessProbe={"exec": {}})), "has-probes", "deploymentMode"),
        (service(custom("mine")), "unnamed-server", "name the container kserve-container"),
        (service(custom("transformer-container")), "name-taken", "use the webhook"),
        (service({**model(), "batcher": {}}), "batches-already", "remove spec.predictor.batcher"),
        (service(model(ports=[{"containerPort": 9000, "name": "h2c"}]), annotations=STANDARD), "not-http", "port"),
        (service(model(), annotations={"serving.kserve.io/deploymentMode": "ModelMesh"}), "modelmesh", "Standard"),
        (service(model(), annotations={"carpool.dev/max-batch-size": "0"}), "bad-annotation", ""),
        (
            {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": {}},
            "not-an-inference-service",
            "let the webhook inject the pods",
        ),
    ],
)
def test_what_kserve_or_knative_would_not_have_is_refused_with_the_fix(
    thing: dict[str, Any], code: str, fix: str
) -> None:
    before = copy.deepcopy(thing)
    with pytest.raises(refusals.Refusal) as caught:
        collocation.declared(thing, config.Config())
    assert caught.value.code == code
    assert fix in caught.value.fix
    assert thing == before


@pytest.mark.parametrize(
    "thing",
    [
        service(model()),
        service({**model(), "volumes": [{"name": "mine"}]}),
        service(custom(), annotations=STANDARD),
        service({**model(), "containers": []}),
    ],
)
def test_what_was_declared_can_be_removed_again(thing: dict[str, Any]) -> None:
    found, _ = collocation.declared(thing, config.Config())
    back = collocation.removed(found)
    assert {key: value for key, value in thing["spec"]["predictor"].items() if value} == back["spec"]["predictor"]
    assert collocation.declared(found, config.Config())[0] == found


def test_a_transformer_of_the_users_own_is_never_removed() -> None:
    thing = service(custom("transformer-container"))
    assert collocation.removed(thing) is thing


def test_a_label_that_asks_the_webhook_for_a_second_sidecar_is_told() -> None:
    _, warnings = collocation.declared(service(model(), labels={"carpool.dev/inject": "true"}), config.Config())
    assert any("second sidecar" in text for text in warnings)


# --- Old-style predictors: `tensorflow`, `triton` and the like in place of `model`


@pytest.mark.parametrize(
    ("predictor", "port"),
    [
        ({"sklearn": {"storageUri": "gs://m"}}, 8080),
        ({"tensorflow": {"storageUri": "gs://m", "ports": [{"containerPort": 8501, "name": "http1"}]}}, 8501),
        ({"triton": {"storage": {"key": "m"}, "ports": [{"containerPort": 8000}]}}, 8000),
    ],
)
def test_an_old_style_predictors_own_port_is_sent_to(predictor: dict[str, Any], port: int) -> None:
    assert f"--component-port={port}" in declared(service(predictor, annotations=STANDARD))["args"]


@pytest.mark.parametrize(
    ("predictor", "annotations", "code"),
    [
        ({"tensorflow": {"ports": [{"containerPort": 9000, "name": "h2c"}]}}, STANDARD, "not-http"),
        ({"triton": {"ports": [{"containerPort": 8000}]}}, {}, "declares-a-port"),
        ({"onnx": {"readinessProbe": {"tcpSocket": {"port": 8080}}}}, {}, "has-probes"),
    ],
)
def test_what_an_old_style_predictor_says_is_held_against_it_as_that_of_a_model(
    predictor: dict[str, Any], annotations: dict[str, str], code: str
) -> None:
    with pytest.raises(refusals.Refusal) as refused:
        collocation.declared(service(predictor, annotations=annotations), config.Config())
    assert refused.value.code == code


def test_an_old_style_tritons_grpc_is_found_where_its_arguments_say() -> None:
    asked = {**STANDARD, "carpool.dev/upstream": "triton-grpc"}
    arguments = declared(service({"triton": {"args": ["--grpc-port=9001"]}}, annotations=asked))["args"]
    assert "--component-grpc-port=9001" in arguments
