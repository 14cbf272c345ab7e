"""Whether the callers of injected pods reach their sidecars: by Services' endpoints, and past policies for ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from carpool_injector.core import model, surroundings
from carpool_injector.diagnosis import cluster_state
from carpool_injector.diagnosis.findings import Finding, named, ok, unknown, warning

_SERVICE = "kubernetes.io/service-name"
_HEADLESS = "service.kubernetes.io/headless"  # which the cluster gives the slices of such Services


def reached(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """No Service leads past a sidecar to its app."""
    if isinstance(known.pods, cluster_state.Failed):
        return  # told already
    if isinstance(known.slices, cluster_state.Failed):
        yield from unknown("the endpoints of Services", known.slices)
        return
    statuses = {_name(pod["metadata"]): cluster_state.status_of(pod) for pod in known.pods}
    injected = {name: status for name, status in statuses.items() if status and "native" in status}
    yield from _by_name(known.slices, injected)
    past: dict[tuple[str, int, str], list[str]] = {}
    for service, port, pod in _endpoints(known.slices):
        status = injected.get(pod, {})
        if port in _apps(status) - _sidecars(status):
            past.setdefault((service, port, _fix(status, port)), []).append(pod)
    for (service, port, fix), names in past.items():
        yield warning(f"Service {service} goes past the sidecar, to port {port} of: {named(names)}", fix)
    if not past and injected:
        yield ok("no Service goes past a sidecar")


def _by_name(slices: Sequence[model.Object], injected: Mapping[str, model.Object]) -> Iterator[Finding]:
    """Headless Services: who finds pods by such a name chooses the port, and knows the app's."""
    found: dict[tuple[str, int], list[str]] = {}
    for service, _, pod in _endpoints([each for each in slices if _HEADLESS in (_labels(each))]):
        status = injected.get(pod, {})
        if status.get("takeover") == "named-port":
            found.setdefault((service, status["appPort"]), []).append(pod)
    for (service, port), names in found.items():
        yield warning(
            f"Service {service} is headless: who calls port {port} of {named(names)} by its name goes past the sidecar",
            "call a Service with a cluster IP; or tell the app its port by a flag or variable, so that the sidecar can "
            "take the port itself",
        )


def admitted(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """Policies by port speak of the ports on which callers come to sidecars."""
    if isinstance(known.pods, cluster_state.Failed):
        return  # told already
    if isinstance(known.policies, cluster_state.Failed):
        yield from unknown("policies that name ports of pods", known.policies)
        return
    found: dict[str, list[str]] = {}
    for pod in known.pods:
        status, metadata = cluster_state.status_of(pod) or {}, pod.get("metadata") or {}
        if status.get("takeover") in ("named-port", "none"):
            placed = surroundings.Placed(pod, str(metadata.get("namespace")), "")
            for text in surroundings.policies_that_miss(known.policies, placed, _moves(status)):
                found.setdefault(f"{metadata.get('namespace')}: {text}", []).append(_name(metadata))
    for text, names in found.items():
        head, _, fix = text.rpartition(": ")
        yield warning(f"in namespace {head} (for {named(names)})", fix)


def _moves(status: model.Object) -> Mapping[int, int]:
    pairs = [(status.get("appPort"), status.get("listenPort"))]
    pairs += [(status.get("grpcAppPort"), status.get("grpcListenPort"))]
    return {app: ours for app, ours in pairs if isinstance(app, int) and isinstance(ours, int)}


def _labels(thing: model.Object) -> model.Object:
    return (thing.get("metadata") or {}).get("labels") or {}


def _endpoints(slices: Sequence[model.Object]) -> Iterator[tuple[str, int, str]]:
    """Service, port and pod of each endpoint, ready or not, once for each port."""
    seen = set()
    for each in slices:
        metadata = each.get("metadata") or {}
        space, service = metadata.get("namespace"), (metadata.get("labels") or {}).get(_SERVICE)
        for endpoint in each.get("endpoints") or ():
            target = endpoint.get("targetRef") or {}
            for port in each.get("ports") or ():
                found = (f"{space}/{service}", port.get("port"), _name({"namespace": space, **target}))
                if service and target.get("kind") == "Pod" and found[1] and found not in seen:
                    seen.add(found)
                    yield found


def _apps(status: model.Object) -> set[Any]:
    """The ports on which the app listens, as far as the sidecar stands for them."""
    return {status.get("appPort"), status.get("grpcAppPort") if "grpcListenPort" in status else None} - {None}


def _sidecars(status: model.Object) -> set[Any]:
    return {status.get("listenPort"), status.get("grpcListenPort")}


def _fix(status: model.Object, port: int) -> str:
    listen = status.get("grpcListenPort") if port == status.get("grpcAppPort") else status.get("listenPort")
    if status.get("takeover") == "named-port":
        return "let its targetPort be the port's name, which the sidecar has, in place of the number"
    return f"let its targetPort be {listen}, where the sidecar listens"


def _name(metadata: model.Object) -> str:
    return f"{metadata.get('namespace')}/{metadata.get('name')}"
