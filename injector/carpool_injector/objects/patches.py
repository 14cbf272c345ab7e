"""Which objects are patches: parts that kustomize or an overlay lays over whole objects, later and elsewhere.

A patch is never changed. Where it sets the same fields of a container as an injection, the object below is left alone
as well: what they become together is known only once they are rendered. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from carpool_injector.core import model, refusals
from carpool_injector.core.refusals import Reason
from carpool_injector.objects import inference_services, workloads

_DIRECTIVES = ("$patch", "$setElementOrder/", "$retainKeys", "$deleteFromPrimitiveList/")
# What a kustomization.yaml lays over what it names; its kind may be left out.
_LAID_OVER = ("patches", "patchesStrategicMerge", "patchesJson6902", "replacements")
_BASES = {"resources", "bases", "components"}
_GROUPS = ("containers", "initContainers")
# Mappings that stand in a predictor beside what says which model it serves.
_BESIDE_A_MODEL = {
    "affinity", "annotations", "autoScaling", "batcher", "deploymentStrategy", "dnsConfig", "labels", "logger",
    "nodeSelector", "overhead", "securityContext", "os",
}  # fmt: skip


def sign(thing: model.Object) -> str:
    """What says that an object is a patch; "" for a whole one, and for kinds that have nothing to do with pods."""
    if workloads.group_kind(thing) == workloads.INFERENCE_SERVICE:
        predictor = inference_services.part(inference_services.part(thing, "spec"), "predictor")
        return next(_directives(thing), "") or _sign_of_predictor(predictor)
    template = workloads.written_template(thing)
    if template is None:
        return ""
    spec = inference_services.part(template, "spec")
    if spec.get("containers") is None:
        return "it names no containers"
    return next(_directives(thing), "") or _imageless(spec)


def sign_beside(thing: model.Object, others: Sequence[model.Object]) -> str:
    """What says so by the other objects of the same manifests: one of its name is whole."""
    if _has_selector(thing) or thing.get("apiVersion") != "apps/v1":
        return ""
    is_twice = any(_has_selector(each) and _address(each) == _address(thing) for each in others)
    return "it has no spec.selector, which another one of its name has" if is_twice else ""


def _has_selector(thing: model.Object) -> bool:
    return bool(inference_services.part(thing, "spec").get("selector"))


def _sign_of_predictor(predictor: model.Object) -> str:
    if "model" in predictor:
        format_ = inference_services.part(predictor, "model").get("modelFormat")
        return "" if format_ else "spec.predictor.model has no modelFormat"
    if predictor.get("containers"):
        return _imageless(predictor)
    is_named = any(isinstance(held, dict) for key, held in predictor.items() if key not in _BESIDE_A_MODEL)
    return "" if is_named else "spec.predictor names neither a model nor containers"


def _imageless(spec: model.Object) -> str:
    found = (each for group in _GROUPS for each in _containers(spec, group) if not each.get("image"))
    return next((f"container {each.get('name')!r} has no image" for each in found), "")


def _containers(spec: model.Object, group: str) -> list[model.Object]:
    held = spec.get(group)
    return [each for each in held if isinstance(each, dict)] if isinstance(held, list) else []


def _directives(held: Any) -> Iterator[str]:
    """What only a strategic merge patch says."""
    if isinstance(held, dict):
        yield from (f"it has {key}" for key in held if key.startswith(_DIRECTIVES))
    for each in held.values() if isinstance(held, dict) else held if isinstance(held, list) else ():
        yield from _directives(each)


def undoing(before: model.Object, after: model.Object, patches: Sequence[model.Object]) -> refusals.Refusal | None:
    """Why an injection cannot stay: a patch of this object sets what it changed in a container."""
    for patch in patches:
        if _address(patch) == _address(before):
            for name, key in _overlaps(*(_by_name(each) for each in (patch, before, after))):
                return Reason.PATCHED(container=name, field=key)
    return None


def _address(thing: model.Object) -> tuple[str, str, Any]:
    return *workloads.group_kind(thing), inference_services.part(thing, "metadata").get("name")


def _by_name(thing: model.Object) -> dict[Any, model.Object]:
    spec = inference_services.part(workloads.written_template(thing) or {}, "spec")
    return {each.get("name"): each for group in _GROUPS for each in _containers(spec, group)}


def _overlaps(
    patch: dict[Any, model.Object], before: dict[Any, model.Object], after: dict[Any, model.Object]
) -> Iterator[tuple[Any, str]]:
    for name in (name for name in patch if name in before):
        old, new = before[name], after.get(name, {})
        for key in patch[name]:
            if key == "env":
                changed = {each.get("name") for each in new.get(key) or () if each not in (old.get(key) or ())}
                set_ = [each.get("name") for each in patch[name][key] or () if isinstance(each, dict)]
                yield from ((name, key) for _ in changed.intersection(set_))
            elif old.get(key) != new.get(key):
                yield name, key


def laid_over(thing: model.Object) -> list[Any]:
    """What a Kustomization lays over the objects that it names, as it says that; [] for anything else."""
    is_kindless = "kind" not in thing and not thing.keys().isdisjoint(_BASES)
    if workloads.group_kind(thing)[0] != "kustomize.config.k8s.io" and not is_kindless:
        return []
    return [each for key in _LAID_OVER if isinstance(thing.get(key), list) for each in thing[key]]


def is_kustomized(thing: Any) -> bool:
    """Whether it is a Kustomization that lays something over objects."""
    return isinstance(thing, dict) and bool(laid_over(thing))


def files(thing: model.Object) -> Iterator[str]:
    """The files of a Kustomization's patches, by their paths from its own."""
    for each in laid_over(thing):
        path = each.get("path") if isinstance(each, dict) else each
        if isinstance(path, str) and "\n" not in path:
            yield path
