"""Servers that answer gRPC of a protocol of their own, which the sidecar does not batch, on a port beside HTTP's."""

from __future__ import annotations

from typing import NamedTuple

from carpool_injector.core import edits, pods, servers
from carpool_injector.core.refusals import Reason


class _Ports(NamedTuple):
    """The ports for gRPC and HTTP, and the flags that tell them; "": none does."""

    grpc_flag: str
    grpc: int
    http_flag: str
    http: int


_PORTS = {
    "TensorFlow Serving": _Ports("--port", 8500, "--rest_api_port", 8501),
    "TorchServe": _Ports("", 7070, "", 8080),
}


def check(container: pods.Container, port: int) -> None:
    """Raises `Refusal` if that is what is answered on a port; says how callers get to the server's HTTP."""
    server = servers.recognise(container)
    known = _PORTS.get(server.title) if server is not None else None
    if server is None or known is None or _told(container, known.grpc_flag, known.grpc) != port:
        return
    http = _told(container, known.http_flag, None)
    # The program itself speaks gRPC only unless it is told a port for HTTP; the entrypoint of its image tells one.
    is_off = http is None and known.http_flag and server.programs
    tell = f"give it {known.http_flag}={known.http}, " if is_off else ""
    how = f'{tell}set carpool.dev/port: "{http or known.http}"'
    raise Reason.OWN_GRPC(port=port, container=container.name, server=server.title, how=how)


def _told(container: pods.Container, flag: str, default: int | None) -> int | None:
    found = [edits.port_in(value) for _, _, value in edits.flag_values(container.words, flag)] if flag else []
    return found[-1] if found else default
