"""A Deployment and a Service as anybody has them; one word asks for the sidecar, in each place where it may stand."""

from __future__ import annotations

import pytest

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")


@pytest.mark.parametrize("asked_by", ["label", "annotation", "namespace"])
def test_callers_of_a_service_share_a_batch_once_somebody_asks(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster, asked_by: str
) -> None:
    if asked_by == "namespace":
        steps.label_namespace(kubectl, "carpool.dev/inject=enabled")
    assert steps.apply(kubectl, f"plain_deployment_by_{asked_by}") == ""
    before = steps.version(kubectl, "service", "echo")
    pod = steps.ready_pod(kubectl)
    assert steps.takeover(pod) == ("port-swap", True)
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH
    assert "batchId" in steps.call_pod(kubectl, pod, 8080), "the port that everybody knows goes past the sidecar"
    assert steps.version(kubectl, "service", "echo") == before


def test_a_namespace_speaks_for_its_predictors_and_nothing_else(kubectl: kubectls.Kubectl) -> None:
    steps.label_namespace(kubectl, "carpool.dev/inject=enabled")
    steps.apply(kubectl, "plain_deployment_by_namespace")
    database = steps.ready_pod(kubectl, "app=database")
    assert set(steps.containers(database)) == {"server"}
    assert steps.injection(database) == {}
