"""What the review of an object warns of or denies, in the situations that lie next to the usual ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool_injector.core import injection, model, refusals
from carpool_injector.core.config import Config
from carpool_injector.objects import manifests, review, validation
from tests.injector import pods as sample_pods
from tests.injector import reviews
from tests.injector.object_samples import ASKS, CONFIG, MODE, deployment, service, template, verdict, warnings

# --- Reviews


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_review_of_what_was_made_or_changed_has_an_object(operation: str) -> None:
    asked = reviews.asking(operation=operation, old=reviews.POD)
    asked["request"]["object"] = None
    with pytest.raises(refusals.Malformed, match=f"the operation is {operation}"):
        review.read(json.dumps(asked).encode())


def test_warnings_are_kept_up_to_the_last_character_that_fits() -> None:
    fitting = [f"{number:02}" + "x" * 254 for number in range(15)]
    assert review.fit_warnings(fitting) == fitting
    assert review.fit_warnings([*fitting, "y"]) == [*fitting, "1 more warnings do not fit here"]


def test_words_with_hyphens_are_not_broken_in_a_warning() -> None:
    text = "x" * 235 + " carpool.dev/max-batch-size"
    assert review.fit_warnings([text]) == ["x" * 235, "carpool.dev/max-batch-size"]


@pytest.mark.parametrize(("dry_run", "read"), [(True, True), (False, False), (None, False), ("yes", False), (1, False)])
def test_only_a_dry_run_that_is_said_to_be_one_is_one(dry_run: Any, read: bool) -> None:
    assert reviews.request(dryRun=dry_run).dry_run is read


# --- Validation


@pytest.mark.parametrize(("controller", "denied"), [(True, False), (False, True), (None, True)])
def test_only_what_a_controller_applies_is_spared(controller: bool | None, denied: bool) -> None:
    owner = {"apiVersion": "x/v1", "kind": "Fleet", "name": "f", "uid": "1"}
    owner |= {} if controller is None else {"controller": controller}
    thing = deployment(template(**{"carpool.dev/slo": "fast"}), ownerReferences=[owner])
    assert verdict(thing).answer.allowed is not denied


def test_settings_without_a_wish_are_looked_into_for_what_is_likely_to_go_wrong() -> None:
    settings = {"annotations": {"carpool.dev/max-batch-size": "8", MODE: "Typo"}}
    assert "KServe knows" in warnings(service(labels={}, metadata=settings))
    assert warnings(service(labels={}, metadata={"annotations": {MODE: "Typo"}})) == ""


def test_a_setting_that_only_clashes_with_the_admins_defaults_is_told() -> None:
    config = Config(defaults={"max-batch-size": "4"})
    rules = validation.Rules(lambda pod, n: injection.inject(pod, config, n, model.Capabilities()), config)
    thing = deployment(template(labels={}, **{"carpool.dev/allowed-batch-sizes": "1,8"}))
    found = validation.examine(thing, None, rules)
    assert found is not None
    assert [text for text in found.problems.values() if "must not exceed" in text]


def test_a_setting_of_the_workload_that_its_template_has_too_is_not_misplaced() -> None:
    key = "carpool.dev/slo"
    thing = deployment(template(**{key: "50"}), annotations={key: "50"})
    assert warnings(thing) == ""
    thing["metadata"]["labels"] = {sample_pods.ISVC: "iris", "carpool.dev/inject": "true"}
    thing["spec"]["template"]["metadata"]["annotations"] = {}
    assert "does not reach" not in warnings(thing)


def test_an_unknown_setting_of_a_pod_that_asks_is_told_once() -> None:
    thing = deployment(template(**{"carpool.dev/zzzzzzzz": "1"}))
    assert len(verdict(thing).answer.warnings) == 1


# --- InferenceServices and Knative's Services


def test_a_limit_of_concurrency_equal_to_the_batch_size_is_fine_whatever_the_defaults_say() -> None:
    predictor = {
        "model": {"modelFormat": {"name": "sklearn"}},
        "containerConcurrency": 8,
        "batcher": {"maxBatchSize": 0},
    }
    for default, warned in (("8", False), ("9", True), ("0", True)):
        config = Config(defaults={"max-batch-size": default}) if default != "0" else CONFIG
        rules = validation.Rules(lambda pod, n, c=config: injection.inject(pod, c, n, model.Capabilities()), config)
        found = validation.examine(service(predictor), None, rules)
        assert found is not None
        assert any("containerConcurrency 8 is below" in text for text in found.warnings) is warned


def test_a_number_in_the_batcher_and_the_same_in_words_are_one() -> None:
    predictor = {"model": {"modelFormat": {"name": "sklearn"}}, "batcher": {"maxBatchSize": 8}}
    same = service(predictor, metadata={"annotations": {"carpool.dev/max-batch-size": "8"}})
    other = service(predictor, metadata={"annotations": {"carpool.dev/max-batch-size": "9"}})
    assert ("wins over" in warnings(same), "wins over" in warnings(other)) == (False, True)


def test_a_batcher_that_becomes_a_logger_does_not_turn_the_service() -> None:
    model_ = {"model": {"modelFormat": {"name": "sklearn"}}}
    batched, logged = service({**model_, "batcher": {}}), service({**model_, "logger": {}})
    assert "turns the Service" not in warnings(logged, batched)
    assert "adding spec.predictor.logger turns the Service to 9081" in warnings(logged, service(model_))
    knative = {"annotations": {MODE: "Knative"}}
    assert "turns" not in warnings(
        service({**model_, "logger": {}}, metadata=knative), service(model_, metadata=knative)
    )


def test_a_runtime_that_cannot_be_moved_is_no_matter_behind_kserves_agent() -> None:
    predictor = {"model": {"modelFormat": {"name": "torchserve"}}}
    assert "cannot be taken over" in warnings(service(predictor))
    assert "cannot be taken over" not in warnings(service({**predictor, "batcher": {}}))


def test_a_label_in_metadata_reaches_the_transformer_as_annotations_do() -> None:
    assert "carpool.dev/inject in metadata reaches the transformer" in warnings(
        service(spec={"transformer": {"x": {}}})
    )
    assert "reaches" not in warnings(service())


def test_a_bad_setting_of_a_knative_service_is_told_once() -> None:
    metadata = {"labels": ASKS, "annotations": {"carpool.dev/slo": "fast"}}
    spec = {"template": {"metadata": metadata, "spec": {"containers": [{"image": "a"}]}}}
    thing = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": spec}
    problems, told = manifests.Injector(CONFIG).findings(thing)
    assert len(problems) == 1
    assert told == ()
