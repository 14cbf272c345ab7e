"""Whether the callers of injected pods reach their sidecars: by Services' endpoints, and past policies for ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from carpool_injector.core import model, surroundings
from carpool_injector.diagnosis.cluster_state import ClusterState
from carpool_injector.diagnosis.findings import Finding, check, named, ok, require, warning
from carpool_injector.objects.pod_state import PodState

_SERVICE = "kubernetes.io/service-name"
_HEADLESS = "service.kubernetes.io/headless"  # which the cluster gives the slices of such Services


@check
def reached(known: ClusterState) -> Iterator[Finding]:
    """No Service leads past a sidecar to its app."""
    injected = {pod.name: pod for pod in require(known.states) if pod.injected}
    slices = require(known.slices, "the endpoints of Services")
    yield from _by_name(slices, injected)
    past: dict[tuple[str, int, str], list[str]] = {}
    for service, port, pod in _endpoints(slices, injected):
        if port in pod.moves and port not in pod.moves.values():
            past.setdefault((service, port, _fix(pod, port)), []).append(pod.name)
    for (service, port, fix), names in past.items():
        yield warning(f"Service {service} goes past the sidecar, to port {port} of: {named(names)}", fix)
    if not past and injected:
        yield ok("no Service goes past a sidecar")


def _by_name(slices: Sequence[model.Object], injected: Mapping[str, PodState]) -> Iterator[Finding]:
    """Headless Services: who finds pods by such a name chooses the port, and knows the app's."""
    found: dict[tuple[str, int], list[str]] = {}
    headless = [each for each in slices if _HEADLESS in _labels(each)]
    for service, _, pod in _endpoints(headless, injected):
        if pod.takeover == "named-port" and pod.moves:
            found.setdefault((service, next(iter(pod.moves))), []).append(pod.name)
    for (service, port), names in found.items():
        yield warning(
            f"Service {service} is headless: who calls port {port} of {named(names)} by its name goes past the sidecar",
            "call a Service with a cluster IP; or tell the app its port by a flag or variable, so that the sidecar can "
            "take the port itself",
        )


@check
def admitted(known: ClusterState) -> Iterator[Finding]:
    """Policies by port speak of the ports on which callers come to sidecars."""
    pods, policies = require(known.states), require(known.policies, "policies that name ports of pods")
    found: dict[str, list[str]] = {}
    for pod in pods:
        if pod.takeover in ("named-port", "none"):
            placed = surroundings.Placed(pod.pod, pod.namespace, "")
            for text in surroundings.policies_that_miss(policies, placed, pod.moves):
                found.setdefault(f"{pod.namespace}: {text}", []).append(pod.name)
    for text, names in found.items():
        head, _, fix = text.rpartition(": ")
        yield warning(f"in namespace {head} (for {named(names)})", fix)


def _labels(thing: model.Object) -> model.Object:
    return (thing.get("metadata") or {}).get("labels") or {}


def _endpoints(slices: Sequence[model.Object], injected: Mapping[str, PodState]) -> Iterator[tuple[str, int, PodState]]:
    """Service, port and pod of each endpoint with a sidecar, ready or not, once for each port."""
    seen = set()
    for each in slices:
        space, service = (each.get("metadata") or {}).get("namespace"), _labels(each).get(_SERVICE)
        for endpoint in each.get("endpoints") or ():
            target = {"namespace": space, **(endpoint.get("targetRef") or {})}
            pod = injected.get(f"{target['namespace']}/{target.get('name')}")
            for port in (port.get("port") for port in each.get("ports") or ()):
                found = (f"{space}/{service}", port, pod and pod.name)
                if service and port and pod and target.get("kind") == "Pod" and found not in seen:
                    seen.add(found)
                    yield f"{space}/{service}", port, pod


def _fix(pod: PodState, port: int) -> str:
    if pod.takeover == "named-port":
        return "let its targetPort be the port's name, which the sidecar has, in place of the number"
    return f"let its targetPort be {pod.moves[port]}, where the sidecar listens"
