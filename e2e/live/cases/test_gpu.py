"""A model server with a GPU: the scheduler goes by what the whole pod asks for, so the sidecar must ask for none."""

from __future__ import annotations

import json

import pytest

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")


def test_a_pod_with_a_gpu_runs_where_gpus_are_and_keeps_its_limits_on_its_own_container(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster
) -> None:
    assert steps.apply(kubectl, "gpu") == ""
    pod = steps.ready_pod(kubectl)
    assert pod["spec"]["nodeName"] == cluster.nodes[-1]
    assert steps.containers(pod)["server"]["resources"]["limits"] == {"memory": "256Mi", interface.GPU_RESOURCE: "1"}
    assert interface.GPU_RESOURCE not in json.dumps(steps.containers(pod)["carpool"])
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH


def test_a_pod_that_wants_more_gpus_than_there_are_is_not_scheduled(kubectl: kubectls.Kubectl) -> None:
    (deployment, _) = kubectls.load(steps.manifest("gpu"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"][interface.GPU_RESOURCE] = interface.GPUS + 1
    kubectl.apply([deployment])
    kubectl.wait(f"pod/{steps.created_pod(kubectl)['metadata']['name']}", "condition=PodScheduled=False")
