"""A Deployment and a Service, and one label or annotation that asks for the sidecar, in each place where it can be."""

from __future__ import annotations

import pytest

from e2e.cluster import clusters
from e2e.cluster import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")


@pytest.mark.parametrize("asked_by", ["label", "annotation", "namespace"])
def test_callers_of_a_service_share_a_batch_once_somebody_asks(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster, asked_by: str
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


def test_a_node_with_injected_pods_is_drained_without_a_flag_for_local_data(kubectl: kubectls.Kubectl) -> None:
    steps.apply(kubectl, "plain_deployment_by_label")
    node = steps.ready_pod(kubectl)["spec"]["nodeName"]
    drained = kubectl.run("drain", node, "--pod-selector=app=echo", "--dry-run=server", "--ignore-daemonsets")
    assert "evicting pod" in drained.output + drained.errors


def test_a_namespace_speaks_for_its_predictors_and_nothing_else(kubectl: kubectls.Kubectl) -> None:
    steps.label_namespace(kubectl, "carpool.dev/inject=enabled")
    steps.apply(kubectl, "plain_deployment_by_namespace")
    database = steps.ready_pod(kubectl, "app=database")
    assert set(steps.containers(database)) == {"server"}
    assert steps.injection(database) == {}


def test_the_name_of_a_port_moves_to_the_sidecar_and_the_service_follows_it(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster
) -> None:
    assert steps.apply(kubectl, "named_port") == ""
    before = steps.version(kubectl, "service", "echo")
    pod = steps.ready_pod(kubectl)
    assert steps.takeover(pod) == ("named-port", True)
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH
    assert steps.version(kubectl, "service", "echo") == before
    assert steps.ask_pod(kubectl, pod, 8080, "/health") == {"well": True}, "who knows its number goes past the sidecar"


@pytest.mark.parametrize(("form", "group"), [("native", "initContainers"), ("classic", "containers")])
def test_a_sidecar_of_either_form_batches(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster, form: str, group: str
) -> None:
    assert steps.apply(kubectl, f"{form}_sidecar") == ""
    pod = steps.ready_pod(kubectl)
    assert "carpool" in [each["name"] for each in pod["spec"][group]]
    assert steps.takeover(pod) == ("port-swap", form == "native")
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH
    restarts = {name: each["restartCount"] for name, each in kubectls.container_statuses(pod).items()}
    assert restarts == {"server": 0, "carpool": 0}


@pytest.fixture
def restricted(kubectl: kubectls.Kubectl) -> None:
    steps.label_namespace(kubectl, "pod-security.kubernetes.io/enforce=restricted")


@pytest.mark.usefixtures("restricted")
def test_a_pod_that_meets_the_restricted_profile_still_does_with_the_sidecar(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster
) -> None:
    assert steps.apply(kubectl, "restricted_namespace") == ""
    assert steps.takeover(steps.ready_pod(kubectl)) == ("port-swap", True)
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH


@pytest.mark.usefixtures("restricted")
def test_a_port_below_1024_is_taken_over_without_a_capability(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster
) -> None:
    """containerd before 2.0 lets nobody listen there without one, unless the pod has the sysctl for it."""
    assert steps.apply(kubectl, "low_port") == ""
    pod = steps.ready_pod(kubectl)
    assert steps.takeover(pod) == ("port-swap", True)
    assert steps.containers(pod)["carpool"]["args"][0] == "--port=80"
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH


@pytest.mark.usefixtures("restricted")
def test_the_profile_is_enforced_here(kubectl: kubectls.Kubectl) -> None:
    refused = kubectl.run("run", "root", "--image=carpool-predictor:0.1.0", check=False)
    assert refused.status != 0
    assert 'violates PodSecurity "restricted' in refused.errors
