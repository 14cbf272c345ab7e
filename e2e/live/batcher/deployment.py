"""Puts the services of all sides into the cluster, finds out where to call each, and reads the state of their pods."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import json
import secrets
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from e2e.cluster import client, processes
from e2e.cluster import kubectl as kubectls
from e2e.injector import steps
from e2e.live.batcher import sides, targets

# Twenty pods at once, on two cores.
READY_SECONDS = 240
ROUTED_SECONDS = 30.0
# Carpool's container from the webhook, and KServe's agent or the one that has its flags.
NAMES = ("carpool", "agent")
NANOSECONDS = 1e9


@dataclasses.dataclass(frozen=True)
class Deployed:
    """All services on all sides."""

    called: Mapping[tuple[str, str], targets.Target]  # by the key of the side and the name of the service
    tools: Mapping[str, kubectls.Kubectl]  # by the key of the side, in its namespace

    def target(self, side: sides.Side, service: sides.Service) -> targets.Target:
        return self.called[side.key, service.name]


@contextlib.contextmanager
def deployed(admin: client.Client, kubectl: kubectls.Kubectl, ingress: str) -> Iterator[Deployed]:
    """Every service on every side, ready and routed to by the ingress; their namespaces go at the end."""
    with contextlib.ExitStack() as stack:
        tools = {}
        for side in sides.SIDES:
            namespace = _create(side, admin, stack)
            tools[side.key] = kubectls.Kubectl(kubectl.kubeconfig, namespace)
            tools[side.key].apply([sides.recorder_config(), *manifests(side)])
        found: dict[tuple[str, str], targets.Target] = {}
        for side in sides.SIDES:
            found |= _ready(side, tools[side.key], ingress)
        yield Deployed(found, tools)


def manifests(side: sides.Side) -> list[sides.Object]:
    return [sides.inference_service(service, side) for service in sides.SERVICES if service.is_on(side)]


def is_routed(target: targets.Target) -> bool:
    """Whether the ingress routes to the service's predictor now."""
    return asyncio.run(target.send("GET", "/recorded?word=none")).status == 200


def wait_until_routed(target: targets.Target) -> None:
    processes.eventually(lambda: is_routed(target), ROUTED_SECONDS, f"the ingress sends to {target.host}")


def _create(side: sides.Side, admin: client.Client, stack: contextlib.ExitStack) -> str:
    name = f"batcher-{side.key}-{secrets.token_hex(3)}"
    steps.create_namespace(admin, name, dict(side.labels))
    stack.callback(admin.delete, "Namespace", name)
    return name


def _ready(side: sides.Side, kubectl: kubectls.Kubectl, ingress: str) -> dict[tuple[str, str], targets.Target]:
    """The targets of the side's services that can start, by the side's key and the service's name."""
    names = [service.name for service in sides.SERVICES if service.is_on(side) and service.starts_on(side)]
    for name in names:
        kubectl.wait(f"isvc/{name}", "Ready", READY_SECONDS)
    urls = {each["metadata"]["name"]: each["status"].get("url", "") for each in kubectl.list("isvc")}
    found = {}
    for name in names:
        found[side.key, name] = targets.Target(ingress, str(urllib.parse.urlsplit(urls[name]).hostname))
        wait_until_routed(found[side.key, name])
    return found


class Cpu(NamedTuple):
    """CPU seconds that a container has used by a time, in seconds."""

    at: float
    used: float


def pod_of(kubectl: kubectls.Kubectl, service: sides.Service) -> Any:
    """The service's pod; there is one."""
    (pod,) = kubectl.pods(f"serving.kserve.io/inferenceservice={service.name}")
    return pod


def batching(pod: Any) -> list[Any]:
    """The containers that may batch, as the pod declares them; a native sidecar is among the init containers."""
    spec = pod["spec"]
    return [each for each in (*spec.get("initContainers", ()), *spec["containers"]) if each["name"] in NAMES]


def status(kubectl: kubectls.Kubectl, service: sides.Service) -> Any:
    """The status of the container that batches."""
    told = kubectls.container_statuses(pod_of(kubectl, service))
    return next(told[name] for name in NAMES if name in told)


def exit_code(kubectl: kubectls.Kubectl, service: sides.Service) -> int | None:
    """What the container ended with, now or before its last restart; None if it never did."""
    found = status(kubectl, service)
    ended = [found[key]["terminated"] for key in ("state", "lastState") if "terminated" in found.get(key, {})]
    return int(ended[0]["exitCode"]) if ended else None


def cpu(kubectl: kubectls.Kubectl, service: sides.Service) -> Cpu:
    """The CPU that the container has used, as the kubelet read it last."""
    pod = pod_of(kubectl, service)
    summary = json.loads(kubectl.raw(f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/stats/summary"))
    (found,) = (each for each in summary["pods"] if each["podRef"]["uid"] == pod["metadata"]["uid"])
    (read,) = (each["cpu"] for each in found["containers"] if each["name"] in NAMES)
    at = datetime.datetime.fromisoformat(read["time"]).timestamp()
    return Cpu(at, read["usageCoreNanoSeconds"] / NANOSECONDS)
