"""How pods are made anew, by who made them: what helps where a pod is there without the sidecar, or with an old one.

Pure; of a pod only its metadata is looked at.
"""

from __future__ import annotations

from carpool_injector.core import model, pods
from carpool_injector.objects import parts

_KNATIVE_SERVICE = "serving.knative.dev/service"
_TEMPLATE_HASH, _ROLLOUT_HASH = "pod-template-hash", "rollouts-pod-template-hash"
_OWNER_KEYS = ("apiVersion", "kind", "name", "uid")
_LONGEST_NAME = 320  # above what Kubernetes allows of an owner, so that what is remembered of it is bounded
MAKERS = ("ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController")
"""Owners that make a new pod for one that goes, and lose nothing by it. A Job would count it as failed."""


def owner_of(pod: model.Object) -> model.Object | None:
    """The owner that manages the pod (apiVersion, kind, name, uid); None where it has none that can be named."""
    for reference in parts.parts(pod, "metadata", "ownerReferences"):
        if reference.get("controller") is True and _is_named(reference):
            return {key: reference[key] for key in _OWNER_KEYS}
    return None


def _is_named(reference: model.Object) -> bool:
    texts = [reference.get(key) for key in _OWNER_KEYS]
    return all(isinstance(text, str) and 0 < len(text) <= _LONGEST_NAME for text in texts)


def advice(pod: model.Object) -> str:
    """What makes new pods in place of this one and its like, as a command where there is one."""
    metadata, owner = parts.part(pod, "metadata"), owner_of(pod)
    labels = metadata.get("labels") or {}
    kubectl = f"kubectl -n {metadata.get('namespace')}"
    if service := labels.get(pods.KSERVE_POD):
        change = f'annotate inferenceservice {service} restarted-at="$(date)" --overwrite'
        return f"{kubectl} {change} (KServe undoes a rollout restart of its Deployments)"
    if service := labels.get(_KNATIVE_SERVICE):
        change = """'{"spec":{"template":{"metadata":{"annotations":{"restarted-at":"'$(date +%s)'"}}}}}'"""
        return f"{kubectl} patch ksvc {service} --type merge --patch {change}"
    if owner is None:
        return "delete the pod and create it again, as nobody else does"
    kind, name = owner["kind"], owner["name"]
    if kind == "ReplicaSet" and _ROLLOUT_HASH in labels:
        rollout = name.removesuffix(f"-{labels[_ROLLOUT_HASH]}")
        return f"kubectl argo rollouts restart {rollout} -n {metadata.get('namespace')}"
    if kind == "ReplicaSet" and _TEMPLATE_HASH in labels:
        return f"{kubectl} rollout restart deployment/{name.removesuffix(f'-{labels[_TEMPLATE_HASH]}')}"
    if kind in ("StatefulSet", "DaemonSet"):
        return f"{kubectl} rollout restart {kind.lower()}/{name}"
    if kind == "Job":
        return f"leave the pods of Job {name} to end; those of the next Job get it"
    return f"delete the pods one by one: {kind} {name} makes new ones"
