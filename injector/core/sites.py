"""Where predictions enter a pod: which container is the app, and on which port it listens.

Answers are certain or refused: a sidecar in front of the wrong port serves nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from injector.core import decision, model, pods, servers
from injector.core.errors import Refusal
from injector.core.settings import Settings

_KSERVE_CONTAINERS = ("transformer-container", "kserve-container")
_KSERVE_PORT = 8080  # constants.InferenceServiceDefaultHttpPort of kserve/kserve
_HTTP_NAMES = ("http", "http1", "web", "rest", "user-port")
_NOT_HTTP1 = ("grpc", "h2c", "http2")


@dataclass(frozen=True, slots=True)
class Site:
    """The app's container and port. `entry` is the declared port, None where the container declares none."""

    container: pods.Container
    port: int
    entry: pods.Port | None
    is_kserve: bool
    server: servers.Server | None
    setting: servers.PortSetting | None


def is_kserve(pod: pods.Pod) -> bool:
    """Whether KServe made the pod."""
    return decision.KSERVE_POD in pod.metadata.labels


def is_knative(pod: pods.Pod) -> bool:
    """Whether Knative's queue-proxy stands in front of the app."""
    return pod.container("queue-proxy") is not None


def is_predictor(pod: pods.Pod) -> bool:
    """Whether the pod is KServe's, or some container runs a server that is recognised."""
    return is_kserve(pod) or any(servers.recognise(app) is not None for app in pod.apps)


def find(pod: pods.Pod, settings: Settings) -> Site:
    """The app's container and port.

    Raises `Refusal` where it cannot be told which one it is, or where HTTP/1.1 without TLS is not spoken there.
    """
    container = _container(pod, settings)
    server = _server(container, settings)
    setting = servers.port_setting(server, container) if server is not None else None
    of_kserve = is_kserve(pod) or is_knative(pod)
    port = _port(container, settings, setting, of_kserve)
    entry = next((entry for entry in container.ports if entry.is_tcp and entry.container_port == port), None)
    site = Site(container, port, entry, of_kserve, server, setting)
    _check_protocol(site)
    return site


def _container(pod: pods.Pod, settings: Settings) -> pods.Container:
    if settings.container is not None:
        chosen = pod.container(settings.container)
        if chosen is None or chosen not in pod.apps:
            names = ", ".join(app.name for app in pod.apps)
            raise Refusal(
                "no-such-container", f"there is no app container {settings.container!r}", f"name one of: {names}"
            )
        return chosen
    for name in _KSERVE_CONTAINERS:
        found = pod.container(name)
        if found is not None:
            return found
    return _only(pod.apps)


def _only(apps: Sequence[pods.Container]) -> pods.Container:
    """The one app; of several the one that is a known server, or the one that declares a port."""
    recognised = [app for app in apps if servers.recognise(app) is not None]
    for candidates in (apps, recognised, [app for app in apps if any(port.is_tcp for port in app.ports)]):
        if len(candidates) == 1:
            return candidates[0]
    names = ", ".join(app.name for app in apps) or "none"
    raise Refusal(
        "ambiguous-container",
        f"it cannot be told which container is the app: {names}",
        f"name it in the annotation {model.PREFIX}container",
    )


def _server(container: pods.Container, settings: Settings) -> servers.Server | None:
    if settings.app_port_arg or settings.app_port_env:
        return servers.custom(settings.app_port_arg, settings.app_port_env)
    known = servers.recognise(container)
    if known is None and servers.reads_port_variable(container):
        return servers.TWELVE_FACTOR
    return known


def _port(container: pods.Container, settings: Settings, setting: servers.PortSetting | None, of_kserve: bool) -> int:
    if settings.port is not None:
        return _chosen_port(container, settings.port)
    declared = [entry for entry in container.ports if entry.is_tcp]
    if of_kserve:  # KServe and Knative send to the first one
        return declared[0].container_port if declared else _KSERVE_PORT
    if setting is not None and (not declared or setting.port in [entry.container_port for entry in declared]):
        return setting.port
    return _declared_port(container, declared)


def _chosen_port(container: pods.Container, chosen: str) -> int:
    number = int(chosen) if chosen.isdecimal() else container.number(chosen)
    if number is None:
        names = ", ".join(entry.name for entry in container.ports if entry.name) or "none has a name"
        raise Refusal(
            "no-such-port",
            f"container {container.name!r} declares no port named {chosen!r}",
            f"set {model.PREFIX}port to a number or to a name: {names}",
        )
    return number


def _declared_port(container: pods.Container, declared: Sequence[pods.Port]) -> int:
    by_name = [entry for entry in declared if (entry.name or "").partition("-")[0] in _HTTP_NAMES]
    for candidates in (declared, by_name):
        if len(candidates) == 1:
            return candidates[0].container_port
    if not declared:
        raise Refusal(
            "no-port",
            f"container {container.name!r} declares no port and its server is not recognised",
            f"declare its containerPort, or set {model.PREFIX}port",
        )
    ports = ", ".join(str(entry.container_port) for entry in declared)
    raise Refusal(
        "ambiguous-port",
        f"container {container.name!r} declares several ports ({ports}) and none is named http",
        f"set {model.PREFIX}port to the one for predictions",
    )


def _check_protocol(site: Site) -> None:
    name = (site.entry.name if site.entry else None) or ""
    if name.partition("-")[0] in _NOT_HTTP1:
        raise Refusal(
            "not-http",
            f"port {site.port} of container {site.container.name!r} is named {name!r}, so it speaks gRPC or HTTP/2",
            f"Carpool batches HTTP/1.1: set {model.PREFIX}port to the port for it",
        )
    for handler in site.container.handlers:
        action = handler.http_get
        if action and action.scheme == "HTTPS" and site.container.number(action.port) == site.port:
            raise Refusal(
                "tls",
                f"a probe says that port {site.port} of container {site.container.name!r} speaks HTTPS",
                "let the app speak HTTP and end TLS in front of the pod (ingress or service mesh)",
            )
