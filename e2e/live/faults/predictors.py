"""Predictors behind the ingress, as the objects that their owners apply: two replicas, restricted, with the sidecar."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from e2e.cluster import kubectl as kubectls
from e2e.cluster import processes
from e2e.live import objects

Object = dict[str, Any]

NAME = "echo"
APP = "app"
SIDECAR = "carpool"
PORT = 8080
PATH = f"/v1/models/{NAME}:predict"
IMAGE = "carpool-predictor:0.1.0"
ECHO = ("carpool-predictor", f"--models={NAME}", f"--port={PORT}", "--echo-fixed-ms=10", "--echo-per-instance-ms=0.1")
FAILING_SERVER = Path(__file__).with_name("failing_server.py")
PROGRAM_FOLDER = "/program"
# Ready soon, and tolerant of a busy machine: a pod may miss a probe or two.
PROBE = {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 3}
LABEL = "app"
GONE_SECONDS = 90.0


class Predictor(NamedTuple):
    """A predictor that callers reach: through which host, and which workload makes its pods."""

    host: str
    workload: str
    selector: str


def container(name: str, command: tuple[str, ...], memory: str = "256Mi") -> Object:
    """A small container that restricted Pod Security admits."""
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command[:1]),
        "args": list(command[1:]),
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": PROBE,
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": memory}},
        "securityContext": {**restricted, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }


def deployment(
    name: str = NAME,
    command: tuple[str, ...] = ECHO,
    *,
    replicas: int = 2,
    annotations: dict[str, str] | None = None,
    memory: str = "256Mi",
) -> Object:
    """A Deployment whose pods ask for the sidecar and spread over both nodes; an update starts a new pod first."""
    labels = {LABEL: NAME, "set": name}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    spec = {
        "containers": [container(APP, command, memory)],
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": labels}}],
        "automountServiceAccountToken": False,
    }
    asking = {"labels": {**labels, "carpool.dev/inject": "true"}, "annotations": annotations or {}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": asking, "spec": spec},
        },
    }


def failing(name: str, *behaviour: str, annotations: dict[str, str] | None = None, memory: str = "256Mi") -> Object:
    """A Deployment of one pod that runs `failing_server.py`, a server whose port flag is named in an annotation."""
    command = ("/opt/carpool/bin/python", f"{PROGRAM_FOLDER}/{FAILING_SERVER.name}", f"--port={PORT}", *behaviour)
    told = {"carpool.dev/app-port-arg": "--port", **(annotations or {})}
    made = deployment(name, command, replicas=1, annotations=told, memory=memory)
    spec = made["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "failing-server", "configMap": {"name": "failing-server"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "failing-server", "mountPath": PROGRAM_FOLDER}]
    return made


def failing_source() -> Object:
    """The ConfigMap with `failing_server.py`."""
    return objects.config_map("failing-server", {FAILING_SERVER.name: FAILING_SERVER.read_text()})


def way_in(namespace: str) -> list[Object]:
    """Service and Ingress for all pods of the predictor, and a budget that drains have to keep."""
    port = {"name": "http", "port": 80, "targetPort": "http"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"selector": {LABEL: NAME}, "ports": [port]},
        },
        objects.way_in(NAME, namespace),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": NAME},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {LABEL: NAME}}},
        },
    ]


def inference_service(milliseconds: int = 10) -> Object:
    """An InferenceService in Standard mode with two replicas of a container of one's own."""
    command = (*ECHO[:3], f"--echo-fixed-ms={milliseconds}", ECHO[4])
    asking = {"labels": {"carpool.dev/inject": "true"}}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": NAME, "annotations": {"serving.kserve.io/deploymentMode": "Standard"}},
        "spec": {"predictor": {**asking, "minReplicas": 2, "containers": [container("kserve-container", command)]}},
    }


def of_inference_service(namespace: str) -> Predictor:
    """What KServe's controller makes of it in Standard mode."""
    selector = f"serving.kserve.io/inferenceservice={NAME}"
    return Predictor(f"{NAME}-predictor-{namespace}.{objects.DOMAIN}", f"deployment/{NAME}-predictor", selector)


def ready(kubectl: kubectls.Kubectl, *deployments: str) -> Predictor:
    """The predictor behind `way_in`, once its Deployments (default: NAME) are ready."""
    for name in deployments or (NAME,):
        kubectl.wait_for_rollout(f"deployment/{name}")
    return Predictor(objects.host(NAME, kubectl.namespace), f"deployment/{NAME}", f"{LABEL}={NAME}")


def names(kubectl: kubectls.Kubectl, selector: str) -> set[str]:
    """The names of pods, those that are terminating included."""
    return {pod["metadata"]["name"] for pod in kubectl.pods(selector)}


def wait_until_gone(kubectl: kubectls.Kubectl, selector: str, pods: set[str]) -> None:
    """Returns when none of these pods exists, terminating or not. Raises TimeoutError."""

    def are_gone() -> bool:
        return not pods & names(kubectl, selector)

    processes.eventually(are_gone, GONE_SECONDS, f"{', '.join(sorted(pods))} gone")


def last_ends(kubectl: kubectls.Kubectl, selector: str, container: str) -> list[str]:
    """Why containers ended the last time, in Kubernetes' words; only of those that did."""
    told = [kubectls.container_statuses(pod).get(container, {}) for pod in kubectl.pods(selector)]
    ended = [each.get("lastState", {}) for each in told]
    return [each["terminated"]["reason"] for each in ended if "terminated" in each]


def roll_out(kubectl: kubectls.Kubectl, predictor: Predictor, before: set[str]) -> None:
    """Returns when the new pods are ready and the old ones gone."""
    kubectl.wait_for_rollout(predictor.workload)
    wait_until_gone(kubectl, predictor.selector, before)


def delete_one(kubectl: kubectls.Kubectl, predictor: Predictor, *how: str) -> str:
    name = min(names(kubectl, predictor.selector))
    kubectl.run("delete", "pod", name, "--wait=false", *how)
    return name


def wait_until_replaced(kubectl: kubectls.Kubectl, predictor: Predictor, name: str) -> None:
    wait_until_gone(kubectl, predictor.selector, {name})
    kubectl.wait_for_rollout(predictor.workload)
