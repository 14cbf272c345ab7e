"""The runtimes that KServe ships: what their containers look like, before KServe has made any.

Those of KServe v0.20 (kserve/kserve, config/runtimes): none declares a port, all take 8080.
"""

from __future__ import annotations

from collections.abc import Mapping

from injector.core import model, pods, servers

_HTTP_PORT_FLAG: model.Object = {"image": "kserve-sklearnserver", "args": ["--http_port=8080"]}
_MLSERVER: model.Object = {"image": "mlserver", "env": [{"name": "MLSERVER_HTTP_PORT", "value": "8080"}]}
_TRITON: model.Object = {"image": "tritonserver", "args": ["tritonserver", "--http-port=8080"]}
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


def is_movable(name: str) -> bool:
    """Whether its server can be told another port, so that the sidecar can take its own."""
    found = container(name)
    if found is None:
        return False
    view = pods.Container.model_validate({"name": "kserve-container", **found})
    server = servers.recognise(view)
    return server is not None and servers.port_setting(server, view) is not None
