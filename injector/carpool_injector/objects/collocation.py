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
from carpool_injector.objects import inference_services, parts, workloads

NAME = "transformer-container"
_SERVER = "kserve-container"
_PREDICTOR = ("spec", "predictor")
_PORT_NAME = "http1"  # Knative knows this name and h2c only


def declared(thing: model.Object, config: Config) -> tuple[model.Object, tuple[str, ...]]:
    """The InferenceService with the sidecar in it, and warnings.

    Raises `Refusal` where KServe or Knative would not have it or the sidecar would not be reached.
    """
    if workloads.group_kind(thing) != workloads.INFERENCE_SERVICE:
        raise refusals.Reason.NOT_AN_INFERENCE_SERVICE()
    thing = removed(thing)
    service = inference_services.read(thing)
    predictor = service.predictor
    own = next((each for each in predictor.containers if each.get("name") == _SERVER), {})
    _check(service, own)
    app_port = _server_port(predictor, own)
    sources = [pod_annotations.defaults(config), pod_annotations.Source(predictor.annotations)]
    settings = pod_annotations.read_settings(sources, config)
    # The model server's container, as far as the manifest and KServe's runtime tell.
    known = {**(inference_services.serving_container(predictor) or own), "name": _SERVER}
    server = pods.read({"spec": {"containers": [known]}}).spec.containers[0]
    built = _container(service, server, app_port, settings, config)
    spec = {
        **predictor.spec,
        "containers": [*(predictor.spec.get("containers") or ()), built],
        "volumes": [*(predictor.spec.get("volumes") or ()), container.volume()],
    }
    warnings = (*_warnings(service, config), *list_servers.advice(server, settings))
    return parts.replaced(thing, _PREDICTOR, spec), warnings


def removed(thing: model.Object) -> model.Object:
    """The InferenceService without a sidecar that was declared in it; the same object where there is none."""
    predictor = dict(parts.part(thing, *_PREDICTOR))
    found = [each for each in predictor.get("containers") or () if _is_ours(each)]
    if not found:
        return thing
    kept = {
        "containers": [each for each in predictor["containers"] if each not in found],
        "volumes": [
            each for each in predictor.get("volumes") or () if each.get("name") != pod_annotations.TOKEN_SHIELD
        ],
    }
    others = {key: value for key, value in predictor.items() if kept.get(key, True)}
    return parts.replaced(thing, _PREDICTOR, others | {key: items for key, items in kept.items() if items})


def _is_ours(found: Any) -> bool:
    mounts = found.get("volumeMounts") if isinstance(found, dict) and found.get("name") == NAME else None
    return any(isinstance(mount, dict) and mount.get("name") == pod_annotations.TOKEN_SHIELD for mount in mounts or ())


def _check(service: inference_services.InferenceService, own: model.Object) -> None:
    predictor = service.predictor
    names = {each.get("name") for each in predictor.containers}
    if service.mode == "ModelMesh":
        raise refusals.Reason.MODELMESH()
    if NAME in names:
        raise refusals.Reason.TRANSFORMER_NAME_TAKEN(name=NAME)
    if predictor.batcher is not None:
        raise refusals.Reason.BATCHES_ALREADY()
    if names and not own and not predictor.runtime:
        raise refusals.Reason.UNNAMED_SERVER(name=_SERVER)
    if service.mode == "Standard":
        return
    # Knative allows one port in a pod, and probes only in the container that declares it.
    server = own or predictor.model
    if server.get("ports"):
        raise refusals.Reason.DECLARES_A_PORT(port=inference_services.PORT, mode=inference_services.MODE)
    found = [key for key in pods.PROBES[:2] if server.get(key)]
    if found:
        raise refusals.Reason.HAS_PROBES(probe=found[0], mode=inference_services.MODE)


def _server_port(predictor: inference_services.Component, own: model.Object) -> int:
    """The model server's port. Raises `Refusal` where it speaks no HTTP/1.1."""
    chosen = predictor.annotations.get(f"{model.PREFIX}port", "")
    if chosen.isascii() and chosen.isdecimal():
        return int(chosen)
    port, name = inference_services.first_port(own or predictor.model)
    if name.partition("-")[0] in ("grpc", "h2c", "http2"):
        raise refusals.Reason.DECLARED_NOT_HTTP(port=port, name=name)
    return port or inference_services.PORT


def _container(
    service: inference_services.InferenceService,
    server: pods.Container,
    app_port: int,
    settings: Settings,
    config: Config,
) -> model.Object:
    """The usual container, less what Knative forbids: hooks, a second declared port, probes of another port."""
    pod = pods.read(inference_services.stand_in(service))
    permission.check_lists(pod, settings, config)
    listed = list_servers.chosen(server, settings)
    if listed is not None:
        settings = settings.model_copy(update={"lists": listed.rule})
    reached = _grpc_port(pod, settings)
    ports = context.Ports(frozenset({app_port, *([reached] if reached else [])}))
    listen, admin = ports.take(), ports.take(config.admin_port)
    plan = model.Plan("none", False, _SERVER, app_port, listen, admin, grpc_app_port=reached)
    data_port = {"name": _PORT_NAME, "containerPort": listen, "protocol": "TCP"}
    built = container.build(pod, plan, context.Effects([data_port]), settings, config)
    for key in ("lifecycle", *pods.PROBES):
        built.pop(key, None)
    # Asked on the data port, as KServe's agent is; the header says that the sidecar is meant, not the server.
    header = {"name": "K-Network-Probe", "value": "queue"}
    readiness = {
        "httpGet": {"path": "/", "port": listen, "httpHeaders": [header]},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    return {**built, "name": NAME, "ports": [data_port], "readinessProbe": readiness}


def _grpc_port(pod: pods.Pod, settings: Settings) -> int | None:
    """Where the sidecar sends v1 requests as gRPC calls, if it is told to. Raises `Refusal` if that is not known."""
    if settings.upstream != "triton-grpc":
        return None
    server = pod.container(_SERVER)
    found = sites.find_grpc(pod, server, settings, {}) if server else None
    if found is None:
        raise refusals.Reason.DECLARED_NO_GRPC()
    return found.port


def _warnings(service: inference_services.InferenceService, config: Config) -> list[str]:
    found = ["the sidecar has no preStop hook (Knative forbids it): in Standard mode the server may stop before it"]
    if service.predictor.runtime and service.mode != "Standard":
        found.append("should its runtime declare a port, Knative refuses the pod: only the sidecar may declare one")
    if service.labels.get(pod_annotations.INJECT) == "true":
        found.append(f"label {pod_annotations.INJECT} asks the webhook for a second sidecar; remove it")
    own = [each.get("name") for each in parts.parts(service.predictor.spec, "imagePullSecrets")]
    if missing := [name for name in config.image_pull_secrets if name not in own]:
        found.append(f"its image is pulled with {', '.join(missing)}: name that in spec.predictor.imagePullSecrets")
    return found
