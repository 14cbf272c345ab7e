"""What people are told when they apply a workload."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from carpool_injector.core import model, refusals
from carpool_injector.objects import review
from tests.injector import pods, reviews
from tests.injector.validations import RULES, answer, verdict

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")
BAD = pods.plain(pods.sklearn(), annotations={"carpool.dev/max-batch-size": "many"})
UNKNOWN_SERVER = pods.plain(pods.custom(ports=[{"containerPort": 8080}]))
GOOD = pods.plain(pods.sklearn())


def workload(pod: dict[str, Any], kind: str = "Deployment", **metadata: Any) -> dict[str, Any]:
    """A workload that makes such pods."""
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    spec: dict[str, Any] = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    group, version = reviews.KINDS[kind]
    return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": "web", **metadata}, "spec": spec}


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
    with pytest.raises(refusals.Malformed, match=r"Deployment/web: spec\.template must be an object"):
        answer(thing)


def test_what_the_namespace_asks_for_denies_nothing() -> None:
    pod = pods.plain(pods.custom(), labels={})
    assert answer(workload(pod), namespace="opted-in").allowed
