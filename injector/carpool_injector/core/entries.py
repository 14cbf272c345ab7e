"""Declared ports of a container: the one of a number, the one that an annotation names, what a name says is spoken."""

from __future__ import annotations

from carpool_injector.core import model, pods
from carpool_injector.core.errors import Refusal

_HTTP_NAMES = ("http", "http1", "web", "rest", "api", "predict", "serving", "user")
_GRPC_NAMES = ("grpc", "h2c")


def is_for_http(entry: pods.Port) -> bool:
    """Whether a port's name says that it speaks HTTP."""
    return entry.is_tcp and _kind(entry) in _HTTP_NAMES


def is_for_grpc(entry: pods.Port) -> bool:
    """Whether a port's name says that it speaks gRPC, `h2c` being how Knative calls it."""
    return entry.is_tcp and _kind(entry) in _GRPC_NAMES


def _kind(entry: pods.Port) -> str:
    return (entry.name or "").partition("-")[0]


def declared(container: pods.Container) -> list[pods.Port]:
    """Those over TCP."""
    return [entry for entry in container.ports if entry.is_tcp]


def of(container: pods.Container, port: int) -> pods.Port | None:
    """The declaration of a port, None where there is none. Raises `Refusal` where there are several."""
    found = [entry for entry in declared(container) if entry.container_port == port]
    if len(found) > 1:
        raise Refusal(
            "ambiguous-port",
            f"container {container.name!r} declares port {port} more than once",
            "keep one of the declarations",
        )
    return found[0] if found else None


def chosen(container: pods.Container, value: str, setting: str) -> int:
    """The port that an annotation's value means. Raises `Refusal` for a name that is not declared."""
    number = int(value) if value.isdecimal() else container.number(value)
    if number is None:
        names = ", ".join(entry.name for entry in container.ports if entry.name) or "none has a name"
        raise Refusal(
            "no-such-port",
            f"container {container.name!r} declares no port named {value!r}",
            f"set {model.PREFIX}{setting} to a number or to a name: {names}",
        )
    return number
