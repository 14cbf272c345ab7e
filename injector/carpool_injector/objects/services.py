"""Services that would go past the sidecar, by the Services that lie beside a workload in its manifests.

Where only the name of a port moves, or nothing does, a Service that targets the app's own number reaches the app as
before. No webhook sees that: a pod knows nothing of the Services that select it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from carpool_injector.core import model
from carpool_injector.objects import workloads


def advice(
    services: Sequence[model.Object], pod: model.Object, plan: model.Plan, namespace: str, default: str
) -> Iterator[str]:
    """A warning for each port of a Service that leads past the sidecar of a pod.

    `pod` is as it was before the injection, `namespace` the one that it is for, `default` that of Services which name
    none.
    """
    if plan.takeover not in ("named-port", "none"):
        return
    names = _names(pod, plan.container)
    ours = _ours(plan, names)
    for service in services:
        if _selects(service, pod) and _namespace(service, default) == namespace:
            for target in _targets(service):
                number = target if isinstance(target, int) else names.get(target)
                if number in ours and (isinstance(target, int) or plan.takeover == "none"):
                    yield f"{workloads.describe(service)} goes past the sidecar to {target}: {ours[number]}"


def called(
    services: Sequence[model.Object], pod: model.Object, namespace: str, default: str
) -> Mapping[int | str, str]:
    """The ports of a pod that Services target, by number or name, each with the name of one."""
    return {
        target: workloads.describe(service)
        for service in services
        if _selects(service, pod) and _namespace(service, default) == namespace
        for target in _targets(service)
    }


def _ours(plan: model.Plan, names: Mapping[str, int]) -> dict[int | None, str]:
    """What a Service is to target instead of each of the app's ports that the sidecar stands for."""
    pairs = [(plan.app_port, plan.listen_port)] if plan.app_port != plan.grpc_app_port else []
    pairs += [(plan.grpc_app_port, plan.grpc_listen_port)] if plan.grpc_app_port and plan.grpc_listen_port else []
    found: dict[int | None, str] = {}
    for app, listen in pairs:
        name = next((name for name, port in names.items() if port == app), "")
        by_name = plan.takeover == "named-port" and name
        found[app] = f"let its targetPort be {name}" if by_name else f"let its targetPort be {listen}"
    return found


def _names(pod: model.Object, container: str) -> dict[str, int]:
    held: model.Object = next((each for each in pod["spec"]["containers"] if each.get("name") == container), {})
    return {port["name"]: port["containerPort"] for port in held.get("ports") or () if port.get("name")}


def _targets(service: model.Object) -> Iterator[int | str]:
    """The target of each of its ports over TCP: a number, or the name of one."""
    for port in _members(_spec(service).get("ports")):
        target = port.get("targetPort") or port.get("port")
        if port.get("protocol") in (None, "", "TCP") and isinstance(target, int | str):
            yield int(target) if isinstance(target, str) and target.isascii() and target.isdecimal() else target


def _selects(service: model.Object, pod: model.Object) -> bool:
    selector = _spec(service).get("selector")
    metadata = pod.get("metadata")
    labels = (metadata.get("labels") if isinstance(metadata, dict) else None) or {}
    if not isinstance(selector, dict) or not selector:
        return False
    return all(key in labels and labels[key] == value for key, value in selector.items())


def _spec(service: model.Object) -> model.Object:
    found = service.get("spec")
    return found if isinstance(found, dict) else {}


def _members(value: Any) -> Iterator[model.Object]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def _namespace(service: model.Object, default: str) -> str:
    metadata = service.get("metadata")
    return str((metadata.get("namespace") if isinstance(metadata, dict) else None) or default)
