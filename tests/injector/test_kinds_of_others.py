"""Kinds of other projects: edited where that is right, labelled for the webhook, or left alone with a clear word."""

from __future__ import annotations

import copy
import json
import pathlib
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
        ("serving.kubeflow.org/v1beta1", "InferenceService", "serving.kserve.io"),
        ("serving.kserve.io/v1alpha2", "InferenceService", "v1beta1 only"),
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


# --- Templates of pods elsewhere than in spec.template

JOB_SET = thing(
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    replicatedJobs=[{"name": "a", "template": {"spec": {"template": TEMPLATE}}}, {"name": "b"}],
)
TRAINING = thing(
    "kubeflow.org/v1",
    "PyTorchJob",
    pytorchReplicaSpecs={"Master": {"template": TEMPLATE}, "Worker": {"template": TEMPLATE}},
)


@pytest.mark.parametrize(
    ("given", "places"),
    [
        (JOB_SET, ["spec.replicatedJobs[0].template.spec.template"]),
        (TRAINING, [f"spec.pytorchReplicaSpecs.{name}.template" for name in ("Master", "Worker")]),
    ],
)
def test_a_kind_with_templates_elsewhere_is_left_alone_and_each_of_them_explained(
    given: Object, places: list[str]
) -> None:
    after, report = manifests.inject(given, INJECTOR)
    assert after is given
    assert report is not None
    assert report.result == "skipped"
    assert ", ".join(places) in report.text
    explained = list(explanation.explain_all(given, INJECTOR))
    assert [each.name for each in explained] == [f"{given['kind']}/web, {place}" for place in places]
    assert all(each.plan and each.plan.takeover == "port-swap" for each in explained)


def test_templates_elsewhere_that_ask_will_get_the_sidecar() -> None:
    given = copy.deepcopy(JOB_SET)
    given["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["labels"][INJECT] = "true"
    injected(given, "unchanged")
    assert [each.result for each in explanation.explain_all(given, INJECTOR)] == ["injected"]


def test_a_template_of_openshift_is_to_be_processed_first() -> None:
    deployment = object_samples.deployment(TEMPLATE)
    given = {"apiVersion": "template.openshift.io/v1", "kind": "Template", "objects": [deployment]}
    after, report = manifests.inject(given, INJECTOR)
    assert after is given
    assert report is not None
    assert (report.result, report.fix) == (
        "skipped",
        "process it first: oc process -f FILE -o yaml | carpool-injector inject",
    )
    assert manifests.inject({**given, "objects": [{"kind": "Route"}]}, INJECTOR)[1] is None


def test_a_deployment_of_the_group_before_apps_is_one() -> None:
    assert has_sidecar(
        injected(thing("extensions/v1beta1", "Deployment", template=TEMPLATE), "injected")["spec"]["template"]
    )


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


IMAGELESS: Object = {"containers": [{"name": "server", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}


@pytest.mark.parametrize(
    ("version", "kind", "spec"),
    [
        ("apps/v1", "StatefulSet", {"template": {"spec": IMAGELESS}}),
        ("apps/v1", "DaemonSet", {"template": {"spec": {"containers": [{**SERVER, "image": ""}]}}}),
        ("apps/v1", "Deployment", {"selector": {}, "template": {"spec": {**IMAGELESS, "initContainers": [SERVER]}}}),
        ("batch/v1", "Job", {"template": {"spec": {"containers": [SERVER], "initContainers": [{"name": "a"}]}}}),
        ("batch/v1", "Job", {"template": {"spec": {"containers": [SERVER, {"name": "a", "$patch": "delete"}]}}}),
        ("batch/v1", "Job", {"template": {"spec": {"$setElementOrder/containers": [], "containers": [SERVER]}}}),
        ("batch/v1", "CronJob", {"jobTemplate": {"spec": {"template": {"spec": IMAGELESS}}}}),
        ("argoproj.io/v1alpha1", "Rollout", {"template": {"spec": IMAGELESS}}),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
         {"leaderWorkerTemplate": {"leaderTemplate": {"spec": IMAGELESS}}}),
        ("v1", "Pod", IMAGELESS),
        ("example.com/v1", "ModelFarm", {"template": {"spec": {"containers": [SERVER, {"name": "log"}]}}}),
        ("serving.knative.dev/v1", "Service", {"template": {"spec": IMAGELESS}}),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"minReplicas": 2, "labels": {"a": "b"}}}),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"model": {"resources": {}}}}),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": IMAGELESS}),
    ],
)  # fmt: skip
def test_what_lacks_what_a_whole_object_needs_is_a_patch_and_left_alone(version: str, kind: str, spec: Object) -> None:
    given = thing(version, kind, **spec)
    after, report = manifests.inject(given, INJECTOR)
    assert after is given
    assert report is not None
    assert report.result == "skipped"
    assert "patch" in report.text
    assert "kubectl kustomize" in report.fix
    assert manifests.inject(given, manifests.Injector(without_webhook=True)) == (given, report)
    assert manifests.inject(given, manifests.Injector(opted_in_only=True)) == (given, None)
    assert manifests.uninject(given) == (given, None)


@pytest.mark.parametrize(
    ("version", "kind", "spec"),
    [
        ("extensions/v1beta1", "Deployment", {"template": TEMPLATE}),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"model": {"modelFormat": {"name": "onnx"}}}}),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"sklearn": {"storageUri": "s3://a"}}}),
        (
            "serving.kserve.io/v1beta1",
            "InferenceService",
            {"predictor": {"model": {"modelFormat": {"name": "onnx"}}, "containers": [{"name": "kserve-container"}]}},
        ),
    ],
)
def test_what_others_complete_is_no_patch(version: str, kind: str, spec: Object) -> None:
    _, report = manifests.inject(thing(version, kind, **spec), INJECTOR)
    assert report is not None
    assert report.result in ("injected", "opted in")


BASE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: ranker}
spec:
  selector: {matchLabels: {app: ranker}}
  template:
    metadata: {labels: {app: ranker}}
    spec:
      containers:
      - name: app
        image: ranker:1
        args: [uvicorn, "app:app", --host=0.0.0.0, --port=8000]
        env: [{name: LOG_LEVEL, value: info}]
        ports: [{name: http, containerPort: 8000}]
"""
PATCH = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec: {template: {spec: {containers: [{name: app, SETS}]}}}
"""


@pytest.mark.parametrize(
    ("name", "sets", "result"),
    [
        ("ranker", "ports: [{name: http, containerPort: 8000}]", "refused"),
        ("ranker", "args: [uvicorn, --port=8001]", "refused"),
        ("ranker", "lifecycle: {preStop: {exec: {command: [sleep, '5']}}}", "refused"),
        ("ranker", "env: [{name: LOG_LEVEL, value: debug}]", "injected"),
        ("ranker", "resources: {limits: {nvidia.com/gpu: 1}}", "injected"),
        ("other", "ports: [{name: http, containerPort: 8000}]", "injected"),
    ],
)
def test_an_object_whose_patch_would_undo_the_injection_is_left_alone(
    tmp_path: pathlib.Path, name: str, sets: str, result: str
) -> None:
    base, patch = tmp_path / "base.yaml", tmp_path / "overlay.yaml"
    base.write_text(BASE)
    patch.write_text(PATCH.replace("NAME", name).replace("SETS", sets))
    done = run("inject", "--in-place", tmp_path)
    assert f"Deployment/ranker: {result}" in done.stderr
    assert "1 skipped" in done.stderr
    assert done.exit_code == (result == "refused")
    assert patch.read_text() == PATCH.replace("NAME", name).replace("SETS", sets)
    assert (base.read_text() == BASE) == (result == "refused")


def test_a_variable_that_a_patch_sets_counts_only_if_the_injection_changed_it(tmp_path: pathlib.Path) -> None:
    server = 'args: [uvicorn, "app:app", --host=0.0.0.0, --port=8000]\n        env: [{name: LOG_LEVEL, value: info}]'
    own = "env: [{name: PORT, value: '8000'}]"
    (tmp_path / "base.yaml").write_text(BASE.replace(server, own))
    (tmp_path / "overlay.yaml").write_text(PATCH.replace("NAME", "ranker").replace("SETS", own))
    assert "a patch of it in these files sets env of container 'app'" in run("inject", tmp_path).stderr


IMAGE_ONLY = "image: ranker:2"


def test_an_object_without_a_selector_beside_a_whole_one_of_its_name_is_a_patch(tmp_path: pathlib.Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    patch = PATCH.replace("SETS", IMAGE_ONLY)
    (tmp_path / "overlay.yaml").write_text(patch.replace("NAME", "ranker"))
    said = run("inject", tmp_path).stderr
    assert (
        "Deployment/ranker: skipped: it has no spec.selector, which another one of its name has, so it is a patch"
        in said
    )
    assert "1 injected, 1 skipped" in said
    assert "is a patch" in run("explain", tmp_path).stdout
    (tmp_path / "overlay.yaml").write_text(patch.replace("NAME", "other"))
    assert "is a patch" not in run("inject", tmp_path).stderr


KUSTOMIZATION = "resources: [../base.yaml]\n"


@pytest.mark.parametrize("head", ["", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"])
@pytest.mark.parametrize("field", ["patches:\n- path: image.yaml", "patchesStrategicMerge:\n- image.yaml"])
def test_what_a_kustomization_lays_over_others_is_a_patch_whatever_it_says(
    tmp_path: pathlib.Path, head: str, field: str
) -> None:
    folder = tmp_path / "overlay"
    folder.mkdir()
    (tmp_path / "base.yaml").write_text(BASE)
    (folder / "image.yaml").write_text(PATCH.replace("NAME", "any").replace("SETS", IMAGE_ONLY))
    (folder / "kustomization.yaml").write_text(f"{head}{KUSTOMIZATION}{field}\n")
    done = run("inject", "--in-place", tmp_path)
    assert "Deployment/any: skipped: a Kustomization in these files names it among its patches" in done.stderr
    assert f"warning: patches of {folder / 'kustomization.yaml'} are laid over objects later" in done.stderr
    assert done.stderr.endswith("1 injected, 1 skipped\n")


@pytest.mark.parametrize(
    "text",
    [
        KUSTOMIZATION,
        f"{KUSTOMIZATION}patches: []\n",
        "patches: [a]\n",
        "kind: Other\nresources: [a]\npatches: [b]\n",
    ],
)
def test_what_lays_nothing_over_others_is_no_reason_to_warn(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "other.yaml").write_text(text)
    assert "laid over" not in run("inject", tmp_path).stderr


def test_patches_within_a_kustomization_are_warned_of(tmp_path: pathlib.Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    for name in ("a", "b", "c"):
        inline = "- patch: |-\n    - op: remove\n      path: /spec/replicas\n"
        (tmp_path / f"{name}.yaml").write_text(f"{KUSTOMIZATION}patches:\n{inline}")
    said = run("inject", tmp_path).stderr
    assert f"patches of {tmp_path / 'a.yaml'} and 2 more are laid over" in said
    assert "laid over" not in run("uninject", tmp_path).stderr


def test_a_patch_beside_whole_objects_keeps_these_from_nothing() -> None:
    whole = json.dumps(object_samples.deployment(TEMPLATE))
    patch = json.dumps(thing("apps/v1", "Deployment", replicas=3))
    for command in ("inject", "explain"):
        done = run(command, text=f"{patch}\n---\n{whole}\n")
        assert done.exit_code == 0
        assert "port-swap" in done.stdout + done.stderr


ARGS = "args: [uvicorn, 'app:app', --workers=2]"
MEMORY = "resources: {limits: {memory: 1Gi}}"
CONTAINER = "/spec/template/spec/containers/0"


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def strategic(name: str, sets: str, target: str = "") -> str:
    text = indented(PATCH.replace("NAME", name).replace("SETS", sets))
    return f"patches:\n- {target}patch: |-\n{text}"


def operation(path: str, op: str = "replace", value: str = "1", target: str = "{kind: Deployment}") -> str:
    return f"patches:\n- target: {target}\n  patch: |-\n    - {{op: {op}, path: {path}, value: {value}}}\n"


def kustomized(folder: pathlib.Path, overlay: str, between: str = "", beside: str = "") -> Any:
    """What `inject` says of a base below an overlay, with a Kustomization between them and a file beside."""
    files = {
        "base/base.yaml": BASE,
        "base/kustomization.yaml": "resources: [base.yaml]\n",
        "between/kustomization.yaml": f"resources: [../base]\n{between}",
        "overlay/kustomization.yaml": f"resources: [../between]\n{overlay}",
        **({"overlay/patch.yaml": beside} if beside else {}),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    done = run("inject", "--in-place", folder)
    assert ((folder / "base/base.yaml").read_text() == BASE) == ("1 refused" in done.stderr)
    return done


SELECT = "replacements:\n- targets:\n  - select: {kind: Deployment}\n    fieldPaths: "
CONFLICTS = {
    "inline": strategic("ranker", ARGS),
    "inline, by the list of old": strategic("ranker", ARGS).replace("patches:\n- patch:", "patchesStrategicMerge:\n-"),
    "inline, with a target": strategic("any", ARGS, "target: {kind: Deployment}\n  "),
    "inline, of a whole container": strategic("ranker", "$patch: delete"),
    "a container's item": operation(f"{CONTAINER}/args/3"),
    "a container's list": operation(f"{CONTAINER}/args"),
    "a port": operation(f"{CONTAINER}/ports/0/containerPort"),
    "another argument": operation(f"{CONTAINER}/args/-", "add"),
    "a container": operation(CONTAINER, "remove"),
    "all containers": operation("/spec/template/spec/containers"),
    "the template": operation("/spec/template"),
    "all annotations": operation("/spec/template/metadata/annotations", "add", "{a: b}"),
    "all init containers": operation("/spec/template/spec/initContainers", "add", "[]"),
    "all volumes": operation("/spec/template/spec/volumes", "add", "[]"),
    "moved away": f"patches:\n- target: {{}}\n  patch: '[{{op: move, from: {CONTAINER}/args, path: /a}}]'\n",
    "by a regular expression": operation(f"{CONTAINER}/args", target="{kind: Deploy.*, name: rank.*}"),
    "by one that is broken": operation(f"{CONTAINER}/args", target="{name: '('}"),
    "by the list of old": operation(f"{CONTAINER}/args").replace("patches:", "patchesJson6902:"),
    "a replacement": SELECT + "[spec.template.spec.containers.0.args.3]\n",
    "a replacement by name": SELECT + '["spec.template.spec.containers.[name=app].args.0"]\n',
    "a replacement of all": SELECT + '["spec.template.spec.containers.*.args.0"]\n',
}
NO_CONFLICTS = {
    "other fields": strategic("ranker", MEMORY),
    "another object": strategic("other", ARGS),
    "another kind's target": strategic("ranker", ARGS, "target: {kind: StatefulSet}\n  "),
    "another name's target": strategic("ranker", ARGS, "target: {kind: Deployment, name: rank}\n  "),
    "another group's target": operation(f"{CONTAINER}/args", target="{group: batch}"),
    "another field": operation(f"{CONTAINER}/resources"),
    "another place": operation("/spec/replicas"),
    "one more volume": operation("/spec/template/spec/volumes/-", "add", "{name: a}"),
    "one more container": operation("/spec/template/spec/containers/-", "add", "{name: a, image: b}"),
    "one more variable": operation(f"{CONTAINER}/env/-", "add", "{name: A, value: b}"),
    "what kustomize cannot read": "patches:\n- patch: '{'\n",
    "what it cannot use": "patches: [null, 3, {patch: 3, target: 4}, {patch: '[1, {op: add}]'}]\n",
    "replacements of other things": "replacements: [3, {targets: 3}, {targets: [3, {fieldPaths: 3}]}]\n",
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_a_base_is_refused_whose_container_a_kustomization_changes_as_well(tmp_path: pathlib.Path, name: str) -> None:
    done = kustomized(tmp_path, CONFLICTS[name])
    assert done.exit_code == 1
    assert "Deployment/ranker: refused: a patch of it in these files sets" in done.stderr


@pytest.mark.parametrize("name", NO_CONFLICTS)
def test_a_base_of_which_a_kustomization_changes_something_else_is_injected(tmp_path: pathlib.Path, name: str) -> None:
    assert "1 injected" in kustomized(tmp_path, NO_CONFLICTS[name]).stderr


@pytest.mark.parametrize("called", ["x-ranker", "y-x-ranker", "x-ranker-a", "ranker"])
@pytest.mark.parametrize("target", [False, True])
def test_a_patch_by_the_name_that_kustomizations_give_an_object_is_one_of_it(
    tmp_path: pathlib.Path, called: str, target: bool
) -> None:
    given = strategic("any", ARGS, f"target: {{name: {called}}}\n  ") if target else strategic(called, ARGS)
    done = kustomized(tmp_path, f"namePrefix: y-\n{given}", "namePrefix: x-\nnameSuffix: -a\n")
    assert "sets args of container 'app'" in done.stderr


def test_a_patch_in_a_file_is_one_of_what_its_target_selects(tmp_path: pathlib.Path) -> None:
    overlay = "patches: [{path: patch.yaml, target: {kind: Deployment}}]\n"
    given = PATCH.replace("NAME", "any").replace("SETS", ARGS)
    assert "sets args of container 'app'" in kustomized(tmp_path, overlay, beside=given).stderr
    given = f"- {{op: remove, path: {CONTAINER}/ports}}\n"
    assert "sets ports of container 'app'" in kustomized(tmp_path, overlay, beside=given).stderr


def test_a_target_selects_among_the_objects_of_its_own_kustomization_only(tmp_path: pathlib.Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere" / "kustomization.yaml"
    other.write_text(f"resources: [https://example.com/a]\n{CONFLICTS['a port']}")
    assert "1 injected" in kustomized(tmp_path, "").stderr
    component = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
    other.write_text(f"{component}{CONFLICTS['a port']}")
    assert "1 refused" in kustomized(tmp_path, "components: [../elsewhere]\n").stderr


def test_a_variable_that_a_kustomization_sets_counts_only_if_the_injection_changed_it(tmp_path: pathlib.Path) -> None:
    server = 'args: [uvicorn, "app:app", --host=0.0.0.0, --port=8000]\n        env: [{name: LOG_LEVEL, value: info}]'
    own = "env: [{name: LOG_LEVEL, value: info}, {name: PORT, value: '8000'}]"
    base = BASE.replace(server, own)
    assert base != BASE

    def said(path: str, op: str = "replace", value: str = "'1'") -> str:
        text = operation(path, op, value)
        return run("inject", text=f"{base}\n---\nresources: [a]\n{text}").stderr

    assert "sets env of container 'app'" in said(f"{CONTAINER}/env/1/value")
    assert "sets env of container 'app'" in said(f"{CONTAINER}/env/-", "add", "{name: PORT, value: '1'}")
    assert "sets env of container 'app'" in said(f"{CONTAINER}/env")
    assert "1 injected" in said(f"{CONTAINER}/env/0/value")
    assert "1 injected" in said(f"{CONTAINER}/env/-", "add", "{name: A, value: '1'}")


LABELLED = BASE.replace("{name: ranker}", "{name: ranker, labels: {tier: web}, annotations: {team: a}}", 1)


@pytest.mark.parametrize(
    ("selector", "between", "is_selected"),
    [
        ("labelSelector: tier=web", "", True),
        ("labelSelector: 'tier == web, team!=b'", "", True),
        ("labelSelector: 'tier in (web, api)'", "", True),
        ("labelSelector: tier", "", True),
        ("labelSelector: '!part'", "", True),
        ("labelSelector: '((('", "", True),
        ("annotationSelector: team=a", "", True),
        ("labelSelector: tier=api", "", False),
        ("labelSelector: 'tier=web,part=x'", "", False),
        ("labelSelector: 'tier notin (web, api)'", "", False),
        ("labelSelector: '!tier'", "", False),
        ("annotationSelector: team=b", "", False),
        ("labelSelector: part=x", "commonLabels: {part: x}\n", True),
        ("labelSelector: part=x", "labels: [{pairs: {part: x}}]\n", True),
        ("annotationSelector: part=x", "commonAnnotations: {part: x}\n", True),
    ],
)
def test_a_target_selects_by_labels_and_annotations_that_an_object_has_or_is_given(
    tmp_path: pathlib.Path, selector: str, between: str, is_selected: bool
) -> None:
    files = {"base.yaml": LABELLED, "between/kustomization.yaml": f"resources: [..]\n{between}"}
    files["kustomization.yaml"] = "resources: [base.yaml]\n"
    target = f"{{kind: Deployment, {selector}}}"
    files["overlay/Kustomization"] = f"resources: [../between]\n{operation(f'{CONTAINER}/args', target=target)}"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    said = run("inject", "--in-place", tmp_path).stderr
    assert ("1 refused" if is_selected else "1 injected") in said
