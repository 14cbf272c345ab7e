"""The runtimes that KServe ships: what their containers look like, before KServe has made any.

Those of KServe v0.20 (kserve/kserve, config/runtimes): none declares a port, all take 8080, and 9000 for gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping

from carpool_injector.core import model, pods, servers

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


def container(name: str) -> model.Object | None:
    """The fields a runtime or model format of that name (in lower case) is known by; None for unknown ones."""
    key = next((known for known in RUNTIMES if known in name), None)
    return None if key is None else RUNTIMES[key]


def speaks_grpc(name: str) -> bool:
    """Whether a runtime or model format of that name answers gRPC calls of the v2 protocol."""
    server = _server(name)
    return server is not None and server.grpc is not None


def merged(found: model.Object, given: model.Object) -> model.Object:
    """A runtime's container with what an InferenceService adds to it in `spec.predictor.model`."""
    fields = ("image", "args", "env", "ports", "command")
    added = {field: [*found.get(field, []), *given[field]] for field in fields if isinstance(given.get(field), list)}
    return {**found, **added}


def is_movable(name: str) -> bool:
    """Whether its server can be told another port, so that the sidecar can take its own."""
    server = _server(name)
    return server is not None and servers.port_setting(server, _view(name)) is not None


def _server(name: str) -> servers.Server | None:
    return servers.recognise(_view(name))


def _view(name: str) -> pods.Container:
    return pods.Container.model_validate({"name": "kserve-container", **(container(name) or {})})
