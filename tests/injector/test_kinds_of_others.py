"""Kinds of other projects: edited where that is right, labelled for the webhook, or left alone with a clear word."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from carpool_injector.core import refusals
from carpool_injector.objects import explanation, manifests, workloads
from tests.injector import object_samples
from tests.injector.command_runs import run

Object = dict[str, Any]
INJECT = "carpool.dev/inject"
INJECTOR = manifests.Injector()
SERVER = {"name": "server", "image": "tritonserver:1", "args": ["tritonserver", "--model-repository=/m"]}
TEMPLATE: Object = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [SERVER]}}


def thing(version: str, kind: str, **spec: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": copy.deepcopy(spec)}


def injected(given: Object, result: str) -> Object:
    after, report = manifests.inject(given, INJECTOR)
    assert report is not None
    assert report.result == result
    return after


def has_sidecar(template: Object) -> bool:
    held = template["spec"]
    return any(each["name"] == "carpool" for each in [*held.get("initContainers", []), *held["containers"]])


def test_an_argo_rollout_is_injected_as_a_deployment_is_and_comes_back() -> None:
    selector = {"matchLabels": {"app": "web"}}
    strategy = {"canary": {"steps": [{"setWeight": 20}]}}
    before = thing("argoproj.io/v1alpha1", "Rollout", selector=selector, strategy=strategy, template=TEMPLATE)
    after = injected(before, "injected")
    assert has_sidecar(after["spec"]["template"])
    assert (after["spec"]["selector"], after["spec"]["strategy"]) == (selector, strategy)
    assert manifests.uninject(after)[0] == before


def test_a_rollout_that_refers_to_a_deployment_says_which_one_to_inject() -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    given = thing("argoproj.io/v1alpha1", "Rollout", workloadRef=reference)
    after, report = manifests.inject(given, INJECTOR)
    assert after is given
    assert report is not None
    assert (report.result, report.fix) == ("skipped", "inject Deployment/web")


def test_leaders_of_a_leader_worker_set_get_the_sidecar_and_workers_none() -> None:
    group = {"size": 2, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}
    before = thing("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", leaderWorkerTemplate=group)
    after = injected(before, "injected")["spec"]["leaderWorkerTemplate"]
    assert has_sidecar(after["leaderTemplate"])
    assert after["workerTemplate"] == TEMPLATE


def test_where_all_pods_of_a_leader_worker_set_are_alike_all_get_it() -> None:
    group = {"workerTemplate": TEMPLATE}
    before = thing("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", leaderWorkerTemplate=group)
    assert has_sidecar(injected(before, "injected")["spec"]["leaderWorkerTemplate"]["workerTemplate"])


# --- Kinds that nobody knows


def test_a_kind_that_nobody_knows_gets_the_label_in_its_template_and_nothing_else() -> None:
    before = thing(
        "example.com/v1", "ModelFarm", template=TEMPLATE, selector={"matchLabels": {"app": "web"}}, ports="a"
    )
    after = injected(before, "opted in")
    expected = copy.deepcopy(before)
    expected["spec"]["template"]["metadata"]["labels"][INJECT] = "true"
    assert after == expected
    assert injected(after, "unchanged") is after
    assert manifests.uninject(after)[0] == before


def test_what_the_webhook_will_make_of_its_pods_is_explained() -> None:
    found = explanation.explain(thing("example.com/v1", "ModelFarm", template=TEMPLATE), INJECTOR)
    assert found is not None
    assert found.plan is not None
    assert found.plan.takeover == "port-swap"
    assert "not known here" in found.expected[0]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"template": None},
        {"template": "a"},
        {"template": {"spec": {"storage": "1Gi"}}},
        {"template": {"spec": {"containers": []}}},
        {"template": {"spec": {"containers": [{"name": "no image"}]}}},
        {"template": {"spec": {"containers": "a"}}},
    ],
)
def test_what_only_looks_like_a_template_of_pods_is_none(spec: Object) -> None:
    given = thing("example.com/v1", "Thing", **spec)
    assert manifests.inject(given, INJECTOR) == (given, None)
    assert explanation.explain(given, INJECTOR) is None


def test_a_template_of_a_wrong_shape_is_told_where_it_is_wrong() -> None:
    template = {"spec": {"containers": [{"name": "a", "image": "b", "args": [1]}]}}
    with pytest.raises(refusals.Malformed, match=r"ModelFarm/web: spec.template.*args\[0\]"):
        manifests.inject(thing("example.com/v1", "ModelFarm", template=template), INJECTOR)


# --- Kinds with a word of their own


@pytest.mark.parametrize(
    ("version", "kind", "word"),
    [
        ("ray.io/v1", "RayService", "serveConfigV2"),
        ("ray.io/v1", "RayCluster", "@serve.batch"),
        ("ray.io/v1", "RayJob", "serveConfigV2"),
        ("serving.kserve.io/v1alpha1", "LLMInferenceService", "vLLM"),
        ("serving.kserve.io/v1alpha1", "ServingRuntime", "InferenceService"),
        ("serving.kserve.io/v1alpha1", "ClusterServingRuntime", "InferenceService"),
        ("machinelearning.seldon.io/v1", "SeldonDeployment", "Seldon"),
        ("serving.knative.dev/v1", "Configuration", "Knative Service"),
    ],
)
def test_explain_and_inject_say_why_a_kind_is_left_alone(version: str, kind: str, word: str) -> None:
    given = thing(version, kind, template=TEMPLATE, containers=[SERVER])
    after, report = manifests.inject(given, INJECTOR)
    explained = explanation.explain(given, INJECTOR)
    assert after is given
    assert report is not None
    assert explained is not None
    assert report.result == explained.result == "skipped"
    assert word in f"{report.text} {report.fix}"
    assert explained.refusal is not None
    assert explained.refusal.message == report.text


def test_the_commands_show_it_and_do_not_fail() -> None:
    text = "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: web}\nspec: {}\n"
    done, said = run("inject", text=text), run("explain", text=text)
    assert (done.exit_code, said.exit_code) == (0, 0)
    assert done.stdout == text
    assert "RayService/web: skipped" in done.stderr
    assert "fix: batch in Ray with @serve.batch" in said.stdout


# --- Selectors


@pytest.mark.parametrize("path", [("spec", "selector"), ("metadata",)])
def test_injecting_touches_neither_the_selector_nor_labels(path: tuple[str, ...]) -> None:
    for kind, version in (("Deployment", "apps/v1"), ("StatefulSet", "apps/v1"), ("Rollout", "argoproj.io/v1alpha1")):
        before = thing(version, kind, selector={"matchLabels": {"app": "web"}}, template=TEMPLATE)
        after = injected(before, "injected")
        for holder in (before, after):
            assert workloads.template(holder) is not None
        assert after["spec"]["selector"] == before["spec"]["selector"]
        assert after["spec"]["template"]["metadata"]["labels"] == {"app": "web"}
        assert after[path[0]].get(path[-1]) == before[path[0]].get(path[-1])


def test_labels_that_selector_and_template_share_by_an_anchor_stay_the_same_in_both() -> None:
    text = """\
apiVersion: example.com/v1
kind: ModelFarm
metadata: {name: web}
spec:
  selector:
    matchLabels: &labels
      app: web
  template:
    metadata:
      labels: *labels
    spec:
      containers:
      - name: server
        image: tritonserver
"""
    done = run("inject", text=text)
    assert done.exit_code == 0
    assert "    matchLabels: &labels\n      app: web\n  template" in done.stdout
    assert 'carpool.dev/inject: "true"' in done.stdout.partition("template:")[2]


def test_our_label_in_a_selector_is_warned_of() -> None:
    labels = {"app": "web", INJECT: "true"}
    given = object_samples.deployment({"metadata": {"labels": labels}, "spec": {"containers": [SERVER]}})
    given["spec"]["selector"] = {"matchLabels": labels}
    assert "selectors cannot be changed" in object_samples.warnings(given)
    given["spec"]["selector"] = {"matchLabels": {"app": "web"}}
    assert "selectors cannot be changed" not in object_samples.warnings(given)


# --- Parts of objects, as kustomize lays them over whole ones


@pytest.mark.parametrize(
    "spec", [{"replicas": 3}, {}, {"template": {"metadata": {"labels": {"a": "b"}}}}, {"template": {"spec": {}}}]
)
def test_a_patch_for_kustomize_is_left_alone_and_said_to_be_one(spec: Object) -> None:
    given = thing("apps/v1", "Deployment", **spec)
    after, report = manifests.inject(given, INJECTOR)
    explained = explanation.explain(given, INJECTOR)
    assert after is given
    assert report is not None
    assert report.result == "skipped"
    assert "kubectl kustomize" in report.fix
    assert explained is not None
    assert explained.result == "skipped"
    assert manifests.uninject(given) == (given, None)


def test_a_patch_beside_whole_objects_keeps_these_from_nothing() -> None:
    whole = json.dumps(thing("apps/v1", "Deployment", template=TEMPLATE))
    patch = json.dumps(thing("apps/v1", "Deployment", replicas=3))
    for command in ("inject", "explain"):
        done = run(command, text=f"{patch}\n---\n{whole}\n")
        assert done.exit_code == 0
        assert "port-swap" in done.stdout + done.stderr
