"""Where gRPC enters a pod: the port on which the app answers the v2 protocol's calls, beside the one for HTTP.

Known of Triton and MLServer, told by annotations of others. A pod is taken over with both ports or not at all: what
cannot be done for this one is a reason to refuse, with the way to leave gRPC out of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from carpool_injector.core import entries, model, pods, protocols, servers, values
from carpool_injector.core.errors import Refusal
from carpool_injector.core.settings import Settings

SETTING = f"{model.PREFIX}grpc-port"
LEAVE = f'leave its gRPC alone with {SETTING}: "off"'


@dataclass(frozen=True, slots=True)
class GrpcSite:
    """The app's port for gRPC. `entry` and `setting` are as of `sites.Site`; `taken`: callers' calls are to be ours."""

    port: int
    entry: pods.Port | None
    setting: servers.PortSetting | None
    taken: bool


def find(container: pods.Container, settings: Settings) -> GrpcSite | None:
    """The app's port for gRPC; None where nothing speaks of one.

    Raises `Refusal` where one was asked for that cannot be, or where TLS is spoken there.
    """
    listener, wanted = _listener(container, settings), _wanted(settings)
    if listener is not None and servers.is_off(listener, container):
        if wanted is not None:
            said = f"{SETTING} is {wanted}, but {listener.switch} turns gRPC off"
            raise Refusal("no-grpc", said, "remove one of the two")
        return None
    if wanted is None and listener is None:
        return None
    found = _site(container, listener, settings)
    if found.taken or settings.upstream == "triton-grpc":
        protocols.check_grpc(container, found.port, servers.tls_flags(listener, container) if listener else [], LEAVE)
    return found


def _wanted(settings: Settings) -> str | None:
    return None if settings.grpc_port in values.OFF else settings.grpc_port


def _listener(container: pods.Container, settings: Settings) -> servers.Grpc | None:
    if settings.app_grpc_port_arg or settings.app_grpc_port_env:
        return servers.custom_grpc(settings.app_grpc_port_arg, settings.app_grpc_port_env)
    server = servers.recognise(container)
    return server.grpc if server else None


def _site(container: pods.Container, listener: servers.Grpc | None, settings: Settings) -> GrpcSite:
    wanted = _wanted(settings)
    setting = servers.told(listener, container) if listener else None
    port = _port(container, wanted, listener, setting)
    entry = entries.of(container, port)
    is_local = listener is not None and protocols.is_local(container, listener.address)
    if wanted is not None and is_local:
        raise Refusal("loopback-only", f"{SETTING} is {wanted}, where the app listens within the pod only", LEAVE)
    is_reached = wanted is not None or setting is not None or entry is not None
    return GrpcSite(port, entry, setting, is_reached and not is_local and settings.grpc_port not in values.OFF)


def _port(
    container: pods.Container, wanted: str | None, listener: servers.Grpc | None, setting: servers.PortSetting | None
) -> int:
    if wanted is not None:
        return entries.chosen(container, wanted, "grpc-port")
    if setting is not None and setting.present:
        return setting.port
    by_name = [entry for entry in entries.declared(container) if entries.is_for_grpc(entry)]
    port = by_name[0].container_port if len(by_name) == 1 else listener.default_port if listener else 0
    if not port:
        raise Refusal(
            "no-port",
            f"nothing in container {container.name!r} says on which port the app answers gRPC",
            f"set {SETTING}; or give the app the flag or variable that {model.PREFIX}app-grpc-port-arg or "
            f"{model.PREFIX}app-grpc-port-env names",
        )
    return port
