"""The API server goes away and comes back: callers notice nothing, and pods get the sidecar as before."""

from __future__ import annotations

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live.faults import predictors, watching

BACK_SECONDS = 60.0
SETTLED_ANSWERS = 100
PODS = 10


def test_a_restart_of_the_api_server_fails_no_request_and_loses_no_injection(
    cluster: interface.Cluster, kubectl: kubectls.Kubectl, predictor: predictors.Predictor, watch: watching.StartWatch
) -> None:
    before = predictors.names(kubectl, predictor.selector)
    with (
        watch("API server restarted", predictor.host) as seen,
        watching.creating_pods(cluster.kubeconfig, kubectl.namespace) as pods,
    ):
        pods.wait_for(PODS, BACK_SECONDS)
        began = seen.load.now
        cluster.restart("kube-apiserver")
        pods.wait_for(PODS, BACK_SECONDS)
        seen.facts["pods_created_again_s"] = round(seen.load.now - began, 1)
        seen.load.wait_for_right(SETTLED_ANSWERS)
        seen.facts |= {"pods_with_sidecar": pods.injected, "pods_without": pods.missed, "not_created": pods.refused}
    assert predictors.names(kubectl, predictor.selector) == before
    assert pods.missed == 0, str(pods)
    assert seen.report.wrong == {}, str(seen)
    assert seen.failed == {}, str(seen)
