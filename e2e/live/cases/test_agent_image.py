"""Carpool as KServe's agent, by the one key of KServe's ConfigMap that names the agent's image, without any webhook.

The ConfigMap is the whole cluster's, so nothing else should make InferenceServices with `batcher` meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster import clusters
from e2e.cluster import kubectl as kubectls
from e2e.live.cases import steps
from tests.charts import helm

PATCH = helm.ROOT / "manifests" / "samples" / "kserve-agent-image.yaml"
CONFIGURATION = ("configmap", "inferenceservice-config")


@pytest.fixture
def our_image_as_agent(cluster: clusters.Cluster, kserve: None, images_loaded: str) -> Iterator[None]:
    """KServe's agent is Carpool, as the sample says, until the test is over."""
    kubectl = kubectls.Kubectl(cluster.kubeconfig, "kserve")
    before = kubectl.get(*CONFIGURATION)["data"]["agent"]
    kubectl.run("patch", *CONFIGURATION, "--type=merge", f"--patch-file={PATCH}")
    try:
        yield
    finally:
        kubectl.run("patch", *CONFIGURATION, "--type=merge", f"--patch={json.dumps({'data': {'agent': before}})}")


@pytest.mark.usefixtures("our_image_as_agent")
@pytest.mark.parametrize("probe", ["", "_and_a_command_as_probe"])
def test_an_inference_service_with_kserves_batcher_gets_carpool_from_kserve_itself(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster, probe: str
) -> None:
    steps.apply(kubectl, f"inferenceservice_with_our_image_as_agent{probe}")
    caller = steps.inference_service(kubectl, cluster.ingress)
    pod = steps.ready_pod(kubectl, "serving.kserve.io/inferenceservice=echo")
    agent = steps.containers(pod)["agent"]
    assert (steps.injection(pod), set(steps.containers(pod))) == ({}, {"kserve-container", "agent"})
    assert agent["image"] == "carpool-sidecar:0.1.0"
    assert {"--enable-batcher", "--max-batchsize", "--max-latency"} <= set(agent["args"])
    assert steps.call_together(caller) == steps.ONE_BATCH
