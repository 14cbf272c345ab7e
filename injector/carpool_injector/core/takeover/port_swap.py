"""Port swap: the sidecar listens where the app did, for HTTP and for gRPC, and the app is told other ports.

Services, probes of others, monitors and network policies stay right, because the ports they know still answer. It
needs to know how the app is told its ports. One move for HTTP, one for gRPC, both or none; a move is found again from
the status, so that declared ports, names, hostPorts, probes and hooks come back as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from carpool_injector.core import edits, listening, model, pod_annotations, pods, references, refusals, sites
from carpool_injector.core.edits import Draft
from carpool_injector.core.refusals import Reason
from carpool_injector.core.takeover import context


def plan(asked: context.Context, native: bool) -> model.Plan:
    """The app moves to free ports. Raises `Refusal` if it cannot be told so."""
    site = asked.site
    if site.has_http:
        _check_http(site)
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
    taken, grpc = [], [(site.taken_grpc.port, site.taken_grpc.setting)] if rpc and site.taken_grpc else []
    if http:
        yield f"{title} in {where} moves from port {site.port} to {http} ({_how(site.setting)})"
        taken.append(str(site.port))
    if rpc:
        yield grpc_step(site, rpc)
        taken.append(f"{site.taken_grpc.port} (gRPC)" if site.taken_grpc else "")
    yield f"the sidecar listens on {' and '.join(taken)}, which Services go on using"
    yield f"probes and hooks of the container follow the app to its new port{'s' if http and rpc else ''}"
    for port, setting in [(site.port, site.setting)] * bool(http) + grpc:
        yield from references.staying(site.pod, site.container, port, setting)


def grpc_step(site: sites.Site, moved: int) -> str:
    """The sentence about the move of the port for gRPC."""
    port, setting = (site.grpc.port, site.grpc.setting) if site.grpc else (0, None)
    return f"gRPC in container {site.container.name!r} moves from port {port} to {moved} ({_how(setting)})"


def _how(setting: listening.PortSetting | None) -> str:
    return f"by {'its' if setting and setting.present else 'a new'} {setting}"


def _check_http(site: sites.Site) -> None:
    if site.server is None:
        raise Reason.UNKNOWN_SERVER(container=site.container.name)
    what = f"{site.server.title} in container {site.container.name!r}"
    check_commands(site.pod, site.container, site.port, site.setting)
    _check_move(what, site.port, site.setting, site.entry, refusals.TELL_HTTP_PORT, "carpool.dev/port")


def check_grpc(site: sites.Site) -> None:
    """Raises `Refusal` if the port for gRPC is to be taken over and the app cannot be told another one."""
    grpc = site.taken_grpc
    if grpc is not None:
        what = f"gRPC in container {site.container.name!r}"
        check_commands(site.pod, site.container, grpc.port, grpc.setting)
        _check_move(what, grpc.port, grpc.setting, grpc.entry, refusals.TELL_GRPC_PORT, "carpool.dev/grpc-port")


def check_commands(pod: pods.Pod, app: pods.Container, port: int, setting: listening.PortSetting | None) -> None:
    """Raises `Refusal` if a probe or a hook runs a command of which nobody can tell whether it means the moved port."""
    for each in references.find(pod, app, port, setting):
        if each.fate is references.Fate.UNCLEAR:
            raise Reason.PORT_IN_COMMAND(container=app.name, port=port, found=each.why)


def apply(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """Move the app; its declared ports, names and hostPorts included, become the sidecar's."""
    site = asked.site
    found = of_plan(planned, site)
    ports = apply_moves(draft.container(planned.container), found)
    taken = {move.own_name: port for move, port in zip(found, ports, strict=True)}
    http, grpc = site.setting if site.has_http else None, site.taken_grpc
    return context.Effects(
        taken.get(context.DATA_PORT_NAME) or context.data_port(planned.listen_port),
        told_by=http.name if http else None,
        added=bool(http and not http.present),
        grpc=context.moved_grpc(taken.get(context.GRPC_PORT_NAME), grpc.setting if grpc else None),
    )


@dataclass(frozen=True, slots=True)
class Move:
    """The app goes from `old`, the sidecar's then, to `new`, as `told_by` tells it; `added`: which was not there.

    `app_name` is what the app's declared port is called afterwards if it had a name, `own_name` what the sidecar's is
    called if it had none.
    """

    old: int
    new: int
    told_by: str | None
    added: bool
    app_name: str
    own_name: str


def of_http(old: int, new: int, told_by: str | None, added: bool) -> Move:
    """The move of the port for HTTP."""
    return Move(old, new, told_by, added, edits.APP_PORT_NAME, context.DATA_PORT_NAME)


def of_grpc(old: int, new: int, told_by: str | None, added: bool) -> Move:
    """The move of the port for gRPC."""
    return Move(old, new, told_by, added, edits.APP_GRPC_PORT_NAME, context.GRPC_PORT_NAME)


def of_plan(plan: model.Plan, site: sites.Site, http: bool = True) -> list[Move]:
    """The moves of a plan, the one for HTTP first; without it if not `http`."""
    found = []
    if http and site.has_http and site.setting is not None:
        found.append(of_http(plan.listen_port, plan.app_port, site.setting.name, not site.setting.present))
    grpc = site.taken_grpc
    if grpc and grpc.setting and plan.grpc_listen_port and plan.grpc_app_port:
        added = not grpc.setting.present
        found.append(of_grpc(plan.grpc_listen_port, plan.grpc_app_port, grpc.setting.name, added))
    return found


def of_status(done: pod_annotations.Injected) -> list[Move]:
    """The moves that a status speaks of."""
    found = []
    if done.takeover == "port-swap" and (done.told_by is not None or done.grpc_told_by is None):
        found.append(of_http(done.listen_port, done.app_port, done.told_by, done.added))
    if done.grpc_told_by is not None and done.grpc_listen_port and done.grpc_app_port:
        found.append(of_grpc(done.grpc_listen_port, done.grpc_app_port, done.grpc_told_by, bool(done.grpc_added)))
    return found


def apply_moves(container: model.Object, moves: Sequence[Move]) -> list[model.Object]:
    """Move the app; returns the sidecar's declared port for each move: the app's, name and hostPort included."""
    taken: list[model.Object] = []
    changes: dict[int | str, int | str] = {}
    meant: dict[str, int] = {}
    for move in moves:
        _tell(container, move)
        entry = _move_entry(container, move)
        changes |= {move.old: move.new}
        if entry and entry.get("name"):
            changes |= {entry["name"]: move.app_name}
            meant |= {entry["name"]: move.old}
        taken.append({"name": move.own_name, **(entry or {"containerPort": move.old, "protocol": "TCP"})})
    edits.change_probe_ports(container, changes, meant)
    return taken


def _tell(container: model.Object, move: Move) -> None:
    name = move.told_by or ""
    if not name.startswith("-"):
        edits.set_variable(container, name, edits.with_port(edits.variable(container, name) or "", move.new))
    elif move.added:
        container["args"] = [*(container.get("args") or ()), f"{name}={move.new}"]
    else:
        edits.change_flag_port(container, name, move.old, move.new)


def _move_entry(container: model.Object, move: Move) -> model.Object | None:
    for at, entry in enumerate(container.get("ports") or ()):
        if entry["containerPort"] == move.old and entry.get("protocol") in (None, "", "TCP"):
            moved = {"name": move.app_name} if entry.get("name") else {}
            protocol = {"protocol": "TCP"} if "protocol" in entry else {}
            container["ports"][at] = {**moved, "containerPort": move.new, **protocol}
            return dict(entry)
    return None


def revert_moves(draft: Draft, done: pod_annotations.Injected) -> None:
    """Move the app back."""
    found = of_status(done)
    if not found:
        return
    container = draft.container(done.container)
    changes: dict[int | str, int | str] = {}
    ports = (draft.sidecar() or {}).get("ports") or ()
    for move in found:
        own = next((port for port in ports if port.get("containerPort") == move.old), None)
        _restore_entry(container, move, own)
        changes |= {move.new: move.old, move.app_name: (own.get("name") if own else None) or move.old}
        _untell(container, move)
    edits.change_probe_ports(container, changes)


def _restore_entry(container: model.Object, move: Move, own: model.Object | None) -> None:
    for at, entry in enumerate(container.get("ports") or ()):
        if own is not None and entry.get("containerPort") == move.new:
            named = own.get("name") != move.own_name
            container["ports"][at] = {key: value for key, value in own.items() if named or key != "name"}


def _untell(container: model.Object, move: Move) -> None:
    if move.told_by is None:
        return
    is_flag = move.told_by.startswith("-")
    if move.added and is_flag:
        edits.drop_words(container, "args", [f"{move.told_by}={move.new}"])
    elif is_flag:
        edits.change_flag_port(container, move.told_by, move.new, move.old)
    else:
        value = edits.variable(container, move.told_by) or ""
        if edits.port_in(value) != move.new:
            return
        if move.added:
            edits.remove_variable(container, move.told_by)
        else:
            edits.set_variable(container, move.told_by, edits.with_port(value, move.old))


def edited(app: model.Object, done: pod_annotations.Injected) -> Iterator[str]:
    """A warning for each setting that does not tell an injected app the port that it was given, and so stays as it is.

    Somebody has changed or removed it since.
    """
    for move in of_status(done):
        name = move.told_by
        if name is None:
            continue
        words = [*(app.get("command") or ()), *(app.get("args") or ())]
        is_flag = name.startswith("-")
        held = [each[2] for each in edits.flag_values(words, name)] if is_flag else [edits.variable(app, name) or ""]
        if move.new not in map(edits.port_in, held):
            yield (
                f"{name} of container {done.container!r} does not say {move.new}, as it did once it was injected: it "
                f"stays as it is; see that the app listens on {move.old} again"
            )


def _check_move(
    what: str,
    port: int,
    setting: listening.PortSetting | None,
    entry: pods.Port | None,
    fix: str,
    annotation: str,
) -> None:
    """Raises `Refusal` for an app that cannot be told another port, or is told one that is not where it is entered."""
    if setting is None:
        raise Reason.PORT_NOT_MOVABLE(what=what, how_to_tell=fix)
    if setting.present and setting.port != port:
        raise Reason.PORT_TOLD_OTHERWISE(
            what=what, port=port, setting=setting, told=setting.port, annotation=annotation
        )
    if not setting.present and setting.port != port and entry is None:
        raise Reason.PORT_UNTOLD(what=what, port=port, setting=setting, told=setting.port, annotation=annotation)
