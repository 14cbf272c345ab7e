"""The pods that KServe and Knative will make, as far as a manifest tells: to say today what the webhook will do then.

What the manifest says is certain; what the cluster adds (its default mode, its runtimes) is expected only, and said to
be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from carpool_injector.core import model, pods, refusals
from carpool_injector.objects import inference_services, kserve_runtimes, parts, workloads

Mode = Literal["Standard", "Knative"]
_MODE = inference_services.MODE


@dataclass(frozen=True, slots=True)
class Expectation:
    """A pod to come. `certain` and `expected` say in sentences what it is derived from."""

    pod: model.Object
    certain: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()


def expect(thing: model.Object, default_mode: Mode | None = None) -> Expectation:
    """The predictor pod of an InferenceService, the pod of a Knative Service, or of a kind that nobody knows.

    `default_mode` is the cluster's, for InferenceServices that name none; Standard without it.
    """
    if workloads.group_kind(thing) == workloads.KNATIVE_SERVICE:
        return _of_knative(thing)
    if workloads.is_of_unknown_kind(thing):
        pod = workloads.as_pod(parts.part(thing, *workloads.OF_ANY_KIND))
        return Expectation(pod, (), (f"pods of a {thing['kind']}, which is not known here, are those of its template",))
    service = inference_services.read(thing)
    predictor = service.predictor
    known = inference_services.serving_container(predictor)
    server = known or inference_services.with_model({"image": predictor.runtime or "unknown"}, predictor.model)
    pod = inference_services.stand_in(service, server)
    containers = pod["spec"]["containers"]
    certain, expected = _about_server(predictor, _port(containers))
    mode = service.mode or default_mode or "Standard"
    if service.mode:
        certain.append(f"mode {mode}, by the annotation {_MODE} or the status")
        expected += _mode_names(service)
    else:
        told = "--kserve" if default_mode else "KServe's default in code; its charts may set Knative: see --kserve"
        expected.append(f"mode {mode} ({told})")
    # What stands in front of the model server: KServe's agent where it was asked for, and queue-proxy.
    if predictor.spec.get("logger") is not None:
        certain.append("spec.predictor.logger: KServe's agent stays in the pod, on 9081")
    if predictor.batcher is not None:
        certain.append("spec.predictor.batcher: KServe would run its agent on 9081 and send there")
    if mode == "Knative":
        containers.append(_queue_proxy(containers, predictor.spec.get("containerConcurrency")))
    return Expectation(pod, tuple(certain), tuple(expected))


def _of_knative(thing: model.Object) -> Expectation:
    template = parts.part(thing, *workloads.OF_ANY_KIND)
    containers = parts.parts(template, "spec", "containers")
    if not containers:
        raise refusals.Malformed(f"{workloads.describe(thing)}: spec.template.spec.containers must name a container")
    queue_proxy = _queue_proxy(containers, parts.find(template, ("spec", "containerConcurrency")))
    # Whatever the one port that Knative allows in a pod is called, its container's is user-port then.
    named = [
        {**each, "name": each.get("name") or "user-container"}
        | ({"ports": [{**declared[0], "name": "user-port"}]} if (declared := parts.parts(each, "ports")) else {})
        for each in containers
    ]
    spec = {**parts.part(template, "spec"), "containers": [*named, queue_proxy]}
    labels = {**parts.part(template, "metadata", "labels"), pods.KNATIVE_POD: workloads.revision_name(thing)}
    metadata = {**parts.part(template, "metadata"), "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return Expectation(pod, ("Knative puts its queue-proxy in front of the app",))


def _about_server(predictor: inference_services.Component, port: int) -> tuple[list[str], list[str]]:
    """Which container serves the model, and how that is known."""
    if predictor.containers and not predictor.runtime:
        names = ", ".join(str(each.get("name")) for each in predictor.containers)
        return [f"the containers are the manifest's own: {names}"], []
    expected = [f"the server is {_title(predictor)}; it listens on {port}", *_other_releases(predictor)]
    workers = "spec.predictor.workerSpec: the head may get the sidecar; its workers get none, as clients call the head"
    return [workers] if predictor.is_multi_node else [], expected


def _mode_names(service: inference_services.InferenceService) -> Iterator[str]:
    """KServe's older releases take a mode that they do not know for none (deployment modes of kserve/kserve)."""
    older = {"Standard": "RawDeployment", "Knative": "Serverless"}.get(service.annotations.get(_MODE, ""))
    if older:
        name = service.annotations[_MODE]
        yield f"KServe v0.16 or newer, which know {name} by that name; v0.15 and older know {older} only"


def _title(predictor: inference_services.Component) -> str:
    """What the runtime is called, and who chose it."""
    found, name = predictor.kserves_runtime, predictor.runtime
    if found is None:
        return f"the runtime {name!r}, which is not known here"
    if predictor.model.get("runtime"):
        return f"KServe's runtime for {name!r}"
    return f"KServe's runtime for {name!r} by protocol {predictor.protocol}, {found.name}"


def _other_releases(predictor: inference_services.Component) -> Iterator[str]:
    """What another release of KServe would choose."""
    found = predictor.kserves_runtime
    if found is None or not found.since or predictor.model.get("runtime"):
        return
    older = kserve_runtimes.before(found, predictor.model_format, predictor.protocol)
    instead = f"older ones choose {older.name}" if older else "older ones have none"
    yield f"{found.name} came with KServe {found.since}, {instead}: spec.predictor.model.runtime makes it certain"


def _queue_proxy(containers: list[model.Object], concurrency: Any) -> model.Object:
    """Knative's own container, which asks and calls the one of these that serves."""
    port = str(_port(containers))
    is_http2 = any(
        str(each.get("name")).startswith("h2c") for held in containers for each in parts.parts(held, "ports")
    )
    probe = json.dumps({"tcpSocket": {"port": int(port), "host": "127.0.0.1"}, "successThreshold": 1})
    env = {"USER_PORT": port, "SERVING_READINESS_PROBE": probe, "CONTAINER_CONCURRENCY": str(concurrency or 0)}
    return {
        "name": "queue-proxy",
        "image": "queue",
        "ports": [{"name": "queue-port", "containerPort": 8013 if is_http2 else 8012, "protocol": "TCP"}],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }


def _port(containers: list[model.Object]) -> int:
    """The first declared port of the container that is asked, as KServe and Knative take it; 8080 without one."""
    by_name = {container.get("name"): container for container in containers}
    asked = by_name.get("transformer-container") or by_name.get("kserve-container")
    for container in [asked] if asked else containers:
        if (number := inference_services.first_port(container)[0]) is not None:
            return number
    return inference_services.PORT
