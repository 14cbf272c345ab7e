"""Port swap: the sidecar listens where the app did, for HTTP and for gRPC, and the app is told other ports.

One pod is changed as a whole or not at all, and Services, probes of others, monitors and network policies stay right,
as the ports they know are still the ones that answer. It needs to know how the app is told its ports.
"""

from __future__ import annotations

from collections.abc import Iterator

from carpool_injector.core import grpc_sites, model, servers, sites, status
from carpool_injector.core.copy_on_write import Draft
from carpool_injector.core.errors import Refusal
from carpool_injector.core.takeover import context, moves

_HOW_TO_TELL_GRPC = (
    "give the app its port for gRPC by a flag or variable (outside of any shell) and name that in "
    f"carpool.dev/app-grpc-port-arg or carpool.dev/app-grpc-port-env; or {grpc_sites.LEAVE}"
)


def plan(asked: context.Context, native: bool) -> model.Plan:
    """The app moves to free ports. Raises `Refusal` if it cannot be told so."""
    site = asked.site
    if site.has_http:
        _check(site)
    check_grpc(site)
    ports, grpc = asked.ports(), site.taken_grpc
    admin = ports.take(asked.config.admin_port)
    http = ports.take() if site.has_http else None
    rpc = ports.take() if grpc else None
    listen = site.port if http else ports.take(asked.config.port, may_be_agents=True)
    return model.Plan(
        "port-swap",
        native,
        site.container.name,
        http or rpc or site.port,
        listen,
        admin,
        tuple(_steps(site, http, rpc)),
        rpc or (site.grpc.port if site.grpc else None),
        grpc.port if grpc else None,
    )


def _steps(site: sites.Site, http: int | None, rpc: int | None) -> Iterator[str]:
    title, where = site.server.title if site.server else "the app", f"container {site.container.name!r}"
    taken = []
    if http:
        yield f"{title} in {where} moves from port {site.port} to {http} ({_how(site.setting)})"
        taken.append(str(site.port))
    if rpc:
        yield grpc_step(site, rpc)
        taken.append(f"{site.taken_grpc.port} (gRPC)" if site.taken_grpc else "")
    yield f"the sidecar listens on {' and '.join(taken)}, which Services go on using"
    yield f"probes and hooks of the container follow the app to its new port{'s' if http and rpc else ''}"


def grpc_step(site: sites.Site, moved: int) -> str:
    """The sentence about the move of the port for gRPC."""
    port, setting = (site.grpc.port, site.grpc.setting) if site.grpc else (0, None)
    return f"gRPC in container {site.container.name!r} moves from port {port} to {moved} ({_how(setting)})"


def _how(setting: servers.PortSetting | None) -> str:
    return f"by {'its' if setting and setting.present else 'a new'} {setting}"


def _check(site: sites.Site) -> None:
    where = f"container {site.container.name!r}"
    if site.server is None:
        raise Refusal("unknown-server", f"it is not known how the server in {where} is told its port", how_to_tell())
    fix = moves.Fix(how_to_tell(), "carpool.dev/port")
    moves.check(f"{site.server.title} in {where}", site.port, site.setting, site.entry, fix)


def check_grpc(site: sites.Site) -> None:
    """Raises `Refusal` if the port for gRPC is to be taken over and the app cannot be told another one."""
    grpc = site.taken_grpc
    if grpc is not None:
        fix = moves.Fix(_HOW_TO_TELL_GRPC, grpc_sites.SETTING)
        moves.check(f"gRPC in container {site.container.name!r}", grpc.port, grpc.setting, grpc.entry, fix)


def how_to_tell() -> str:
    """The fix for an app whose port nobody knows how to set."""
    return (
        "give the app its port by a flag or variable (outside of any shell) and name that in carpool.dev/app-port-arg "
        "or carpool.dev/app-port-env; or let the Service use a named port and set carpool.dev/takeover: named-port"
    )


def apply(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """Move the app; its declared ports, names and hostPorts included, become the sidecar's."""
    site = asked.site
    found = moves.of_plan(planned, site)
    ports = moves.apply(draft.container(planned.container), found)
    taken = {move.own_name: port for move, port in zip(found, ports, strict=True)}
    http, grpc = site.setting if site.has_http else None, site.taken_grpc
    return context.Effects(
        taken.get(context.DATA_PORT_NAME) or context.data_port(planned.listen_port),
        told_by=http.name if http else None,
        added=bool(http and not http.present),
        grpc=context.moved_grpc(taken.get(context.GRPC_PORT_NAME), grpc.setting if grpc else None),
    )


def revert(draft: Draft, done: status.Injected) -> None:
    """Move the app back."""
    moves.revert(draft, done)
