"""KServe's own runtimes: which of them serves a model, and the container it brings, as KServe v0.20 ships them.

KServe's controller takes the runtime with the highest priority among those that select themselves for the model's
format and speak its protocol (predictor_model.go and config/runtimes of kserve/kserve). Releases differ: OpenVINO's
came with v0.17. None of them declares a port; all use 8080, and 9000 for gRPC. A cluster may have runtimes of its own,
which are known here by the names of these within their own, if at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from carpool_injector.core import model


@dataclass(frozen=True, slots=True)
class Runtime:
    """A ClusterServingRuntime. `selects`: formats for which it offers itself, each with its priority.

    `known_by` are parts of names of runtimes and formats that mean one like it. `since` is the release that brought it.
    """

    name: str
    container: model.Object
    protocols: tuple[str, ...] = ()
    selects: Mapping[str, int] = field(default_factory=dict)
    known_by: tuple[str, ...] = ()
    since: str = ""
    multi_node: bool = False


def _http_port_flag(name: str) -> model.Object:
    return {"image": f"kserve-{name}server", "args": ["--http_port=8080"]}


MLSERVER = Runtime(
    "kserve-mlserver",
    {
        "image": "mlserver",
        "env": [{"name": "MLSERVER_HTTP_PORT", "value": "8080"}, {"name": "MLSERVER_GRPC_PORT", "value": "9000"}],
    },
    ("v2",),
    {"sklearn": 2, "xgboost": 2, "lightgbm": 2, "mlflow": 1},
    ("mlserver", "mlflow"),
)
# A shell starts the server, so no flag of the container tells it its port.
_MULTI_NODE: model.Object = {
    "image": "huggingfaceserver-gpu",
    "command": ["bash", "-c", "ray start --head; python -m huggingfaceserver $0 $@"],
}
_BOTH = ("v1", "v2")
RUNTIMES: Sequence[Runtime] = (
    Runtime("kserve-sklearnserver", _http_port_flag("sklearn"), _BOTH, {"sklearn": 1}, ("sklearn",)),
    Runtime("kserve-xgbserver", _http_port_flag("xgb"), _BOTH, {"xgboost": 1}, ("xgb",)),
    Runtime("kserve-lgbserver", _http_port_flag("lgb"), _BOTH, {"lightgbm": 1}, ("lgb", "lightgbm")),
    Runtime("kserve-pmmlserver", _http_port_flag("pmml"), _BOTH, {"pmml": 1}, ("pmml",)),
    Runtime("kserve-paddleserver", _http_port_flag("paddle"), _BOTH, {"paddle": 1}, ("paddle",)),
    Runtime(
        "kserve-autogluonserver", _http_port_flag("autogluon"), _BOTH, {"autogluon": 1}, ("autogluon",), since="v0.20"
    ),
    Runtime("kserve-predictiveserver", _http_port_flag("predictive"), _BOTH, {}, ("predictive",), since="v0.17"),
    Runtime(
        "kserve-huggingfaceserver-multinode", _MULTI_NODE, _BOTH, {"huggingface": 2}, ("multinode",), multi_node=True
    ),
    Runtime("kserve-huggingfaceserver", {"image": "huggingfaceserver"}, _BOTH, {"huggingface": 1}, ("huggingface",)),
    MLSERVER,
    Runtime(
        "kserve-tensorflow-serving",
        {
            "image": "tensorflow-serving",
            "command": ["/usr/bin/tensorflow_model_server"],
            "args": ["--port=9000", "--rest_api_port=8080"],
        },
        ("v1", "grpc-v1"),
        {"tensorflow": 2},
        ("tensorflow",),
    ),
    Runtime(
        "kserve-tritonserver",
        {"image": "tritonserver", "args": ["tritonserver", "--grpc-port=9000", "--http-port=8080"]},
        ("v2", "grpc-v2"),
        {"tensorrt": 1, "tensorflow": 1, "onnx": 1, "triton": 1},
        ("triton", "tensorrt", "onnx"),
    ),
    Runtime(
        "kserve-openvino",
        {"image": "openvino/model_server", "args": ["--port=9000", "--rest_port=8080"]},
        ("v1", "v2", "grpc-v2"),
        {"openvino": 1, "onnx": 2, "tensorflow": 3, "huggingface": 0},
        ("openvino",),
        since="v0.17",
    ),
    Runtime(
        "kserve-vllmserver",
        {
            "image": "vllmserver",
            "command": ["python", "-m", "vllm.entrypoints.openai.api_server"],
            "args": ["--port=8080"],
        },
        (),
        {"vllm": 1},
        ("vllm",),
        since="v0.20",
    ),
    Runtime(
        "kserve-torchserve",
        {"image": "torchserve-kfs", "args": ["torchserve", "--start"]},
        ("v1", "v2", "grpc-v2"),
        {"pytorch": 2},
        ("torchserve", "pytorch"),
    ),
)


def chosen(model_format: str, protocol: str, multi_node: bool = False) -> Runtime | None:
    """The runtime that KServe takes for a format (in lower case) where none is named; None: none of its own does it."""
    return next(_offers(model_format, protocol, multi_node), None)


def before(found: Runtime, model_format: str, protocol: str) -> Runtime | None:
    """What older releases take, to which this runtime is not known yet; None where it is, or where they take none."""
    if not found.since:
        return None
    return next((each for each in _offers(model_format, protocol, found.multi_node) if not each.since), None)


def _offers(model_format: str, protocol: str, multi_node: bool) -> Iterator[Runtime]:
    able = [
        each
        for each in RUNTIMES
        if model_format in each.selects
        and (not each.protocols or protocol in each.protocols)
        and each.multi_node == multi_node
    ]
    yield from sorted(able, key=lambda each: -each.selects[model_format])


def named(name: str) -> Runtime | None:
    """The first runtime that a name (in lower case, of a runtime or a format) stands for; None for unknown ones."""
    return next((each for each in RUNTIMES if any(part in name for part in each.known_by)), None)
