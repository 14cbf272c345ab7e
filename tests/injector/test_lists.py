"""Rules for lists: from annotations to the sidecar, by every way in, and chosen where the server is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click import testing
from ruamel.yaml import YAML

from carpool_injector import cli
from carpool_injector.core import injection, list_servers, model, refusals
from carpool_injector.core import pods as views
from carpool_injector.core.config import Config
from carpool_injector.objects import collocation
from carpool_sidecar import config as sidecar_config
from tests.injector import object_samples, pods, validations

Object = dict[str, Any]

LISTS = "carpool.dev/lists"
RULE = 'my-embedder:\n  path: "**/embed"  # ours\n  list: texts\n  answers: $\n'
EMBEDDING = ("--backend=huggingface", "--task=text_embedding")


def outcome(container: Object, config: Config | None = None, **annotations: str) -> model.Outcome:
    found = {f"carpool.dev/{key}": value for key, value in annotations.items()}
    pod = pods.kserve(container, annotations=found)
    return injection.inject(pod, config or Config(), model.Namespace("ml"), model.Capabilities())


def given(found: model.Outcome) -> str | None:
    """What the sidecar is given as --lists; None: nothing."""
    assert found.plan is not None, found.refusal
    return pods.flags(pods.expanded(pods.container(found.pod, model.CONTAINER)["args"])).get("--lists")


def huggingface(*args: str, **members: Any) -> Object:
    return pods.server("kserve/huggingfaceserver:v0.20.0", *args, **members)


@pytest.mark.parametrize(
    "container",
    [
        huggingface("--model_name=m", *EMBEDDING),
        huggingface("--backend", "huggingface", "--task", "text_embedding"),
        huggingface("--backend=auto", "--task=fill_mask", *EMBEDDING),
        pods.server("acme/mine:1", *EMBEDDING, command=["python", "-m", "huggingfaceserver"]),
        pods.server("registry.example:5000/kserve/huggingfaceserver:latest-gpu", *EMBEDDING),
    ],
    ids=["joined", "apart", "the last one counts", "by its module", "of another registry"],
)
def test_embeddings_of_kserves_huggingface_server_are_batched_without_an_annotation(container: Object) -> None:
    found = outcome(container)
    assert given(found) == "openai-embeddings"
    assert found.plan is not None
    assert found.plan.lists == "openai-embeddings"
    assert found.warnings == ()


@pytest.mark.parametrize(
    "container",
    [
        huggingface("--task=text_embedding"),
        huggingface("--backend=auto", "--task=text_embedding"),
        huggingface("--backend=vllm", "--task=text_embedding"),
        huggingface("--backend=huggingface"),
        huggingface("--backend=huggingface", "--task=sequence_classification"),
        huggingface("--backend=huggingface", "--task=$(TASK)"),
        huggingface(*EMBEDDING, "--backend=vllm"),
        huggingface(*EMBEDDING, "--predictor_host=texts-predictor"),
        huggingface("-c", f"huggingfaceserver {' '.join(EMBEDDING)}", command=["sh"]),
        pods.server("kserve/sklearnserver:v0.20.0", "--http_port=8080", *EMBEDDING),
        pods.vllm(),
        pods.vllm("serve", "BAAI/bge-m3", "--runner=pooling", "--port=8000"),
        pods.server("ghcr.io/huggingface/text-embeddings-inference:1.8", "--port=8080", "--model-id=BAAI/bge-m3"),
        pods.server("ghcr.io/huggingface/text-generation-inference:3.3", "--port=8080", "--model-id=m"),
        pods.triton(),
        pods.tensorflow_serving(),
        pods.mlserver(),
        pods.server("ghcr.io/mlflow/mlflow:v3.1.0", "mlflow", "server", "--port=8080"),
    ],
)
def test_for_servers_that_batch_by_themselves_or_are_not_certain_no_rule_is_chosen(container: Object) -> None:
    assert list_servers.recognise(views.Container.model_validate(container)) is None


def test_no_rule_is_chosen_for_a_server_of_a_list_that_the_owner_named_the_container_away_from() -> None:
    pod = pods.kserve(pods.sklearn(), {**huggingface(*EMBEDDING), "name": "helper"})
    found = injection.inject(pod, Config(), model.Namespace("ml"), model.Capabilities())
    assert given(found) is None


@pytest.mark.parametrize("value", ["", "tei-embed", RULE])
def test_what_is_set_wins_over_what_is_known_of_the_server(value: str) -> None:
    by_pod = outcome(pods.huggingface_embeddings(), lists=value)
    by_admin = outcome(pods.huggingface_embeddings(), Config(defaults={"lists": value}))
    namespace = model.Namespace("ml", annotations={LISTS: value})
    pod = pods.kserve(pods.huggingface_embeddings())
    by_namespace = injection.inject(pod, Config(), namespace, model.Capabilities())
    for found in (by_pod, by_admin, by_namespace):
        assert given(found) == value
        assert found.plan is not None
        assert found.plan.lists == ""


MLFLOW_IN_MLSERVER = pods.mlserver()
MLFLOW_IN_MLSERVER["env"][0]["value"] = "mlserver_mlflow.MLflowRuntime"


@pytest.mark.parametrize(
    "container",
    [pods.mlflow(), MLFLOW_IN_MLSERVER, pods.server("a/b", "python", "-m", "mlflow", "models", "serve", "-p", "8080")],
    ids=["mlflow", "MLServer", "as a module"],
)
def test_the_owner_of_an_mlflow_model_is_told_of_the_rule_and_nothing_is_chosen(container: Object) -> None:
    found = outcome(container)
    assert given(found) is None
    [warning] = found.warnings
    assert "once for each request to /invocations" in warning
    assert "carpool.dev/lists: mlflow" in warning
    for value in ("mlflow", ""):
        assert outcome(container, lists=value).warnings == ()


def test_mlflow_is_moved_to_another_port_by_a_flag_where_none_is_there() -> None:
    found = outcome(pods.server("acme/wine:1", "mlflow", "models", "serve", "--host=0.0.0.0", ports=[
        {"containerPort": 5000}
    ]))  # fmt: skip
    app = pods.container(found.pod, "kserve-container")
    assert app["args"] == ["mlflow", "models", "serve", "--host=0.0.0.0", "--port=9083"]


def test_rules_as_yaml_reach_the_sidecar_as_they_were_written() -> None:
    found = outcome(pods.sklearn(), lists=RULE)
    args = pods.container(found.pod, model.CONTAINER)["args"]
    assert f"--lists={RULE.replace('$', '$$')}" in args  # Kubernetes makes one dollar of two
    assert sidecar_config.load(pods.expanded(args)).lists == (RULE,)


def with_mount(pod: Object, path: str) -> Object:
    """The pod with a container that its owner declares for the sidecar."""
    declared = {"name": model.CONTAINER, "image": Config().image, "volumeMounts": [{"name": "r", "mountPath": path}]}
    pod["spec"]["containers"].append(declared)
    pod["spec"]["volumes"] = [{"name": "r", "configMap": {"name": "r"}}]
    return pod


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_a_file_of_rules_works_where_the_owner_mounts_it(whole: bool, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RULE)
    pod = pods.kserve(pods.sklearn(), annotations={LISTS: f"mlflow,{file}"})
    wanted = with_mount(pod, f"{tmp_path}/" if whole else str(file))
    found = injection.inject(wanted, Config(), model.Namespace("ml"), model.Capabilities())
    assert given(found) == f"mlflow,{file}"
    args = pods.container(found.pod, model.CONTAINER)["args"]
    assert sidecar_config.load(pods.expanded(args)).lists == ("mlflow", str(file))
    assert injection.inject(found.pod, Config(), model.Namespace("ml"), model.Capabilities()).patch == []


@pytest.mark.parametrize("mounted", [None, "/rul", "/rules/other.yaml"])
def test_a_file_of_rules_that_nobody_mounts_is_refused(mounted: str | None) -> None:
    pod = pods.kserve(pods.sklearn(), annotations={LISTS: "/rules/mine.yaml"})
    pod = with_mount(pod, mounted) if mounted else pod
    found = injection.inject(pod, Config(), model.Namespace("ml"), model.Capabilities())
    assert found.refusal is not None
    assert found.refusal.code == "no-such-file"
    assert "/rules/mine.yaml" in found.refusal.message
    assert "declare a container carpool with the sidecar's image" in found.refusal.fix


def test_the_admins_default_may_name_a_file_of_the_admins_image() -> None:
    config = Config(defaults={"lists": "/opt/rules.yaml"})
    assert given(outcome(pods.sklearn(), config)) == "/opt/rules.yaml"
    assert outcome(pods.sklearn(), config, lists="/opt/other.yaml").refusal is not None


def explained(thing: Object, *args: str) -> testing.Result:
    return testing.CliRunner().invoke(cli.program, ["explain", *args], input=json.dumps(thing))


def test_explain_tells_the_rule_that_was_chosen_what_for_and_why() -> None:
    text = explained(pods.kserve(pods.huggingface_embeddings())).stdout
    assert "carpool.dev/lists  openai-embeddings  (from the server in container 'kserve-container')" in text
    assert (
        "- the sidecar batches lists by its rule openai-embeddings, as KServe's Hugging Face server with "
        "--backend=huggingface and --task=text_embedding answers embeddings one request at a time\n"
    ) in text


def test_explain_tells_it_of_an_inference_service_by_its_runtime_and_arguments() -> None:
    model_ = {"modelFormat": {"name": "huggingface"}, "args": ["--model_id=m", *EMBEDDING]}
    [found] = json.loads(explained(object_samples.service({"model": model_}), "--output=json").stdout)
    assert {"key": LISTS, "value": "openai-embeddings", "source": "the server in container 'kserve-container'"} in (
        found["settings"]
    )


@pytest.mark.parametrize("runtime", [{}, {"runtime": "kserve-mlserver"}])
def test_explain_tells_of_mlflow_in_an_inference_service_by_its_model_format(runtime: Object) -> None:
    model_ = {"modelFormat": {"name": "mlflow"}, "protocolVersion": "v2", **runtime}
    [found] = json.loads(explained(object_samples.service({"model": model_}), "--output=json").stdout)
    assert any("MLServer with the runtime of MLflow" in text for text in found["warnings"])
    other = {"modelFormat": {"name": "sklearn"}, "runtime": "kserve-mlserver"}
    [found] = json.loads(explained(object_samples.service({"model": other}), "--output=json").stdout)
    assert found["warnings"] == []


def test_explain_shows_rules_as_yaml_line_by_line() -> None:
    text = explained(pods.kserve(pods.sklearn(), annotations={LISTS: RULE})).stdout
    lines = [f"      {line}" for line in RULE.splitlines()]
    assert "\n".join(["    carpool.dev/lists  YAML  (from the pod)", *lines]) in text


MANIFEST = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: embedder}}
spec:
  selector: {{matchLabels: {{app: embedder}}}}
  template:
    metadata:
      labels: {{app: embedder}}
      annotations:
        carpool.dev/lists: |
{"".join(f"          {line}{chr(10)}" for line in RULE.splitlines())}    spec:
      containers:
        - name: server
          image: acme/embedder:1
          args: [uvicorn, "embedder:app", --host=0.0.0.0, --port=8000]
"""


def test_rules_as_yaml_survive_a_manifest_that_is_injected_and_uninjected() -> None:
    injected = testing.CliRunner().invoke(cli.program, ["inject"], input=MANIFEST).stdout
    spec = YAML(typ="safe", pure=True).load(injected)["spec"]["template"]["spec"]
    assert sidecar_config.load(pods.expanded(spec["initContainers"][0]["args"])).lists == (RULE,)
    assert testing.CliRunner().invoke(cli.program, ["uninject"], input=injected).stdout == MANIFEST


def test_the_person_who_applies_rules_that_cannot_be_used_is_told_so() -> None:
    template = object_samples.template(**{LISTS: "openai"})
    denied = validations.answer(object_samples.deployment(template))
    assert not denied.allowed
    assert "did you mean openai-embeddings?" in denied.message
    for thing in (object_samples.service(metadata={"annotations": {LISTS: "mine:\n  lst: a\n"}}),):
        denied = validations.answer(thing)
        assert not denied.allowed
        assert "rule 'mine': field 'path' is required" in denied.message


def declared(predictor: Object, **annotations: str) -> tuple[list[str], tuple[str, ...]]:
    metadata = {"annotations": {object_samples.MODE: "Standard", **annotations}}
    thing, warnings = collocation.declared(object_samples.service(predictor, metadata=metadata), Config())
    return thing["spec"]["predictor"]["containers"][-1]["args"], warnings


def test_a_sidecar_that_is_declared_without_a_webhook_gets_the_same_rule() -> None:
    runtime = {"model": {"modelFormat": {"name": "huggingface"}, "args": ["--model_id=m", *EMBEDDING]}}
    custom = {"containers": [huggingface(*EMBEDDING)]}
    for predictor in (runtime, custom):
        assert "--lists=openai-embeddings" in declared(predictor)[0]
        assert "--lists=" in declared(predictor, **{LISTS: ""})[0]
    args, warnings = declared({"model": {"modelFormat": {"name": "mlflow"}}})
    assert not any(word.startswith("--lists") for word in args)
    assert any("carpool.dev/lists: mlflow" in text for text in warnings)


def test_a_sidecar_that_is_declared_without_a_webhook_has_no_files() -> None:
    with pytest.raises(refusals.Refusal, match=r"names /rules/a\.yaml, and nothing is mounted there"):
        declared({"model": {"modelFormat": {"name": "sklearn"}}}, **{LISTS: "/rules/a.yaml"})


def test_a_runtimes_container_of_a_wrong_shape_is_told_to_be_malformed() -> None:
    with pytest.raises(refusals.Malformed, match="args"):
        declared({"model": {"modelFormat": {"name": "huggingface"}, "args": [1]}})
