"""Pods of a predictor are replaced while callers keep calling: by a rolling update, a deletion, a node that is drained.

All of these are planned, so no request may fail; a pod that is killed without grace may fail a few.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import clusters, processes
from e2e.cluster import kubectl as kubectls
from e2e.live import conftest, releases
from e2e.live.faults import predictors, watching

NEW_POD_SECONDS = 60.0
SETTLED_ANSWERS = 100
# From the kill to the last failed request: the API server, the endpoints' controller and the ingress have to react.
RECOVERED_SECONDS = 10.0
# At most the pod's half of 40 requests a second, for that time.
MOST_FAILED = 200
MOVED_SECONDS = 120.0
DRAIN_SECONDS = 240


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
        predictors.roll_out(kubectl, predictor, before)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    seen.check_nothing_failed()


def test_a_rolling_update_of_an_inference_service_fails_no_request(
    kubectl: kubectls.Kubectl, carpool: releases.Release, kserve: None, watch: watching.StartWatch
) -> None:
    kubectl.apply([predictors.inference_service()])
    kubectl.wait(f"isvc/{predictors.NAME}", "Ready")
    predictor = predictors.of_inference_service(kubectl.namespace)
    predictors.roll_out(kubectl, predictor, set())
    before = predictors.names(kubectl, predictor.selector)
    with watch("rolling update of an InferenceService (Standard mode)", predictor.host, planned=True) as seen:
        kubectl.apply([predictors.inference_service(milliseconds=11)])
        wait_for_new_pod(kubectl, predictor, before)
        predictors.roll_out(kubectl, predictor, before)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    seen.check_nothing_failed()


def test_a_deleted_pod_answers_what_it_was_asked_and_fails_no_request(
    kubectl: kubectls.Kubectl, predictor: predictors.Predictor, watch: watching.StartWatch
) -> None:
    with watch("pod deleted", predictor.host, planned=True) as seen:
        seen.load.wait_for_right(SETTLED_ANSWERS)
        seen.mark()
        predictors.wait_until_replaced(kubectl, predictor, predictors.delete_one(kubectl, predictor))
        seen.load.wait_for_right(SETTLED_ANSWERS)
    seen.check_nothing_failed()


def test_a_pod_killed_without_grace_fails_few_requests_for_a_short_time(
    kubectl: kubectls.Kubectl, predictor: predictors.Predictor, watch: watching.StartWatch
) -> None:
    with watch("pod deleted without grace", predictor.host) as seen:
        seen.load.wait_for_right(SETTLED_ANSWERS)
        seen.mark()
        predictors.wait_until_replaced(
            kubectl, predictor, predictors.delete_one(kubectl, predictor, "--grace-period=0", "--force")
        )
        seen.load.wait_for_right(SETTLED_ANSWERS)
    seen.check_failures_are_honest()
    assert sum(seen.failed.values()) <= MOST_FAILED, str(seen)
    assert (seen.recovery or 0) <= RECOVERED_SECONDS, str(seen)


@pytest.fixture
def uncordoned(cluster: clusters.Cluster, cluster_kubectl: kubectls.Kubectl) -> Iterator[None]:
    """After the test, passed or failed, uncordons all nodes and waits until what was moved is available again."""
    yield
    for node in cluster.nodes:
        cluster_kubectl.run("uncordon", node)
    for namespace, workload in (releases.NAMESPACE, releases.DEPLOYMENT), conftest.KSERVE:
        kubectls.Kubectl(cluster.kubeconfig, namespace).wait(workload, "Available")


def nodes_of(kubectl: kubectls.Kubectl, predictor: predictors.Predictor) -> list[str]:
    """The nodes of the ready pods."""
    pods = [pod for pod in kubectl.pods(predictor.selector) if kubectls.is_ready(pod)]
    return [pod["spec"]["nodeName"] for pod in pods]


def gather_on(kubectl: kubectls.Kubectl, predictor: predictors.Predictor, node: str, others: list[str]) -> None:
    """Returns when all pods are on one node."""
    for other in others:
        kubectl.run("cordon", other)
    kubectl.run("rollout", "restart", predictor.workload)
    kubectl.wait_for_rollout(predictor.workload)
    processes.eventually(lambda: nodes_of(kubectl, predictor) == [node] * 2, MOVED_SECONDS, f"both pods on {node}")
    for other in others:
        kubectl.run("uncordon", other)


def test_draining_a_node_fails_no_request(
    cluster: clusters.Cluster,
    kubectl: kubectls.Kubectl,
    predictor: predictors.Predictor,
    uncordoned: None,
    watch: watching.StartWatch,
) -> None:
    node, others = cluster.nodes[-1], list(cluster.nodes[:-1])
    gather_on(kubectl, predictor, node, others)
    with watch("node drained, and open again", predictor.host, planned=True) as seen:
        began = seen.load.now
        words = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_SECONDS}s"]
        said = kubectl.run(*words, timeout=DRAIN_SECONDS + 15)
        seen.facts["drain_took_s"] = round(seen.load.now - began, 1)
        kubectl.wait_for_rollout(predictor.workload)
        kubectl.run("uncordon", node)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert "violate the pod's disruption budget" in said.output + said.errors
    assert node not in nodes_of(kubectl, predictor)
    seen.check_nothing_failed()
