"""Objects that look as if they could be injected and cannot be here: why, and where to ask instead.

An object of a kind that nobody knows is none of these: where it has a pod's template in `spec.template`, the label that
asks the webhook goes there (`workloads`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from carpool_injector.core import model, refusals
from carpool_injector.core.refusals import Reason
from carpool_injector.objects import patches, workloads

_Told = Callable[[model.Object], refusals.Refusal]


def _ray(_: model.Object) -> refusals.Refusal:
    return Reason.RAY()


def _llm_service(_: model.Object) -> refusals.Refusal:
    return Reason.LLM_SERVICE()


def _seldon(_: model.Object) -> refusals.Refusal:
    return Reason.SELDON()


def _knative_part(thing: model.Object) -> refusals.Refusal:
    return Reason.KNATIVE_PART(kind=thing.get("kind"))


def _runtime(thing: model.Object) -> refusals.Refusal:
    return Reason.RUNTIME(kind=thing.get("kind"))


def _old_version(thing: model.Object) -> refusals.Refusal:
    return Reason.OLD_VERSION(version=thing.get("apiVersion"))


_TOLD: Mapping[tuple[str, str], _Told] = {
    ("ray.io", "RayCluster"): _ray,
    ("ray.io", "RayService"): _ray,
    ("ray.io", "RayJob"): _ray,
    ("serving.kserve.io", "LLMInferenceService"): _llm_service,
    ("serving.kserve.io", "LLMInferenceServiceConfig"): _llm_service,
    ("serving.kserve.io", "ServingRuntime"): _runtime,
    ("serving.kserve.io", "ClusterServingRuntime"): _runtime,
    ("machinelearning.seldon.io", "SeldonDeployment"): _seldon,
    ("serving.kubeflow.org", "InferenceService"): _old_version,
    ("serving.knative.dev", "Configuration"): _knative_part,
    ("serving.knative.dev", "Revision"): _knative_part,
}


def told(thing: model.Object, signs: Mapping[int, str] = MappingProxyType({})) -> refusals.Refusal | None:
    """Why an object of this kind is left alone; None for one that is not, or has nothing to do with pods.

    `signs` say of objects, by their id, that they are patches.
    """
    kind = workloads.group_kind(thing)
    known = _TOLD.get(kind)
    if known is not None:
        return known(thing)
    if kind == workloads.INFERENCE_SERVICE and str(thing.get("apiVersion")).partition("/")[2].startswith("v1alpha"):
        return _old_version(thing)
    if sign := signs.get(id(thing)) or patches.sign(thing):
        return Reason.PATCH(sign=sign)
    if thing.get("kind") == "Template" and any(workloads.describes_pods(each) for each in _objects(thing)):
        return Reason.TEMPLATE()
    if places := workloads.inner_templates(thing):
        return Reason.INNER_TEMPLATES(kind=thing.get("kind"), places=", ".join(places)[:300])
    referred = workloads.workload_ref(thing)
    return Reason.WORKLOAD_REF(what=referred) if referred else None


def _objects(template: model.Object) -> list[model.Object]:
    """What a Template of OpenShift has."""
    held = template.get("objects")
    return [each for each in held if isinstance(each, dict)] if isinstance(held, list) else []


def concerns_pods(thing: model.Object) -> bool:
    """Whether something is to be said of the object: it describes pods, or is left alone for a reason."""
    return workloads.describes_pods(thing) or told(thing) is not None
