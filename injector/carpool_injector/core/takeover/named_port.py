"""Named port: the name of the app's port moves to the sidecar, and with it every Service that targets the name.

For plain pods whose server cannot be moved. KServe's and Knative's Services target numbers. `plan_beside` takes
nothing over: the sidecar gets a port of its own, and the pod's owner points the Service at it.
"""

from __future__ import annotations

from carpool_injector.core import edits, model, pod_annotations, sites
from carpool_injector.core.edits import Draft
from carpool_injector.core.refusals import Reason
from carpool_injector.core.takeover import context


def plan(asked: context.Context, native: bool) -> model.Plan:
    """The sidecar gets a port of its own under the app's name. Raises `Refusal` if there is no name to move."""
    site = asked.site
    if site.is_kserve:
        raise Reason.NUMBER_NOT_NAME(port=site.port)
    if site.has_http and (site.entry is None or not site.entry.name):
        raise Reason.PORT_WITHOUT_NAME(port=site.port, container=site.container.name)
    grpc = _grpc(site)
    ports = asked.ports()
    listen, admin = ports.take(asked.config.port, may_be_agents=True), ports.take(asked.config.admin_port)
    rpc = ports.take() if grpc else None
    taken = [(site.entry, site.port, listen)] if site.has_http and site.entry else []
    taken += [(grpc.entry, grpc.port, rpc)] if grpc and grpc.entry and rpc else []
    steps = (
        *(
            f"the port name {entry.name!r} moves from container {site.container.name!r} (port {port}) to the sidecar "
            f"(port {ours})"
            for entry, port, ours in taken
        ),
        f"Services must target the port by that name; those that target {' or '.join(str(each[1]) for each in taken)} "
        "go past the sidecar",
    )
    reached = site.grpc.port if site.grpc else None
    return model.Plan("named-port", native, site.container.name, site.port, listen, admin, steps, reached, rpc)


def _grpc(site: sites.Site) -> sites.GrpcSite | None:
    """The port for gRPC, if it has a name that can move; one that is not declared is not reached by name."""
    grpc = site.taken_grpc
    if grpc is None or (grpc.entry is None and site.has_http):
        return None
    if grpc.entry is None or not grpc.entry.name:
        raise Reason.GRPC_PORT_WITHOUT_NAME(port=grpc.port, container=site.container.name)
    return grpc


def apply(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """Move the names; probes by name follow the app."""
    site, container = asked.site, draft.container(planned.container)
    grpc = site.taken_grpc.entry if site.taken_grpc and planned.grpc_listen_port else None
    data_port, rpc = context.data_port(planned.listen_port), context.grpc_port(planned.grpc_listen_port)
    if site.has_http and site.entry:
        data_port |= _rename(container, site.entry.name, edits.APP_PORT_NAME)
    if grpc is not None and rpc is not None:
        rpc.port.update(_rename(container, grpc.name, edits.APP_GRPC_PORT_NAME))
    return context.Effects(data_port, grpc=rpc)


def _rename(container: model.Object, name: str | None, to: str) -> dict[str, str | None]:
    meant = {}
    for entry in container.get("ports") or ():
        if entry.get("name") == name:
            entry["name"], meant = to, {name: entry["containerPort"]}
    edits.change_probe_ports(container, {name: to}, meant)
    return {"name": name}


def revert(draft: Draft, done: pod_annotations.Injected) -> None:
    """Give the names back."""
    _give_back(draft, done, edits.APP_PORT_NAME, done.listen_port, done.app_port)
    if done.grpc_listen_port and done.grpc_app_port:
        _give_back(draft, done, edits.APP_GRPC_PORT_NAME, done.grpc_listen_port, done.grpc_app_port)


def _give_back(draft: Draft, done: pod_annotations.Injected, app_name: str, listen: int, number: int) -> None:
    container = draft.container(done.container)
    ports = (draft.sidecar() or {}).get("ports") or ()
    name = next((port.get("name") for port in ports if port.get("containerPort") == listen), None)
    for entry in container.get("ports") or ():
        if name and entry.get("name") == app_name:
            entry["name"] = name
    edits.change_probe_ports(container, {app_name: name or number})


def plan_beside(asked: context.Context, native: bool) -> model.Plan:
    """Nothing is taken over."""
    ports = asked.ports()
    listen, admin = ports.take(asked.config.port, may_be_agents=True), ports.take(asked.config.admin_port)
    site = asked.site
    rpc = ports.take() if site.taken_grpc else None
    both = f"{listen} and, for gRPC, on {rpc}" if rpc else str(listen)
    steps = (f"the sidecar listens on {both}; point the Service's targetPort there", "the app is left as it is")
    reached = site.grpc.port if site.grpc else None
    return model.Plan("none", native, site.container.name, site.port, listen, admin, steps, reached, rpc)


def apply_beside(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """The app is left as it is."""
    return context.Effects(context.data_port(planned.listen_port), grpc=context.grpc_port(planned.grpc_listen_port))


def revert_beside(draft: Draft, done: pod_annotations.Injected) -> None:
    """There is nothing to give back."""
