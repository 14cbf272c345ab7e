"""The way a request takes through the containers of a pod, from where the platform sends it."""

from __future__ import annotations

from typing import Any

from carpool_injector.core import model
from tests.injector import api_defaults, kserve_model, pods

Object = dict[str, Any]


def route(pod: Object, entry: int) -> list[str]:
    """The containers that a request to port `entry` passes, in order, and the number of the port it ends at.

    Knative sends to queue-proxy whatever the app's port. Stops after five hops: then containers send in a circle.
    """
    by_name = {container["name"]: container for container in api_defaults.containers(pod)}
    listeners: dict[int, tuple[str, int]] = {}
    for name, default in (("agent", str(kserve_model.AGENT_PORT)), (model.CONTAINER, "")):
        if name in by_name:
            flags = pods.flags(by_name[name]["args"])
            listeners[int(flags.get("--port", default))] = (name, int(flags["--component-port"]))
            if "--grpc-port" in flags:
                listeners[int(flags["--grpc-port"])] = (name, int(flags["--component-grpc-port"]))
    port, passed = entry, []
    if "queue-proxy" in by_name:
        variables = {variable["name"]: variable.get("value") for variable in by_name["queue-proxy"]["env"]}
        port, passed = int(variables["USER_PORT"]), ["queue-proxy"]
    while port in listeners and len(passed) < 5:
        name, port = listeners[port]
        passed.append(name)
    return [*passed, str(port)]


def entry(pod: Object) -> int:
    """The port that KServe's Service of a Standard predictor sends to, decided before the pod was made."""
    annotations = pod["metadata"].get("annotations") or {}
    if kserve_model.BATCHER in annotations or kserve_model.LOGGER in annotations:
        return kserve_model.AGENT_PORT
    return first_port(pod)


def first_port(pod: Object) -> int:
    """The model server's first declared port, which KServe and Knative send to."""
    return int((pods.container(pod, "kserve-container").get("ports") or [{"containerPort": 8080}])[0]["containerPort"])
