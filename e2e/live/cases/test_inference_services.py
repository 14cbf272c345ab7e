"""InferenceServices in Standard mode under KServe's own controller, its webhooks and the Ingress that it makes."""

from __future__ import annotations

import pytest

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool", "kserve")

PODS = "serving.kserve.io/inferenceservice=echo"
KSERVES_CONTROLLER = {"manager"}


@pytest.mark.parametrize("asked_by", ["label", "annotation"])
def test_an_inference_service_without_kserves_batcher_is_batched_on_the_port_that_kserve_knows(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster, asked_by: str
) -> None:
    assert steps.apply(kubectl, f"inferenceservice_by_{asked_by}") == ""
    caller = steps.inference_service(kubectl, cluster.ingress)
    pod = steps.ready_pod(kubectl, PODS)
    assert steps.takeover(pod) == ("port-swap", True)
    assert steps.call_together(caller) == steps.ONE_BATCH
    assert "batchId" in steps.call_pod(kubectl, pod, 8080), "the port that everybody knows goes past the sidecar"
    assert steps.writers(kubectl, "service", "echo-predictor") == KSERVES_CONTROLLER
    assert steps.writers(kubectl, "ingress", "echo") == KSERVES_CONTROLLER


def test_a_batcher_of_kserves_is_taken_over_where_the_namespace_says_so(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster
) -> None:
    steps.label_namespace(kubectl, "carpool.dev/kserve-batcher=takeover")
    assert steps.apply(kubectl, "inferenceservice_with_batcher_taken_over") == ""
    caller = steps.inference_service(kubectl, cluster.ingress)
    pod = steps.ready_pod(kubectl, PODS)
    assert steps.takeover(pod) == ("kserve-agent", True)
    assert set(steps.containers(pod)) == {"kserve-container", "carpool"}, "KServe's agent is there as well"
    assert {"--max-batch-size=8", "--max-latency=1000"} <= set(steps.containers(pod)["carpool"]["args"])
    assert steps.call_together(caller) == steps.ONE_BATCH
    assert steps.writers(kubectl, "service", "echo-predictor") == KSERVES_CONTROLLER


def test_a_batcher_of_kserves_stays_kserves_where_nobody_says_otherwise(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster
) -> None:
    steps.apply(kubectl, "inferenceservice_with_batcher_taken_over")
    caller = steps.inference_service(kubectl, cluster.ingress)
    pod = steps.ready_pod(kubectl, PODS)
    assert steps.injection(pod) == {}
    assert set(steps.containers(pod)) == {"kserve-container", "agent"}
    assert steps.call_together(caller) == steps.ONE_BATCH
