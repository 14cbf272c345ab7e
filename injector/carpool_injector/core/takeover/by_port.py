"""Takeover by the app's own declared ports, for pods without a proxy of KServe's or Knative's in front of the app.

port-swap: the sidecar listens where the app did, for HTTP and for gRPC, and the app is told other ports. Services,
probes of others, monitors and network policies stay right, because the ports they know still answer. It needs to know
how the app is told its ports.

named-port: the name of the app's port moves to the sidecar, and with it every Service that targets the name. For
servers that cannot be moved; KServe's and Knative's Services target numbers.

none: the sidecar gets a port of its own, and the pod's owner points the Service at it.
"""

from __future__ import annotations

from collections.abc import Iterator

from carpool_injector.core import model, references, refusals, sites
from carpool_injector.core.refusals import Reason
from carpool_injector.core.takeover.context import Context


def plan_swap(asked: Context, native: bool) -> model.Plan:
    """The app moves to free ports. Raises `Refusal` if it cannot be told so."""
    site, ports = asked.site, asked.ports()
    for entrance in site.taken:
        check(site, entrance)
    admin = ports.take(asked.config.admin_port)
    moves = [swap(each, ports.take()) for each in site.taken]
    listen = site.port if site.has_http else ports.take(asked.config.port, may_be_agents=True)
    grpc = site.taken_grpc.port if site.taken_grpc else None
    return asked.plan("port-swap", native, (listen, admin, grpc), list(_steps(site, moves)), moves)


def swap(entrance: sites.Entrance, new: int) -> model.Move:
    """The move of an app that can be told a new port."""
    setting, old = entrance.setting, entrance.port
    told_by, added = (setting.name, not setting.present) if setting else (None, False)
    return model.Move(old, new, old, entrance.by_grpc, told_by, added)


def _steps(site: sites.Site, moves: list[model.Move]) -> Iterator[str]:
    for entrance, move in zip(site.taken, moves, strict=True):
        yield step(site, entrance, move.new)
    taken = " and ".join(f"{each.port} (gRPC)" if each.by_grpc else str(each.port) for each in site.taken)
    yield f"the sidecar listens on {taken}, which Services go on using"
    yield f"probes and hooks of the container follow the app to its new port{'s' if len(moves) > 1 else ''}"
    for each in site.taken:
        yield from references.staying(site.pod, site.container, each.port, each.setting)


def step(site: sites.Site, entrance: sites.Entrance, new: int) -> str:
    """The sentence about the move of a port."""
    title = "gRPC" if entrance.by_grpc else site.server.title if site.server else "the app"
    setting = entrance.setting
    how = f"by {'its' if setting and setting.present else 'a new'} {setting}"
    return f"{title} in container {site.container.name!r} moves from port {entrance.port} to {new} ({how})"


def check(site: sites.Site, entrance: sites.Entrance) -> None:
    """Raises `Refusal` if the app cannot be told another port, or is told one that is not where it is entered.

    Likewise if a probe or a hook runs a command of which nobody can tell whether it means that port.
    """
    app, port, setting, by_grpc = site.container, entrance.port, entrance.setting, entrance.by_grpc
    if site.server is None and not by_grpc:
        raise Reason.UNKNOWN_SERVER(container=app.name)
    for each in references.find(site.pod, app, port, setting):
        if each.fate is references.Fate.UNCLEAR:
            raise Reason.PORT_IN_COMMAND(container=app.name, port=port, found=each.why)
    what = f"{'gRPC' if by_grpc or site.server is None else site.server.title} in container {app.name!r}"
    if setting is None:
        fix = refusals.TELL_GRPC_PORT if by_grpc else refusals.TELL_HTTP_PORT
        raise Reason.PORT_NOT_MOVABLE(what=what, how_to_tell=fix)
    annotation, told = f"carpool.dev/{'grpc-port' if by_grpc else 'port'}", setting.port
    if setting.present and told != port:
        raise Reason.PORT_TOLD_OTHERWISE(what=what, port=port, setting=setting, told=told, annotation=annotation)
    if told != port and entrance.entry is None:
        raise Reason.PORT_UNTOLD(what=what, port=port, setting=setting, told=told, annotation=annotation)


def plan_names(asked: Context, native: bool) -> model.Plan:
    """The sidecar gets ports of its own under the app's names. Raises `Refusal` if there is no name to move."""
    site = asked.site
    if site.is_kserve:
        raise Reason.NUMBER_NOT_NAME(port=site.port)
    named = [each for each in site.taken if _has_name(site, each)]
    ports = asked.ports()
    listen, admin = ports.take(asked.config.port, may_be_agents=True), ports.take(asked.config.admin_port)
    moves = [model.Move(each.port, each.port, ports.take() if each.by_grpc else listen, each.by_grpc) for each in named]
    grpc = next((each.listen for each in moves if each.by_grpc), None)
    steps = [
        f"the port name {each.entry.name!r} moves from container {site.container.name!r} (port {each.port}) to the "
        f"sidecar (port {move.listen})"
        for each, move in zip(named, moves, strict=True)
        if each.entry
    ]
    steps.append(
        f"Services must target the port by that name; those that target {' or '.join(str(each.port) for each in named)}"
        " go past the sidecar"
    )
    return asked.plan("named-port", native, (listen, admin, grpc), steps, moves)


def _has_name(site: sites.Site, entrance: sites.Entrance) -> bool:
    """Whether it has a name that can move; a port for gRPC that is not declared is not reached by name."""
    if entrance.entry is not None and entrance.entry.name:
        return True
    if not entrance.by_grpc:
        raise Reason.PORT_WITHOUT_NAME(port=entrance.port, container=site.container.name)
    if entrance.entry is None and site.has_http:
        return False
    raise Reason.GRPC_PORT_WITHOUT_NAME(port=entrance.port, container=site.container.name)


def plan_beside(asked: Context, native: bool) -> model.Plan:
    """Nothing is taken over."""
    ports = asked.ports()
    listen, admin = ports.take(asked.config.port, may_be_agents=True), ports.take(asked.config.admin_port)
    rpc = ports.take() if asked.site.taken_grpc else None
    both = f"{listen} and, for gRPC, on {rpc}" if rpc else str(listen)
    steps = (f"the sidecar listens on {both}; point the Service's targetPort there", "the app is left as it is")
    return asked.plan("none", native, (listen, admin, rpc), steps)
