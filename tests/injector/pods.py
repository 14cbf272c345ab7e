"""Pods as they reach an admission webhook, built from the parts that differ: server and platform.

Shapes after KServe v0.20 (config/runtimes, the controllers' pod templates) and Knative Serving's revision resources.
Every function returns new objects, so that tests may change what they get.
"""

from __future__ import annotations

import copy
import json
from typing import Any

Object = dict[str, Any]

OPT_IN = {"carpool.dev/inject": "true"}
ISVC = "serving.kserve.io/inferenceservice"
_RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
SECURITY = {
    "allowPrivilegeEscalation": False,
    "privileged": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}


def server(image: str, *args: str, name: str = "kserve-container", **members: Any) -> Object:
    """The container of a model server with what KServe's runtimes give each of them."""
    container = {"name": name, "image": image, "args": list(args), **members}
    if not args:
        del container["args"]
    return copy.deepcopy({**container, "resources": _RESOURCES, "securityContext": SECURITY})


def sklearn(**members: Any) -> Object:
    flags = ("--model_name=iris", "--model_dir=/mnt/models", "--http_port=8080")
    return server("kserve/sklearnserver:v0.20.0", *flags, **members)


def triton(**members: Any) -> Object:
    flags = (
        "--model-store=/mnt/models",
        "--grpc-port=9000",
        "--http-port=8080",
        "--allow-grpc=true",
        "--allow-http=true",
    )
    return server("nvcr.io/nvidia/tritonserver:23.05-py3", "tritonserver", *flags, **members)


def tensorflow_serving(**members: Any) -> Object:
    flags = ("--model_name=flowers", "--port=9000", "--rest_api_port=8080", "--model_base_path=/mnt/models")
    command = ["/usr/bin/tensorflow_model_server"]
    return server("tensorflow/serving:2.6.2", *flags, "--rest_api_timeout_in_ms=60000", command=command, **members)


def mlserver(**members: Any) -> Object:
    env = {
        "MLSERVER_MODEL_IMPLEMENTATION": "mlserver_sklearn.SKLearnModel",
        "MLSERVER_HTTP_PORT": "8080",
        "MLSERVER_GRPC_PORT": "9000",
    }
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return server("docker.io/seldonio/mlserver:1.5.0", env=variables, **members)


def vllm(*flags: str, **members: Any) -> Object:
    flags = flags or ("--port", "8000", "--served-model-name", "llama", "--model", "/mnt/models")
    command = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    return server("vllm/vllm-openai:v0.9.2", *flags, command=command, **members)


def huggingface(**members: Any) -> Object:
    return server("kserve/huggingfaceserver:v0.20.0", "--model_name=bert", "--model_dir=/mnt/models", **members)


def huggingface_embeddings(**members: Any) -> Object:
    flags = ("--model_name=texts", "--model_dir=/mnt/models", "--backend=huggingface", "--task=text_embedding")
    return server("kserve/huggingfaceserver:v0.20.0", *flags, **members)


def mlflow(**members: Any) -> Object:
    words = ("mlflow", "models", "serve", "--model-uri=/opt/ml/model", "--host=0.0.0.0", "--port=8080")
    return server("ghcr.io/acme/wine:1.4", *words, **members)


def torchserve(**members: Any) -> Object:
    flags = ("--model-store=/mnt/models/model-store", "--ts-config=/mnt/models/config/config.properties")
    return server("pytorch/torchserve-kfs:0.9.0", "torchserve", "--start", *flags, **members)


def custom(**members: Any) -> Object:
    """A model server of somebody's own, which nothing can be known of."""
    return server("ghcr.io/acme/fraud-scorer:2.3", **members)


def carpool_predictor(**members: Any) -> Object:
    """The predictor of this distribution."""
    command = ["carpool-predictor"]
    return server("ghcr.io/acme/carpool-predictor:0.1.0", "--port=8080", "--models=echo", command=command, **members)


SERVERS = (
    sklearn, triton, tensorflow_serving, mlserver, vllm, huggingface, huggingface_embeddings, mlflow, torchserve,
    custom, carpool_predictor,
)  # fmt: skip


def plain(*containers: Object, labels: Object | None = None, annotations: Object | None = None, **spec: Any) -> Object:
    """A pod of an ordinary ReplicaSet, opted in by label unless other labels are given."""
    metadata: Object = {
        "generateName": "scorer-6c9d8b5f7-",
        "labels": {"app": "scorer", **(OPT_IN if labels is None else labels)},
        "annotations": annotations or {},
    }
    if not annotations:
        del metadata["annotations"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": list(containers), **spec}}


def kserve(container: Object, *more: Object, annotations: Object | None = None, **labels: str) -> Object:
    """A pod of a predictor in Standard mode, as its Deployment creates it: KServe's webhook has not seen it yet."""
    listens = container.get("ports", [{"containerPort": 8080}])[0]["containerPort"]
    probe = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
    container.setdefault("readinessProbe", {"tcpSocket": {"port": listens}, **probe})
    given = {
        "internal.serving.kserve.io/storage-initializer-sourceuri": "s3://models/iris",
        "serving.kserve.io/deploymentMode": "Standard",
        "prometheus.kserve.io/port": "8080",
        "prometheus.kserve.io/path": "/metrics",
        **(annotations or {}),
    }
    owned = {"app": "isvc.iris-predictor", "component": "predictor", ISVC: "iris", **OPT_IN, **labels}
    pod = plain(container, *more, labels=owned, annotations=given)
    pod["metadata"]["generateName"] = "iris-predictor-5d6f7c9b4-"
    pod["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst"}
    return pod


def knative(
    container: Object, *more: Object, annotations: Object | None = None, concurrency: int = 0, **labels: str
) -> Object:
    """A pod of a predictor in Knative mode: queue-proxy in front, which has taken over the readiness probe."""
    port = container.get("ports", [{"containerPort": 8080}])[0]["containerPort"]
    probe = container.pop("readinessProbe", {"tcpSocket": {"port": 0}, "successThreshold": 1})
    for name in ("livenessProbe", "startupProbe"):
        for action in container.get(name, {}).values():
            if isinstance(action, dict) and isinstance(action.get("port"), str):
                action["port"] = port  # Knative knows no other port, and names that one itself
    container["ports"] = [{"name": "user-port", "containerPort": port, "protocol": "TCP"}]
    serving = {"PORT": str(port), "K_REVISION": "iris-predictor-00001", "K_CONFIGURATION": "iris-predictor"}
    container.setdefault("env", []).extend({"name": name, "value": value} for name, value in serving.items())
    drain = {"httpGet": {"path": "/wait-for-drain", "port": 8022, "scheme": "HTTP"}}
    container["lifecycle"] = {"preStop": drain}
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    pod = kserve(container, *more, queue_proxy(port, probe, concurrency), annotations=annotations, **labels)
    del container["readinessProbe"]
    pod["metadata"]["labels"] |= {
        "app": "iris-predictor-00001",
        "serving.knative.dev/configuration": "iris-predictor",
        "serving.knative.dev/revision": "iris-predictor-00001",
        "serving.knative.dev/service": "iris-predictor",
    }
    pod["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] = "Knative"
    pod["metadata"]["generateName"] = "iris-predictor-00001-deployment-7c4b8f9d6-"
    pod["spec"]["terminationGracePeriodSeconds"] = 300
    return pod


def queue_proxy(user_port: int, probe: Object | list[Object], concurrency: int = 0) -> Object:
    """Knative's proxy; `probe` is what its controller took from the app, a list with multi-container probing."""
    local = [_local(each, user_port) for each in (probe if isinstance(probe, list) else [probe])]
    encoded = json.dumps(local if isinstance(probe, list) else local[0], separators=(",", ":"))
    values = {
        "SERVING_NAMESPACE": "models",
        "QUEUE_SERVING_PORT": "8012",
        "QUEUE_SERVING_TLS_PORT": "8112",
        "CONTAINER_CONCURRENCY": str(concurrency),
        "REVISION_TIMEOUT_SECONDS": "300",
        "USER_PORT": str(user_port),
        "SERVING_READINESS_PROBE": encoded,
        "ENABLE_MULTI_CONTAINER_PROBES": str(isinstance(probe, list)).lower(),
    }
    env: list[Object] = [{"name": name, "value": value} for name, value in values.items()]
    env.append({"name": "SERVING_POD", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}})
    numbers = {
        "http-queueadm": 8022,
        "http-autometric": 9090,
        "http-usermetric": 9091,
        "queue-port": 8012,
        "https-port": 8112,
    }
    return {
        "name": "queue-proxy",
        "image": "gcr.io/knative-releases/knative.dev/serving/cmd/queue:v1.17.0",
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in numbers.items()],
        "env": env,
        "resources": {"requests": {"cpu": "25m"}},
        "readinessProbe": {"httpGet": {"port": 8012, "httpHeaders": [{"name": "K-Network-Probe", "value": "queue"}]}},
        "securityContext": {**copy.deepcopy(SECURITY), "seccompProfile": {"type": "RuntimeDefault"}},
    }


def _local(probe: Object, port: int) -> Object:
    """A probe as queue-proxy runs it: on the loopback interface, at the app's port unless it says otherwise."""
    result = copy.deepcopy(probe)
    for kind in ("httpGet", "tcpSocket"):
        if kind in result:
            result[kind] = {**result[kind], "port": result[kind].get("port") or port, "host": "127.0.0.1"}
    return result


def batched(size: int | None = 32, latency: int | None = 500) -> Object:
    """The annotations that `spec.predictor.batcher` becomes."""
    internal = "internal.serving.kserve.io/batcher"
    chosen = {internal: "true", f"{internal}-max-batchsize": size, f"{internal}-max-latency": latency}
    return {key: str(value) for key, value in chosen.items() if value is not None}


def logged() -> Object:
    """The annotations that `spec.predictor.logger` becomes."""
    internal = "internal.serving.kserve.io/logger"
    return {internal: "true", f"{internal}-sink-url": "http://message-dumper.models", f"{internal}-mode": "all"}


def container(pod: Object, name: str) -> Object:
    """The container or init container of that name. Raises KeyError."""
    spec = pod["spec"]
    for each in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        if each["name"] == name:
            return each
    raise KeyError(name)


def expanded(args: list[str]) -> list[str]:
    """Arguments as the program gets them: Kubernetes reads $$ as a plain $."""
    return [word.replace("$$", "$") for word in args]


def flags(args: list[str]) -> dict[str, str]:
    """Command line flags by name, whether written `--flag=value` or `--flag value`; "" for a flag without value."""
    found: dict[str, str] = {}
    for index, argument in enumerate(args):
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            after = args[index + 1] if index + 1 < len(args) and not args[index + 1].startswith("--") else ""
            found[name] = value if equals else after
    return found
