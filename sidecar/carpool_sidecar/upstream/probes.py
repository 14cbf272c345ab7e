"""What it means for the predictor to be ready, read from the probe its container was given.

Knative and KServe move the container's readiness probe into the environment variable SERVING_READINESS_PROBE
of the sidecar, as the JSON of a Kubernetes `corev1.Probe` (or a list of them), because from then on the
kubelet asks the sidecar. This module turns that text into values that `readiness` can check. Only the action
and `timeoutSeconds` matter here: periods and thresholds stay with the kubelet, which applies its own to the
sidecar's answers.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
import yarl
from pydantic import alias_generators

LOOPBACK = "127.0.0.1"
DEFAULT_TIMEOUT = 1.0
"""Seconds; what Kubernetes takes for a missing `timeoutSeconds`. Knative writes 0 and means the same."""


@dataclass(frozen=True, slots=True)
class HttpGet:
    """Ready when a GET of `url` is answered with a status from 200 to 399 within `timeout` seconds."""

    url: yarl.URL
    headers: tuple[tuple[str, str], ...] = ()
    timeout: float = DEFAULT_TIMEOUT

    def __str__(self) -> str:
        return f"httpGet {self.url}"


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """Ready when `host:port` accepts a connection within `timeout` seconds."""

    host: str
    port: int
    timeout: float = DEFAULT_TIMEOUT

    def __str__(self) -> str:
        return f"tcpSocket {_authority(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class Grpc:
    """Ready when `grpc.health.v1.Health/Check` for `service` answers SERVING within `timeout` seconds."""

    host: str
    port: int
    service: str = ""
    timeout: float = DEFAULT_TIMEOUT

    @property
    def target(self) -> str:
        """The address in the form gRPC takes."""
        return _authority(self.host, self.port)

    def __str__(self) -> str:
        return f"grpc {self.target}" + (f" service {self.service}" if self.service else "")


Probe = HttpGet | TcpSocket | Grpc


def parse(text: str, default_port: int, host: str = LOOPBACK) -> tuple[Probe, ...]:
    """Read one JSON probe or a list of them; blank text or `null` means `tcp_probe(default_port)`.

    A port that is missing or 0 means `default_port`, a host that is missing or 127.0.0.1 means `host`. Raises
    ValueError, its text one line on what is wrong, where and what is allowed; also for a grpc probe when the package
    `grpcio` is not installed.
    """
    try:
        value = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"readiness probe: not valid JSON: {error}") from None
    if value is None:
        return (tcp_probe(default_port, host),)
    if isinstance(value, list) and value:
        return tuple(_read(item, f"[{at}]", default_port, host) for at, item in enumerate(value))
    return (_read(value, "", default_port, host),)


def http_path_probe(path: str, port: int, host: str = LOOPBACK) -> Probe:
    """A GET of `path` on the predictor. Raises ValueError for a path that does not begin with `/`."""
    if not path.startswith("/"):
        raise ValueError(f"health path: got {path!r}: must begin with '/', for example '/v1/models/m'")
    return HttpGet(_url("http", host, port, path))


def tcp_probe(port: int, host: str = LOOPBACK) -> Probe:
    """The weakest probe, for when nothing better is known: something listens on the port."""
    return TcpSocket(host, port)


# --- the JSON form (k8s.io/api/core/v1 Probe); unknown members are ignored ----------------------------------


def _port(value: Any) -> Any:
    if isinstance(value, str) and value and not value.isdecimal():
        raise ValueError("named ports cannot be resolved here; give a number from 1 to 65535")
    return value or 0


def _scheme(value: Any) -> Any:
    return value.lower() or "http" if isinstance(value, str) else value


_Port = Annotated[int, pydantic.BeforeValidator(_port), pydantic.Field(ge=0, le=65535)]
# Go's zero values ("" and 0) mean "not given" throughout.
_Host = Annotated[str, pydantic.AfterValidator(lambda host: host.strip("[]") or LOOPBACK)]
_Path = Annotated[str, pydantic.AfterValidator(lambda path: "/" + path.removeprefix("/"))]
_Scheme = Annotated[Literal["http", "https"], pydantic.BeforeValidator(_scheme)]


class _Form(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore", alias_generator=alias_generators.to_camel)


class _Header(_Form):
    name: str
    value: str = ""


class _HttpGet(_Form):
    path: _Path = "/"
    port: _Port = 0
    scheme: _Scheme = "http"
    host: _Host = LOOPBACK
    http_headers: list[_Header] | None = None


class _TcpSocket(_Form):
    port: _Port = 0
    host: _Host = LOOPBACK


class _Grpc(_Form):
    port: _Port = 0
    service: str | None = None


class _Probe(_Form):
    exec: Any = None
    http_get: _HttpGet | None = None
    tcp_socket: _TcpSocket | None = None
    grpc: _Grpc | None = None
    timeout_seconds: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = DEFAULT_TIMEOUT


def _read(value: Any, where: str, default_port: int, host: str) -> Probe:
    name = f"readiness probe{where}"
    try:
        form = _Probe.model_validate(value)
        return _resolve(form, default_port, host)
    except pydantic.ValidationError as error:
        raise ValueError("; ".join(_problem(name, detail) for detail in error.errors())) from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _problem(name: str, detail: Any) -> str:
    where = ".".join([name, *map(str, detail["loc"])])
    reason = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if not detail["loc"]:
        return f'{where}: must be an object such as {{"httpGet": {{"path": "/"}}}}, or a list of such objects'
    return f"{where}: got {detail['input']!r}: {reason}"


def _resolve(form: _Probe, default_port: int, host: str) -> Probe:
    if form.exec is not None:
        raise ValueError("exec probes cannot be run from a sidecar; use httpGet, tcpSocket or grpc")
    actions = [action for action in (form.http_get, form.tcp_socket, form.grpc) if action is not None]
    if len(actions) != 1:
        raise ValueError(f"has {len(actions) or 'no'} actions; give exactly one of httpGet, tcpSocket, grpc")
    action = actions[0]
    port, timeout = action.port or default_port, form.timeout_seconds or DEFAULT_TIMEOUT
    if isinstance(action, _HttpGet):
        headers = tuple((header.name, header.value) for header in action.http_headers or ())
        return HttpGet(_url(action.scheme, _reached(action.host, host), port, action.path), headers, timeout)
    if isinstance(action, _TcpSocket):
        return TcpSocket(_reached(action.host, host), port, timeout)
    if importlib.util.find_spec("grpc") is None:
        raise ValueError("grpc probes need the package grpcio: pip install 'carpool-sidecar[grpc]'")
    return Grpc(host, port, action.service or "", timeout)


def _reached(given: str, host: str) -> str:
    return host if given == LOOPBACK else given


def _url(scheme: str, host: str, port: int, path: str) -> yarl.URL:
    return yarl.URL(f"{scheme}://{_authority(host, port)}{path}")


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
