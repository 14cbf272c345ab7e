"""What people are told when they apply an InferenceService."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from carpool_injector.core import refusals
from carpool_injector.objects import review
from tests.injector import pods
from tests.injector.validations import answer, verdict

_MEMBERS = st.sampled_from(
    [
        "metadata", "labels", "annotations", "predictor", "explainer", "transformer", "batcher", "maxBatchSize",
        "model", "containers", "name", "runtime", "modelFormat", "containerConcurrency", "deploymentMode",
        "carpool.dev/slo", "carpool.dev/inject", "env", "args", "ports", "storageUri", "pytorch", "logger",
    ]
)  # fmt: skip


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
    except refusals.Malformed as error:
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
    assert "taken over; set spec.predictor.batcher: {}" in found
    assert "carpool.dev/app-port-arg" in found
    assert ("not known here" in found) == ("my-own-runtime" in str(predictor))
    assert "taken over" not in warnings(service(predictor={**predictor, "batcher": {}}))
    assert "taken over" not in warnings(service(predictor={**predictor, "logger": {}}))
    assert "taken over" not in warnings(service(mode="Knative", predictor=predictor))
    told = {"carpool.dev/app-port-arg": "--port"}
    assert "taken over" not in warnings(service(annotations=told, predictor=predictor))


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
