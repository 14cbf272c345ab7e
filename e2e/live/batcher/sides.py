"""The same InferenceServices on three sides: KServe's agent, Carpool put in its place, and Carpool given its flags."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from e2e.live import objects

Object = dict[str, Any]
T = TypeVar("T")

RECORDER = Path(__file__).with_name("recorder.py")
PREDICTOR_IMAGE = "carpool-predictor:0.1.0"
SIDECAR_IMAGE = "carpool-sidecar:0.1.0"
AGENT_IMAGE = "kserve-agent:v0.20.0"
AGENT_PORT = 9081
SMALL = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
PULL = "IfNotPresent"


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the compared batchers. `labels` are those of its namespace, `title` is its column in the table."""

    key: str
    title: str
    labels: Mapping[str, str]

    def expects(self, *, kserve: T, carpool: T, drop_in: T | None = None) -> T:
        """The expected value on this side; the drop-in's is Carpool's unless it is given."""
        chosen = {KSERVE.key: kserve, CARPOOL.key: carpool, DROP_IN.key: carpool if drop_in is None else drop_in}
        return chosen[self.key]


KSERVE = Side("kserve", "KServe's agent", {"carpool.dev/kserve-batcher": "leave"})
CARPOOL = Side("carpool", "Carpool, by the webhook", {"carpool.dev/kserve-batcher": "takeover"})
DROP_IN = Side("drop-in", "Carpool, with the agent's flags", {"carpool.dev/kserve-batcher": "leave"})
SIDES = (KSERVE, CARPOOL, DROP_IN)
# For settings that only an annotation of Carpool has: neither KServe's agent nor the agent's flags know them.
BY_ANNOTATION = (KSERVE, CARPOOL)


@dataclasses.dataclass(frozen=True)
class Service:
    """An InferenceService with a batcher; None leaves the number out. `annotations` are Carpool's, without prefix."""

    name: str
    max_batch_size: int | None
    max_latency: int | None
    port: int = 8080
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def batcher(self) -> Object:
        said = {"maxBatchSize": self.max_batch_size, "maxLatency": self.max_latency}
        return {key: number for key, number in said.items() if number is not None}

    @property
    def window(self) -> float:
        """maxLatency in seconds; KServe's default where nothing is said."""
        return (5000 if self.max_latency is None else self.max_latency) / 1000

    def is_on(self, side: Side) -> bool:
        """Whether the side needs this service: only an annotation can ask for KServe's errors."""
        return side is CARPOOL or "kserve-errors" not in self.annotations

    def starts_on(self, side: Side) -> bool:
        """KServe's agent exits where maxLatency is 0."""
        return side is not KSERVE or self.max_latency != 0


IRIS = Service("iris", 32, 5000)
IRIS_PORT = Service("iris-port", 32, 5000, port=5000)
# A full batch leaves at once, whatever the timing: most cases send four instances here.
SMALL_BATCHES = Service("small-batches", 4, 5000, annotations={"max-in-flight": "2", "max-queue-instances": "16"})
# Long enough for callers of one batch to arrive together, on a busy machine as well.
SHORT_WAIT = Service("short-wait", 32, 800)
COMPATIBLE = Service("compatible", 4, 5000, annotations={"kserve-errors": "true"})
DEFAULTS = Service("defaults", None, None)
ZERO = Service("zero", 32, 0)
SERVICES = (IRIS, IRIS_PORT, SMALL_BATCHES, SHORT_WAIT, COMPATIBLE, DEFAULTS, ZERO)


def recorder_config() -> Object:
    """The ConfigMap that brings the predictor's program."""
    return objects.config_map("recorder", {RECORDER.name: RECORDER.read_text()})


def inference_service(service: Service, side: Side) -> Object:
    """The manifest. It is the same for KServe's agent and for Carpool by the webhook."""
    containers = [predictor(service), *([drop_in(service)] if side is DROP_IN else [])]
    annotations = {f"carpool.dev/{key}": value for key, value in service.annotations.items()}
    annotations["carpool.dev/resources-requests-cpu"] = "10m"
    annotations["serving.kserve.io/deploymentMode"] = "Standard"
    annotations["serving.kserve.io/autoscalerClass"] = "none"
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": service.name, "annotations": annotations},
        "spec": {
            "predictor": {
                "minReplicas": 1,
                "batcher": service.batcher,
                "terminationGracePeriodSeconds": 2,  # no calls are open when a test ends
                "containers": containers,
                "volumes": [{"name": "recorder", "configMap": {"name": "recorder"}}],
            }
        },
    }


def predictor(service: Service) -> Object:
    return {
        "name": "kserve-container",
        "image": PREDICTOR_IMAGE,
        "imagePullPolicy": PULL,
        "command": ["python", f"/recorder/{RECORDER.name}", str(service.port)],
        "ports": [{"containerPort": service.port, "protocol": "TCP"}],
        "resources": SMALL,
        "volumeMounts": [{"name": "recorder", "mountPath": "/recorder"}],
    }


def drop_in(service: Service) -> Object:
    """What KServe's webhook adds to a pod, with Carpool's image: one named `agent` is left as it is."""
    probe = {"tcpSocket": {"port": service.port}, "periodSeconds": 10}
    header = {"name": "K-Network-Probe", "value": "queue"}
    return {
        "name": "agent",
        "image": SIDECAR_IMAGE,
        "imagePullPolicy": PULL,
        "args": agent_flags(service),
        "env": [{"name": "SERVING_READINESS_PROBE", "value": json.dumps(probe)}],
        "ports": [{"name": "agent-port", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/", "port": AGENT_PORT, "httpHeaders": [header]}},
        "resources": SMALL,
    }


def agent_flags(service: Service) -> list[str]:
    """The arguments that KServe's webhook gives the agent."""
    flags = ["--enable-batcher"]
    if service.max_batch_size is not None:
        flags += ["--max-batchsize", str(service.max_batch_size)]
    if service.max_latency is not None:
        flags += ["--max-latency", str(service.max_latency)]
    return [*flags, "--component-port", str(service.port)]
