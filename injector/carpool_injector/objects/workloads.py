"""Where the pod lies in each kind of object, and how it is put back: the one place that knows the shapes of workloads.

Pure, and copy on write: arguments are never changed. `check_shape` makes sure that a manifest has mappings and lists
where the other modules rely on them: an API server has checked what a webhook gets, nobody what people write. Null is
as good as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeGuard

from carpool_injector.core import model, refusals

# Group and kind, and the path to the pod template. A Pod is its own template. The definitions of other people's kinds
# keep `restartPolicy` of init containers, without which a native sidecar would never let the pod start.
_TEMPLATES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (),
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): ("spec", "template"),
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "StatefulSet"): ("spec", "template"),
    ("apps", "DaemonSet"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
    ("extensions", "Deployment"): ("spec", "template"),
    ("extensions", "DaemonSet"): ("spec", "template"),
    ("extensions", "ReplicaSet"): ("spec", "template"),
    ("batch", "Job"): ("spec", "template"),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("argoproj.io", "Rollout"): ("spec", "template"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): ("spec", "leaderWorkerTemplate", "workerTemplate"),
}
# Clients of a LeaderWorkerSet call leaders; where these have no template of their own, all pods are alike.
_LEADER = ("spec", "leaderWorkerTemplate", "leaderTemplate")
INFERENCE_SERVICE = ("serving.kserve.io", "InferenceService")
KNATIVE_SERVICE = ("serving.knative.dev", "Service")
# Where labels have to be, so that a controller copies them to the pods that it makes.
_LABELLED: Mapping[tuple[str, str], tuple[str, ...]] = {
    INFERENCE_SERVICE: ("metadata",),
    KNATIVE_SERVICE: ("spec", "template", "metadata"),
}


_OF_ANY_KIND = ("spec", "template")
# Groups with kinds that have something like a template and are told of elsewhere (`other_kinds`), and the core's.
_NOT_OF_ANY_KIND = {
    "",
    "apps",
    "batch",
    "serving.knative.dev",
    "serving.kserve.io",
    "ray.io",
    "machinelearning.seldon.io",
}


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
    metadata = thing.get("metadata")
    name = (metadata.get("name") or metadata.get("generateName")) if isinstance(metadata, dict) else None
    kind = str(thing.get("kind") or "object")
    return f"{kind}/{name}" if name else kind


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
        metadata = thing.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if isinstance(metadata, dict) and isinstance(name, str):
            found[name] = model.Namespace(name, _texts(metadata.get("labels")), _texts(metadata.get("annotations")))
    return found


def _texts(held: Any) -> dict[str, str]:
    return {key: value for key, value in held.items() if isinstance(value, str)} if isinstance(held, dict) else {}


def makes_pods(thing: model.Object) -> bool:
    """Whether the kind is one whose template lies in the object itself."""
    return group_kind(thing) in _TEMPLATES


def template_path(thing: model.Object) -> tuple[str, ...] | None:
    """Where the template lies in an object whose pods are injected in it; None for other kinds."""
    path = _TEMPLATES.get(group_kind(thing))
    if path == (*_LEADER[:-1], "workerTemplate") and _find(thing, _LEADER) is not None:
        return _LEADER
    return None if workload_ref(thing) else path


def written_template(thing: model.Object) -> model.Object | None:
    """What an object says of its pods, even if that is no template; {} if nothing, None where its kind has none."""
    kind = group_kind(thing)
    if workload_ref(thing):
        return None
    if kind == KNATIVE_SERVICE or is_of_unknown_kind(thing):
        path: tuple[str, ...] | None = _OF_ANY_KIND
    else:
        path = template_path(thing)
    if path is None:
        return None
    held = _find(thing, path)
    return held if isinstance(held, dict) else {}


def workload_ref(thing: model.Object) -> str:
    """The workload whose template an Argo Rollout uses in place of its own, as `Deployment/web`; "" where none is."""
    found = _find(thing, ("spec", "workloadRef")) if group_kind(thing) == ("argoproj.io", "Rollout") else None
    return f"{found.get('kind')}/{found.get('name')}" if isinstance(found, dict) else ""


def template(thing: model.Object) -> Template | None:
    """The pod that a workload describes, with kind Pod; None where the kind describes none.

    Shares its parts with `thing`: to be read, or handed to functions that copy what they change.
    Raises refusals.Malformed where the template of a known kind is missing or no object.
    """
    path = template_path(thing)
    if path is None:
        return None
    found = _at(thing, path)
    if not path:
        return Template(found, _namespace(found))
    if not isinstance(found.get("metadata", {}) or {}, dict):
        raise refusals.Malformed(f"{describe(thing)}: {'.'.join(path)}.metadata must be an object")
    pod = {"apiVersion": "v1", "kind": "Pod", **found}
    if pod.get("metadata") is None:
        pod["metadata"] = {}
    return Template(pod, _namespace(found) or _namespace(thing))


def replaced(thing: model.Object, pod: model.Object) -> model.Object:
    """The object with this pod in place of the one that `template` returned; the same object for the same pod."""
    path = template_path(thing)
    if not path:
        return pod
    before = _at(thing, path)
    after = {key: value for key, value in pod.items() if key in before or key not in ("apiVersion", "kind")}
    if not after.get("metadata"):
        after.pop("metadata", None)
        after |= {"metadata": before["metadata"]} if "metadata" in before and not before["metadata"] else {}
    return thing if after == before else _with(thing, path, after)


def is_opted_in_only(thing: object) -> TypeGuard[model.Object]:
    """Whether a controller makes the pods from this, so that all one can do here is ask for the sidecar."""
    return isinstance(thing, dict) and (group_kind(thing) in _LABELLED or is_of_unknown_kind(thing))


def is_of_unknown_kind(thing: model.Object) -> bool:
    """Whether it is of a kind that nobody knows, with a pod's template in `spec.template`.

    Its definition may drop fields of containers that it does not know, so nothing but a label is put there.
    """
    group, _ = found = group_kind(thing)
    if group in _NOT_OF_ANY_KIND or found in _TEMPLATES or found in _LABELLED:
        return False
    return _has_images(_find(thing, (*_OF_ANY_KIND, "spec", "containers")))


def describes_pods(thing: model.Object) -> bool:
    """Whether it is of a kind that can be injected or opted in, even if it is a part only."""
    return written_template(thing) is not None or is_opted_in_only(thing)


def inner_templates(thing: model.Object) -> dict[str, model.Object]:
    """Templates of pods that stand elsewhere in an object of a kind that nobody knows, by their places."""
    group, _ = found = group_kind(thing)
    if group in _NOT_OF_ANY_KIND or found in _TEMPLATES or found in _LABELLED or is_of_unknown_kind(thing):
        return {}
    return dict(_inner_templates(thing, ""))


def _inner_templates(held: Any, place: str) -> Iterator[tuple[str, model.Object]]:
    if isinstance(held, list):
        for number, each in enumerate(held):
            yield from _inner_templates(each, f"{place}[{number}]")
    elif isinstance(held, dict):
        if place.lower().endswith("template") and _has_images(_find(held, ("spec", "containers"))):
            yield place, held
        else:
            for key, each in held.items():
                yield from _inner_templates(each, f"{place}.{key}" if place else key)


def _has_images(containers: Any) -> bool:
    return isinstance(containers, list) and any(isinstance(each, dict) and each.get("image") for each in containers)


def _labels_path(thing: model.Object) -> tuple[str, ...]:
    """Where labels and annotations for pods stand."""
    return _LABELLED.get(group_kind(thing), (*_OF_ANY_KIND, "metadata"))


def revision_name(thing: model.Object) -> str:
    """The name that a Knative Service gives its next revision; "" where Knative makes one, and for other kinds."""
    found = _find(thing, ("spec", "template", "metadata", "name")) if group_kind(thing) == KNATIVE_SERVICE else None
    return found if isinstance(found, str) else ""


def texts_for_pods(thing: model.Object, kind: str) -> Mapping[str, Any]:
    """Labels or annotations that the pods will carry of an object that is opted in only."""
    found = _find(thing, (*_labels_path(thing), kind))
    return found if isinstance(found, dict) else {}


def labelled(thing: model.Object, key: str, value: str | None) -> model.Object:
    """An object that is opted in only, with this label where its pods get theirs from; None takes it away."""
    labels = dict(texts_for_pods(thing, "labels"))
    if labels.get(key) == value:
        return thing
    labels.pop(key, None)
    return _with_texts(thing, "labels", labels if value is None else {**labels, key: value})


def annotated(thing: model.Object, annotations: Mapping[str, str]) -> model.Object:
    """An object that is opted in only, with these annotations where its pods get theirs from."""
    before = texts_for_pods(thing, "annotations")
    after = {**before, **annotations}
    return thing if after == before else _with_texts(thing, "annotations", after)


def _with_texts(thing: model.Object, kind: str, values: Mapping[str, Any]) -> model.Object:
    """With these labels or annotations; the last one takes the map with it, and what else is empty by then."""
    path = _labels_path(thing)
    holder = {key: value for key, value in (_find(thing, path) or {}).items() if key != kind or values}
    if values:
        holder[kind] = dict(values)
    return _with(thing, path, holder) if holder else _without(thing, path)


def _at(thing: model.Object, path: Sequence[str]) -> model.Object:
    found = _find(thing, path)
    if not isinstance(found, dict):
        raise refusals.Malformed(f"{describe(thing)}: {'.'.join(path)} must be an object, the template of its pods")
    return found


def _find(thing: Any, path: Sequence[str]) -> Any:
    for key in path:
        thing = thing.get(key) if isinstance(thing, dict) else None
    return thing


def _with(thing: model.Object, path: Sequence[str], value: Any) -> model.Object:
    """A copy of `thing` along `path`, with `value` at its end."""
    inner = thing.get(path[0])
    rest = path[1:]
    return {**thing, path[0]: _with(inner if isinstance(inner, dict) else {}, rest, value) if rest else value}


def _without(thing: model.Object, path: Sequence[str]) -> model.Object:
    """A copy without what lies at the end of `path`."""
    if len(path) == 1:
        return {key: value for key, value in thing.items() if key != path[0]}
    return {**thing, path[0]: _without(thing[path[0]], path[1:])}


def _namespace(thing: model.Object) -> str:
    metadata = thing.get("metadata")
    return str(metadata.get("namespace") or "") if isinstance(metadata, dict) else ""


_HOLDERS = (
    "metadata", "spec", "template", "jobTemplate", "predictor", "transformer", "explainer", "workerSpec", "model",
    "leaderWorkerTemplate", "leaderTemplate", "workerTemplate",
    "modelFormat", "batcher", "logger", "lifecycle", "preStop", "postStart", "httpGet", "tcpSocket", "grpc", "exec",
    "readinessProbe", "livenessProbe", "startupProbe", "resources", "securityContext", "status",
)  # fmt: skip
_TEXT_KEYS = ("labels", "annotations", "nodeSelector")
_LIST_KEYS = ("containers", "initContainers", "volumes", "env", "envFrom", "ports", "volumeMounts")
_WORD_KEYS = ("args", "command")
_NAMED_KEYS = ("containers", "initContainers", "volumes")
_STRING_KEYS = ("image", "mountPath")


def check_shape(thing: model.Object) -> None:
    """Raises refusals.Malformed for an object that makes pods and is not shaped like one; says where, and what belongs
    there. Other kinds are not looked at.
    """
    if is_of_unknown_kind(thing):
        _check_object(_find(thing, _OF_ANY_KIND), f"{describe(thing)}: {'.'.join(_OF_ANY_KIND)}")
    elif is_opted_in_only(thing) or makes_pods(thing):
        _check_object(thing, describe(thing))


def _check_object(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a mapping")
    for key, held in value.items():
        if held is not None and key in _SHAPES:
            _SHAPES[key](held, f"{where}: {key}" if ": " not in where else f"{where}.{key}")


def _check_texts(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a mapping of strings")
    for key, held in value.items():
        if not isinstance(held, str) and held is not None:
            raise _wrong(f"{where}.{key}", held, 'a string: put it in quotes, like "true" or "16"')


def _check_objects(value: Any, where: str) -> None:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    for number, held in enumerate(value):
        _check_object(held, f"{where}[{number}]")


def _check_named(value: Any, where: str) -> None:
    _check_objects(value, where)
    for number, held in enumerate(value):
        if not isinstance(held.get("name"), str | None):
            raise _wrong(f"{where}[{number}].name", held["name"], "a string")


def _check_variables(value: Any, where: str) -> None:
    _check_named(value, where)
    for number, held in enumerate(value):
        if not isinstance(held.get("value"), str | None):
            place, kind = f"{where}[{number}].value", type(held["value"]).__name__  # not the value, which may be secret
            raise refusals.Malformed(
                f"{place}, of {held.get('name')!r}, is of type {kind} and must be a string: put it in quotes"
            )


def _check_words(value: Any, where: str) -> None:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    for number, held in enumerate(value):
        if not isinstance(held, str):
            raise _wrong(f"{where}[{number}]", held, "a string: put it in quotes")


def _check_string(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise _wrong(where, value, "a string")


def _wrong(where: str, value: Any, wanted: str) -> refusals.Malformed:
    shown = repr(value)
    return refusals.Malformed(f"{where} is {shown[:60]}{'…' * (len(shown) > 60)} and must be {wanted}")


_SHAPES: Mapping[str, Callable[[Any, str], None]] = {
    **dict.fromkeys(_HOLDERS, _check_object),
    **dict.fromkeys(_TEXT_KEYS, _check_texts),
    **dict.fromkeys(_LIST_KEYS, _check_objects),
    **dict.fromkeys(_NAMED_KEYS, _check_named),
    "env": _check_variables,
    **dict.fromkeys(_WORD_KEYS, _check_words),
    **dict.fromkeys(_STRING_KEYS, _check_string),
}
