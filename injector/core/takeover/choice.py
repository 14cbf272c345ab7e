"""Which way the sidecar gets in front of the app: the first that is certain to work, or a refusal with the fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from injector.core import model, pods, sites, status, suitability
from injector.core.drafts import Draft
from injector.core.errors import Refusal
from injector.core.takeover import beside, context, kserve_agent, named_port, port_swap, queue_proxy


class Way(NamedTuple):
    """A way of taking over: plan, apply, revert."""

    plan: Callable[[context.Context, bool], model.Plan]
    apply: Callable[[Draft, model.Plan, context.Context], context.Effects]
    revert: Callable[[Draft, status.Injected], None]


WAYS: Mapping[str, Way] = {
    "queue-proxy": Way(queue_proxy.plan, queue_proxy.apply, queue_proxy.revert),
    "kserve-agent": Way(kserve_agent.plan, kserve_agent.apply, kserve_agent.revert),
    "port-swap": Way(port_swap.plan, port_swap.apply, port_swap.revert),
    "named-port": Way(named_port.plan, named_port.apply, named_port.revert),
    "none": Way(beside.plan, beside.apply, beside.revert),
}


def plan(asked: context.Context) -> model.Plan:
    """The plan for this pod.

    Raises `Refusal` if no way is certain to work, with the exact fix.
    """
    wanted = asked.settings.takeover or "auto"
    name = _automatic(asked) if wanted == "auto" else wanted
    native = _is_native(asked, name)
    suitability.check_mode(asked.pod, native)
    return WAYS[name].plan(asked, native)


def _automatic(asked: context.Context) -> str:
    site = asked.site
    if sites.is_knative(asked.pod):
        return "queue-proxy"
    if site.is_kserve and kserve_agent.find(asked.pod).expected:
        return "kserve-agent"
    if site.server is not None and site.setting is not None:
        return "port-swap"
    if not site.is_kserve and site.entry is not None and site.entry.name:
        return "named-port"
    raise _no_way(site)


def _no_way(site: sites.Site) -> Refusal:
    where = f"port {site.port} of container {site.container.name!r}"
    why = "its server is not recognised"
    if site.server is not None:
        why = f"{site.server.title} is not told its port by a plain flag or variable of the container"
    fix = (
        f"{named_port.kserve_fix()}; or " if site.is_kserve else "give the port a name and target it by that name; or "
    )
    return Refusal(
        "no-takeover", f"{where} cannot be taken over: {why}", fix + port_swap.how_to_tell().partition(";")[0]
    )


def _is_native(asked: context.Context, name: str) -> bool:
    """Native where the cluster can, also where a Service must find our port by its name."""
    mode = _mode(asked)
    able = asked.capabilities.native_sidecars
    by_name = name == "named-port" or (name == "port-swap" and _has_name(asked.site.entry))
    if mode == "native":
        if not able:
            raise Refusal(
                "no-native-sidecars",
                "the cluster has no native sidecars: they need Kubernetes 1.29 on the API server and all nodes",
                "remove carpool.dev/sidecar-mode: native",
            )
        return True
    return mode == "auto" and able and (asked.capabilities.native_named_ports or not by_name)


def _mode(asked: context.Context) -> str:
    wanted = asked.settings.sidecar_mode or "auto"
    return asked.config.sidecar_mode if wanted == "auto" else wanted


def _has_name(entry: pods.Port | None) -> bool:
    return entry is not None and bool(entry.name)
