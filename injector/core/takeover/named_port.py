"""Named port: the name of the app's port moves to the sidecar, and with it every Service that targets the name.

For plain pods whose server cannot be moved. KServe's and Knative's Services target numbers, so it is not for them.
"""

from __future__ import annotations

from injector.core import edits, model, status
from injector.core.drafts import Draft
from injector.core.errors import Refusal
from injector.core.takeover import context, port_swap


def plan(asked: context.Context, native: bool) -> model.Plan:
    """The sidecar gets a port of its own under the app's name. Raises `Refusal` if there is no name to move."""
    site = asked.site
    if site.is_kserve:
        raise Refusal(
            "no-takeover",
            f"KServe's Service sends to the number {site.port}, so moving a port's name changes nothing",
            kserve_fix(),
        )
    if site.entry is None or not site.entry.name:
        raise Refusal(
            "no-takeover",
            f"port {site.port} of container {site.container.name!r} has no name, and its server is not recognised",
            "give the port a name and let the Service's targetPort be that name; or "
            + port_swap.how_to_tell().partition("; or ")[0],
        )
    ports = asked.ports()
    listen, admin = ports.take(asked.config.port, may_be_agents=True), ports.take(asked.config.admin_port)
    steps = (
        f"the port name {site.entry.name!r} moves from container {site.container.name!r} (port {site.port}) to the "
        f"sidecar (port {listen})",
        f"Services must target the port by that name; those that target {site.port} go past the sidecar",
    )
    return model.Plan("named-port", native, site.container.name, site.port, listen, admin, steps)


def kserve_fix() -> str:
    """What makes a KServe pod's port ours in every case."""
    return "set spec.predictor.batcher in the InferenceService (batcher: {} is enough); Carpool then takes its place"


def apply(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """Move the name; probes by name follow the app."""
    container = draft.container(planned.container)
    name = asked.site.entry.name if asked.site.entry else None
    for entry in container.get("ports") or ():
        if entry.get("name") == name:
            entry["name"] = edits.APP_PORT_NAME
    edits.change_probe_ports(container, {name: edits.APP_PORT_NAME})
    return context.Effects({**context.data_port(planned.listen_port), "name": name})


def revert(draft: Draft, done: status.Injected) -> None:
    """Give the name back."""
    container = draft.container(done.container)
    ports = (draft.sidecar() or {}).get("ports") or ()
    name = next((port.get("name") for port in ports if port.get("containerPort") == done.listen_port), None)
    for entry in container.get("ports") or ():
        if name and entry.get("name") == edits.APP_PORT_NAME:
            entry["name"] = name
    edits.change_probe_ports(container, {edits.APP_PORT_NAME: name or done.app_port})
