"""Objects that look as if they could be injected and cannot be here: why, and where to ask instead.

An object of a kind that nobody knows is none of these: where it has a pod's template in `spec.template`, the label that
asks the webhook goes there (`workloads`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from carpool_injector.core import model, refusals
from carpool_injector.core.refusals import Reason
from carpool_injector.objects import parts, patches, workloads

LEFT_ALONE: Mapping[tuple[str, str], Reason] = {
    **{("ray.io", kind): Reason.RAY for kind in ("RayCluster", "RayService", "RayJob")},
    ("serving.kserve.io", "LLMInferenceService"): Reason.LLM_SERVICE,
    ("serving.kserve.io", "LLMInferenceServiceConfig"): Reason.LLM_SERVICE,
    ("serving.kserve.io", "ServingRuntime"): Reason.RUNTIME,
    ("serving.kserve.io", "ClusterServingRuntime"): Reason.RUNTIME,
    ("machinelearning.seldon.io", "SeldonDeployment"): Reason.SELDON,
    ("serving.kubeflow.org", "InferenceService"): Reason.OLD_VERSION,
    ("serving.knative.dev", "Configuration"): Reason.KNATIVE_PART,
    ("serving.knative.dev", "Revision"): Reason.KNATIVE_PART,
}
"""Why objects of these kinds are; the texts name no more than kind and version."""


def told(thing: model.Object, signs: Mapping[int, str] = MappingProxyType({})) -> refusals.Refusal | None:
    """Why an object of this kind is left alone; None for one that is not, or has nothing to do with pods.

    `signs` say of objects, by their id, that they are patches.
    """
    kind, version = thing.get("kind"), thing.get("apiVersion")
    known = LEFT_ALONE.get(workloads.group_kind(thing))
    if workloads.group_kind(thing) == workloads.INFERENCE_SERVICE and "/v1alpha" in str(version):
        known = Reason.OLD_VERSION
    if known is not None:
        return known(kind=kind, version=version)
    if sign := signs.get(id(thing)) or patches.sign(thing):
        return Reason.PATCH(sign=sign)
    if kind == "Template" and any(workloads.describes_pods(each) for each in parts.parts(thing, "objects")):
        return Reason.TEMPLATE()
    if places := workloads.inner_templates(thing):
        return Reason.INNER_TEMPLATES(kind=kind, places=", ".join(places)[:300])
    referred = workloads.workload_ref(thing)
    return Reason.WORKLOAD_REF(what=referred) if referred else None


def concerns_pods(thing: model.Object) -> bool:
    """Whether something is to be said of the object: it describes pods, or is left alone for a reason."""
    return workloads.describes_pods(thing) or told(thing) is not None
