"""Every pod of a predictor is replaced by a new one while callers keep calling: planned, so nobody notices."""

from __future__ import annotations

import pytest

from e2e.cluster import processes
from e2e.live import kubectl as kubectls
from e2e.live import releases
from e2e.live.faults import predictors, watching

NEW_POD_SECONDS = 60.0
SETTLED_ANSWERS = 100


def roll_out(kubectl: kubectls.Kubectl, predictor: predictors.Predictor, before: set[str]) -> None:
    """Returns when the new pods are ready and the old ones gone."""
    predictors.wait_for_rollout(kubectl, predictor.workload)
    predictors.wait_until_gone(kubectl, predictor.selector, before)


def wait_for_new_pod(kubectl: kubectls.Kubectl, predictor: predictors.Predictor, before: set[str]) -> None:
    """Returns when KServe's controller has passed the change on."""

    def has_come() -> set[str]:
        return predictors.names(kubectl, predictor.selector) - before

    processes.eventually(has_come, NEW_POD_SECONDS, "a new pod")


@pytest.mark.smoke
def test_a_rolling_update_of_a_deployment_fails_no_request(
    kubectl: kubectls.Kubectl, predictor: predictors.Predictor, watch: watching.StartWatch
) -> None:
    before = predictors.names(kubectl, predictor.selector)
    with watch("rolling update of a Deployment", predictor.host, planned=True) as seen:
        kubectl.run("rollout", "restart", predictor.workload)
        roll_out(kubectl, predictor, before)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert seen.report.wrong == {}, str(seen)
    assert seen.failed == {}, str(seen)


def test_a_rolling_update_of_an_inference_service_fails_no_request(
    kubectl: kubectls.Kubectl, carpool: releases.Release, kserve: None, watch: watching.StartWatch
) -> None:
    kubectl.apply([predictors.inference_service()])
    kubectl.wait(f"isvc/{predictors.NAME}", "Ready")
    predictor = predictors.of_inference_service(kubectl.namespace)
    roll_out(kubectl, predictor, set())
    before = predictors.names(kubectl, predictor.selector)
    with watch("rolling update of an InferenceService (Standard mode)", predictor.host, planned=True) as seen:
        kubectl.apply([predictors.inference_service(milliseconds=11)])
        wait_for_new_pod(kubectl, predictor, before)
        roll_out(kubectl, predictor, before)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert seen.report.wrong == {}, str(seen)
    assert seen.failed == {}, str(seen)
