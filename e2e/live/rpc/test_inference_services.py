"""An InferenceService for gRPC in Standard mode, by KServe's runtime for Triton: KServe's one port is the sidecar's."""

from __future__ import annotations

import pytest

from e2e.live import kubectl as kubectls
from e2e.live.cases import steps
from e2e.live.rpc import batches, servers
from e2e.live.rpc import callers as callers_in_pods

NAME = "cifar-grpc"
SERVICE = f"{NAME}-predictor"
KSERVES_CONTROLLER = {"manager"}


@pytest.mark.usefixtures("carpool", "kserve")
def test_calls_to_the_service_that_kserve_made_share_batches_and_each_gets_its_own_answer(
    kubectl: kubectls.Kubectl, callers: callers_in_pods.Callers
) -> None:
    kubectl.apply(servers.inference_service())
    kubectl.wait(f"inferenceservice/{NAME}", "Ready", steps.READY_SECONDS)
    pod = steps.ready_pod(kubectl, f"serving.kserve.io/inferenceservice={NAME}")
    assert steps.takeover(pod) == ("port-swap", True)
    containers = steps.containers(pod)
    assert {"--port=8080", "--grpc-port=9000"} <= set(containers[steps.SIDECAR]["args"])
    assert {"--http-port=9083", "--grpc-port=9084"} <= set(containers["kserve-container"]["args"])
    target = servers.address(kubectl, SERVICE, "h2c")
    found = batches.together(kubectl, pod["metadata"]["name"], callers, "grpc", target)
    assert (found.right, found.wrong, found.failed) == (batches.CALLS, 0, {})
    assert found.rows >= batches.CALLS
    assert found.runs <= batches.CALLS / 4
    assert found.batched == batches.CALLS
    assert steps.writers(kubectl, "service", SERVICE) == KSERVES_CONTROLLER
