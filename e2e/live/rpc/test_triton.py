"""The sample for Triton: both of its ports become the sidecar's, and clients of the Service stay as they are."""

from __future__ import annotations

import pytest

from e2e.live import kubectl as kubectls
from e2e.live.cases import steps
from e2e.live.faults import predictors
from e2e.live.rpc import batches, servers
from e2e.live.rpc import callers as callers_in_pods

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


@pytest.fixture
def pod(kubectl: kubectls.Kubectl, carpool: object) -> servers.Object:
    """Ready; callers who start together share batches, on a busy machine as well."""
    kubectl.apply(servers.sample(max_latency="50"))
    predictors.wait_for_rollout(kubectl, "deployment/triton")
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
    found = batches.together(kubectl, pod["metadata"]["name"], callers, protocol, target)
    assert (found.right, found.wrong, found.failed) == (batches.CALLS, 0, {})
    assert found.rows >= batches.CALLS
    assert found.runs <= batches.CALLS / 4
    assert found.batched == (batches.CALLS if protocol == "grpc" else 0)


def test_what_is_not_batched_passes_through(
    kubectl: kubectls.Kubectl, pod: servers.Object, callers: callers_in_pods.Callers
) -> None:
    name = pod["metadata"]["name"]
    before = batches.counts(kubectl, name).get(batches.PASSED, 0)
    assert callers.run("ask", servers.address(kubectl, "triton", "grpc")) == ANSWERS
    passed = batches.counts(kubectl, name)[batches.PASSED] - before
    assert passed == len(ANSWERS) - 1, "one of them was refused"
