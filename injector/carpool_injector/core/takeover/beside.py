"""None: the sidecar runs beside the app on a port of its own, and the pod's owner points the Service at it."""

from __future__ import annotations

from carpool_injector.core import model, status
from carpool_injector.core.copy_on_write import Draft
from carpool_injector.core.takeover import context


def plan(asked: context.Context, native: bool) -> model.Plan:
    """Nothing is taken over."""
    ports = asked.ports()
    listen, admin = ports.take(asked.config.port, may_be_agents=True), ports.take(asked.config.admin_port)
    site = asked.site
    rpc = ports.take() if site.taken_grpc else None
    both = f"{listen} and, for gRPC, on {rpc}" if rpc else str(listen)
    steps = (f"the sidecar listens on {both}; point the Service's targetPort there", "the app is left as it is")
    reached = site.grpc.port if site.grpc else None
    return model.Plan("none", native, site.container.name, site.port, listen, admin, steps, reached, rpc)


def apply(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """The app is left as it is."""
    return context.Effects(context.data_port(planned.listen_port), grpc=context.grpc_port(planned.grpc_listen_port))


def revert(draft: Draft, done: status.Injected) -> None:
    """There is nothing to give back."""
