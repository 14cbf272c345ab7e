"""Whether an app speaks what the sidecar does: HTTP/1.1, and gRPC on another port, without TLS and reachable for it.

A sidecar in front of anything else answers errors only; each sign of it is a reason to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from carpool_injector.core import edits, model, pods
from carpool_injector.core.errors import Refusal

_NOT_HTTP1 = ("grpc", "h2c", "http2")
_TLS_NAMES = ("https", "grpcs", "tls", "ssl")
_TLS_FLAGS = (
    "--ssl-keyfile", "--ssl-certfile", "--keyfile", "--certfile", "--ssl_config_file", "--ssl-cert", "--ssl-key",
)  # fmt: skip
_LOOPBACK = re.compile(r"(127(\.[0-9]+){3}|localhost|\[?::1\]?)(:[0-9]+)?", re.ASCII)


def check(container: pods.Container, port: int) -> None:
    """Raises `Refusal` if something says that the container's port is not for plain HTTP/1.1."""
    where = f"port {port} of container {container.name!r}"
    for sign in _other_protocol(container, port):
        raise Refusal(
            "not-http",
            f"{where} speaks gRPC or HTTP/2: {sign}",
            f"set {model.PREFIX}port to the port for HTTP/1.1; or {model.PREFIX}grpc-port, if the app answers the v2 "
            "protocol's gRPC calls there",
        )
    for sign in _tls(container, port):
        raise Refusal(
            "tls",
            f"{where} speaks TLS: {sign}",
            "let the app speak HTTP and end TLS in front of the pod (ingress or service mesh)",
        )
    for sign in _loopback(container):
        raise Refusal(
            "loopback-only",
            f"{where} listens within the pod only: {sign}",
            f"let it listen on 0.0.0.0, or name the container that callers reach in {model.PREFIX}container",
        )


def check_grpc(container: pods.Container, port: int, flags: Sequence[str], leave: str) -> None:
    """Raises `Refusal` if the container speaks TLS on its port for gRPC: by the `flags` it is given, or by its name."""
    name = _name(container, port)
    by_name = [f"it is named {name!r}"] if name.partition("-")[0] in _TLS_NAMES else []
    for sign in [*(f"the server is given {flag}" for flag in flags), *by_name]:
        raise Refusal(
            "tls",
            f"port {port} of container {container.name!r} speaks gRPC over TLS: {sign}",
            f"let the app speak gRPC without TLS and end TLS in front of the pod (ingress or service mesh), or {leave}",
        )


def is_local(container: pods.Container, flag: str) -> bool:
    """Whether that flag lets the server listen within the pod only; the last one counts."""
    found = [value for _, _, value in edits.flag_values(container.words, flag)] if flag else []
    return bool(found) and _LOOPBACK.fullmatch(found[-1]) is not None


def _name(container: pods.Container, port: int) -> str:
    entries = (entry for entry in container.ports if entry.is_tcp and entry.container_port == port)
    return next((entry.name for entry in entries if entry.name), "")


def _other_protocol(container: pods.Container, port: int) -> Iterator[str]:
    name = _name(container, port)
    if name.partition("-")[0] in _NOT_HTTP1:
        yield f"it is named {name!r}"
    for handler in container.handlers:
        if handler.grpc and container.number(handler.grpc.port) == port:
            yield "a grpc probe asks it"


def _tls(container: pods.Container, port: int) -> Iterator[str]:
    name = _name(container, port)
    if name.partition("-")[0] in _TLS_NAMES:
        yield f"it is named {name!r}"
    for handler in container.handlers:
        action = handler.http_get
        if action and action.scheme == "HTTPS" and container.number(action.port) == port:
            yield "a probe asks it by HTTPS"
    for word in container.words:
        if word.partition("=")[0] in _TLS_FLAGS:
            yield f"the server is given {word.partition('=')[0]}"


def _loopback(container: pods.Container) -> Iterator[str]:
    for flag in ("--host", "--http-address", "--bind", "-b"):
        for _, _, value in edits.flag_values(container.words, flag):
            if _LOOPBACK.fullmatch(value):
                yield f"{flag} {value}"
