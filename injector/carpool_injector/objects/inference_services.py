"""A read-only view of KServe's InferenceService (v1beta1): what its pods will be told, as far as it can be known here.

KServe's controller chooses the runtime, and so the container, later. What is merged from where follows kserve/kserve,
pkg/controller/v1beta1/inferenceservice/components: metadata first, then the component's own. The runtimes are those of
KServe v0.20 (config/runtimes): none declares a port, all use 8080, and 9000 for gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carpool_injector.core import model, pods, servers

MODE = "serving.kserve.io/deploymentMode"
MODES = {
    "Standard": "Standard", "RawDeployment": "Standard", "Knative": "Knative", "Serverless": "Knative",
    "ModelMesh": "ModelMesh",
}  # fmt: skip
"""Values of the mode annotation, the old names included, and what each means."""

_SERVING = "kserve-container"
_LOGGER = "internal.serving.kserve.io/logger"
COMPONENTS = ("predictor", "transformer", "explainer")
# Annotations that tell how a server is told its ports, or that it answers gRPC.
_TOLD = {f"{model.PREFIX}{name}" for name in ("app-port-arg", "app-port-env", "app-grpc-port-arg", "app-grpc-port-env")}
_GRPC = {f"{model.PREFIX}{name}" for name in ("grpc-port", "app-grpc-port-arg", "app-grpc-port-env")}
_UPSTREAM = f"{model.PREFIX}upstream"
_GRPC_PORT = "9000"  # of KServe's runtimes
_BATCHER_KEYS = {"maxBatchSize": "max-batchsize", "maxLatency": "max-latency"}


@dataclass(frozen=True, slots=True)
class Component:
    """One of predictor, transformer and explainer, with all labels and annotations that its pods get."""

    spec: model.Object
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def batcher(self) -> model.Object | None:
        """KServe's own batcher as it was asked for; None: it was not."""
        found = self.spec.get("batcher")
        return found if isinstance(found, dict) else None

    @property
    def agent(self) -> str:
        """The field for which KServe puts its agent in front, "batcher" or "logger"; "" where it does not."""
        return next((key for key in ("batcher", "logger") if isinstance(self.spec.get(key), dict)), "")

    @property
    def containers(self) -> list[model.Object]:
        """Containers that the person wrote: of a custom predictor, or next to a runtime's."""
        found = self.spec.get("containers")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    @property
    def model_format(self) -> str:
        """The model format, in lower case; "" where none is said."""
        found = part(self.spec, "model")
        return str(part(found, "modelFormat").get("name") or "").lower() if found else self.runtime

    @property
    def runtime(self) -> str:
        """The runtime, else the model format, in lower case; "" where neither is said, as of a custom predictor."""
        if found := part(self.spec, "model"):
            return str(found.get("runtime") or part(found, "modelFormat").get("name") or "").lower()
        old_style = (key for key, value in self.spec.items() if isinstance(value, dict) and "storageUri" in value)
        return next(old_style, "").lower()


@dataclass(frozen=True, slots=True)
class InferenceService:
    """`mode` is "Standard", "Knative", "ModelMesh", or "" where the cluster's default decides."""

    name: str
    mode: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    components: Mapping[str, Component]

    @property
    def predictor(self) -> Component:
        """Required by the CRD; empty where it is missing all the same."""
        return self.components.get("predictor") or Component({}, self.labels, self.annotations)


def read(thing: model.Object) -> InferenceService:
    """The view of an InferenceService's JSON; parts of a wrong shape count as missing, as KServe refuses them."""
    metadata, spec = part(thing, "metadata"), part(thing, "spec")
    labels, annotations = texts(metadata, "labels"), texts(metadata, "annotations")
    components = {
        name: Component(
            found,
            labels={**labels, **texts(found, "labels")},
            annotations={**annotations, **texts(found, "annotations")},
        )
        for name in COMPONENTS
        if (found := part(spec, name))
    }
    mode = annotations.get(MODE) or str(part(thing, "status").get("deploymentMode") or "")
    return InferenceService(str(metadata.get("name") or ""), MODES.get(mode, ""), labels, annotations, components)


def stand_in(service: InferenceService) -> model.Object:
    """A pod such as KServe may make for the predictor, to ask what its labels and annotations mean.

    A custom predictor's containers are the person's own; for any other a server stands in that is recognised.
    """
    predictor = service.predictor
    labels = {**predictor.labels, pods.KSERVE_POD: service.name, pods.COMPONENT: "predictor"}
    annotations = {**predictor.annotations, **_agent(predictor)}
    metadata = {"name": service.name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": _containers(predictor)}}


def part(parent: model.Object, key: str) -> model.Object:
    """An object within another; {} where there is none."""
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def texts(parent: model.Object, key: str) -> dict[str, str]:
    """Labels or annotations; whatever is no text is left out."""
    return {name: value for name, value in part(parent, key).items() if isinstance(value, str)}


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _containers(predictor: Component) -> list[model.Object]:
    own = predictor.containers
    if predictor.runtime or not own:
        beside = [each for each in own if each.get("name") != _SERVING]
        return [{"name": _SERVING, **_stand_in(predictor)}, *beside]
    return [{**own[0], "name": _SERVING}] if len(own) == 1 else own  # KServe renames a lone one


def _stand_in(predictor: Component) -> model.Object:
    """The runtime's own container where it answers gRPC calls, with the ports that the manifest gives it."""
    given = part(predictor.spec, "model")
    if speaks_grpc(predictor.runtime) and _TOLD.isdisjoint(predictor.annotations):
        return serving_container(predictor) or {}
    if _GRPC.isdisjoint(predictor.annotations) and predictor.annotations.get(_UPSTREAM) != "triton-grpc":
        return _told(predictor.annotations)
    return with_model(_told_both(predictor.annotations), {"ports": given.get("ports")})


def _told_both(annotations: Mapping[str, str]) -> model.Object:
    """The same, and its port for gRPC, for a server that is one of those which answer such calls."""
    told = _told({f"{model.PREFIX}app-port-arg": "--http-port", **annotations})
    flag = annotations.get(f"{model.PREFIX}app-grpc-port-arg", "--grpc-port")
    variable = annotations.get(f"{model.PREFIX}app-grpc-port-env")
    chosen = annotations.get(f"{model.PREFIX}grpc-port", "")
    number = chosen if chosen.isascii() and chosen.isdecimal() and int(chosen) else _GRPC_PORT
    env = [{"name": variable, "value": number}] if variable else []
    return {"args": ["tritonserver", *told["args"], f"{flag}={number}"], "env": [*told["env"], *env]}


def _told(annotations: Mapping[str, str]) -> model.Object:
    """A server's port, in KServe's words or in those that the annotations name."""
    flag = annotations.get(f"{model.PREFIX}app-port-arg", "--http_port")
    variable = annotations.get(f"{model.PREFIX}app-port-env")
    return {"args": [f"{flag}=8080"], "env": [{"name": variable, "value": "8080"}] if variable else []}


def _agent(predictor: Component) -> dict[str, str]:
    """The annotations that KServe's controller makes of batcher and logger."""
    given = {_LOGGER: "true"} if isinstance(predictor.spec.get("logger"), dict) else {}
    if predictor.batcher is None:
        return given
    sizes = {
        f"{pods.BATCHER}-{suffix}": str(predictor.batcher[key])
        for key, suffix in _BATCHER_KEYS.items()
        if predictor.batcher.get(key) is not None
    }
    return {**given, pods.BATCHER: "true", **sizes}


_HTTP_PORT_FLAG: model.Object = {"image": "kserve-sklearnserver", "args": ["--http_port=8080"]}
_MLSERVER: model.Object = {
    "image": "mlserver",
    "env": [{"name": "MLSERVER_HTTP_PORT", "value": "8080"}, {"name": "MLSERVER_GRPC_PORT", "value": "9000"}],
}
_TRITON: model.Object = {
    "image": "tritonserver", "args": ["tritonserver", "--grpc-port=9000", "--http-port=8080"],
}  # fmt: skip
RUNTIMES: Mapping[str, model.Object] = {
    "sklearn": _HTTP_PORT_FLAG,
    "xgb": _HTTP_PORT_FLAG,
    "lgb": _HTTP_PORT_FLAG,
    "lightgbm": _HTTP_PORT_FLAG,
    "pmml": _HTTP_PORT_FLAG,
    "paddle": _HTTP_PORT_FLAG,
    "autogluon": _HTTP_PORT_FLAG,
    "predictive": _HTTP_PORT_FLAG,
    "huggingface": {"image": "huggingfaceserver"},
    "mlserver": _MLSERVER,
    "mlflow": _MLSERVER,
    "tensorflow": {"image": "tensorflow-serving", "args": ["--port=9000", "--rest_api_port=8080"]},
    "triton": _TRITON,
    "tensorrt": _TRITON,
    "onnx": _TRITON,
    "vllm": {"image": "vllm-openai", "args": ["--port=8080"]},
    "torchserve": {"image": "torchserve-kfs"},
    "pytorch": {"image": "torchserve-kfs"},
    "openvino": {"image": "openvino/model_server", "args": ["--port=9000", "--rest_port=8080"]},
}
"""What a runtime's container is known by: the first name that a runtime or model format contains."""


def runtime_container(name: str) -> model.Object | None:
    """The fields a runtime or model format of that name (in lower case) is known by; None for unknown ones."""
    key = next((known for known in RUNTIMES if known in name), None)
    return None if key is None else RUNTIMES[key]


def serving_container(predictor: Component) -> model.Object | None:
    """A runtime's container with what the InferenceService adds; None for unknown runtimes and custom predictors.

    KServe tells MLServer the implementation by the model format (inference_service_defaults.go of kserve/kserve).
    """
    known = runtime_container(predictor.runtime) if predictor.runtime else None
    if known is None:
        return None
    if known is _MLSERVER and predictor.model_format == "mlflow":
        implementation = {"name": "MLSERVER_MODEL_IMPLEMENTATION", "value": "mlserver_mlflow.MLflowRuntime"}
        known = {**known, "env": [implementation, *known["env"]]}
    return with_model(known, part(predictor.spec, "model"))


def speaks_grpc(name: str) -> bool:
    """Whether a runtime or model format of that name answers gRPC calls of the v2 protocol."""
    server = _runtime_server(name)
    return server is not None and server.grpc is not None


def with_model(found: model.Object, given: model.Object) -> model.Object:
    """A runtime's container with what an InferenceService adds to it in `spec.predictor.model`."""
    fields = ("image", "args", "env", "ports", "command")
    added = {field: [*found.get(field, []), *given[field]] for field in fields if isinstance(given.get(field), list)}
    return {**found, **added}


def is_movable(name: str) -> bool:
    """Whether its server can be told another port, so that the sidecar can take its own."""
    server = _runtime_server(name)
    return server is not None and servers.port_setting(server, _runtime_view(name)) is not None


def _runtime_server(name: str) -> servers.Server | None:
    return servers.recognise(_runtime_view(name))


def _runtime_view(name: str) -> pods.Container:
    return pods.Container.model_validate({"name": "kserve-container", **(runtime_container(name) or {})})
