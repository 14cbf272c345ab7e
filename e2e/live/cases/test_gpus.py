"""GPUs, handed out by the kubelet and a device plugin: the model server gets them, the sidecar beside it does not."""

from __future__ import annotations

import json

import pytest

from e2e.cluster import clusters
from e2e.cluster import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")

# Both containers have this Python. The variable tells which devices the plugin gave, and each is a file.
LOOK = "import glob, os; print(os.environ.get('NVIDIA_VISIBLE_DEVICES', ''), *sorted(glob.glob('/dev/nvidia*')))"


def devices(kubectl: kubectls.Kubectl, pod: str, container: str) -> list[str]:
    """What a container has: the device's name and its file; empty without a GPU."""
    return kubectl.run("exec", pod, f"--container={container}", "--", "python", "-c", LOOK).output.split()


def test_a_pod_with_a_gpu_runs_where_gpus_are_and_only_its_own_container_has_the_device(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster
) -> None:
    assert steps.apply(kubectl, "gpu") == ""
    pod = steps.ready_pod(kubectl)
    assert pod["spec"]["nodeName"] == cluster.nodes[-1]
    assert steps.containers(pod)["server"]["resources"]["limits"] == {"memory": "256Mi", clusters.GPU_RESOURCE: "1"}
    assert clusters.GPU_RESOURCE not in json.dumps(steps.containers(pod)["carpool"])
    (name, file) = devices(kubectl, pod["metadata"]["name"], "server")
    assert file == f"/dev/nvidia{name.removeprefix('GPU-')}"
    assert devices(kubectl, pod["metadata"]["name"], "carpool") == []
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH


def test_one_pod_more_than_there_are_gpus_waits_until_one_is_free_and_then_gets_that_one(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster
) -> None:
    names = [f"echo-{number}" for number in range(clusters.GPUS + 1)]
    for name in names[:-1]:
        kubectl.apply([pod_of_its_own(name)])
        kubectl.wait(f"pod/{name}", "Ready")
    given = {name: devices(kubectl, name, "server") for name in names[:-1]}
    assert len({device for device, _ in given.values()}) == clusters.GPUS

    kubectl.apply([pod_of_its_own(names[-1])])
    kubectl.wait(f"pod/{names[-1]}", "condition=PodScheduled=False")
    kubectl.delete("pod", names[0])
    kubectl.wait(f"pod/{names[-1]}", "Ready")
    pod = kubectl.get("pod", names[-1])
    assert pod["spec"]["nodeName"] == cluster.nodes[-1]
    assert steps.takeover(pod) == ("port-swap", True)
    assert devices(kubectl, names[-1], "server") == given[names[0]]


def test_a_pod_that_wants_more_gpus_than_there_are_is_not_scheduled(kubectl: kubectls.Kubectl) -> None:
    pod = pod_of_its_own("echo")
    pod["spec"]["containers"][0]["resources"]["limits"][clusters.GPU_RESOURCE] = clusters.GPUS + 1
    kubectl.apply([pod])
    kubectl.wait("pod/echo", "condition=PodScheduled=False")


def pod_of_its_own(name: str) -> steps.Object:
    """A pod as the Deployment of gpu.yaml makes them."""
    (deployment, _) = kubectls.load(steps.manifest("gpu"))
    template = deployment["spec"]["template"]
    metadata = {**template["metadata"], "name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
