"""Port swap: the sidecar listens where the app did, and the app is told another port.

One pod is changed as a whole or not at all, and Services, probes of others, monitors and network policies stay right,
as the port they know is still the one that answers. It needs to know how the app is told its port.
"""

from __future__ import annotations

from injector.core import edits, model, status
from injector.core.drafts import Draft
from injector.core.errors import Refusal
from injector.core.takeover import context


def plan(asked: context.Context, native: bool) -> model.Plan:
    """The app moves to a free port. Raises `Refusal` if it cannot be told so."""
    site = asked.site
    _check(asked)
    ports = asked.ports()
    admin = ports.take(asked.config.admin_port)
    moved = ports.take()
    title = site.server.title if site.server else "the app"
    how = "by its" if site.setting and site.setting.present else "by a new"
    steps = (
        f"{title} in container {site.container.name!r} moves from port {site.port} to {moved} ({how} {site.setting})",
        f"the sidecar listens on {site.port}, which Services go on using",
        "probes and hooks of the container follow the app to its new port",
    )
    return model.Plan("port-swap", native, site.container.name, moved, site.port, admin, steps)


def _check(asked: context.Context) -> None:
    site = asked.site
    where = f"container {site.container.name!r}"
    if site.server is None:
        raise Refusal("unknown-server", f"it is not known how the server in {where} is told its port", how_to_tell())
    if site.setting is None:
        raise Refusal(
            "port-not-movable", f"{site.server.title} in {where} cannot be told its port by a flag or variable",
            how_to_tell(),
        )  # fmt: skip
    if site.setting.present and site.setting.port != site.port:
        raise Refusal(
            "port-mismatch",
            f"{where} is entered on port {site.port}, but {site.setting} says {site.setting.port}",
            "make the two agree, or set carpool.dev/port",
        )
    if not site.setting.present and site.setting.port != site.port and site.entry is None:
        raise Refusal(
            "port-mismatch",
            f"{where} is entered on {site.port}, but {site.server.title} listens on {site.setting.port} if not told",
            f"give it {site.setting} {site.port}, or set carpool.dev/port",
        )


def how_to_tell() -> str:
    """The fix for an app whose port nobody knows how to set."""
    return (
        "give the app its port by a flag or variable (outside of any shell) and name that in carpool.dev/app-port-arg "
        "or carpool.dev/app-port-env; or let the Service use a named port and set carpool.dev/takeover: named-port"
    )


def apply(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """Move the app; its declared port, name and hostPort included, becomes the sidecar's."""
    site, container = asked.site, draft.container(planned.container)
    setting = site.setting
    if setting is None:
        raise ValueError("nothing says where the app is told its port: plan() refuses that")
    _tell(container, setting.name, setting.is_flag, setting.present, planned)
    entry = _move_entry(container, planned)
    edits.change_probe_ports(container, {planned.listen_port: planned.app_port, **_renamed(entry)})
    own = {"name": context.DATA_PORT_NAME, **entry} if entry else context.data_port(planned.listen_port)
    return context.Effects(own, told_by=setting.name, added=not setting.present)


def _tell(container: model.Object, name: str, is_flag: bool, present: bool, planned: model.Plan) -> None:
    if not is_flag:
        edits.set_variable(container, name, edits.with_port(edits.variable(container, name) or "", planned.app_port))
    elif present:
        edits.change_flag_port(container, name, planned.listen_port, planned.app_port)
    else:
        container["args"] = [*(container.get("args") or ()), f"{name}={planned.app_port}"]


def _move_entry(container: model.Object, planned: model.Plan) -> model.Object | None:
    for at, entry in enumerate(container.get("ports") or ()):
        if entry["containerPort"] == planned.listen_port and entry.get("protocol") in (None, "", "TCP"):
            moved = {"name": edits.APP_PORT_NAME} if entry.get("name") else {}
            protocol = {"protocol": "TCP"} if "protocol" in entry else {}
            container["ports"][at] = {**moved, "containerPort": planned.app_port, **protocol}
            return dict(entry)
    return None


def _renamed(entry: model.Object | None) -> dict[object, str]:
    return {entry["name"]: edits.APP_PORT_NAME} if entry and entry.get("name") else {}


def revert(draft: Draft, done: status.Injected) -> None:
    """Move the app back."""
    container = draft.container(done.container)
    sidecar = draft.sidecar() or {}
    own = next((port for port in sidecar.get("ports") or () if port.get("containerPort") == done.listen_port), None)
    name = own.get("name") if own else None
    _restore_entry(container, done, own)
    edits.change_probe_ports(
        container, {done.app_port: done.listen_port, edits.APP_PORT_NAME: name or done.listen_port}
    )
    _untell(container, done)


def _restore_entry(container: model.Object, done: status.Injected, own: model.Object | None) -> None:
    for at, entry in enumerate(container.get("ports") or ()):
        if own is not None and entry.get("containerPort") == done.app_port:
            named = own.get("name") != context.DATA_PORT_NAME
            container["ports"][at] = {key: value for key, value in own.items() if named or key != "name"}


def _untell(container: model.Object, done: status.Injected) -> None:
    if done.told_by is None:
        return
    is_flag = done.told_by.startswith("-")
    if done.added and is_flag:
        edits.drop_words(container, "args", [f"{done.told_by}={done.app_port}"])
    elif done.added:
        edits.remove_variable(container, done.told_by)
    elif is_flag:
        edits.change_flag_port(container, done.told_by, done.app_port, done.listen_port)
    else:
        value = edits.variable(container, done.told_by) or ""
        if edits.port_in(value) == done.app_port:
            edits.set_variable(container, done.told_by, edits.with_port(value, done.listen_port))
