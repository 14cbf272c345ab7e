"""Model servers whose way of being told their port is known, so that they can be moved to another one.

One row a server. What recognises it is deliberately narrow: a server taken for another would not start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from injector.core import edits, pods


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server.

    `flags` and `variables` set its HTTP port, `default_port` is taken without them. `adds` is the flag that may be
    appended where none is there, or the variable that may be added if it is no flag; empty: neither. `is_entrypoint`:
    official images run the server itself, so a container without args may be given some.
    """

    title: str
    default_port: int
    recognises: Callable[[pods.Container], bool]
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    adds: str = ""
    is_entrypoint: bool = False


@dataclass(frozen=True, slots=True)
class PortSetting:
    """Where a server is told its port: a flag or a variable, there already or to be added."""

    name: str
    port: int
    present: bool

    @property
    def is_flag(self) -> bool:
        return self.name.startswith("-")

    def __str__(self) -> str:
        return f"argument {self.name}" if self.is_flag else f"environment variable {self.name}"


def _image(*names: str) -> Callable[[pods.Container], bool]:
    """By the image's name."""
    return lambda container: not container.image_names.isdisjoint(names)


def _runs(*names: str) -> Callable[[pods.Container], bool]:
    """By a program, or a Python module, among command and arguments."""
    return lambda container: not container.programs.isdisjoint(names)


def _has_flag(flag: str) -> Callable[[pods.Container], bool]:
    return lambda container: next(edits.flag_values(list(container.words), flag), None) is not None


def _has_variable(name: str) -> Callable[[pods.Container], bool]:
    return lambda container: container.has_variable(name)


def _any(*tests: Callable[[pods.Container], bool]) -> Callable[[pods.Container], bool]:
    return lambda container: any(test(container) for test in tests)


def _is_shell(container: pods.Container) -> bool:
    return _runs("sh", "bash", "dash", "ash")(container)


_KSERVE = tuple(
    f"{prefix}{kind}server{build}"
    for kind in ("sklearn", "xgb", "lgb", "pmml", "paddle", "huggingface", "autogluon", "predictive")
    for prefix in ("", "kserve-")
    for build in ("", "-gpu")
)

SERVERS = (
    Server(
        "Triton", 8000, _any(_runs("tritonserver"), _image("tritonserver", "kserve-tritonserver")),
        flags=("--http-port",), adds="--http-port",
    ),
    Server(
        "TensorFlow Serving", 8501,
        _any(_runs("tensorflow_model_server"), _image("tensorflow/serving", "tensorflow-serving")),
        flags=("--rest_api_port",), adds="--rest_api_port", is_entrypoint=True,
    ),
    Server(
        "MLServer", 8080, _any(_runs("mlserver"), _image("mlserver"), _has_variable("MLSERVER_HTTP_PORT")),
        variables=("MLSERVER_HTTP_PORT",), adds="MLSERVER_HTTP_PORT",
    ),
    Server(
        "KServe's model server", 8080, _any(_has_flag("--http_port"), _image(*_KSERVE)),
        flags=("--http_port",), adds="--http_port", is_entrypoint=True,
    ),
    Server("TorchServe", 8080, _any(_runs("torchserve"), _image("torchserve", "torchserve-kfs"))),
    Server(
        "vLLM", 8000, _any(_runs("vllm", "vllm.entrypoints.openai.api_server"), _image("vllm-openai")),
        flags=("--port",), adds="--port", is_entrypoint=True,
    ),
    Server(
        "carpool-predictor", 8080, _any(_runs("carpool-predictor"), _image("carpool-predictor")),
        flags=("--port",), variables=("CARPOOL_PREDICTOR_PORT",), adds="CARPOOL_PREDICTOR_PORT",
    ),
    Server("BentoML", 3000, _runs("bentoml"), flags=("--port", "-p"), variables=("BENTOML_PORT",), adds="BENTOML_PORT"),
    Server("Gunicorn", 8000, _runs("gunicorn"), flags=("--bind", "-b")),
    Server("Uvicorn", 8000, _runs("uvicorn"), flags=("--port",), variables=("UVICORN_PORT",), adds="UVICORN_PORT"),
    Server("FastAPI", 8000, _runs("fastapi"), flags=("--port",)),
)  # fmt: skip
"""The first that recognises a container names it."""


def recognise(container: pods.Container) -> Server | None:
    """The server a container runs, or None. What a shell starts is not looked into."""
    if _is_shell(container):
        return None
    return next((server for server in SERVERS if server.recognises(container)), None)


def reads_port_variable(container: pods.Container) -> bool:
    """Whether the app is told one of its declared ports by PORT, as twelve-factor apps are."""
    value = container.variable("PORT") or ""
    return any(value == str(port.container_port) for port in container.ports)


def custom(flag: str | None, variable: str | None) -> Server:
    """A server whose flag or variable the pod's owner named."""
    names = [name for name in (flag, variable) if name]
    return Server(
        "the app", 8080, lambda _: True,
        flags=(flag,) if flag else (), variables=(variable,) if variable else (), adds=names[0],
    )  # fmt: skip


TWELVE_FACTOR = Server("an app that reads PORT", 8080, reads_port_variable, variables=("PORT",))


def port_setting(server: Server, container: pods.Container) -> PortSetting | None:
    """Where this container's server is told its HTTP port; None if it cannot be told.

    The last flag counts, as in the parsers of these servers, and flags win over variables.
    """
    for flag in server.flags:
        found = [edits.port_in(value) for _, value in edits.flag_values(list(container.words), flag)]
        if found:
            return PortSetting(flag, found[-1], True) if found[-1] is not None else None
    for name in server.variables:
        if container.has_variable(name):
            value = edits.port_in(container.variable(name) or "")
            return PortSetting(name, value, True) if value is not None else None
    return PortSetting(server.adds, server.default_port, False) if server.adds else None
