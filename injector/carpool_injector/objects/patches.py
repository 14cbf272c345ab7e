"""Which objects are patches: parts that kustomize or an overlay lays over whole objects, later and elsewhere.

A patch is never changed. What it does to an injection is told elsewhere (`overlays`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from carpool_injector.core import model
from carpool_injector.objects import parts, workloads

_DIRECTIVES = ("$patch", "$setElementOrder/", "$retainKeys", "$deleteFromPrimitiveList/")
GROUPS = ("containers", "initContainers")
"""Where a pod's spec has containers."""
# Mappings that stand in a predictor beside what says which model it serves.
_BESIDE_A_MODEL = {
    "affinity", "annotations", "autoScaling", "batcher", "deploymentStrategy", "dnsConfig", "labels", "logger",
    "nodeSelector", "overhead", "securityContext", "os",
}  # fmt: skip


def sign(thing: model.Object) -> str:
    """What says that an object is a patch; "" for a whole one, and for kinds that have nothing to do with pods."""
    if workloads.group_kind(thing) == workloads.INFERENCE_SERVICE:
        return next(_directives(thing), "") or _sign_of_predictor(parts.part(thing, "spec", "predictor"))
    template = workloads.written_template(thing)
    if template is None:
        return ""
    spec = parts.part(template, "spec")
    if spec.get("containers") is None:
        return "it names no containers"
    return next(_directives(thing), "") or _imageless(spec)


def sign_beside(thing: model.Object, others: Sequence[model.Object]) -> str:
    """What says so by the other objects of the same manifests: one of its name is whole."""
    if _has_selector(thing) or thing.get("apiVersion") != "apps/v1":
        return ""
    is_twice = any(_has_selector(each) and address(each) == address(thing) for each in others)
    return "it has no spec.selector, which another one of its name has" if is_twice else ""


def address(thing: model.Object) -> tuple[str, str, Any]:
    """Group, kind and name."""
    return *workloads.group_kind(thing), parts.find(thing, ("metadata", "name"))


def _has_selector(thing: model.Object) -> bool:
    return bool(parts.find(thing, ("spec", "selector")))


def _sign_of_predictor(predictor: model.Object) -> str:
    if "model" in predictor:
        has_format = parts.find(predictor, ("model", "modelFormat"))
        return "" if has_format else "spec.predictor.model has no modelFormat"
    if predictor.get("containers"):
        return _imageless(predictor)
    is_named = any(isinstance(held, dict) for key, held in predictor.items() if key not in _BESIDE_A_MODEL)
    return "" if is_named else "spec.predictor names neither a model nor containers"


def _imageless(spec: model.Object) -> str:
    found = (each for group in GROUPS for each in parts.parts(spec, group) if not each.get("image"))
    return next((f"container {each.get('name')!r} has no image" for each in found), "")


def _directives(held: Any) -> Iterator[str]:
    """What only a strategic merge patch says."""
    if isinstance(held, dict):
        yield from (f"it has {key}" for key in held if key.startswith(_DIRECTIVES))
    for each in held.values() if isinstance(held, dict) else held if isinstance(held, list) else ():
        yield from _directives(each)
