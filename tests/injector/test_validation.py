"""What people are told when they apply a workload or an InferenceService."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from injector import config_file
from injector.core import errors, injection, model
from injector.objects import review, validation
from tests.injector import pods, reviews

CONFIG = config_file.parse(None)
RULES = validation.Rules(lambda pod, namespace: injection.inject(pod, CONFIG, namespace, model.Capabilities()), CONFIG)
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")


def answer(thing: Any, old: Any = None, **members: Any) -> review.Answer:
    """The answer to a CREATE, or with `old` to an UPDATE."""
    return verdict(thing, old, **members).answer


def verdict(thing: Any, old: Any = None, **members: Any) -> review.Verdict:
    operation = members.pop("operation", "UPDATE" if old else "CREATE")
    before = copy.deepcopy((thing, old))
    found = validation.validate(reviews.request(thing, operation, old=old, **members), RULES)
    assert (thing, old) == before
    return found


def workload(pod: dict[str, Any], kind: str = "Deployment", **metadata: Any) -> dict[str, Any]:
    """A workload that makes such pods."""
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    spec: dict[str, Any] = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    group, version = reviews.KINDS[kind]
    return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": "web", **metadata}, "spec": spec}


def service(
    labels: Any = None, annotations: Any = None, mode: str | None = "Standard", **components: Any
) -> dict[str, Any]:
    """An InferenceService with sklearn as predictor, asking for the sidecar unless other labels are given."""
    given = {"serving.kserve.io/deploymentMode": mode} if mode else {}
    metadata = {
        "name": "iris",
        "labels": {"carpool.dev/inject": "true"} if labels is None else labels,
        "annotations": {**given, **(annotations or {})},
    }
    predictor = {"model": {"modelFormat": {"name": "sklearn"}, "storageUri": "gs://models/iris"}}
    spec = {"predictor": {**predictor, **components.pop("predictor", {})}, **components}
    return {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": metadata, "spec": spec}


_MEMBERS = st.sampled_from(
    [
        "metadata", "labels", "annotations", "predictor", "explainer", "transformer", "batcher", "maxBatchSize",
        "model", "containers", "name", "runtime", "modelFormat", "containerConcurrency", "deploymentMode",
        "carpool.dev/slo", "carpool.dev/inject", "env", "args", "ports", "storageUri", "pytorch", "logger",
    ]
)  # fmt: skip

BAD = pods.plain(pods.sklearn(), annotations={"carpool.dev/max-batch-size": "many"})
UNKNOWN_SERVER = pods.plain(pods.custom(ports=[{"containerPort": 8080}]))
GOOD = pods.plain(pods.sklearn())


# --- workloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_bad_value_is_denied_with_key_value_and_what_is_allowed(kind: str) -> None:
    found = verdict(workload(BAD, kind))
    assert not found.answer.allowed
    assert (found.result, found.reason) == ("denied", "bad-annotation")
    assert found.answer.message.startswith(f"{kind}/web cannot get the Carpool sidecar: ")
    assert "annotation carpool.dev/max-batch-size: got 'many': must be a whole number from 1 to" in found.answer.message


def test_all_bad_values_are_told_at_once() -> None:
    pod = pods.plain(pods.sklearn(), annotations={"carpool.dev/max-batch-size": "0", "carpool.dev/policy": "best"})
    message = answer(workload(pod)).message
    assert "max-batch-size" in message
    assert "policy" in message


def test_a_bad_value_is_denied_even_where_nobody_asked_for_the_sidecar_yet() -> None:
    pod = pods.plain(pods.sklearn(), labels={}, annotations={"carpool.dev/timeout": "soon"})
    assert "carpool.dev/timeout: got 'soon'" in answer(workload(pod)).message


@pytest.mark.parametrize("word", ["True", "yes", " true ", ""])
def test_an_opt_in_that_is_neither_yes_nor_no_is_denied(word: str) -> None:
    pod = pods.plain(pods.sklearn(), labels={"carpool.dev/inject": word})
    found = answer(workload(pod))
    assert not found.allowed
    assert '"true" or "false"' in found.message


def test_a_pod_that_cannot_be_injected_is_denied_with_the_fix() -> None:
    found = verdict(workload(UNKNOWN_SERVER))
    assert not found.answer.allowed
    refusal = RULES.inject(UNKNOWN_SERVER, model.Namespace("")).refusal
    assert refusal is not None
    assert found.reason == refusal.code
    assert refusal.message in found.answer.message
    assert refusal.fix in found.answer.message
    assert refusal.fix


def test_an_unknown_annotation_is_a_warning_with_the_nearest_one() -> None:
    pod = pods.plain(pods.sklearn(), annotations={"carpool.dev/max-batchsize": "8"})
    found = answer(workload(pod))
    assert found.allowed
    assert any("did you mean carpool.dev/max-batch-size?" in text for text in found.warnings)


def test_an_unknown_annotation_is_told_once_also_where_nobody_asked() -> None:
    pod = pods.plain(pods.sklearn(), labels={}, annotations={"carpool.dev/max-batchsize": "8"})
    assert len(answer(workload(pod)).warnings) == 1


def test_settings_as_labels_and_settings_beside_the_template_are_warned_of() -> None:
    pod = pods.plain(pods.sklearn(), labels={"carpool.dev/inject": "true", "carpool.dev/slo": "50"})
    found = answer(workload(pod, annotations={"carpool.dev/timeout": "5"}))
    assert found.allowed
    assert "label carpool.dev/slo has no effect: settings are annotations" in found.warnings
    assert any(text.startswith("carpool.dev/timeout in metadata.annotations does not reach") for text in found.warnings)


def test_a_workload_that_is_fine_is_answered_in_silence() -> None:
    assert verdict(workload(GOOD)) == review.Verdict(review.Answer(warnings=()), "fine")


def test_a_workload_that_nobody_asked_about_is_answered_in_silence() -> None:
    assert verdict(workload(pods.plain(pods.custom(), labels={}))).answer == review.Answer(warnings=())


@pytest.mark.parametrize("pod", [BAD, UNKNOWN_SERVER])
def test_what_was_wrong_before_never_blocks_an_update(pod: Any) -> None:
    old = workload(pod)
    scaled = copy.deepcopy(old)
    scaled["spec"]["replicas"] = 5
    found = verdict(scaled, old)
    assert found.answer.allowed
    assert found.result == "warned"
    assert found.answer.warnings


def test_what_an_update_breaks_is_denied_and_the_old_mistakes_are_not_held_against_it() -> None:
    old = workload(pods.plain(pods.sklearn(), annotations={"carpool.dev/policy": "best"}))
    worse = pods.plain(pods.sklearn(), annotations={"carpool.dev/policy": "best", "carpool.dev/slo": "fast"})
    found = answer(workload(worse), old)
    assert not found.allowed
    assert "carpool.dev/slo" in found.message
    assert "carpool.dev/policy" not in found.message


def test_an_old_object_of_a_shape_that_is_not_understood_holds_nothing_up() -> None:
    old = workload(GOOD)
    old["spec"]["template"] = None
    assert answer(workload(GOOD), old).allowed


def test_what_a_controller_applies_is_never_denied() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1", "controller": True}
    by_owner = workload(BAD, "ReplicaSet", ownerReferences=[owner])
    by_kserve = workload(BAD, labels={"serving.kserve.io/inferenceservice": "iris"})
    for thing in (by_owner, by_kserve):
        found = answer(thing)
        assert found.allowed
        assert any("got 'many'" in text for text in found.warnings)


@pytest.mark.parametrize(
    "members", [{"operation": "DELETE"}, {"subResource": "scale", "operation": "UPDATE"}, {"subResource": "status"}]
)
def test_deletions_and_subresources_are_allowed(members: dict[str, Any]) -> None:
    thing = None if members.get("operation") == "DELETE" else workload(BAD)
    assert verdict(thing, workload(BAD), **members).result == "ignored"


@pytest.mark.parametrize(
    "thing",
    [reviews.POD, {"apiVersion": "acme.example/v1", "kind": "Widget", "spec": {"template": {}}}, {"kind": "Pod"}],
)
def test_pods_and_kinds_that_make_none_are_not_looked_at(thing: Any) -> None:
    assert verdict(thing).result == "ignored"


def test_a_workload_without_a_template_is_malformed() -> None:
    thing = workload(GOOD)
    thing["spec"]["template"] = []
    with pytest.raises(errors.Malformed, match=r"Deployment/web: spec\.template must be an object"):
        answer(thing)


def test_what_the_namespace_asks_for_denies_nothing() -> None:
    pod = pods.plain(pods.custom(), labels={})
    assert answer(workload(pod), namespace="opted-in").allowed


# --- InferenceServices: what is denied -------------------------------------------------------------------------------


def test_an_inference_service_that_is_fine_is_answered_in_silence() -> None:
    assert verdict(service()) == review.Verdict(review.Answer(warnings=()), "fine")


def test_a_bad_value_on_an_inference_service_is_denied_wherever_it_stands() -> None:
    bad = {"carpool.dev/max-latency": "-5"}
    for thing in (service(annotations=bad), service(predictor={"annotations": bad})):
        found = answer(thing)
        assert not found.allowed
        assert (
            "InferenceService/iris cannot get the Carpool sidecar: annotation carpool.dev/max-latency" in found.message
        )


def test_the_predictors_own_annotation_wins_over_that_of_metadata() -> None:
    bad, good = {"carpool.dev/max-latency": "-5"}, {"carpool.dev/max-latency": "5"}
    assert answer(service(annotations=bad, predictor={"annotations": good})).allowed


def test_a_custom_predictor_that_is_not_recognised_is_only_warned_of_as_kserve_may_change_it() -> None:
    found = answer(service(predictor={"model": None, "containers": [pods.custom()]}))
    assert found.allowed
    assert found.warnings[0].startswith("in Standard mode its pods get no Carpool sidecar: ")
    knative = answer(service(mode="Knative", predictor={"model": None, "containers": [pods.custom()]}))
    assert knative == review.Answer(warnings=())


def test_another_version_of_the_api_is_not_looked_at() -> None:
    old = {**service(annotations={"carpool.dev/slo": "x"}), "apiVersion": "serving.kserve.io/v1alpha1"}
    assert answer(old).allowed


@pytest.mark.parametrize("spec", [None, [], {"predictor": None}, {"predictor": [1]}, {"predictor": {"containers": 5}}])
def test_an_inference_service_of_any_shape_is_answered(spec: Any) -> None:
    assert answer({**service(), "spec": spec}).allowed


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 99) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_MEMBERS, inner, max_size=4),
    max_leaves=12,
)


@hypothesis.given(_JSON, st.sampled_from(["metadata", "spec", "status"]), st.booleans())
def test_whatever_stands_in_an_inference_service_it_is_answered_or_malformed(
    value: Any, member: str, is_update: bool
) -> None:
    thing = {**service(), member: value}
    try:
        found: Any = answer(thing, service() if is_update else None)
    except errors.Malformed as error:
        found = str(error)
    assert found


def test_containers_beside_a_runtime_are_not_taken_for_the_predictor() -> None:
    beside = [{"name": "metrics", "image": "exporter:1", "ports": [{"containerPort": 9999}]}]
    assert warnings(service(predictor={"containers": beside})) == ""


# --- InferenceServices: lints ----------------------------------------------------------------------------------------


def warnings(thing: Any, old: Any = None) -> str:
    """All warnings in one text; nothing is denied."""
    found = answer(thing, old)
    assert found.allowed
    return "\n".join(found.warnings)


@pytest.mark.parametrize("mode", ["Standard", "RawDeployment", "Knative", "Serverless", None])
def test_every_mode_that_kserve_knows_is_silent(mode: str | None) -> None:
    assert warnings(service(mode=mode)) == ""


def test_an_unknown_mode_is_told_with_those_that_there_are() -> None:
    assert "got 'raw': KServe knows Standard, RawDeployment, Knative, Serverless, ModelMesh" in warnings(
        service(mode="raw")
    )
    assert "ModelMesh get no Carpool sidecar" in warnings(service(mode="ModelMesh"))


@pytest.mark.parametrize("component", ["transformer", "explainer"])
def test_annotations_that_reach_other_components_too_are_better_put_on_the_predictor(component: str) -> None:
    other = {component: {"containers": [{"name": "c", "image": "i"}]}}
    found = warnings(service(annotations={"carpool.dev/slo": "50"}, **other))
    assert f"carpool.dev/slo in metadata reaches the {component} as well" in found
    assert "spec.predictor.annotations" in found
    on_predictor = {"labels": {"carpool.dev/inject": "true"}, "annotations": {"carpool.dev/slo": "50"}}
    assert warnings(service(labels={}, predictor=on_predictor, **other)) == ""


@pytest.mark.parametrize(
    ("limit", "size", "mode", "warned"),
    [
        (1, None, "Knative", True),
        (31, None, "Serverless", True),
        (32, None, "Knative", False),
        (0, None, "Knative", False),
        (4, "8", "Knative", True),
        (8, "8", "Knative", False),
        (4, None, "Standard", False),
        (4, None, None, True),
    ],
)
def test_a_concurrency_below_the_batch_size_is_warned_of_with_knative(
    limit: int, size: str | None, mode: str | None, warned: bool
) -> None:
    annotations = {"carpool.dev/max-batch-size": size} if size else {}
    thing = service(mode=mode, annotations=annotations, predictor={"containerConcurrency": limit})
    assert (f"containerConcurrency {limit} is below the max batch size" in warnings(thing)) is warned


def test_the_batch_size_of_kserves_batcher_counts_for_that_as_well() -> None:
    predictor = {"containerConcurrency": 8, "batcher": {"maxBatchSize": 16}}
    assert "max batch size 16" in warnings(service(mode="Knative", predictor=predictor))


def test_where_annotation_and_batcher_disagree_it_is_said_who_wins() -> None:
    annotations = {"carpool.dev/max-batch-size": "8", "carpool.dev/max-latency": "100"}
    predictor = {"batcher": {"maxBatchSize": 16, "maxLatency": 100}}
    found = warnings(service(annotations=annotations, predictor=predictor))
    assert found == "carpool.dev/max-batch-size (8) wins over spec.predictor.batcher.maxBatchSize (16)"


def test_toggling_batcher_or_logger_of_a_live_service_is_warned_of_in_standard_mode() -> None:
    without, with_batcher = service(), service(predictor={"batcher": {}})
    logged = {"logger": {"mode": "all"}}
    assert "adding spec.predictor.batcher turns the Service to 9081 before new pods are ready" in warnings(
        with_batcher, without
    )
    assert "removing spec.predictor.batcher turns the Service to the model server's port" in warnings(
        without, with_batcher
    )
    assert warnings(with_batcher, with_batcher) == ""
    assert warnings(service(mode="Knative", predictor={"batcher": {}}), service(mode="Knative")) == ""
    assert "adding spec.predictor.logger turns the Service" in warnings(service(predictor=logged), without)
    assert "turns the Service" not in warnings(service(predictor={**logged, "batcher": {}}), service(predictor=logged))


def test_the_mode_that_a_live_service_really_has_counts() -> None:
    live = {"status": {"deploymentMode": "Knative"}}
    with_batcher = {**service(mode=None, predictor={"batcher": {}}), **live}
    assert warnings(with_batcher, {**service(mode=None), **live}) == ""


@pytest.mark.parametrize(
    "predictor",
    [
        {"model": {"modelFormat": {"name": "pytorch"}}},
        {"model": {"modelFormat": {"name": "sklearn"}, "runtime": "my-own-runtime"}},
        {"model": None, "pytorch": {"storageUri": "gs://models/x"}},
    ],
)
def test_a_runtime_whose_port_cannot_be_taken_is_warned_of_with_the_ways_out(predictor: Any) -> None:
    found = warnings(service(predictor=predictor))
    assert "cannot be taken over; set spec.predictor.batcher: {}" in found
    assert "carpool.dev/app-port-arg" in found
    assert "cannot be taken over" not in warnings(service(predictor={**predictor, "batcher": {}}))
    assert "cannot be taken over" not in warnings(service(predictor={**predictor, "logger": {}}))
    assert "cannot be taken over" not in warnings(service(mode="Knative", predictor=predictor))
    told = {"carpool.dev/app-port-arg": "--port"}
    assert "cannot be taken over" not in warnings(service(annotations=told, predictor=predictor))


@pytest.mark.parametrize("runtime", ["kserve-sklearnserver", "kserve-tritonserver", "kserve-mlserver", "vllm-runtime"])
def test_runtimes_of_kserve_that_can_be_moved_are_silent(runtime: str) -> None:
    assert warnings(service(predictor={"model": {"modelFormat": {"name": "x"}, "runtime": runtime}})) == ""


def test_a_batcher_on_the_explainer_breaks_its_service_in_standard_mode() -> None:
    explainer = {"batcher": {}, "annotations": {}}
    assert "remove spec.explainer.batcher" in warnings(service(explainer=explainer))
    assert "explainer.batcher" not in warnings(service(mode="Knative", explainer=explainer))


def test_lints_are_for_those_who_asked() -> None:
    predictor = {"model": {"modelFormat": {"name": "pytorch"}}, "containerConcurrency": 1}
    assert warnings(service(labels={}, mode="raw", predictor=predictor)) == ""
