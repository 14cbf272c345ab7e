"""A node is drained with all pods of the predictor on it, which its PodDisruptionBudget lets go one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import interface, processes
from e2e.live import conftest, releases
from e2e.live import kubectl as kubectls
from e2e.live.faults import predictors, watching

MOVED_SECONDS = 120.0
DRAIN_SECONDS = 240
SETTLED_ANSWERS = 100


@pytest.fixture
def uncordoned(cluster: interface.Cluster, cluster_kubectl: kubectls.Kubectl) -> Iterator[None]:
    """After the test, however it ends, all nodes take pods again, and what was moved is back for the next test."""
    yield
    for node in cluster.nodes:
        cluster_kubectl.run("uncordon", node)
    for namespace, workload in (releases.NAMESPACE, releases.DEPLOYMENT), conftest.KSERVE:
        kubectls.Kubectl(cluster.kubeconfig, namespace).wait(workload, "Available")


def nodes_of(kubectl: kubectls.Kubectl, predictor: predictors.Predictor) -> list[str]:
    """Where the ready pods are."""
    pods = [pod for pod in kubectl.pods(predictor.selector) if kubectls.is_ready(pod)]
    return [pod["spec"]["nodeName"] for pod in pods]


def gather_on(kubectl: kubectls.Kubectl, predictor: predictors.Predictor, node: str, others: list[str]) -> None:
    """Returns when all pods are on one node."""
    for other in others:
        kubectl.run("cordon", other)
    kubectl.run("rollout", "restart", predictor.workload)
    predictors.wait_for_rollout(kubectl, predictor.workload)
    processes.eventually(lambda: nodes_of(kubectl, predictor) == [node] * 2, MOVED_SECONDS, f"both pods on {node}")
    for other in others:
        kubectl.run("uncordon", other)


def test_draining_a_node_fails_no_request(
    cluster: interface.Cluster,
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
        predictors.wait_for_rollout(kubectl, predictor.workload)
        kubectl.run("uncordon", node)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert "violate the pod's disruption budget" in said.output + said.errors
    assert node not in nodes_of(kubectl, predictor)
    assert seen.report.wrong == {}, str(seen)
    assert seen.failed == {}, str(seen)
