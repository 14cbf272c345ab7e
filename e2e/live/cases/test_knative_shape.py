"""Pods as Knative makes them, without Knative: how far that is, knative_shape.yaml says at its top."""

from __future__ import annotations

import pytest

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool", "kserve")


def variables(pod: steps.Object, container: str) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in steps.containers(pod)[container]["env"]}


@pytest.fixture(params=["knative_shape", "knative_shape_with_batcher"])
def pod(kubectl: kubectls.Kubectl, request: pytest.FixtureRequest) -> steps.Object:
    """A pod with a queue-proxy, its own model server and the sidecar, Ready."""
    steps.label_namespace(kubectl, "carpool.dev/kserve-batcher=takeover")
    assert steps.apply(kubectl, request.param) == ""
    return steps.ready_pod(kubectl)


def test_queue_proxy_sends_to_the_sidecar_and_asks_it_whether_the_pod_is_ready(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster, pod: steps.Object
) -> None:
    assert steps.takeover(pod) == ("queue-proxy", True)
    assert set(steps.containers(pod)) == {"kserve-container", "queue-proxy", "carpool"}
    queue = variables(pod, "queue-proxy")
    assert queue["USER_PORT"] == "9081"
    assert '"port":9082' in queue["SERVING_READINESS_PROBE"]
    assert '"path":"/health","port":8080' in variables(pod, "carpool")["SERVING_READINESS_PROBE"]
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH


def test_a_server_that_is_unwell_makes_the_pod_unready_by_way_of_queue_proxy_and_sidecar(
    kubectl: kubectls.Kubectl, pod: steps.Object
) -> None:
    assert "readinessProbe" not in steps.containers(pod)["kserve-container"], "nobody else asks the server"
    steps.change_server(kubectl, pod, "kserve-container", "(state / 'broken').touch()")
    assert steps.becomes_ready(kubectl, pod, False)
    steps.change_server(kubectl, pod, "kserve-container", "(state / 'broken').unlink()")
    assert steps.becomes_ready(kubectl, pod, True)
