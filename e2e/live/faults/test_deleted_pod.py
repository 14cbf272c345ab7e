"""A pod of the predictor is deleted: with its grace period, as people and controllers do, and without it."""

from __future__ import annotations

from e2e.live import kubectl as kubectls
from e2e.live.faults import predictors, watching

SETTLED_ANSWERS = 100
# From the kill to the last request that failed of it: the API server, the endpoints' controller, the ingress.
RECOVERED_SECONDS = 10.0
# Of 40 requests a second, for those seconds, at most the pod's half.
MOST_FAILED = 200


def delete_one(kubectl: kubectls.Kubectl, predictor: predictors.Predictor, *how: str) -> str:
    name = min(predictors.names(kubectl, predictor.selector))
    kubectl.run("delete", "pod", name, "--wait=false", *how)
    return name


def wait_until_replaced(kubectl: kubectls.Kubectl, predictor: predictors.Predictor, name: str) -> None:
    predictors.wait_until_gone(kubectl, predictor.selector, {name})
    predictors.wait_for_rollout(kubectl, predictor.workload)


def test_a_deleted_pod_answers_what_it_was_asked_and_fails_no_request(
    kubectl: kubectls.Kubectl, predictor: predictors.Predictor, watch: watching.StartWatch
) -> None:
    with watch("pod deleted", predictor.host, planned=True) as seen:
        seen.load.wait_for_right(SETTLED_ANSWERS)
        seen.mark()
        wait_until_replaced(kubectl, predictor, delete_one(kubectl, predictor))
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert seen.report.wrong == {}, str(seen)
    assert seen.failed == {}, str(seen)


def test_a_pod_killed_without_grace_fails_few_requests_for_a_short_time(
    kubectl: kubectls.Kubectl, predictor: predictors.Predictor, watch: watching.StartWatch
) -> None:
    with watch("pod deleted without grace", predictor.host) as seen:
        seen.load.wait_for_right(SETTLED_ANSWERS)
        seen.mark()
        wait_until_replaced(kubectl, predictor, delete_one(kubectl, predictor, "--grace-period=0", "--force"))
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert seen.report.wrong == {}, str(seen)
    assert set(seen.report.failed) <= watching.HONEST, str(seen)
    assert sum(seen.failed.values()) <= MOST_FAILED, str(seen)
    assert (seen.recovery or 0) <= RECOVERED_SECONDS, str(seen)
