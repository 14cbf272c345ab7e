"""Where the pod lies in each kind of object, and how it is put back: the one place that knows the shapes of workloads.

Pure, and copy on write: arguments are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeGuard

from carpool_injector.core import model, refusals
from carpool_injector.objects import parts

Path = tuple[str, ...]
OF_ANY_KIND: Path = ("spec", "template")
"""Where most kinds have their template, and those have it that nobody knows."""
# Clients of a LeaderWorkerSet call leaders; where these have no template of their own, all pods are alike.
_LEADER, _WORKER = (("spec", "leaderWorkerTemplate", f"{who}Template") for who in ("leader", "worker"))
# Group and kind, and the path to the pod template. A Pod is its own template. The definitions of other people's kinds
# keep `restartPolicy` of init containers, without which a native sidecar would never let the pod start.
_TEMPLATES: Mapping[tuple[str, str], Path] = {
    ("", "Pod"): (),
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): OF_ANY_KIND,
    **{("apps", kind): OF_ANY_KIND for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")},
    **{("extensions", kind): OF_ANY_KIND for kind in ("Deployment", "DaemonSet", "ReplicaSet")},
    ("batch", "Job"): OF_ANY_KIND,
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("argoproj.io", "Rollout"): OF_ANY_KIND,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _WORKER,
}
INFERENCE_SERVICE = ("serving.kserve.io", "InferenceService")
KNATIVE_SERVICE = ("serving.knative.dev", "Service")
# Where labels have to be, so that a controller copies them to the pods that it makes.
_LABELLED: Mapping[tuple[str, str], Path] = {
    INFERENCE_SERVICE: ("metadata",),
    KNATIVE_SERVICE: (*OF_ANY_KIND, "metadata"),
}
# Groups with kinds that have something like a template and are told of elsewhere (`other_kinds`), and the core's.
_KNOWN_GROUPS = {
    "", "apps", "batch", "serving.knative.dev", "serving.kserve.io", "ray.io", "machinelearning.seldon.io",
}  # fmt: skip


class Template(NamedTuple):
    """The pod that an object describes. `namespace` is "" where the manifest names none."""

    pod: model.Object
    namespace: str


def group_kind(thing: model.Object) -> tuple[str, str]:
    """API group ("" for the core's) and kind; versions are no difference here. ("", "") for what is no object."""
    version, kind = thing.get("apiVersion"), thing.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return "", ""
    return (version.rpartition("/")[0], kind)


def describe(thing: model.Object) -> str:
    """What people call the object: `Deployment/web`."""
    metadata = parts.part(thing, "metadata")
    name = metadata.get("name") or metadata.get("generateName")
    kind = str(thing.get("kind") or "object")
    return f"{kind}/{name}" if name else kind


def own_namespace(thing: model.Object) -> str:
    """The namespace that it names itself; "" for none."""
    return str(parts.part(thing, "metadata").get("namespace") or "")


def items(thing: model.Object) -> list[Any] | None:
    """What a `List` (or `PodList`, `DeploymentList`, …) holds; None for any other object."""
    held = thing.get("items")
    return held if str(thing.get("kind")).endswith("List") and isinstance(held, list) else None


def objects(data: Any) -> Iterator[model.Object]:
    """The objects of a decoded document, those of Lists each on its own."""
    held = items(data) if isinstance(data, dict) else None
    if held is not None:
        for item in held:
            yield from objects(item)
    elif isinstance(data, dict):
        yield data


def of_kinds(things: Sequence[Any], kinds: Set[tuple[str, str]]) -> Iterator[model.Object]:
    """The objects of these groups and kinds among decoded documents, those in Lists too."""
    found = (thing for each in things for thing in objects(each))
    return (thing for thing in found if group_kind(thing) in kinds)


def namespaces(things: Sequence[Any]) -> dict[str, model.Namespace]:
    """The Namespaces among decoded documents, by name; labels and annotations that are no text are left out."""
    found = {}
    for thing in of_kinds(things, {("", "Namespace")}):
        name = parts.find(thing, ("metadata", "name"))
        if isinstance(name, str):
            labels, annotations = (parts.texts(thing, "metadata", kind) for kind in ("labels", "annotations"))
            found[name] = model.Namespace(name, labels, annotations)
    return found


def makes_pods(thing: model.Object) -> bool:
    """Whether the kind is one whose template lies in the object itself."""
    return group_kind(thing) in _TEMPLATES


def template_path(thing: model.Object) -> Path | None:
    """Where the template lies in an object whose pods are injected in it; None for other kinds."""
    path = _TEMPLATES.get(group_kind(thing))
    if path is _WORKER and parts.find(thing, _LEADER) is not None:
        return _LEADER
    return None if workload_ref(thing) else path


def written_template(thing: model.Object) -> model.Object | None:
    """What an object says of its pods, even if that is no template; {} if nothing, None where its kind has none."""
    is_of_any_kind = group_kind(thing) == KNATIVE_SERVICE or is_of_unknown_kind(thing)
    path = OF_ANY_KIND if is_of_any_kind else template_path(thing)
    return None if path is None else parts.part(thing, *path)


def workload_ref(thing: model.Object) -> str:
    """The workload whose template an Argo Rollout uses in place of its own, as `Deployment/web`; "" where none is."""
    is_rollout = group_kind(thing) == ("argoproj.io", "Rollout")
    found = parts.find(thing, ("spec", "workloadRef")) if is_rollout else None
    return f"{found.get('kind')}/{found.get('name')}" if isinstance(found, dict) else ""


def template(thing: model.Object) -> Template | None:
    """The pod that a workload describes, with kind Pod; None where the kind describes none.

    Shares its parts with `thing`: to be read, or handed to functions that copy what they change.
    Raises refusals.Malformed where the template of a known kind is missing or no object.
    """
    path = template_path(thing)
    if not path:
        return None if path is None else Template(thing, own_namespace(thing))
    found = parts.find(thing, path)
    where = f"{describe(thing)}: {'.'.join(path)}"
    if not isinstance(found, dict):
        raise refusals.Malformed(f"{where} must be an object, the template of its pods")
    if not isinstance(found.get("metadata") or {}, dict):
        raise refusals.Malformed(f"{where}.metadata must be an object")
    return Template(as_pod(found), own_namespace(found) or own_namespace(thing))


def as_pod(template: model.Object) -> model.Object:
    """A template as the pod that it is for."""
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    if pod.get("metadata") is None:
        pod["metadata"] = {}
    return pod


def replaced(thing: model.Object, pod: model.Object) -> model.Object:
    """The object with this pod in place of the one that `template` returned; the same object for the same pod."""
    path = template_path(thing)
    if not path:
        return pod
    before = parts.part(thing, *path)
    after = {key: value for key, value in pod.items() if key in before or key not in ("apiVersion", "kind")}
    if not after.get("metadata"):
        after.pop("metadata", None)
        after |= {"metadata": before["metadata"]} if "metadata" in before and not before["metadata"] else {}
    return thing if after == before else parts.replaced(thing, path, after)


def is_opted_in_only(thing: object) -> TypeGuard[model.Object]:
    """Whether a controller makes the pods from this, so that all one can do here is ask for the sidecar."""
    return isinstance(thing, dict) and (group_kind(thing) in _LABELLED or is_of_unknown_kind(thing))


def is_of_unknown_kind(thing: model.Object) -> bool:
    """Whether it is of a kind that nobody knows, with a pod's template in `spec.template`.

    Its definition may drop fields of containers that it does not know, so nothing but a label is put there.
    """
    return not _is_known(thing) and _has_images(parts.find(thing, OF_ANY_KIND))


def describes_pods(thing: model.Object) -> bool:
    """Whether it is of a kind that can be injected or opted in, even if it is a part only."""
    return written_template(thing) is not None or is_opted_in_only(thing)


def inner_templates(thing: model.Object) -> dict[str, model.Object]:
    """Templates of pods that stand elsewhere in an object of a kind that nobody knows, by their places."""
    return {} if _is_known(thing) or is_of_unknown_kind(thing) else dict(_inner_templates(thing, ""))


def _inner_templates(held: Any, place: str) -> Iterator[tuple[str, model.Object]]:
    if isinstance(held, list):
        for number, each in enumerate(held):
            yield from _inner_templates(each, f"{place}[{number}]")
    elif isinstance(held, dict):
        if place.lower().endswith("template") and _has_images(held):
            yield place, held
        else:
            for key, each in held.items():
                yield from _inner_templates(each, f"{place}.{key}" if place else key)


def _is_known(thing: model.Object) -> bool:
    group, _ = found = group_kind(thing)
    return group in _KNOWN_GROUPS or found in _TEMPLATES or found in _LABELLED


def _has_images(template: Any) -> bool:
    return any(each.get("image") for each in parts.parts(template, "spec", "containers"))


def revision_name(thing: model.Object) -> str:
    """The name that a Knative Service gives its next revision; "" where Knative makes one, and for other kinds."""
    is_knative = group_kind(thing) == KNATIVE_SERVICE
    found = parts.find(thing, (*OF_ANY_KIND, "metadata", "name")) if is_knative else None
    return found if isinstance(found, str) else ""


def texts_for_pods(thing: model.Object, kind: str) -> Mapping[str, Any]:
    """Labels or annotations that the pods will carry of an object that is opted in only."""
    return parts.part(thing, *_labels_path(thing), kind)


def labelled(thing: model.Object, key: str, value: str | None) -> model.Object:
    """An object that is opted in only, with this label where its pods get theirs from; None takes it away."""
    before = texts_for_pods(thing, "labels")
    others = {name: held for name, held in before.items() if name != key}
    return thing if before.get(key) == value else _with_texts(thing, "labels", others | ({key: value} if value else {}))


def annotated(thing: model.Object, annotations: Mapping[str, str]) -> model.Object:
    """An object that is opted in only, with these annotations where its pods get theirs from."""
    before = texts_for_pods(thing, "annotations")
    after = {**before, **annotations}
    return thing if after == before else _with_texts(thing, "annotations", after)


def _labels_path(thing: model.Object) -> Path:
    """Where labels and annotations for pods stand."""
    return _LABELLED.get(group_kind(thing), (*OF_ANY_KIND, "metadata"))


def _with_texts(thing: model.Object, kind: str, values: Mapping[str, Any]) -> model.Object:
    """With these labels or annotations; the last one takes the map with it, and what else is empty by then."""
    path = _labels_path(thing)
    holder = {key: value for key, value in parts.part(thing, *path).items() if key != kind or values}
    return parts.replaced(thing, path, {**holder, kind: dict(values)} if values else holder or None)
