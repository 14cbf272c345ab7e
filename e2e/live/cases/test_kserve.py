"""Pods of KServe: InferenceServices in Standard mode under its own controller, and pods in the shape of Knative's.

knative_shape.yaml says how far such a pod is Knative's.
"""

from __future__ import annotations

import pytest

from e2e.cluster import clusters
from e2e.cluster import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool", "kserve")

PODS = "serving.kserve.io/inferenceservice=echo"
KSERVES_CONTROLLER = {"manager"}


@pytest.mark.parametrize("asked_by", ["label", "annotation"])
def test_an_inference_service_without_kserves_batcher_is_batched_on_the_port_that_kserve_knows(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster, asked_by: str
) -> None:
    assert steps.apply(kubectl, f"inferenceservice_by_{asked_by}") == ""
    caller = steps.inference_service(kubectl, cluster.ingress)
    pod = steps.ready_pod(kubectl, PODS)
    assert steps.takeover(pod) == ("port-swap", True)
    assert steps.call_together(caller) == steps.ONE_BATCH
    assert "batchId" in steps.call_pod(kubectl, pod, 8080), "the port that everybody knows goes past the sidecar"
    assert steps.writers(kubectl, "service", "echo-predictor") == KSERVES_CONTROLLER
    assert steps.writers(kubectl, "ingress", "echo") == KSERVES_CONTROLLER


def test_a_canary_gets_the_sidecar_with_settings_of_its_own_and_its_service_sends_there(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster
) -> None:
    assert "not known here whether the port of 'echo' can be taken over" in (
        steps.apply(kubectl, "inferenceservice_with_a_canary")
    )
    for name, sizes in (("echo-predictor", set()), ("echo-next-predictor", {"--max-batch-size=5"})):
        pod = steps.ready_pod(kubectl, f"app=isvc.{name}")
        assert steps.takeover(pod) == ("port-swap", True)
        arguments = set(steps.containers(pod)["carpool"]["args"])
        assert {each for each in arguments if each.startswith("--max-batch-size")} == sizes
        assert steps.call_together(steps.expose(kubectl, cluster.ingress, name)) in (
            steps.ONE_BATCH, steps.Together(frozenset({200}), True, 2 if sizes else 1),
        )  # fmt: skip
        assert steps.writers(kubectl, "service", name) == KSERVES_CONTROLLER


def test_a_batcher_of_kserves_is_taken_over_where_the_namespace_says_so(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster
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
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster
) -> None:
    steps.apply(kubectl, "inferenceservice_with_batcher_taken_over")
    caller = steps.inference_service(kubectl, cluster.ingress)
    pod = steps.ready_pod(kubectl, PODS)
    assert steps.injection(pod) == {}
    assert set(steps.containers(pod)) == {"kserve-container", "agent"}
    assert steps.call_together(caller) == steps.ONE_BATCH


def variables(pod: steps.Object, container: str) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in steps.containers(pod)[container]["env"]}


@pytest.fixture(params=["knative_shape", "knative_shape_with_batcher"])
def pod(kubectl: kubectls.Kubectl, request: pytest.FixtureRequest) -> steps.Object:
    """A pod with a queue-proxy, its own model server and the sidecar, Ready."""
    steps.label_namespace(kubectl, "carpool.dev/kserve-batcher=takeover")
    assert steps.apply(kubectl, request.param) == ""
    return steps.ready_pod(kubectl)


def test_queue_proxy_sends_to_the_sidecar_and_asks_it_whether_the_pod_is_ready(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster, pod: steps.Object
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
