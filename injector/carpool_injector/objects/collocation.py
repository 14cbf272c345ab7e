"""The sidecar without a webhook: declared in an InferenceService as its `transformer-container`.

KServe sends to the first port of a container of that name, instead of the model server's, in Standard mode
(reconcilers/service/service_reconciler.go of kserve/kserve) and with Knative, which takes the one port that a pod
declares (knative/serving, pkg/apis/serving/k8s_validation.go). What either of the two forbids is left out or refused.
"""

from __future__ import annotations

from typing import Any

from carpool_injector.core import container, list_servers, model, permission, pod_annotations, pods, refusals, sites
from carpool_injector.core.config import Config
from carpool_injector.core.settings import Settings
from carpool_injector.core.takeover import context
from carpool_injector.objects import inference_services, workloads

NAME = "transformer-container"
_SERVER = "kserve-container"
_APP_PORT = 8080  # where KServe's runtimes listen, and what it takes for a container without ports
_PORT_NAME = "http1"  # Knative knows this name and h2c only
_PROBES = ("readinessProbe", "livenessProbe", "startupProbe")


def declared(thing: model.Object, config: Config) -> tuple[model.Object, tuple[str, ...]]:
    """The InferenceService with the sidecar in it, and warnings.

    Raises `Refusal` where KServe or Knative would not have it or the sidecar would not be reached.
    """
    if workloads.group_kind(thing) != workloads.INFERENCE_SERVICE:
        raise refusals.Reason.NOT_AN_INFERENCE_SERVICE()
    thing = removed(thing)
    service = inference_services.read(thing)
    _check(service)
    app_port = _server_port(service)
    whole = inference_services.part(thing, "spec")
    spec = inference_services.part(whole, "predictor")
    built = _container(service, app_port, config)
    predictor = {
        **spec,
        "containers": [*(spec.get("containers") or ()), built],
        "volumes": [*(spec.get("volumes") or ()), container.volume()],
    }
    return {**thing, "spec": {**whole, "predictor": predictor}}, tuple(_warnings(service, config))


def removed(thing: model.Object) -> model.Object:
    """The InferenceService without a sidecar that was declared in it; the same object where there is none."""
    spec = inference_services.part(thing, "spec")
    predictor = dict(inference_services.part(spec, "predictor"))
    found = [each for each in predictor.get("containers") or () if _is_ours(each)]
    if not found:
        return thing
    kept = {
        "containers": [each for each in predictor["containers"] if each not in found],
        "volumes": [
            each for each in predictor.get("volumes") or () if each.get("name") != pod_annotations.TOKEN_SHIELD
        ],
    }
    for key, items in kept.items():
        if items:
            predictor[key] = items
        else:
            predictor.pop(key, None)
    return {**thing, "spec": {**spec, "predictor": predictor}}


def _is_ours(found: Any) -> bool:
    mounts = found.get("volumeMounts") if isinstance(found, dict) and found.get("name") == NAME else None
    return any(isinstance(mount, dict) and mount.get("name") == pod_annotations.TOKEN_SHIELD for mount in mounts or ())


def _check(service: inference_services.InferenceService) -> None:
    predictor = service.predictor
    own = {each.get("name"): each for each in predictor.containers}
    if service.mode == "ModelMesh":
        raise refusals.Reason.MODELMESH()
    if NAME in own:
        raise refusals.Reason.TRANSFORMER_NAME_TAKEN(name=NAME)
    if predictor.batcher is not None:
        raise refusals.Reason.BATCHES_ALREADY()
    if own and _SERVER not in own and not predictor.runtime:
        raise refusals.Reason.UNNAMED_SERVER(name=_SERVER)
    if service.mode != "Standard":
        _check_knative(own.get(_SERVER) or predictor.model)


def _check_knative(server: model.Object) -> None:
    """Knative allows one port in a pod, and probes only in the container that declares it."""
    if server.get("ports"):
        raise refusals.Reason.DECLARES_A_PORT(port=_APP_PORT, mode=inference_services.MODE)
    found = [key for key in _PROBES[:2] if server.get(key)]
    if found:
        raise refusals.Reason.HAS_PROBES(probe=found[0], mode=inference_services.MODE)


def _server_port(service: inference_services.InferenceService) -> int:
    """The model server's port. Raises `Refusal` where it speaks no HTTP/1.1."""
    predictor = service.predictor
    own = {each.get("name"): each for each in predictor.containers}
    ports = (own.get(_SERVER) or predictor.model).get("ports") or []
    chosen = predictor.annotations.get(f"{model.PREFIX}port", "")
    if chosen.isascii() and chosen.isdecimal():
        return int(chosen)
    first = ports[0] if isinstance(ports, list) and ports and isinstance(ports[0], dict) else {}
    if str(first.get("name") or "").partition("-")[0] in ("grpc", "h2c", "http2"):
        raise refusals.Reason.DECLARED_NOT_HTTP(port=first.get("containerPort"), name=first["name"])
    return inference_services.whole(first.get("containerPort")) or _APP_PORT


def _container(service: inference_services.InferenceService, app_port: int, config: Config) -> model.Object:
    """The usual container, less what Knative forbids: hooks, a second declared port, probes of another port."""
    settings = pod_annotations.read_settings(_sources(service, config), config)
    pod = pods.read(inference_services.stand_in(service))
    permission.check_lists(pod, settings, config)
    listed = list_servers.chosen(_server(service), settings)
    if listed is not None:
        settings = settings.model_copy(update={"lists": listed.rule})
    reached = _grpc_port(pod, settings)
    ports = context.Ports(frozenset({app_port, *([reached] if reached else [])}))
    listen, admin = ports.take(), ports.take(config.admin_port)
    plan = model.Plan("none", False, _SERVER, app_port, listen, admin, grpc_app_port=reached)
    data_port = {"name": _PORT_NAME, "containerPort": listen, "protocol": "TCP"}
    built = container.build(pod, plan, context.Effects(data_port), settings, config)
    for key in ("lifecycle", *_PROBES):
        built.pop(key, None)
    return {**built, "name": NAME, "ports": [data_port], "readinessProbe": _readiness(listen)}


def _sources(service: inference_services.InferenceService, config: Config) -> list[pod_annotations.Source]:
    return [pod_annotations.defaults(config), pod_annotations.Source(service.predictor.annotations)]


def _server(service: inference_services.InferenceService) -> pods.Container:
    """The model server's container, as far as the manifest and KServe's runtime tell."""
    predictor = service.predictor
    own = {each.get("name"): each for each in predictor.containers}
    found = inference_services.serving_container(predictor) or own.get(_SERVER) or {}
    return pods.read({"spec": {"containers": [{**found, "name": _SERVER}]}}).spec.containers[0]


def _grpc_port(pod: pods.Pod, settings: Settings) -> int | None:
    """Where the sidecar sends v1 requests as gRPC calls, if it is told to. Raises `Refusal` if that is not known."""
    if settings.upstream != "triton-grpc":
        return None
    server = pod.container(_SERVER)
    found = sites.find_grpc(server, settings) if server else None
    if found is None:
        raise refusals.Reason.DECLARED_NO_GRPC()
    return found.port


def _readiness(port: int) -> model.Object:
    """Asked on the data port, as KServe's agent is; the header says that the sidecar is meant, not the server."""
    header = {"name": "K-Network-Probe", "value": "queue"}
    return {
        "httpGet": {"path": "/", "port": port, "httpHeaders": [header]},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "successThreshold": 1,
        "failureThreshold": 3,
    }


def _warnings(service: inference_services.InferenceService, config: Config) -> list[str]:
    found = ["the sidecar has no preStop hook (Knative forbids it): in Standard mode the server may stop before it"]
    if service.predictor.runtime and service.mode != "Standard":
        found.append("should its runtime declare a port, Knative refuses the pod: only the sidecar may declare one")
    if service.labels.get(pod_annotations.INJECT) == "true":
        found.append(f"label {pod_annotations.INJECT} asks the webhook for a second sidecar; remove it")
    own = [each.get("name") for each in service.predictor.spec.get("imagePullSecrets") or () if isinstance(each, dict)]
    if missing := [name for name in config.image_pull_secrets if name not in own]:
        found.append(f"its image is pulled with {', '.join(missing)}: name that in spec.predictor.imagePullSecrets")
    settings = pod_annotations.read_settings(_sources(service, config), config)
    found += list_servers.advice(_server(service), settings)
    return found
