"""What `inject` and `uninject` do to the objects of a manifest: workloads, Lists, and what KServe and Knative serve.

Pure. An explicit command is an explicit injector: whatever is given gets the sidecar, unless it says
`carpool.dev/inject: "false"` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from carpool_injector.core import injection, model, pod_annotations, refusals, surroundings
from carpool_injector.core.config import Config
from carpool_injector.objects import (
    collocation,
    inference_services,
    kserve_pods,
    other_kinds,
    overlays,
    patches,
    validation,
    workloads,
)

Result = Literal["injected", "opted in", "removed", "unchanged", "skipped", "refused"]


@dataclass(frozen=True, slots=True)
class Report:
    """What became of an object. `text` says how or why, `fix` what to change about it."""

    name: str
    result: Result
    text: str = ""
    fix: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Injector:
    """What objects are injected with.

    `namespace` is that of objects which name none; what it says of labels and annotations is true of each one.
    `annotations` are added to each pod. `around` are the Services and policies of the same manifests, `namespaces` and
    `patches` theirs, and `patch_signs` say of patches, by the id of each, what tells that they are some.
    `opted_in_only`: as the webhook does it, leave alone what does not ask. `without_webhook`: declare the sidecar in
    InferenceServices themselves.
    """

    config: Config = field(default_factory=Config)
    namespace: model.Namespace = field(default_factory=lambda: model.Namespace("default"))
    capabilities: model.Capabilities = field(default_factory=model.Capabilities)
    annotations: Mapping[str, str] = field(default_factory=dict)
    around: Sequence[model.Object] = ()
    namespaces: Mapping[str, model.Namespace] = field(default_factory=dict)
    patches: Sequence[overlays.Patch] = ()
    patch_signs: Mapping[int, str] = field(default_factory=dict)
    opted_in_only: bool = False
    without_webhook: bool = False

    def outcome(self, pod: model.Object, namespace: model.Namespace) -> model.Outcome:
        """What becomes of a pod."""
        called = surroundings.called(self.around, surroundings.Placed(pod, namespace.name, self.namespace.name))
        return injection.inject(pod, self.config, namespace, self.capabilities, called)

    def in_namespace(self, name: str) -> model.Namespace:
        """The namespace that an object names, or "" if it names none, with all that is known of it."""
        told = self.namespace
        own = self.namespaces.get(name or told.name)
        if own is None:
            return replace(told, name=name) if name else told
        return model.Namespace(own.name, {**own.labels, **told.labels}, {**own.annotations, **told.annotations})


Change = Callable[[model.Object], tuple[model.Object, Report | None]]


def apply(data: Any, change: Change) -> tuple[Any, list[Report]]:
    """A document with the change made to its object, or to each one of its List; the same document if none changes."""
    if not isinstance(data, dict):
        return data, []
    held = workloads.items(data)
    if held is None:
        try:
            after, report = change(data)
        except refusals.Malformed as error:
            after, report = data, Report(workloads.describe(data), "refused", str(error), "mend the manifest")
        return after, [report] if report else []
    changed = [apply(item, change) for item in held]
    reports = [report for _, found in changed for report in found]
    if all(after is item for (after, _), item in zip(changed, held, strict=True)):
        return data, reports
    return {**data, "items": [after for after, _ in changed]}, reports


def inject(thing: model.Object, injector: Injector) -> tuple[model.Object, Report | None]:
    """The object with the sidecar, or with the label that asks for it; None: nothing to do with pods.

    Raises refusals.Malformed.
    """
    workloads.check_shape(thing)
    name = workloads.describe(thing)
    told = other_kinds.told(thing, injector.patch_signs)
    inner = workloads.inner_templates(thing).values()
    if inner and all(_says(each) == "true" for each in inner):
        return thing, Report(name, "unchanged", "its templates ask for the sidecar already")
    if told is not None:
        return thing, None if injector.opted_in_only else Report(name, "skipped", told.message, told.fix)
    if workloads.is_opted_in_only(thing):
        return _opt_in(thing, injector)
    found = workloads.template(thing)
    if found is None:
        return thing, None
    pod = _annotated(found.pod, injector.annotations)
    wanted = pod if injector.opted_in_only or _says(pod) is not None else asking(pod)
    outcome = injector.outcome(wanted, injector.in_namespace(found.namespace))
    warnings = (*outcome.warnings, *about(thing, injector, outcome.warnings), *_about_pull_secrets(pod, outcome))
    warnings = (*warnings, *past(pod, outcome.plan, thing, injector))
    if outcome.refusal is not None:
        refused = outcome.refusal
        result: Result = "refused" if outcome.decision.explicit else "skipped"
        warnings = tuple(text for text in warnings if str(refused) not in text)
        return thing, Report(name, result, refused.message, refused.fix, warnings)
    if outcome.plan is None and not outcome.patch:
        text = f"{outcome.decision.reason} ({outcome.decision.source})"
        skipped = Report(name, "skipped", text, "", warnings)
        return thing, None if outcome.result == "unconcerned" else skipped
    after = workloads.replaced(thing, outcome.pod if wanted is pod else _as_before(outcome.pod, pod))
    if outcome.plan is None:
        return after, Report(name, "removed", f"switched off by {outcome.decision.source}", "", warnings)
    if after == thing:
        return thing, Report(name, "unchanged", "it has the sidecar already", "", warnings)
    patched = overlays.undoing(thing, after, injector.patches)
    if patched is not None:
        return thing, Report(name, "refused", patched.message, patched.fix)
    return after, Report(name, "injected", summary(outcome.plan), "", warnings)


def uninject(thing: model.Object) -> tuple[model.Object, Report | None]:
    """The object without the sidecar and, where controllers make the pods, without the label that asks for it.

    Raises refusals.Malformed.
    """
    workloads.check_shape(thing)
    name = workloads.describe(thing)
    if patches.sign(thing):
        return thing, None
    if workloads.is_opted_in_only(thing):
        is_service = workloads.group_kind(thing) == workloads.INFERENCE_SERVICE
        after = collocation.removed(thing) if is_service else thing
        if workloads.texts_for_pods(after, "labels").get(pod_annotations.INJECT) == "true":
            after = workloads.labelled(after, pod_annotations.INJECT, None)
        if after is thing:
            return thing, None
        return after, Report(name, "removed", "asks for no sidecar any more", "", tuple(_about_named_revision(after)))
    found = workloads.template(thing)
    outcome = injection.uninject(found.pod) if found else None
    if outcome is not None and outcome.refusal is not None:
        return thing, Report(name, "refused", outcome.refusal.message, outcome.refusal.fix)
    if outcome is None or not outcome.patch:
        return thing, None
    still = _says(outcome.pod) == "true"
    warnings = (f"{pod_annotations.INJECT} still asks for it, so the webhook would add it again",) if still else ()
    warnings = (*outcome.warnings, *warnings)
    return workloads.replaced(thing, outcome.pod), Report(name, "removed", "", "", warnings)


def summary(plan: model.Plan) -> str:
    """A plan in one sentence."""
    kind = "as a native sidecar" if plan.native else "as a container"
    ports = f"listening on {plan.listen_port}, the app on {plan.app_port}"
    if plan.grpc_listen_port is not None:
        ports += f"; for gRPC on {plan.grpc_listen_port}, the app on {plan.grpc_app_port}"
    return f"{plan.takeover}, {kind}, in front of container {plan.container!r}: {ports}"


def _opt_in(thing: model.Object, injector: Injector) -> tuple[model.Object, Report | None]:
    """The pod is made elsewhere: ask the webhook for the sidecar, or declare it where KServe can be told."""
    name = workloads.describe(thing)
    said = _said_for_pods(thing)
    if said == "false":
        return thing, Report(name, "skipped", f'it says {pod_annotations.INJECT}: "false"')
    if is_modelmesh(thing) and (said == "true" or not injector.opted_in_only):
        refusal = refusals.Reason.MODELMESH()
        return thing, Report(name, "refused", refusal.message, refusal.fix)
    annotated = workloads.annotated(thing, injector.annotations)
    if injector.without_webhook:
        return _declared(thing, annotated, injector)
    if injector.opted_in_only and said is None:
        return annotated, Report(name, "opted in", "settings only") if annotated is not thing else None
    after = annotated if said == "true" else workloads.labelled(annotated, pod_annotations.INJECT, "true")
    problems, warnings = kserve_pods.findings(after, injector.config, injector.capabilities)
    if problems:
        return thing, Report(name, "refused", "; ".join(problems), "mend these annotations", warnings)
    if after is thing:
        return thing, Report(name, "unchanged", "it asks for the sidecar already", "", warnings)
    warnings = (*warnings, *_about_named_revision(after))
    text = "its pods are made by a controller; the webhook adds the sidecar to them"
    if workloads.is_of_unknown_kind(thing):
        text = f"a {thing['kind']} is of a kind not known here; the webhook adds the sidecar to pods of its template"
    return after, Report(name, "opted in", text, "", warnings)


def _about_named_revision(thing: model.Object) -> Iterator[str]:
    """Knative takes no change of a template whose revision keeps its name (knative/serving, service_validation.go)."""
    name = workloads.revision_name(thing)
    if name:
        yield (
            f"spec.template.metadata.name is {name!r}: if that revision exists, Knative refuses the change; give it "
            "another name, or remove the name"
        )


def is_modelmesh(thing: model.Object) -> bool:
    """Whether it is an InferenceService that asks for ModelMesh."""
    is_service = workloads.group_kind(thing) == workloads.INFERENCE_SERVICE
    return is_service and inference_services.read(thing).mode == "ModelMesh"


def _declared(thing: model.Object, annotated: model.Object, injector: Injector) -> tuple[model.Object, Report | None]:
    name = workloads.describe(thing)
    try:
        after, warnings = collocation.declared(annotated, injector.config)
    except refusals.Refusal as refusal:
        return thing, Report(name, "refused", refusal.message, refusal.fix)
    if after == thing:
        return thing, Report(name, "unchanged", "it declares the sidecar already", "", warnings)
    return after, Report(name, "injected", "declared as transformer-container, which KServe sends to", "", warnings)


def about(thing: model.Object, injector: Injector, known: tuple[str, ...]) -> tuple[str, ...]:
    """Further warnings for the author of the workload: settings in places that do not reach its pods."""
    found = validation.examine(thing, None, validation.Rules(injector.outcome, injector.config))
    return tuple(text for text in (found.warnings if found else ()) if text not in known)


def _about_pull_secrets(pod: model.Object, outcome: model.Outcome) -> tuple[str, ...]:
    """In a manifest, other than in a pod that the API server has seen, the first pull secret has a consequence."""
    own = (pod.get("spec") or {}).get("imagePullSecrets")
    if own or not (outcome.status or {}).get("pullSecrets"):
        return ()
    return (
        "pods that name pull secrets do not get those of their service account: if it has some, name them in "
        "imagePullSecrets as well",
    )


def past(pod: model.Object, plan: model.Plan | None, thing: model.Object, injector: Injector) -> tuple[str, ...]:
    """Further warnings: Services and policies of the same manifests that would go past the sidecar."""
    template = workloads.template(thing)
    if plan is None or template is None:
        return ()
    default = injector.namespace.name
    placed = surroundings.Placed(injection.uninject(pod).pod, template.namespace or default, default)
    return tuple(surroundings.advice(injector.around, placed, plan))


def _says(pod: model.Object) -> str | None:
    """What the pod itself says about being injected; the label counts before the annotation."""
    metadata = pod.get("metadata") or {}
    for kind in ("labels", "annotations"):
        values = metadata.get(kind) if isinstance(metadata, dict) else None
        if isinstance(values, dict) and pod_annotations.INJECT in values:
            return str(values[pod_annotations.INJECT])
    return None


def _said_for_pods(thing: model.Object) -> str | None:
    metadata = {kind: workloads.texts_for_pods(thing, kind) for kind in ("labels", "annotations")}
    return _says({"metadata": metadata})


def _annotated(pod: model.Object, annotations: Mapping[str, str]) -> model.Object:
    if not annotations:
        return pod
    metadata = pod.get("metadata") or {}
    return {**pod, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}}


def asking(pod: model.Object) -> model.Object:
    """The pod with the label that asks for the sidecar."""
    metadata = pod.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), pod_annotations.INJECT: "true"}
    return {**pod, "metadata": {**metadata, "labels": labels}}


def _as_before(pod: model.Object, before: model.Object) -> model.Object:
    """A pod with the labels it had: the request was the command's, not the manifest's."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "labels"}
    labels = {key: value for key, value in (before.get("metadata") or {}).items() if key == "labels"}
    order = [*(before.get("metadata") or {}), *metadata]
    merged = {**metadata, **labels}
    return {**pod, "metadata": {key: merged[key] for key in dict.fromkeys(order) if key in merged}}
