"""`inject` and `uninject`, object by object: what the webhook does, done to manifests and undone to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from carpool_injector.documents import reading, style
from tests.injector.command_runs import DEPLOYMENT, ISVC, SERVICE, Run
from tests.injector.golden import cases

UNKNOWN = DEPLOYMENT.replace("kserve-sklearnserver:0.15", "mine:1").replace("--http_port", "--listen")


def pod_of(text: str) -> Any:
    return reading.parse(text, "x")[0].data["spec"]["template"]


def test_a_workload_gets_the_sidecar_and_keeps_every_other_line(run: Run) -> None:
    result = run("inject", "-", text=DEPLOYMENT)
    assert result.exit_code == 0, result.stderr
    pod = pod_of(result.stdout)
    assert [container["name"] for container in pod["spec"]["initContainers"]] == ["carpool"]
    assert json.loads(pod["metadata"]["annotations"]["carpool.dev/status"])["takeover"] == "port-swap"
    assert "carpool.dev/inject" not in result.stdout, "the request was the command's, not the manifest's"
    changed = ("        - containerPort: 8080", "          - --http_port=8080")
    assert all(line in result.stdout.splitlines() for line in DEPLOYMENT.splitlines() if line not in changed)
    assert "stdin: Deployment/iris: injected: port-swap, as a native sidecar, in front of container" in result.stderr
    assert result.stderr.endswith("1 injected\n")


def test_nothing_named_reads_what_is_piped_in(run: Run) -> None:
    assert run("inject", text=DEPLOYMENT).stdout == run("inject", "-", text=DEPLOYMENT).stdout


def test_injecting_twice_changes_nothing_more(run: Run) -> None:
    once = run("inject", text=DEPLOYMENT).stdout
    twice = run("inject", text=once)
    assert twice.stdout == once
    assert "Deployment/iris: unchanged: it has the sidecar already" in twice.stderr


UNENDED = DEPLOYMENT.removesuffix("      # nothing else\n").rstrip("\n")


@pytest.mark.parametrize("text", [DEPLOYMENT, ISVC, f"{DEPLOYMENT}---\n{ISVC}---\n{SERVICE}", UNENDED, ISVC[:-1]])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("flags", [[], ["--without-webhook"]])
def test_what_was_injected_and_uninjected_is_what_it_was_to_the_byte(
    run: Run, tmp_path: Path, text: str, newline: str, flags: list[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(text.replace("\n", newline).encode())
    assert run("inject", "-i", path, *flags).exit_code == 0
    assert path.read_bytes() != text.replace("\n", newline).encode()
    result = run("uninject", "-i", path)
    assert (result.exit_code, path.read_bytes()) == (0, text.replace("\n", newline).encode())


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_stays_json(run: Run, tmp_path: Path, indent: int | str | None) -> None:
    before = json.dumps(reading.parse(DEPLOYMENT, "x")[0].data, indent=indent)
    after = run("inject", text=before).stdout
    assert len(json.loads(after)["spec"]["template"]["spec"]["initContainers"]) == 1
    assert after == json.dumps(json.loads(after), indent=indent)
    assert run("uninject", text=after).stdout == before


TAKEN_OUT_EXACTLY = [case for case in cases.load_all() if case.facts["result"] == "injected"]


@pytest.mark.parametrize("case", TAKEN_OUT_EXACTLY, ids=lambda case: str(case.name))
def test_the_golden_pods_come_back_as_they_were(run: Run, tmp_path: Path, case: Any) -> None:
    """All but what cannot: a status that was there before, and KServe's agent, which its webhook adds again.

    KServe's annotation comes back as the last one: where it stood is not known any more.
    """
    pod = case.pod
    names = [container["name"] for container in pod["spec"]["containers"]]
    if "agent" in names or "carpool.dev/status" in json.dumps(pod) or "carpool" in names:
        pytest.skip("injected already, or with KServe's agent")
    text = style.Style().block({"apiVersion": "v1", "kind": "Pod", **pod}, 0) + "\n"
    injected = run("inject", text=text)
    if injected.exit_code:
        pytest.skip("needs the admin's configuration of that case")
    back = run("uninject", text=injected.stdout)
    assert back.exit_code == 0
    assert reading.parse(back.stdout, "x")[0].data == reading.parse(text, "x")[0].data
    assert back.stdout == text or "serving.kserve.io/batcher:" in text


def test_what_makes_no_pods_is_passed_on(run: Run) -> None:
    result = run("inject", text=SERVICE)
    assert (result.exit_code, result.stdout) == (0, SERVICE)
    assert result.stderr == "nothing to do: no object in there makes pods\n"


@pytest.mark.parametrize("text", ["", "---\n", "# only words\n", "---\n---\n...\n", "[1, 2]\n", "just text\n"])
def test_documents_without_objects_are_passed_on(run: Run, text: str) -> None:
    result = run("inject", text=text)
    assert (result.exit_code, result.stdout) == (0, text)


def test_the_objects_of_lists_are_injected(run: Run) -> None:
    items = [reading.parse(text, "x")[0].data for text in (DEPLOYMENT, SERVICE, ISVC)]
    inner = {"apiVersion": "v1", "kind": "List", "items": items}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [inner]}, indent=2)
    result = run("inject", text=text)
    assert result.stderr.endswith("1 injected, 1 opted in\n")
    assert run("uninject", text=result.stdout).stdout == text


def test_an_object_that_says_no_is_skipped(run: Run) -> None:
    text = DEPLOYMENT.replace("labels: *labels", 'labels: {app: iris, carpool.dev/inject: "false"}')
    result = run("inject", text=text)
    assert (result.exit_code, result.stdout) == (0, text)
    assert "Deployment/iris: skipped: switched-off (the pod's label carpool.dev/inject)" in result.stderr


def test_what_cannot_be_injected_is_refused_with_the_fix_and_left_as_it_was(run: Run) -> None:
    result = run("inject", text=UNKNOWN.replace("- containerPort: 8080", "- {containerPort: 8080}"))
    assert result.exit_code == 1
    assert "initContainers" not in result.stdout
    assert "Deployment/iris: refused: port 8080 of container 'server' cannot be taken over" in result.stderr
    assert "\n  fix: " in result.stderr


def test_the_others_are_injected_all_the_same(run: Run) -> None:
    result = run("inject", text=f"{UNKNOWN}---\n{DEPLOYMENT}")
    assert result.exit_code == 1
    assert result.stderr.endswith("1 refused, 1 injected\n")
    assert result.stdout.count("name: carpool\n") == 1


@pytest.mark.parametrize("template", ["[]", "true", "text"])
def test_a_template_that_is_no_object_is_refused(run: Run, template: str) -> None:
    text = f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: x}}\nspec: {{template: {template}}}\n"
    result = run("inject", text=text)
    assert result.exit_code == 1
    assert "Deployment/x: refused: Deployment/x: spec.template is" in result.stderr
    assert "must be a mapping" in result.stderr


def test_a_workload_without_a_template_is_left_alone_as_a_patch_for_kustomize(run: Run) -> None:
    text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n"
    result = run("inject", text=text)
    assert (result.exit_code, result.stdout) == (0, text)
    assert "render it first" in result.stderr


def test_opted_in_only_leaves_alone_what_does_not_ask(run: Run) -> None:
    result = run("inject", "--opted-in-only", text=f"{DEPLOYMENT}---\n{ISVC}")
    assert (result.exit_code, result.stdout) == (0, f"{DEPLOYMENT}---\n{ISVC}")


def test_opted_in_only_asks_the_namespace(run: Run) -> None:
    result = run("inject", "--opted-in-only", "--namespace-labels", "carpool.dev/inject=enabled", text=DEPLOYMENT)
    assert result.stderr.endswith("1 injected\n")


def test_opted_in_only_skips_what_only_the_namespace_asked_for_and_cannot_be(run: Run) -> None:
    flags = ("--opted-in-only", "--namespace-labels", "carpool.dev/inject=enabled")
    text = DEPLOYMENT.replace("kserve-sklearnserver:0.15", "torchserve:1").replace("--http_port=8080", "--start")
    result = run("inject", *flags, text=text)
    assert (result.exit_code, result.stdout) == (0, text)
    assert "Deployment/iris: skipped" in result.stderr


def test_annotations_are_added_first(run: Run) -> None:
    result = run("inject", "--annotate", "carpool.dev/max-batch-size=16", text=DEPLOYMENT)
    pod = pod_of(result.stdout)
    assert pod["metadata"]["annotations"]["carpool.dev/max-batch-size"] == "16"
    assert "--max-batch-size=16" in pod["spec"]["initContainers"][0]["args"]


def test_bad_annotations_are_refused_with_what_is_allowed(run: Run) -> None:
    result = run("inject", "--annotate", "carpool.dev/max-batch-size=many", text=f"{DEPLOYMENT}---\n{ISVC}")
    assert result.exit_code == 1
    assert result.stderr.count("annotation carpool.dev/max-batch-size: got 'many'") == 2
    assert result.stdout == f"{DEPLOYMENT}---\n{ISVC}"


def test_the_admins_configuration_counts(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("image: registry.example/carpool:9\ndefaults: {max-batch-size: '4'}\n")
    for result in (
        run("inject", "--config", config, text=DEPLOYMENT),
        run("inject", text=DEPLOYMENT, CARPOOL_INJECTOR_CONFIG=str(config)),
    ):
        sidecar = pod_of(result.stdout)["spec"]["initContainers"][0]
        assert sidecar["image"] == "registry.example/carpool:9"
        assert "--max-batch-size=4" in sidecar["args"]


def test_an_older_kubernetes_gets_an_ordinary_container(run: Run) -> None:
    pod = pod_of(run("inject", "--kubernetes-version", "v1.28.3", text=DEPLOYMENT).stdout)
    assert [container["name"] for container in pod["spec"]["containers"]] == ["server", "carpool"]


def test_an_inference_service_is_opted_in_because_its_pods_are_made_elsewhere(run: Run) -> None:
    result = run("inject", text=ISVC)
    assert result.stdout == ISVC.replace(
        "  name: flowers\n", '  name: flowers\n  labels:\n    carpool.dev/inject: "true"\n'
    )
    assert "InferenceService/flowers: opted in: its pods are made by a controller; the webhook" in result.stderr
    again = run("inject", text=result.stdout)
    assert "unchanged" in again.stderr


def test_an_inference_service_that_says_no_is_skipped(run: Run) -> None:
    text = ISVC.replace("  name: flowers\n", '  name: flowers\n  annotations: {carpool.dev/inject: "false"}\n')
    assert 'skipped: it says carpool.dev/inject: "false"' in run("inject", text=text).stderr


def test_a_knative_service_is_opted_in_on_its_template(run: Run) -> None:
    text = (
        "apiVersion: serving.knative.dev/v1\nkind: Service\nspec:\n  template:\n    spec: {containers: [{image: a}]}\n"
    )
    result = run("inject", text=text)
    found = reading.parse(result.stdout, "x")[0].data["spec"]["template"]["metadata"]
    assert found == {"labels": {"carpool.dev/inject": "true"}}
    assert run("uninject", text=result.stdout).stdout == text


def test_uninject_tells_when_the_webhook_would_inject_again(run: Run) -> None:
    text = DEPLOYMENT.replace("labels: *labels", 'labels: {app: iris, carpool.dev/inject: "true"}')
    result = run("uninject", text=run("inject", text=text).stdout)
    assert result.stdout == text
    assert "warning: carpool.dev/inject still asks for it" in result.stderr


def test_uninject_refuses_a_sidecar_whose_app_has_another_name_and_says_what_it_looked_for(run: Run) -> None:
    injected = run("inject", text=DEPLOYMENT).stdout
    renamed = injected.replace("- name: server\n", "- name: web\n")
    assert renamed != injected
    result = run("uninject", text=renamed)
    assert result.exit_code != 0
    assert "refused" in result.stderr
    assert "container 'server', which is not there" in result.stderr


def test_a_named_revision_of_knative_is_warned_of(run: Run) -> None:
    text = (
        "apiVersion: serving.knative.dev/v1\nkind: Service\nspec:\n  template:\n    metadata: {name: ranker-v3}\n"
        "    spec: {containers: [{image: a}]}\n"
    )
    for result in (injected := run("inject", text=text), run("uninject", text=injected.stdout)):
        assert "spec.template.metadata.name is 'ranker-v3'" in result.stderr
        assert "Knative refuses the change" in result.stderr
