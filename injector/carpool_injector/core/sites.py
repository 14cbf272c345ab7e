"""Where predictions enter a pod: which container is the app, and on which port it listens.

Answers are certain or refused: a sidecar in front of the wrong port serves nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from carpool_injector.core import entries, grpc_sites, model, pods, protocols, servers
from carpool_injector.core.errors import Refusal
from carpool_injector.core.settings import Settings

_KSERVE_CONTAINERS = ("transformer-container", "kserve-container")
_KSERVE_PORT = 8080  # constants.InferenceServiceDefaultHttpPort of kserve/kserve


@dataclass(frozen=True, slots=True)
class Site:
    """The app's container and port for HTTP, and the one for gRPC, if there is one that matters.

    `entry` is the declared port, None where the container declares none. `by_grpc`: what KServe and Knative send is
    gRPC. An app that speaks nothing else has that port for both.
    """

    container: pods.Container
    port: int
    entry: pods.Port | None
    is_kserve: bool
    server: servers.Server | None
    setting: servers.PortSetting | None
    grpc: grpc_sites.GrpcSite | None = None
    by_grpc: bool = False

    @property
    def has_http(self) -> bool:
        """Whether the app speaks HTTP at all."""
        return self.grpc is None or not self.by_grpc or self.grpc.port != self.port

    @property
    def taken_grpc(self) -> grpc_sites.GrpcSite | None:
        """The port for gRPC, if calls to it are to be the sidecar's."""
        return self.grpc if self.grpc is not None and self.grpc.taken else None


def is_kserve(pod: pods.Pod) -> bool:
    """Whether KServe made the pod."""
    return pods.KSERVE_POD in pod.metadata.labels


def is_knative(pod: pods.Pod) -> bool:
    """Whether Knative's queue-proxy stands in front of the app."""
    return pod.container("queue-proxy") is not None


def is_predictor(pod: pods.Pod) -> bool:
    """Whether the pod is KServe's, or some container runs a server that is recognised."""
    return is_kserve(pod) or any(servers.recognise(app) is not None for app in pod.apps)


def find(pod: pods.Pod, settings: Settings) -> Site:
    """The app's container and ports.

    Raises `Refusal` where it cannot be told which ones they are, or where HTTP/1.1 or gRPC is not spoken there, or not
    without TLS.
    """
    container = _container(pod, settings)
    server = _server(container, settings)
    setting = servers.port_setting(server, container) if server is not None else None
    grpc = grpc_sites.find(container, settings)
    if settings.upstream == "triton-grpc" and grpc is None:
        raise Refusal(
            "no-grpc",
            f"{model.PREFIX}upstream is triton-grpc, and nothing says where container {container.name!r} answers gRPC",
            f"set {grpc_sites.SETTING}, or {model.PREFIX}upstream: triton-http",
        )
    found = _Found(container, server, setting, grpc)
    of_kserve = is_kserve(pod) or is_knative(pod)
    entered = _port(found, settings, of_kserve)
    by_grpc = grpc is not None and entered == grpc.port
    if grpc is not None and by_grpc and not grpc.taken:
        raise Refusal(
            "not-http",
            f"port {entered} of container {container.name!r} is for gRPC, which is left to the app",
            f"set {model.PREFIX}port to the port for HTTP/1.1, or remove {grpc_sites.SETTING}: off",
        )
    port = _http_port(found, entered) if by_grpc else entered
    if not by_grpc or port != entered:
        protocols.check(container, port)
    return Site(container, port, entries.of(container, port), of_kserve, server, setting, grpc, by_grpc)


class _Found(NamedTuple):
    container: pods.Container
    server: servers.Server | None
    setting: servers.PortSetting | None
    grpc: grpc_sites.GrpcSite | None

    @property
    def taken_port(self) -> int | None:
        return self.grpc.port if self.grpc is not None and self.grpc.taken else None


def _http_port(found: _Found, entered: int) -> int:
    """Where an app that is entered by gRPC speaks HTTP; that same port where it does not."""
    if found.setting is not None and found.setting.port != entered:
        return found.setting.port
    named = [entry.container_port for entry in entries.declared(found.container) if entries.is_for_http(entry)]
    return named[0] if len(named) == 1 else entered


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
    for candidates in (apps, recognised, [app for app in apps if any(map(entries.is_for_http, app.ports))]):
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


def _port(found: _Found, settings: Settings, of_kserve: bool) -> int:
    """The port that is entered: for HTTP, or the one for gRPC where that is the only one, or KServe's choice."""
    container, setting = found.container, found.setting
    if settings.port is not None:
        return entries.chosen(container, settings.port, "port")
    if found.taken_port is not None and found.server is not None and servers.is_off(found.server, container):
        return found.taken_port
    declared = entries.declared(container)
    if of_kserve:  # KServe and Knative send to the first one
        return declared[0].container_port if declared else _KSERVE_PORT
    if setting is not None and setting.port in [entry.container_port for entry in declared]:
        return setting.port
    is_known = setting is not None and (setting.present or not servers.may_be_in_a_file(found.server, container))
    if setting is not None and is_known and not declared:
        return setting.port
    return _declared_port(container, _without_grpc(found, declared))


def _without_grpc(found: _Found, declared: Sequence[pods.Port]) -> Sequence[pods.Port]:
    """The ports that may be for HTTP; the one for gRPC, where a server's own port for HTTP is not declared."""
    of_grpc = [entry for entry in declared if entry.container_port == found.taken_port]
    others = [entry for entry in declared if entry.container_port != found.taken_port]
    is_undeclared = found.setting is not None and not any(map(entries.is_for_http, others))
    return of_grpc if of_grpc and (is_undeclared or not others) else others


def _declared_port(container: pods.Container, declared: Sequence[pods.Port]) -> int:
    by_name = [entry for entry in declared if entries.is_for_http(entry)]
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
