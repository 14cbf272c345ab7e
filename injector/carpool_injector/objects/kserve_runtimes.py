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


def _container(image: str, args: str = "", command: Sequence[str] = (), **env: str) -> model.Object:
    variables = [{"name": name, "value": value} for name, value in env.items()]
    held = {"image": image, "command": [*command], "args": args.split(), "env": variables}
    return {key: value for key, value in held.items() if value}


def _of_python(name: str, selects: Mapping[str, int], *known_by: str, since: str = "") -> Runtime:
    """One of KServe's own servers in Python."""
    container = _container(f"kserve-{name}server", "--http_port=8080")
    return Runtime(f"kserve-{name}server", container, _BOTH, selects, known_by, since)


_BOTH = ("v1", "v2")
MLSERVER = Runtime(
    "kserve-mlserver",
    _container("mlserver", MLSERVER_HTTP_PORT="8080", MLSERVER_GRPC_PORT="9000"),
    ("v2",),
    {"sklearn": 2, "xgboost": 2, "lightgbm": 2, "mlflow": 1},
    ("mlserver", "mlflow"),
)
RUNTIMES: Sequence[Runtime] = (
    _of_python("sklearn", {"sklearn": 1}, "sklearn"),
    _of_python("xgb", {"xgboost": 1}, "xgb"),
    _of_python("lgb", {"lightgbm": 1}, "lgb", "lightgbm"),
    _of_python("pmml", {"pmml": 1}, "pmml"),
    _of_python("paddle", {"paddle": 1}, "paddle"),
    _of_python("autogluon", {"autogluon": 1}, "autogluon", since="v0.20"),
    _of_python("predictive", {}, "predictive", since="v0.17"),
    Runtime(
        "kserve-huggingfaceserver-multinode",
        # A shell starts the server, so no flag of the container tells it its port.
        _container("huggingfaceserver-gpu", "", ("bash", "-c", "ray start --head; python -m huggingfaceserver $0 $@")),
        _BOTH,
        {"huggingface": 2},
        ("multinode",),
        multi_node=True,
    ),
    Runtime("kserve-huggingfaceserver", _container("huggingfaceserver"), _BOTH, {"huggingface": 1}, ("huggingface",)),
    MLSERVER,
    Runtime(
        "kserve-tensorflow-serving",
        _container("tensorflow-serving", "--port=9000 --rest_api_port=8080", ["/usr/bin/tensorflow_model_server"]),
        ("v1", "grpc-v1"),
        {"tensorflow": 2},
        ("tensorflow",),
    ),
    Runtime(
        "kserve-tritonserver",
        _container("tritonserver", "tritonserver --grpc-port=9000 --http-port=8080"),
        ("v2", "grpc-v2"),
        {"tensorrt": 1, "tensorflow": 1, "onnx": 1, "triton": 1},
        ("triton", "tensorrt", "onnx"),
    ),
    Runtime(
        "kserve-openvino",
        _container("openvino/model_server", "--port=9000 --rest_port=8080"),
        ("v1", "v2", "grpc-v2"),
        {"openvino": 1, "onnx": 2, "tensorflow": 3, "huggingface": 0},
        ("openvino",),
        since="v0.17",
    ),
    Runtime(
        "kserve-vllmserver",
        _container("vllmserver", "--port=8080", ["python", "-m", "vllm.entrypoints.openai.api_server"]),
        (),
        {"vllm": 1},
        ("vllm",),
        since="v0.20",
    ),
    Runtime(
        "kserve-torchserve",
        _container("torchserve-kfs", "torchserve --start"),
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
