"""Which way the sidecar gets in front of the app: the first that is certain to work, or a refusal with the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from carpool_injector.core import model, pod_annotations, pods, references, sites
from carpool_injector.core.edits import Draft
from carpool_injector.core.refusals import Reason, Refusal
from carpool_injector.core.takeover import by_port, proxies
from carpool_injector.core.takeover.context import Context, Effects


class Way(NamedTuple):
    """A way of taking over: how it is planned, and what it does and undoes beside the moves of the app's ports.

    `apply` may return the predictor's probe (SERVING_READINESS_PROBE), where it is not the app container's own.
    """

    plan: Callable[[Context, bool], model.Plan]
    apply: Callable[[Draft, model.Plan, pods.Pod], str | None] = lambda *_: None
    revert: Callable[[Draft, pod_annotations.Injected], None] = lambda *_: None


WAYS: Mapping[str, Way] = {
    "queue-proxy": Way(proxies.plan_queue_proxy, proxies.apply_queue_proxy, proxies.revert_queue_proxy),
    "kserve-agent": Way(proxies.plan_agent, proxies.apply_agent, proxies.revert_agent),
    "port-swap": Way(by_port.plan_swap),
    "named-port": Way(by_port.plan_names),
    "none": Way(by_port.plan_beside),
}


def apply(draft: Draft, planned: model.Plan, pod: pods.Pod) -> Effects:
    """Put the sidecar in front of the app of a draft, all but the sidecar itself."""
    app = draft.container(planned.container)
    ports = references.move(app, planned.moves)
    listens = {False: planned.listen_port, True: planned.grpc_listen_port}
    declared = [ports.get(by_grpc) or references.own_port(port, by_grpc) for by_grpc, port in listens.items() if port]
    return Effects(declared, WAYS[planned.takeover].apply(draft, planned, pod) or references.readiness(app))


def revert(draft: Draft, done: pod_annotations.Injected) -> None:
    """Give the app its place back."""
    references.move_back(draft.container(done.container), done.moves, draft.sidecar() or {})
    WAYS[done.takeover].revert(draft, done)


def plan(asked: Context) -> model.Plan:
    """The plan for this pod.

    Raises `Refusal` if no way is certain to work, with the exact fix.
    """
    wanted = asked.settings.takeover or "auto"
    name = _automatic(asked) if wanted == "auto" else wanted
    native = _native_if_possible(asked, name)
    _check_names(asked, name, native)
    return WAYS[name].plan(asked, native)


def _automatic(asked: Context) -> str:
    site = asked.site
    if sites.is_knative(asked.pod):
        return "queue-proxy"
    if site.is_kserve and proxies.find_agent(asked.pod).expected:
        return "kserve-agent"
    first, settings = site.taken[0], asked.settings
    if first.setting is not None and (site.server is not None or first.by_grpc):
        return "port-swap"
    chosen = settings.grpc_port if first.by_grpc else settings.port
    entry = None if site.is_kserve else first.entry
    if entry is not None and entry.name and (chosen is not None or sites.is_for_http(entry)):  # mysql is a name, too
        return "named-port"
    raise _no_way(site)


def _no_way(site: sites.Site) -> Refusal:
    why = site.untold or "its server is not recognised"
    if site.server is not None:
        why = f"{site.server.title} is not told its port by a plain flag or variable of the container"
        why += f": {site.untold}" if site.untold else ""
    reason = Reason.NO_TAKEOVER_IN_KSERVE if site.is_kserve else Reason.NO_TAKEOVER
    return reason(port=site.port, container=site.container.name, why=why)


def _native_if_possible(asked: Context, name: str) -> bool:
    """Native where nothing speaks against it.

    Raises `Refusal` where that was asked for all the same, and for a pod that ends by itself: only a native sidecar
    ends with it.
    """
    wanted = asked.settings.sidecar_mode or "auto"
    mode = asked.config.sidecar_mode if wanted == "auto" else wanted
    obstacle = next(_obstacles(asked, name), None)
    if mode == "native" and obstacle is not None:
        raise Reason.NO_NATIVE_SIDECARS(obstacle=obstacle)
    native = mode != "classic" and obstacle is None
    if not native and asked.pod.spec.restart_policy in ("Never", "OnFailure"):
        raise Reason.JOB_NEEDS_NATIVE(policy=asked.pod.spec.restart_policy)
    return native


def _obstacles(asked: Context, name: str) -> Iterator[str]:
    """What speaks for an ordinary container."""
    taken = _taken_entries(asked.site, name)
    if not asked.capabilities.native_sidecars:
        yield "native sidecars need Kubernetes 1.29 on the API server and all nodes"
    if any(container.name in pods.MESH_PROXIES for container in asked.pod.spec.containers):
        yield "the mesh's proxy starts after init containers, so nothing could probe or reach the sidecar before"
    if name != "named-port" and any(entry.host_port for entry in taken):
        yield "the kubelet opens a hostPort for ordinary containers only"
    if any(entry.name for entry in taken) and not asked.capabilities.native_named_ports:
        yield "Services find a named port of a native sidecar from Kubernetes 1.33 on"


def _taken_entries(site: sites.Site, name: str) -> list[pods.Port]:
    """The declared ports that will be the sidecar's: of KServe's agent's pods those for gRPC only."""
    taken = {"named-port": site.taken, "port-swap": site.taken, "kserve-agent": [site.taken_grpc]}.get(name, [])
    return [each.entry for each in taken if each is not None and each.entry is not None]


def _check_names(asked: Context, name: str, native: bool) -> None:
    """Raises `Refusal` if a Service that targets the app's port by name would find another container's instead of ours.

    The first container with that name counts, and native sidecars come last (FindPort of Kubernetes). A container in
    front of the app was found before as well, so nothing changes where the app's port stays what it was.
    """
    app, in_order = asked.site.container, asked.pod.running
    others = [each for each in (in_order if native else asked.pod.spec.containers) if each is not app]
    for entry in _taken_entries(asked.site, name):
        rivals = [each for each in others if any(port.name == entry.name for port in each.tcp_ports)]
        rivals = [each for each in rivals if each.name != model.CONTAINER]
        if not entry.name or not rivals:
            continue
        if name != "named-port" and in_order.index(rivals[0]) < in_order.index(app):
            continue
        raise Reason.PORT_NAME_SHARED(container=app.name, other=rivals[0].name, name=entry.name)
