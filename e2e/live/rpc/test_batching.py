"""gRPC calls share batches: with the sample for Triton, and with an InferenceService of KServe's runtime for Triton.

Both ports of a pod become the sidecar's; callers of the Service change nothing.
"""

from __future__ import annotations

import pytest

from e2e.cluster import kubectl as kubectls
from e2e.live.cases import steps
from e2e.live.rpc import callers as callers_in_pods
from e2e.live.rpc import servers

ANSWERS = {
    "live": True,
    "ready": True,
    "model ready": True,
    "server": "triton",
    "inputs": ["rows"],
    "max_batch_size": 32,
    "unknown model": "NOT_FOUND",
    "stream": "5 answers",
}
NAME = "cifar-grpc"
SERVICE = f"{NAME}-predictor"
KSERVES_CONTROLLER = {"manager"}


@pytest.fixture
def pod(kubectl: kubectls.Kubectl, carpool: object) -> servers.Object:
    """A Ready pod with a latency at which calls that start together share batches, on a busy machine as well."""
    kubectl.apply(servers.sample(max_latency="50"))
    kubectl.wait_for_rollout("deployment/triton")
    return steps.ready_pod(kubectl, "app=triton")


def test_the_sidecar_takes_both_ports_over(pod: servers.Object) -> None:
    assert steps.takeover(pod) == ("port-swap", True)
    containers = steps.containers(pod)
    assert {"--port=8000", "--grpc-port=8001"} <= set(containers[steps.SIDECAR]["args"])
    assert {"--http-port=9083", "--grpc-port=9084", "--metrics-port=8002"} <= set(containers["triton"]["args"])


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_many_calls_share_batches_and_each_gets_its_own_answer(
    kubectl: kubectls.Kubectl, pod: servers.Object, callers: callers_in_pods.Callers, protocol: str
) -> None:
    target = servers.address(kubectl, "triton", protocol)
    found = callers_in_pods.together(kubectl, pod["metadata"]["name"], callers, protocol, target)
    assert (found.right, found.wrong, found.failed) == (callers_in_pods.CALLS, 0, {})
    assert found.rows >= callers_in_pods.CALLS
    assert found.runs <= callers_in_pods.CALLS / 4
    assert found.batched == (callers_in_pods.CALLS if protocol == "grpc" else 0)


def test_what_is_not_batched_passes_through(
    kubectl: kubectls.Kubectl, pod: servers.Object, callers: callers_in_pods.Callers
) -> None:
    name = pod["metadata"]["name"]
    before = callers_in_pods.counts(kubectl, name).get(callers_in_pods.PASSED, 0)
    assert callers.run("ask", servers.address(kubectl, "triton", "grpc")) == ANSWERS
    passed = callers_in_pods.counts(kubectl, name)[callers_in_pods.PASSED] - before
    assert passed == len(ANSWERS) - 1, "one of them was refused"


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
    found = callers_in_pods.together(kubectl, pod["metadata"]["name"], callers, "grpc", target)
    assert (found.right, found.wrong, found.failed) == (callers_in_pods.CALLS, 0, {})
    assert found.rows >= callers_in_pods.CALLS
    assert found.runs <= callers_in_pods.CALLS / 4
    assert found.batched == callers_in_pods.CALLS
    assert steps.writers(kubectl, "service", SERVICE) == KSERVES_CONTROLLER
