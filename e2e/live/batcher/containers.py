"""The container that batches in a pod of each side: how it fares, and what CPU it takes."""

from __future__ import annotations

import datetime
import json
from typing import Any, NamedTuple

from e2e.live import kubectl as kubectls
from e2e.live.batcher import sides

# Carpool's by the webhook; KServe's, and whatever takes its flags, is `agent`.
NAMES = ("carpool", "agent")
NANOSECONDS = 1e9


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
    told = pod_of(kubectl, service)["status"]
    every = (*told.get("initContainerStatuses", ()), *told.get("containerStatuses", ()))
    return next(each for each in every if each["name"] in NAMES)


def exit_code(kubectl: kubectls.Kubectl, service: sides.Service) -> int | None:
    """What the container ended with, now or before its last restart; None if it never did."""
    found = status(kubectl, service)
    ended = [found[key]["terminated"] for key in ("state", "lastState") if "terminated" in found.get(key, {})]
    return int(ended[0]["exitCode"]) if ended else None


def cpu(kubectl: kubectls.Kubectl, service: sides.Service) -> Cpu:
    """As the kubelet read it last."""
    pod = pod_of(kubectl, service)
    summary = json.loads(kubectl.raw(f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/stats/summary"))
    (found,) = (each for each in summary["pods"] if each["podRef"]["uid"] == pod["metadata"]["uid"])
    (read,) = (each["cpu"] for each in found["containers"] if each["name"] in NAMES)
    at = datetime.datetime.fromisoformat(read["time"]).timestamp()
    return Cpu(at, read["usageCoreNanoSeconds"] / NANOSECONDS)
