"""Pods and workloads to create, and questions about what the API server made of them."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

from e2e.cluster import client
from tests.injector import pods

Object = client.Object
SIDECAR = "carpool"
INJECT = "carpool.dev/inject"
STATUS = "carpool.dev/status"
# What only the API server writes.
SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "ownerReferences")

_numbers = itertools.count(1)


def pod(namespace: str, *containers: Object, **members: Any) -> Object:
    """A pod that asks for the sidecar by label, with KServe's scikit-learn server unless other containers are given."""
    return placed(pods.plain(*(containers or (pods.sklearn(),)), **members), namespace)


def placed(made: Object, namespace: str) -> Object:
    """The pod with a namespace and a name of its own."""
    name = f"{made['metadata'].pop('generateName', 'pod-')}{next(_numbers)}"
    made["metadata"] |= {"name": name, "namespace": namespace}
    return made


def workload(kind: str, namespace: str, template: Object, annotations: dict[str, str] | None = None) -> Object:
    """A Deployment, StatefulSet, DaemonSet, Job or CronJob whose pods are like `template`, which is a pod."""
    metadata = {"labels": template["metadata"]["labels"], "annotations": template["metadata"].get("annotations", {})}
    inner = {"metadata": metadata, "spec": copy.deepcopy(template["spec"])}
    spec: Object = {"template": inner}
    if kind in ("Job", "CronJob"):
        inner["spec"]["restartPolicy"] = "Never"
    else:
        spec["selector"] = {"matchLabels": {"app": metadata["labels"]["app"]}}
    if kind == "StatefulSet":
        spec["serviceName"] = "scorer"
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    return {
        "apiVersion": "batch/v1" if kind in ("Job", "CronJob") else "apps/v1",
        "kind": kind,
        "metadata": {"name": f"scorer-{next(_numbers)}", "namespace": namespace, "annotations": annotations or {}},
        "spec": spec,
    }


def inference_service(namespace: str, annotations: dict[str, str] | None = None, /, **predictor: Any) -> Object:
    """An InferenceService with a scikit-learn model; `predictor` are further members of `spec.predictor`."""
    model = {"modelFormat": {"name": "sklearn"}, "storageUri": "gs://models/iris"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": f"iris-{next(_numbers)}", "namespace": namespace, "annotations": annotations or {}},
        "spec": {"predictor": {"model": model, **predictor}},
    }


def as_new(stored: Object) -> Object:
    """A stored pod as somebody would create it again under another name: an export, edited."""
    made = copy.deepcopy(stored)
    made.pop("status", None)
    for key in SERVERS_OWN:
        made["metadata"].pop(key, None)
    made["metadata"]["name"] += "-again"
    return made


def names(things: list[Object]) -> list[str]:
    return [thing["metadata"]["name"] for thing in things]


def has_sidecar(stored: Object) -> bool:
    """Whether the pod has a container of the sidecar's name, of any sort."""
    spec = stored["spec"]
    return any(each["name"] == SIDECAR for each in [*spec.get("initContainers", ()), *spec["containers"]])


def sidecar(stored: Object) -> Object:
    """The sidecar's container. Raises KeyError where there is none."""
    return pods.container(stored, SIDECAR)


def sidecar_flags(stored: Object) -> dict[str, str]:
    return pods.flags(sidecar(stored)["args"])


def app(stored: Object) -> Object:
    """The model server's container."""
    return next(each for each in stored["spec"]["containers"] if each["name"] == "kserve-container")


def status(stored: Object) -> Object:
    """The status annotation, decoded. Raises KeyError where there is none."""
    decoded: Object = json.loads(stored["metadata"]["annotations"][STATUS])
    return decoded


def has_token(stored: Object, container: Object) -> bool:
    """Whether the container finds a service account's token, wherever in its file system."""
    tokens = {
        volume["name"]
        for volume in stored["spec"].get("volumes", ())
        for source in volume.get("projected", {}).get("sources") or ()
        if "serviceAccountToken" in source
    }
    return any(mount["name"] in tokens for mount in container.get("volumeMounts", ()))
