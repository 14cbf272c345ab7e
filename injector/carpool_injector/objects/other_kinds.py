"""Objects that look as if they could be injected and cannot be here: why, and where to ask instead.

An object of a kind that nobody knows is none of these: where it has a pod's template in `spec.template`, the label that
asks the webhook goes there (`workloads`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from carpool_injector.core import model, refusals
from carpool_injector.core.refusals import Reason
from carpool_injector.objects import workloads

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


_TOLD: Mapping[tuple[str, str], _Told] = {
    ("ray.io", "RayCluster"): _ray,
    ("ray.io", "RayService"): _ray,
    ("ray.io", "RayJob"): _ray,
    ("serving.kserve.io", "LLMInferenceService"): _llm_service,
    ("serving.kserve.io", "LLMInferenceServiceConfig"): _llm_service,
    ("serving.kserve.io", "ServingRuntime"): _runtime,
    ("serving.kserve.io", "ClusterServingRuntime"): _runtime,
    ("machinelearning.seldon.io", "SeldonDeployment"): _seldon,
    ("serving.knative.dev", "Configuration"): _knative_part,
    ("serving.knative.dev", "Revision"): _knative_part,
}


def told(thing: model.Object) -> refusals.Refusal | None:
    """Why an object of this kind is left alone; None for one that is not, or has nothing to do with pods."""
    known = _TOLD.get(workloads.group_kind(thing))
    if known is not None:
        return known(thing)
    if workloads.is_part(thing):
        return Reason.PART()
    referred = workloads.workload_ref(thing)
    return Reason.WORKLOAD_REF(what=referred) if referred else None
