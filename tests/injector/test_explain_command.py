"""`explain` says what will happen to a pod and why, and what is only expected of the cluster."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click import testing

from carpool_injector import cli
from carpool_injector.core import listening, servers, sites
from carpool_injector.core import pods as views
from carpool_injector.objects import kserve_pods, kserve_runtimes

Run = Callable[..., testing.Result]


@pytest.fixture
def run() -> Run:
    def run(thing: Any, *args: str) -> testing.Result:
        text = thing if isinstance(thing, str) else json.dumps(thing)
        return testing.CliRunner().invoke(cli.program, ["explain", *args], input=text)

    return run


@pytest.fixture
def values(run: Run) -> Callable[..., Any]:
    def values(thing: Any, *args: str) -> Any:
        (found,) = json.loads(run(thing, "--output", "json", *args).stdout)
        return found

    return values


def pod(*args: str, labels: dict[str, str] | None = None, **annotations: str) -> dict[str, Any]:
    container = {"name": "server", "image": "kserve-sklearnserver", "args": list(args or ("--http_port=8080",))}
    metadata = {"name": "iris", "labels": labels or {}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def service(predictor: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris", "labels": ASKS, "annotations": annotations},
        "spec": {"predictor": predictor or {"model": {"modelFormat": {"name": "sklearn"}}}},
    }


ASKS = {"carpool.dev/inject": "true"}


def test_a_pod_that_asks_is_told_its_plan_in_words(run: Run) -> None:
    result = run(pod(labels=ASKS, **{"carpool.dev/max-batch-size": "16"}))
    assert result.exit_code == 0
    assert result.stdout.startswith("Pod/iris (namespace default, stdin) gets the sidecar\n")
    assert "1. yes  the pod's label carpool.dev/inject  <- decides" in result.stdout
    assert "port-swap: a native sidecar" in result.stdout
    assert "callers reach it on 8080, it reaches the app on 9083; admin port 9082" in result.stdout
    assert "carpool.dev/max-batch-size  16  (from the pod)" in result.stdout


def test_a_pod_that_does_not_ask_is_told_how_it_would_be_and_how_to_ask(run: Run) -> None:
    result = run(pod())
    assert "gets no sidecar: nobody asks for it" in result.stdout
    assert "how, if it asked:\n    port-swap" in result.stdout
    assert 'to ask: label the pod carpool.dev/inject: "true"' in result.stdout


def test_a_pod_that_is_refused_is_told_the_fix_and_the_exit_status_is_1(run: Run) -> None:
    refused = run(json.dumps(pod(labels=ASKS)).replace("kserve-sklearnserver", "mine").replace("--http_port", "--p"))
    assert refused.exit_code == 1
    assert "asks for the sidecar and cannot have it" in refused.stdout
    assert "not possible: container 'server' declares no port" in refused.stdout
    assert "fix: declare its containerPort, or set carpool.dev/port" in refused.stdout


def test_a_word_that_is_neither_yes_nor_no_is_shown_where_it_stands(run: Run) -> None:
    result = run(pod(labels={"carpool.dev/inject": "maybe"}))
    assert result.exit_code == 1
    assert "1. bad  the pod's label carpool.dev/inject  <- decides" in result.stdout
    assert 'got \'maybe\': must be "true" or "false"' in result.stdout


def test_the_first_row_that_says_something_decides(values: Callable[..., Any]) -> None:
    found = values(pod(labels={"carpool.dev/inject": "false"}), "--namespace-labels", "carpool.dev/inject=enabled")
    assert [(row["found"], row["decides"]) for row in found["decision"]] == [
        ("no", True), ("", False), ("yes", False), ("", False),
    ]  # fmt: skip
    assert (found["result"], found["asked"]) == ("skipped", False)


def namespace(name: str, labels: Any = None, annotations: Any = None) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


ENABLED = {"carpool.dev/inject": "enabled"}


@pytest.mark.parametrize("is_in_list", [True, False])
def test_a_namespace_among_the_manifests_counts_for_its_own_pods(run: Run, is_in_list: bool) -> None:
    flowers, default = pod(), pod()
    flowers["metadata"]["namespace"] = "flowers"
    things = [namespace("flowers", ENABLED, {"carpool.dev/max-latency": "7"}), namespace("idle"), flowers, default]
    if is_in_list:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
    else:
        text = "\n---\n".join(map(json.dumps, things))
    in_flowers, in_default = json.loads(run(text, "--output", "json").stdout)
    assert (in_flowers["result"], in_default["result"]) == ("injected", "unconcerned")
    assert in_flowers["settings"] == [{"key": "carpool.dev/max-latency", "value": "7", "source": "namespace flowers"}]
    in_flowers, in_default = json.loads(run(text, "--output", "json", "--namespace", "flowers").stdout)
    assert (in_flowers["result"], in_default["result"]) == ("injected", "injected")


def test_what_is_said_of_the_namespace_on_the_command_line_comes_first(values: Callable[..., Any]) -> None:
    things = [namespace("default", {**ENABLED, "a": "b"}, {"carpool.dev/max-latency": "7"}), pod()]
    listed = {"apiVersion": "v1", "kind": "List", "items": things}
    assert values(listed, "--namespace-labels", "carpool.dev/inject=disabled")["result"] != "injected"
    (setting,) = values(listed, "--namespace-annotations", "carpool.dev/max-latency=5")["settings"]
    assert setting["value"] == "5"


@pytest.mark.parametrize("odd", [namespace("default", "x", [1]), namespace("default", {"carpool.dev/inject": 1}),
                                 {"apiVersion": "v1", "kind": "Namespace"}, namespace(3, ENABLED)])  # fmt: skip
def test_a_namespace_that_is_malformed_says_nothing(values: Callable[..., Any], odd: Any) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [odd, pod()]}
    assert values(listed)["result"] == "unconcerned"


def test_settings_tell_where_they_come_from(values: Callable[..., Any]) -> None:
    found = values(pod(labels=ASKS), "--namespace-annotations", "carpool.dev/max-latency=5")
    assert found["settings"] == [{"key": "carpool.dev/max-latency", "value": "5", "source": "namespace default"}]


def test_json_has_everything(values: Callable[..., Any]) -> None:
    found = values(pod(labels=ASKS))
    assert found["file"] == "stdin"
    assert found["plan"]["takeover"] == "port-swap"
    assert found["plan"]["appPort"] == 9083
    assert found["refusal"] is None
    assert found["plan"]["steps"]


def test_the_mode_in_a_manifest_is_certain_and_a_default_is_expected(values: Callable[..., Any]) -> None:
    said = values(service(**{"serving.kserve.io/deploymentMode": "Knative"}))
    assert any("mode Knative" in text for text in said["certain"])
    assert said["plan"]["takeover"] == "queue-proxy"
    unsaid = values(service())
    assert any("mode Standard" in text for text in unsaid["expected"])
    assert unsaid["plan"]["takeover"] == "port-swap"
    assert values(service(), "--kserve", "knative")["plan"]["takeover"] == "queue-proxy"


def test_the_batcher_of_kserve_makes_it_take_the_agents_place(values: Callable[..., Any]) -> None:
    predictor = {"model": {"modelFormat": {"name": "pytorch"}}, "batcher": {"maxBatchSize": 8}}
    found = values(service(predictor))
    assert (found["plan"]["takeover"], found["plan"]["listenPort"]) == ("kserve-agent", 9081)
    assert any("KServe would run its agent on 9081" in text for text in found["certain"])
    assert {"key": "carpool.dev/max-batch-size", "value": "8", "source": "KServe's batcher"} in found["settings"]


def test_a_logger_keeps_kserves_agent(values: Callable[..., Any]) -> None:
    predictor = {"model": {"modelFormat": {"name": "sklearn"}}, "logger": {"mode": "all"}}
    found = values(service(predictor))
    assert found["plan"]["takeover"] == "kserve-agent"
    assert any("the agent sends to the sidecar" in step for step in found["plan"]["steps"])


def test_a_runtime_that_takes_its_port_from_a_file_is_refused_with_kserves_batcher_as_the_fix(
    values: Callable[..., Any],
) -> None:
    found = values(service({"model": {"modelFormat": {"name": "pytorch"}}}))
    assert found["refusal"]["code"] == "no-takeover"
    assert "batcher" in found["refusal"]["fix"]


def test_a_runtime_that_is_not_known_is_said_to_be(values: Callable[..., Any]) -> None:
    found = values(service({"model": {"modelFormat": {"name": "own"}, "runtime": "my-runtime"}}))
    assert any("'my-runtime', which is not known here" in text for text in found["expected"])


def test_a_knative_service_has_its_queue_proxy(values: Callable[..., Any]) -> None:
    spec = {"containers": [{"image": "mine", "ports": [{"containerPort": 9000}]}]}
    template = {"metadata": {"labels": ASKS}, "spec": spec}
    thing = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {}, "spec": {"template": template}}
    found = values(thing)
    assert (found["plan"]["takeover"], found["plan"]["appPort"]) == ("queue-proxy", 9000)


def test_every_runtime_of_kserve_that_can_be_told_its_port_is_recognised() -> None:
    """The table of runtimes and the table of servers speak of the same servers."""
    told_nothing = {"kserve-openvino", "kserve-huggingfaceserver-multinode"}
    for runtime in kserve_runtimes.RUNTIMES:
        pod = kserve_pods.expect(service({"model": {"runtime": runtime.name}})).pod
        container = views.read(pod).spec.containers[0]
        known = servers.recognise(container)
        assert (known is None) == (runtime.name in told_nothing), runtime.name
        assert sites.is_predictor(views.read(pod))
        setting = listening.told(known.http, container).setting if known else None
        assert setting is None or setting.port == 8080, runtime.name


def test_lists_and_several_documents_are_explained_one_by_one(run: Run) -> None:
    things = {"apiVersion": "v1", "kind": "List", "items": [pod(), {"kind": "Secret"}, pod(labels=ASKS)]}
    assert run(things).stdout.count("Pod/iris (namespace default, stdin)") == 2


def test_manifests_without_pods_are_told(run: Run) -> None:
    assert run({"apiVersion": "v1", "kind": "Service"}).stdout == "no object in there makes pods\n"


def test_what_is_no_pod_is_told_with_status_2(run: Run) -> None:
    result = run({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": []}})
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "spec.containers" in result.stderr


def test_a_malformed_object_is_told_with_file_object_and_field_and_the_others_are_explained(
    run: Run, tmp_path: Path
) -> None:
    wrong = pod()
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["containers"][0]["env"] = [{"name": "LEVEL", "value": "info"}, {"name": "WORKERS", "value": 4711}]
    result = run({"apiVersion": "v1", "kind": "List", "items": [wrong, pod(labels=ASKS)]})
    assert result.exit_code == 2
    assert "Pod/iris (namespace default, stdin)" in result.stdout
    told = (
        "carpool-injector explain: stdin: Pod/wrong: spec.containers[0].env[1].value, of 'WORKERS', is of type int and "
        "must be a string"
    )
    assert result.stderr.startswith(told)
    assert "4711" not in result.stderr


def test_a_file_that_cannot_be_read_is_told_and_the_others_are_explained(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: {{ .Values.kind }}\n")
    (tmp_path / "b.yaml").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **pod(labels=ASKS)}))
    (tmp_path / "c.yaml").write_bytes(b"\xff")
    result = testing.CliRunner().invoke(cli.program, ["explain", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stdout.startswith("Pod/iris (namespace default")
    lines = result.stderr.splitlines()
    assert [line.split(":")[1].rpartition("/")[2] for line in lines] == ["a.yaml", "c.yaml"]


README = Path(__file__).parents[2] / "injector" / "README.md"


def test_the_example_of_the_readme_is_explained_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, console = (
        re.search(rf"^```{kind}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for kind in ("yaml", "console")
    )
    assert manifest is not None
    assert console is not None
    command, _, output = console[1].partition("\n")
    prompt, program, *args = shlex.split(command)
    assert (prompt, program) == ("$", "carpool-injector")
    (tmp_path / args[-1]).write_text(manifest[1])
    monkeypatch.chdir(tmp_path)
    assert testing.CliRunner().invoke(cli.program, args).stdout == output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["tritonserver", "--model-repository=/m"], "Triton speaks v2 over HTTP and gRPC, which needs no rule"),
        (["mlflow", "models", "serve", "-m", "/m", "-h", "0.0.0.0"], "MLflow makes one table of all instances"),
        (["vllm", "serve", "m"], "vLLM batches by itself what arrives together"),
    ],
    ids=["triton", "mlflow", "vllm"],
)
def test_what_is_known_of_the_server_is_told(
    run: Run, values: Callable[..., Any], command: list[str], words: str
) -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"carpool.dev/inject": "true"}},
        "spec": {"containers": [{"name": "app", "image": "acme/app:1", "command": command}]},
    }  # fmt: skip
    text = run(pod).stdout
    assert words in text[text.index("its server:") :]
    assert any(words in line for line in values(pod)["server"])
