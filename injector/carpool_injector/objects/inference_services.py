"""A read-only view of KServe's InferenceService (v1beta1): what its pods will be told, as far as it can be known here.

KServe's controller chooses the runtime, and so the container, later (`kserve_runtimes`). What is merged from where
follows kserve/kserve, pkg/controller/v1beta1/inferenceservice/components: metadata first, then the component's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from carpool_injector.core import listening, model, pods, servers
from carpool_injector.objects import kserve_runtimes, parts

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
PORT = 8080
"""Where KServe's runtimes listen, and what it takes for a container without ports."""
_GRPC_PORT = "9000"  # of KServe's runtimes
# Fields from before `model`, which KServe's webhook turns into it (inference_service_defaults.go), and the protocol of
# those that get one from it.
_OLD_STYLE = {
    "sklearn": "", "tensorflow": "", "xgboost": "", "pytorch": "", "triton": "v2", "onnx": "v2", "huggingface": "v2",
    "pmml": "", "lightgbm": "", "paddle": "",
}  # fmt: skip
_V2_FORMATS = ("triton", "vllm")  # of `model`, likewise
# What a model says beside the fields of its container.
_OF_MODEL = {
    "modelFormat", "runtime", "runtimeVersion", "protocolVersion", "storageUri", "storage", "confidential", "name",
}  # fmt: skip
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
        return parts.parts(self.spec, "containers")

    @property
    def model(self) -> model.Object:
        """`model`, or an old-style field such as `tensorflow` as KServe rewrites it; {} for a custom predictor."""
        if found := parts.part(self.spec, "model"):
            return found
        for name, protocol in _OLD_STYLE.items():
            if isinstance(self.spec.get(name), dict):
                defaults = {"modelFormat": {"name": name}, **({"protocolVersion": protocol} if protocol else {})}
                return {**defaults, **self.spec[name]}
        return {}

    @property
    def model_format(self) -> str:
        """The model format, in lower case; "" where none is said."""
        return str(parts.find(self.model, ("modelFormat", "name")) or "").lower()

    @property
    def protocol(self) -> str:
        """The protocol by which KServe chooses a runtime."""
        default = "v2" if self.model_format in _V2_FORMATS else "v1"
        return str(self.model.get("protocolVersion") or default)

    @property
    def runtime(self) -> str:
        """The runtime, else the model format, in lower case; "" where neither is said, as of a custom predictor."""
        return str(self.model.get("runtime") or self.model_format).lower()

    @property
    def is_multi_node(self) -> bool:
        """Whether workers belong to each pod that clients call."""
        return isinstance(self.spec.get("workerSpec"), dict)

    @property
    def kserves_runtime(self) -> kserve_runtimes.Runtime | None:
        """Which of KServe's runtimes serves the model, as far as it can be known; None for others."""
        found = self.model.get("runtime")
        chosen = None if found else kserve_runtimes.chosen(self.model_format, self.protocol, self.is_multi_node)
        return chosen or (kserve_runtimes.named(self.runtime) if self.runtime else None)


@dataclass(frozen=True, slots=True)
class InferenceService:
    """`mode` is "Standard", "Knative", "ModelMesh", or "" where the cluster's default decides."""

    name: str
    mode: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    components: Mapping[str, Component]
    canaries: tuple[tuple[str, Component], ...] = ()
    """Predictors of `spec.canary` as they are merged, by their names."""

    @property
    def predictor(self) -> Component:
        """Required by the CRD; empty where it is missing all the same."""
        return self.components.get("predictor") or Component({}, self.labels, self.annotations)


def read(thing: model.Object) -> InferenceService:
    """The view of an InferenceService's JSON; parts of a wrong shape count as missing, as KServe refuses them."""
    labels, annotations = (parts.texts(thing, "metadata", kind) for kind in ("labels", "annotations"))
    components = {
        name: Component(
            found,
            labels={**labels, **parts.texts(found, "labels")},
            annotations={**annotations, **parts.texts(found, "annotations")},
        )
        for name in COMPONENTS
        if (found := parts.part(thing, "spec", name))
    }
    mode = annotations.get(MODE) or str(parts.find(thing, ("status", "deploymentMode")) or "")
    merged = tuple((name, read(canary).predictor) for name, canary in canaries(thing))
    name = str(parts.find(thing, ("metadata", "name")) or "")
    return InferenceService(name, MODES.get(mode, ""), labels, annotations, components, merged)


def canaries(thing: model.Object) -> Iterator[tuple[str, model.Object]]:
    """The InferenceService as KServe sees it for each of its canaries (v0.20), by the name of its predictor.

    What a canary says takes the place of what the predictor says, maps are merged (`buildCanaryPredictor`).
    """
    held = parts.find(thing, ("spec", "canary"))
    rest = {key: value for key, value in parts.part(thing, "spec").items() if key != "canary"}
    for predictor in (parts.part(each, "predictor") for each in (held if isinstance(held, list) else ())):
        merged = _merged(parts.part(rest, "predictor"), predictor)
        yield str(predictor.get("name") or ""), {**thing, "spec": {**rest, "predictor": merged}}


def _merged(below: Any, above: Any) -> Any:
    """One value over another; what is empty takes no place, and lists are not merged."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}
    return below if above in (None, "", 0, False, [], {}) else above


def stand_in(service: InferenceService, server: model.Object | None = None) -> model.Object:
    """A pod such as KServe may make for the predictor, to ask what its labels and annotations mean.

    A custom predictor's containers are the person's own; for any other `server` stands in, or one that is recognised.
    """
    predictor = service.predictor
    own = predictor.containers
    if predictor.runtime or not own:
        beside = [each for each in own if each.get("name") != _SERVING]
        containers = [{**(server or _stand_in(predictor)), "name": _SERVING}, *beside]
    else:
        containers = [{**own[0], "name": _SERVING}] if len(own) == 1 else own  # KServe renames a lone one
    labels = {**predictor.labels, pods.KSERVE_POD: service.name, pods.COMPONENT: "predictor"}
    annotations = {**predictor.annotations, **_agent(predictor)}
    metadata = {"name": service.name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def first_port(container: model.Object) -> tuple[int | None, str]:
    """Number and name of the first port that a container declares."""
    first = next(iter(parts.parts(container, "ports")), {})
    return parts.whole(first.get("containerPort")), str(first.get("name") or "")


def _stand_in(predictor: Component) -> model.Object:
    """The runtime's own container where it answers gRPC calls, with the ports that the manifest gives it."""
    annotations = predictor.annotations
    if speaks_grpc(predictor) and _TOLD.isdisjoint(annotations):
        return serving_container(predictor) or {}
    is_grpc = not _GRPC.isdisjoint(annotations) or annotations.get(_UPSTREAM) == "triton-grpc"
    http, env = _told(annotations, "app-port", "--http-port" if is_grpc else "--http_port", "8080")
    if not is_grpc:
        return {"args": [http], "env": env}
    chosen = annotations.get(f"{model.PREFIX}grpc-port", "")
    number = chosen if chosen.isascii() and chosen.isdecimal() and int(chosen) else _GRPC_PORT
    grpc, more = _told(annotations, "app-grpc-port", "--grpc-port", number)
    answers_such_calls = {"args": ["tritonserver", http, grpc], "env": [*env, *more]}
    return with_model(answers_such_calls, {"ports": predictor.model.get("ports") or []})


def _told(annotations: Mapping[str, str], setting: str, flag: str, port: str) -> tuple[str, list[model.Object]]:
    """How a server is told a port: a flag, KServe's or the one that the annotations name, and variables."""
    variable = annotations.get(f"{model.PREFIX}{setting}-env")
    flag = annotations.get(f"{model.PREFIX}{setting}-arg", flag)
    return f"{flag}={port}", [{"name": variable, "value": port}] if variable else []


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


def serving_container(predictor: Component) -> model.Object | None:
    """A runtime's container with what the InferenceService adds; None for unknown runtimes and custom predictors.

    KServe tells MLServer the implementation by the model format (inference_service_defaults.go of kserve/kserve).
    """
    found = predictor.kserves_runtime
    if found is None:
        return None
    known = found.container
    if found is kserve_runtimes.MLSERVER and predictor.model_format == "mlflow":
        implementation = {"name": "MLSERVER_MODEL_IMPLEMENTATION", "value": "mlserver_mlflow.MLflowRuntime"}
        known = {**known, "env": [implementation, *known["env"]]}
    return with_model(known, predictor.model)


def speaks_grpc(predictor: Component) -> bool:
    """Whether the predictor's runtime answers gRPC calls of the v2 protocol."""
    server = servers.recognise(_runtime_view(predictor))
    return server is not None and server.grpc is not None


def with_model(found: model.Object, given: model.Object) -> model.Object:
    """A runtime's container with the fields that a model gives it, as KServe merges them.

    Arguments come behind the runtime's (MergeRuntimeContainers), variables and ports take the place of those of the
    same name and number, and everything else takes the place of what was there.
    """
    added = {key: value for key, value in given.items() if key not in _OF_MODEL and value is not None}
    for key, by in (("env", "name"), ("ports", "containerPort"), ("args", "")):
        if isinstance(added.get(key), list):
            again = [each.get(by) for each in parts.parts(added, key)]
            added[key] = [*(each for each in found.get(key, []) if not by or each.get(by) not in again), *added[key]]
    return {**found, **added}


def is_movable(predictor: Component) -> bool:
    """Whether its server can be told another port, so that the sidecar can take its own."""
    view = _runtime_view(predictor)
    server = servers.recognise(view)
    return server is not None and listening.told(server.http, view).setting is not None


def _runtime_view(predictor: Component) -> pods.Container:
    """The runtime's own container: what a manifest adds may be of any shape."""
    found = predictor.kserves_runtime
    return pods.Container.model_validate({"name": _SERVING, **(found.container if found else {})})
