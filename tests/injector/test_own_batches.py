"""Who gains nothing from the sidecar: servers that batch by themselves, and web apps that serve no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from carpool_injector.core import injection, model, servers
from carpool_injector.core import pods as views
from carpool_injector.core.config import Config
from tests.injector import pods

Object = dict[str, Any]

ENABLED = model.Namespace("ml", {"carpool.dev/inject": "enabled"})
UVICORN = ("uvicorn", "app:app", "--host=::", "--port=8000")
PROBE = {"httpGet": {"path": "/-/healthz", "port": 8000}}


def outcome(first: Object, *more: Object, asks: bool = False, **annotations: str) -> model.Outcome:
    """What becomes of a pod in a namespace that asks; `asks`: the pod does so itself."""
    found = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    pod = pods.plain(first, *more, labels=None if asks else {}, annotations=found)
    return injection.inject(pod, Config(), ENABLED, model.Capabilities())


def app(*args: str, image: str = "acme/app:1", **members: Any) -> Object:
    return {"name": "app", "image": image, "args": list(args), **members}


def tgi(*args: str) -> Object:
    return app("--model-id=m", "--port=8080", *args, image="ghcr.io/huggingface/text-generation-inference:3.3")


def tei(*args: str) -> Object:
    return app("--model-id=m", "--port=8080", *args, image="ghcr.io/huggingface/text-embeddings-inference:cpu-1.8")


def jetstream() -> Object:
    return app("model_name=gemma-7b", image="us-docker.pkg.dev/cloud-tpu-images/inference/maxengine-server:v0.2.2")


def huggingface(*args: str) -> Object:
    return pods.server("kserve/huggingfaceserver:v0.20.0", "--model_name=m", *args)


GENERATES = [
    pods.vllm(),
    app("vllm", "serve", "llama", "--port=8000"),
    app("python3", "-m", "sglang.launch_server", "--model-path", "m", "--host", "::", "--port", "30000"),
    tgi(),
    huggingface("--backend=vllm"),
    huggingface("--task=text_generation"),
]
by_server = pytest.mark.parametrize("container", GENERATES, ids=["vllm", "vllm serve", "sglang", "tgi", "hf", "task"])


@by_server
def test_a_namespace_does_not_mean_servers_that_batch_by_themselves(container: Object) -> None:
    found = outcome(container)
    assert (found.result, found.decision.reason, found.patch) == ("skipped", "batches-itself", [])
    assert found.warnings == ()


@by_server
def test_a_pod_that_asks_for_itself_gets_the_sidecar_and_is_told_what_it_will_not_do(container: Object) -> None:
    found = outcome(container, asks=True)
    assert found.result == "injected", found.refusal
    [warning] = [text for text in found.warnings if "batches by itself" in text or "generates text" in text]
    assert "makes them no faster" in warning


def test_jetstream_is_left_alone_with_the_proxy_for_http_beside_it() -> None:
    http = {
        "name": "jetstream-http",
        "image": "us-docker.pkg.dev/cloud-tpu-images/inference/jetstream-http:v0.2.3",
        "ports": [{"containerPort": 8000}],
    }
    assert outcome(jetstream(), http).decision.reason == "batches-itself"


@pytest.mark.parametrize(
    ("container", "rules"),
    [
        (tei(), "tei-embed"),
        (tei(), "openai-embeddings"),
        (app("vllm", "serve", "BAAI/bge-m3", "--runner=pooling", "--port=8000"), "openai-embeddings"),
    ],
)
def test_embeddings_in_lists_are_worth_the_sidecar_where_a_rule_for_them_is_set(container: Object, rules: str) -> None:
    assert outcome(container).decision.reason == "batches-itself"
    found = outcome(container, lists=rules)
    assert (found.result, found.warnings) == ("injected", ())


def test_a_generating_vllm_gains_nothing_from_rules_for_lists() -> None:
    container = app("vllm", "serve", "llama", "--runner=generate", "--port=8000")
    assert outcome(container, lists="openai-embeddings").decision.reason == "batches-itself"


def test_of_a_model_that_may_be_one_of_embeddings_the_rule_is_told_once_and_the_notice_can_be_ended() -> None:
    [warning] = outcome(tei(), asks=True).warnings
    assert "carpool.dev/lists: tei-embed" in warning
    assert outcome(tei(), asks=True, lists="").warnings == ()


def test_beside_a_server_that_gains_the_pod_is_meant() -> None:
    found = outcome({**pods.sklearn(), "name": "model"}, app("vllm", "serve", "llama"), container="model")
    assert found.result == "injected"


def test_kserves_batcher_is_taken_over_in_front_of_them_too() -> None:
    """It is there already: the sidecar in its place is no further hop."""
    pod = pods.kserve(pods.vllm(), annotations=pods.batched())
    del pod["metadata"]["labels"]["carpool.dev/inject"]
    namespace = model.Namespace("ml", {"carpool.dev/kserve-batcher": "takeover"})
    found = injection.inject(pod, Config(), namespace, model.Capabilities())
    assert found.plan is not None
    assert found.plan.takeover == "kserve-agent"


@pytest.mark.parametrize(
    "args",
    [UVICORN, ("gunicorn", "-b", "0.0.0.0:8000", "shop.wsgi"), ("fastapi", "run", "main.py")],
    ids=lambda args: args[0],
)
def test_a_namespace_does_not_mean_every_web_app(args: tuple[str, ...]) -> None:
    web = app(*args, env=[{"name": "DJANGO_SETTINGS_MODULE", "value": "shop.model"}])
    assert outcome(web).decision.reason == "not-a-predictor"
    assert outcome(web, asks=True).result == "injected"


SIGNS: dict[str, Callable[[], Object]] = {
    "module": lambda: app("uvicorn", "model_server:app", "--host=::", "--port=8000"),
    "flag": lambda: app(*UVICORN, "--model-path=/weights"),
    "image": lambda: app(*UVICORN, image="registry.example:5000/team/fraud-scorer@sha256:" + "0" * 64),
    "camel case": lambda: app("uvicorn", "app.SentimentClassifier:app", "--host=::", "--port=8000"),
    "variable": lambda: app(*UVICORN, env=[{"name": "MODEL_NAME", "value": "iris"}]),
    "variable from elsewhere": lambda: app(*UVICORN, env=[{"name": "HF_TOKEN", "valueFrom": {}}]),
    "volume": lambda: app(*UVICORN, volumeMounts=[{"name": "data", "mountPath": "/mnt/models"}]),
    "gpu": lambda: app(*UVICORN, resources={"limits": {"nvidia.com/gpu": "1"}}),
    "slice of a gpu": lambda: app(*UVICORN, resources={"limits": {"nvidia.com/mig-1g.5gb": 1}}),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_a_web_app_with_a_sign_of_a_model_is_a_model_server(sign: str) -> None:
    assert outcome(SIGNS[sign]()).result == "injected"


def test_an_annotation_with_a_setting_is_a_sign_too() -> None:
    assert outcome(app(*UVICORN), max_batch_size="8").result == "injected"
    assert outcome(app(*UVICORN), no_setting="8").result == "skipped"


@pytest.mark.parametrize("image", ["acme/remodelled:1", "models.example/shop:1", "acme/html:1", "acme/shop:model"])
def test_part_of_a_word_a_registry_and_a_tag_are_no_signs(image: str) -> None:
    web = views.Container.model_validate(app(*UVICORN, image=image))
    assert not servers.serves_a_model(web)


def ray_serve() -> Object:
    return app("serve", "run", "app:deployment", ports=[{"name": "http", "containerPort": 8000}], readinessProbe=PROBE)


@pytest.mark.parametrize("keys", [None, "authorization,content-type", "x-tenant"])
def test_a_server_that_chooses_the_model_by_a_header_is_told_of_if_batches_do_not_agree_in_it(keys: str | None) -> None:
    found = outcome(ray_serve(), asks=True, **({"key_headers": keys} if keys else {}))
    assert found.result == "injected", found.refusal
    [warning] = [text for text in found.warnings if "Ray Serve" in text]
    known = keys or "authorization,content-type"
    assert warning.endswith(f"carpool.dev/key-headers: {known},serve_multiplexed_model_id")


def test_nothing_is_told_of_a_header_in_which_batches_agree() -> None:
    found = outcome(ray_serve(), asks=True, key_headers="authorization,Serve_Multiplexed_Model_Id")
    assert found.result == "injected", found.refusal
    assert not found.warnings


def test_ray_serve_that_listens_within_the_pod_stays_there() -> None:
    declared = app("serve", "run", "app:deployment", ports=[{"name": "http", "containerPort": 8000}])
    refusal = outcome(declared, asks=True).refusal
    assert refusal is not None
    assert refusal.code == "loopback-only"
