"""What KServe's pod webhook does to a pod, in Python: the neighbour whose order before or after ours nobody promises.

After pkg/webhook/admission/pod of kserve/kserve v0.20 (mutator.go, agent_injector.go, metrics_aggregate_injector.go,
storage_initializer_injector.go), as far as it touches ports, probes, containers and their environment. Left out: the
model puller's volumes, storage credentials, model cars and accelerators, which none of our edits comes near.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

Object = dict[str, Any]

INTERNAL = "internal.serving.kserve.io/"
BATCHER = INTERNAL + "batcher"
LOGGER = INTERNAL + "logger"
PULLER = INTERNAL + "agent"
SOURCE_URI = INTERNAL + "storage-initializer-sourceuri"
ISVC_LABEL = "serving.kserve.io/inferenceservice"
AGENT_PORT = 9081
_DEFAULT_PORT = "8080"
_AGGREGATE_PORT = 9088


@dataclasses.dataclass(frozen=True)
class Settings:
    """The admin's choices in the ConfigMap `inferenceservice-config`."""

    agent_image: str = "kserve/agent:v0.20.0"
    log_url: str = "http://default-broker"
    aggregate_metrics: bool = False
    # KServe up to 0.11 was built with an API that knew no `restartPolicy` on containers, and so dropped it.
    knows_native_sidecars: bool = True


def mutate(pod: Object, settings: Settings | None = None, namespace: str = "models") -> Object:
    """A new pod, as KServe's webhook would return it; an equal one if the pod is not KServe's."""
    result = copy.deepcopy(pod)
    if ISVC_LABEL not in _labels(result):
        return result
    settings = settings or Settings()
    _inject_storage_initializer(result)
    _inject_agent(result, settings, namespace)
    _aggregate_metrics(result, settings)
    if not settings.knows_native_sidecars:
        for container in result["spec"].get("initContainers") or ():
            container.pop("restartPolicy", None)
    return result


def _inject_storage_initializer(pod: Object) -> None:
    """The model is downloaded by an init container into a volume that the server reads."""
    uri = _annotations(pod).get(SOURCE_URI)
    spec = pod["spec"]
    initial = spec.setdefault("initContainers", [])
    if uri is None or any(container["name"] == "storage-initializer" for container in initial):
        if not initial:
            del spec["initContainers"]
        return
    mount = {"mountPath": "/mnt/models", "name": "kserve-provision-location"}
    spec.setdefault("volumes", []).append({"name": "kserve-provision-location", "emptyDir": {}})
    initial.append(
        {
            "name": "storage-initializer",
            "image": "kserve/storage-initializer:v0.20.0",
            "args": [uri, "/mnt/models"],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "100Mi"}},
            "volumeMounts": [mount],
        }
    )
    for container in spec["containers"]:
        if container["name"] == "kserve-container":
            container.setdefault("volumeMounts", []).append({**mount, "readOnly": True})


def _inject_agent(pod: Object, settings: Settings, namespace: str) -> None:
    """`InjectAgent`: a container `agent` in front of the server, for the logger, the puller or the batcher.

    Only the presence of the annotations counts, and a container of that name stops everything, the rewrite of
    queue-proxy's USER_PORT included.
    """
    annotations, containers = _annotations(pod), pod["spec"]["containers"]
    wanted = any(key in annotations for key in (LOGGER, PULLER, BATCHER))
    if not wanted or any(container["name"] == "agent" for container in containers):
        return
    env, probe_path = _agent_environment(containers)
    agent = {
        "name": "agent",
        "image": settings.agent_image,
        "args": _agent_arguments(pod, settings, namespace),
        "ports": [{"containerPort": AGENT_PORT, "name": "agent-port", "protocol": "TCP"}],
        "env": env,
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "100Mi"}},
        "readinessProbe": {
            "httpGet": {
                "path": probe_path,
                "port": AGENT_PORT,
                "scheme": "HTTP",
                "httpHeaders": [{"name": "K-Network-Probe", "value": "queue"}],
            }
        },
    }
    if containers[0].get("securityContext") is not None:
        agent["securityContext"] = copy.deepcopy(containers[0]["securityContext"])
    if not env:
        del agent["env"]
    containers.append(agent)


def _agent_arguments(pod: Object, settings: Settings, namespace: str) -> list[str]:
    annotations, labels = _annotations(pod), _labels(pod)
    arguments: list[str] = []
    if PULLER in annotations:
        arguments.append("--enable-puller")
        arguments += _flag(annotations, "configMountPath", "--config-dir")
        arguments += _flag(annotations, "modelDir", "--model-dir")
    if BATCHER in annotations:
        arguments.append("--enable-batcher")
        arguments += _flag(annotations, "batcher-max-batchsize", "--max-batchsize")
        arguments += _flag(annotations, "batcher-max-latency", "--max-latency")
    if LOGGER in annotations:
        arguments += ["--log-url", annotations.get(INTERNAL + "logger-sink-url", settings.log_url)]
        arguments += ["--source-uri", pod["metadata"].get("name", "")]
        arguments += ["--log-mode", annotations.get(INTERNAL + "logger-mode", "all")]
        arguments += ["--inference-service", labels.get(ISVC_LABEL, ""), "--namespace", namespace]
        arguments += ["--endpoint", labels.get("endpoint", ""), "--component", labels.get("component", "")]
        arguments += ["--logger-tls-skip-verify", "false"]
    return [*arguments, "--component-port", _component_port(pod["spec"]["containers"])]


def _flag(annotations: Object, key: str, flag: str) -> list[str]:
    return [flag, annotations[INTERNAL + key]] if INTERNAL + key in annotations else []


def _component_port(containers: list[Object]) -> str:
    """The first port of the transformer, else of the predictor, else 8080."""
    by_name = {container["name"]: container for container in containers}
    server = by_name.get("transformer-container") or by_name.get("kserve-container") or {}
    ports = server.get("ports") or []
    return str(ports[0]["containerPort"]) if ports else _DEFAULT_PORT


def _agent_environment(containers: list[Object]) -> tuple[list[Object], str]:
    """The agent's variables and the path of its readiness probe; changes queue-proxy's USER_PORT in passing."""
    by_name = {container["name"]: container for container in containers}
    queue_proxy = by_name.get("queue-proxy")
    if queue_proxy is not None:
        copied = copy.deepcopy(queue_proxy.get("env") or [])
        for variable in queue_proxy.get("env") or ():
            if variable["name"] == "USER_PORT":
                variable["value"] = str(AGENT_PORT)
        return copied, "/"
    probe = (by_name.get("transformer-container") or containers[0]).get("readinessProbe") or {}
    if not ("httpGet" in probe or "tcpSocket" in probe):
        return [], "/"
    path = probe.get("httpGet", {}).get("path") or "/"
    return [{"name": "SERVING_READINESS_PROBE", "value": json.dumps(probe, separators=(",", ":"))}], path


def _aggregate_metrics(pod: Object, settings: Settings) -> None:
    annotations = pod["metadata"].setdefault("annotations", {})
    chosen = "true" if settings.aggregate_metrics else "false"
    aggregate = annotations.setdefault("serving.kserve.io/enable-metric-aggregation", chosen)
    scrape = annotations.setdefault("serving.kserve.io/enable-prometheus-scraping", "false")
    if aggregate == "true":
        for container in pod["spec"]["containers"]:
            if container["name"] == "queue-proxy":
                _expose_aggregate(container, annotations)
    if scrape == "true":
        annotations["prometheus.io/port"] = str(_AGGREGATE_PORT) if aggregate == "true" else "9091"
        annotations["prometheus.io/path"] = "/metrics"


def _expose_aggregate(queue_proxy: Object, annotations: Object) -> None:
    wanted = {
        "KSERVE_CONTAINER_PROMETHEUS_METRICS_PORT": annotations.get("prometheus.kserve.io/port", _DEFAULT_PORT),
        "KSERVE_CONTAINER_PROMETHEUS_METRICS_PATH": annotations.get("prometheus.kserve.io/path", "/metrics"),
        "AGGREGATE_PROMETHEUS_METRICS_PORT": str(_AGGREGATE_PORT),
    }
    kept = [variable for variable in queue_proxy.get("env") or () if variable["name"] not in wanted]
    queue_proxy["env"] = kept + [{"name": name, "value": value} for name, value in wanted.items()]
    ports = queue_proxy.setdefault("ports", [])
    if all(port["containerPort"] != _AGGREGATE_PORT for port in ports):
        ports.append({"name": "aggr-metric", "containerPort": _AGGREGATE_PORT, "protocol": "TCP"})


def _annotations(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}


def _labels(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}
