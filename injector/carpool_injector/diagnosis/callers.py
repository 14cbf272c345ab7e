"""Whether the callers of injected pods reach their sidecars, by the endpoints that the cluster made of its Services."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from carpool_injector.core import model
from carpool_injector.diagnosis import cluster_state
from carpool_injector.diagnosis.findings import Finding, named, ok, unknown, warning

_SERVICE = "kubernetes.io/service-name"


def reached(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """No Service leads past a sidecar to its app."""
    if isinstance(known.pods, cluster_state.Failed):
        return  # told already
    if isinstance(known.slices, cluster_state.Failed):
        yield from unknown("the endpoints of Services", known.slices)
        return
    statuses = {_name(pod["metadata"]): cluster_state.status_of(pod) for pod in known.pods}
    injected = {name: status for name, status in statuses.items() if status and "native" in status}
    past: dict[tuple[str, int, str], list[str]] = {}
    for service, port, pod in _endpoints(known.slices):
        status = injected.get(pod, {})
        if port in _apps(status) - _sidecars(status):
            past.setdefault((service, port, _fix(status, port)), []).append(pod)
    for (service, port, fix), names in past.items():
        yield warning(f"Service {service} goes past the sidecar, to port {port} of: {named(names)}", fix)
    if not past and injected:
        yield ok("no Service goes past a sidecar")


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
