"""Where predictions enter a pod: which container is the app, and on which port it listens.

Answers are certain or refused: a sidecar in front of the wrong port serves nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from injector.core import decision, model, pods, protocols, servers
from injector.core.errors import Refusal
from injector.core.settings import Settings

_KSERVE_CONTAINERS = ("transformer-container", "kserve-container")
_KSERVE_PORT = 8080  # constants.InferenceServiceDefaultHttpPort of kserve/kserve
_HTTP_NAMES = ("http", "http1", "web", "rest", "api", "predict", "serving", "user")


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
    port = _port(container, settings, server, setting, of_kserve)
    entries = [entry for entry in container.ports if entry.is_tcp and entry.container_port == port]
    if len(entries) > 1:
        raise Refusal(
            "ambiguous-port",
            f"container {container.name!r} declares port {port} more than once",
            "keep one of the declarations",
        )
    protocols.check(container, port)
    return Site(container, port, entries[0] if entries else None, of_kserve, server, setting)


def _container(pod: pods.Pod, settings: Settings) -> pods.Container:
    if settings.container is not None:
        chosen = pod.container(settings.container)
        if chosen is None or chosen.name == model.CONTAINER:
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
    """The one app; of several the one that is a known server, or the one that declares a port for HTTP.

    Not the one that declares any port: helpers (exporters, proxies for databases) do, where apps are careless.
    """
    recognised = [app for app in apps if servers.recognise(app) is not None]
    for candidates in (apps, recognised, [app for app in apps if any(is_for_http(port) for port in app.ports)]):
        if len(candidates) == 1:
            return candidates[0]
    names = ", ".join(app.name for app in apps) or "none"
    raise Refusal(
        "ambiguous-container",
        f"it cannot be told which container is the app: {names}",
        f"name it in the annotation {model.PREFIX}container",
    )


def is_for_http(entry: pods.Port) -> bool:
    """Whether a port's name says that it speaks HTTP."""
    return entry.is_tcp and (entry.name or "").partition("-")[0] in _HTTP_NAMES


def _server(container: pods.Container, settings: Settings) -> servers.Server | None:
    if settings.app_port_arg or settings.app_port_env:
        return servers.custom(settings.app_port_arg, settings.app_port_env)
    known = servers.recognise(container)
    if known is None and servers.reads_port_variable(container):
        return servers.TWELVE_FACTOR
    return known


def _port(
    container: pods.Container,
    settings: Settings,
    server: servers.Server | None,
    setting: servers.PortSetting | None,
    of_kserve: bool,
) -> int:
    if settings.port is not None:
        return _chosen_port(container, settings.port)
    declared = [entry for entry in container.ports if entry.is_tcp]
    if of_kserve:  # KServe and Knative send to the first one
        return declared[0].container_port if declared else _KSERVE_PORT
    if setting is not None and setting.port in [entry.container_port for entry in declared]:
        return setting.port
    is_known = setting is not None and (setting.present or not servers.may_be_in_a_file(server, container))
    if setting is not None and is_known and not declared:
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
    by_name = [entry for entry in declared if is_for_http(entry)]
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
