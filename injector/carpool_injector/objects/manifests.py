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
    parts,
    patches,
    shapes,
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

    def warnings(self, thing: model.Object, pod: model.Object, outcome: model.Outcome) -> Iterator[str]:
        """What the author of an object should know of its pod's outcome, other than what refuses it.

        Beside the outcome's: settings in places that do not reach its pods, and Services and policies of the same
        manifests that would go past the sidecar.
        """
        refused = str(outcome.refusal) if outcome.refusal else None
        yield from (text for text in outcome.warnings if refused is None or refused not in text)
        found = self._examined(thing)
        yield from (text for text in (found.warnings if found else ()) if text not in outcome.warnings)
        template = workloads.template(thing)
        if outcome.plan is not None and template is not None:
            namespace = template.namespace or self.namespace.name
            placed = surroundings.Placed(injection.uninject(pod).pod, namespace, self.namespace.name)
            yield from surroundings.advice(self.around, placed, outcome.plan)

    def findings(self, thing: model.Object) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Settings of an object that is opted in only that cannot be used, and warnings about it."""
        found = self._examined(thing)
        if found is not None:
            return tuple(found.problems.values()), tuple(found.warnings)
        outcome = self.outcome(kserve_pods.expect(thing).pod, model.Namespace(""))
        problems = outcome.refusal.problems if isinstance(outcome.refusal, refusals.BadSettings) else ()
        return problems, tuple(text for text in outcome.warnings if not problems or str(outcome.refusal) not in text)

    def _examined(self, thing: model.Object) -> validation.Findings | None:
        return validation.examine(thing, None, validation.Rules(self.outcome, self.config))


Changed = tuple[model.Object, Report | None]
"""The object as it is now, the same one where nothing changed; None: nothing is to be said of it."""
Change = Callable[[model.Object], Changed]


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


def inject(thing: model.Object, injector: Injector) -> Changed:
    """The object with the sidecar, or with the label that asks for it; None: nothing to do with pods.

    Raises refusals.Malformed.
    """
    shapes.check(thing)
    name = workloads.describe(thing)
    told = other_kinds.told(thing, injector.patch_signs)
    inner = workloads.inner_templates(thing).values()
    if inner and all(_says(each) == "true" for each in inner):
        return thing, Report(name, "unchanged", "its templates ask for the sidecar already")
    if told is not None:
        return thing, None if injector.opted_in_only else Report(name, "skipped", told.message, told.fix)
    try:
        return _opt_in(thing, injector) if workloads.is_opted_in_only(thing) else _inject(thing, injector)
    except refusals.Refusal as refused:
        return thing, Report(name, "refused", refused.message, refused.fix)


def _inject(thing: model.Object, injector: Injector) -> Changed:
    """The sidecar in the object's own template. Raises `Refusal` for a patch that would undo it."""
    found = workloads.template(thing)
    if found is None:
        return thing, None
    name = workloads.describe(thing)
    pod = _with_annotations(found.pod, injector.annotations)
    wanted = pod if injector.opted_in_only or _says(pod) is not None else asking(pod)
    outcome = injector.outcome(wanted, injector.in_namespace(found.namespace))
    warnings = (*injector.warnings(thing, pod, outcome), *_about_pull_secrets(pod, outcome))
    if outcome.refusal is not None:
        result: Result = "refused" if outcome.decision.explicit else "skipped"
        return thing, Report(name, result, outcome.refusal.message, outcome.refusal.fix, warnings)
    if outcome.plan is None and not outcome.patch:
        text = f"{outcome.decision.reason} ({outcome.decision.source})"
        return thing, None if outcome.result == "unconcerned" else Report(name, "skipped", text, "", warnings)
    after = workloads.replaced(thing, outcome.pod if wanted is pod else _with_labels_of(pod, outcome.pod))
    if outcome.plan is None:
        return after, Report(name, "removed", f"switched off by {outcome.decision.source}", "", warnings)
    if after == thing:
        return thing, Report(name, "unchanged", "it has the sidecar already", "", warnings)
    undone = overlays.undoing(thing, after, injector.patches)
    if undone is not None:
        raise undone
    return after, Report(name, "injected", summary(outcome.plan), "", warnings)


def _opt_in(thing: model.Object, injector: Injector) -> Changed:
    """The pod is made elsewhere: ask the webhook for the sidecar, or declare it where KServe can be told.

    Raises `Refusal`.
    """
    name = workloads.describe(thing)
    said = _says({"metadata": {kind: workloads.texts_for_pods(thing, kind) for kind in ("labels", "annotations")}})
    if said == "false":
        return thing, Report(name, "skipped", f'it says {pod_annotations.INJECT}: "false"')
    if is_modelmesh(thing) and (said == "true" or not injector.opted_in_only):
        raise refusals.Reason.MODELMESH()
    annotated = workloads.annotated(thing, injector.annotations)
    if injector.without_webhook:
        after, warnings = collocation.declared(annotated, injector.config)
        if after == thing:
            return thing, Report(name, "unchanged", "it declares the sidecar already", "", warnings)
        return after, Report(name, "injected", "declared as transformer-container, which KServe sends to", "", warnings)
    if injector.opted_in_only and said is None:
        return annotated, Report(name, "opted in", "settings only") if annotated is not thing else None
    after = annotated if said == "true" else workloads.labelled(annotated, pod_annotations.INJECT, "true")
    problems, warnings = injector.findings(after)
    if problems:
        return thing, Report(name, "refused", "; ".join(problems), "mend these annotations", warnings)
    if after is thing:
        return thing, Report(name, "unchanged", "it asks for the sidecar already", "", warnings)
    text = "its pods are made by a controller; the webhook adds the sidecar to them"
    if workloads.is_of_unknown_kind(thing):
        text = f"a {thing['kind']} is of a kind not known here; the webhook adds the sidecar to pods of its template"
    return after, Report(name, "opted in", text, "", (*warnings, *_about_named_revision(after)))


def uninject(thing: model.Object) -> Changed:
    """The object without the sidecar and, where controllers make the pods, without the label that asks for it.

    Raises refusals.Malformed.
    """
    shapes.check(thing)
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


def _about_pull_secrets(pod: model.Object, outcome: model.Outcome) -> Iterator[str]:
    """In a manifest, other than in a pod that the API server has seen, the first pull secret has a consequence."""
    if (outcome.status or {}).get("pullSecrets") and not parts.find(pod, ("spec", "imagePullSecrets")):
        yield (
            "pods that name pull secrets do not get those of their service account: if it has some, name them in "
            "imagePullSecrets as well"
        )


def _says(pod: model.Object) -> str | None:
    """What the pod itself says about being injected; the label counts before the annotation."""
    found = {**parts.part(pod, "metadata", "annotations"), **parts.part(pod, "metadata", "labels")}
    return str(found[pod_annotations.INJECT]) if pod_annotations.INJECT in found else None


def _with_annotations(pod: model.Object, annotations: Mapping[str, str]) -> model.Object:
    path = ("metadata", "annotations")
    return parts.replaced(pod, path, {**parts.part(pod, *path), **annotations}) if annotations else pod


def asking(pod: model.Object) -> model.Object:
    """The pod with the label that asks for the sidecar."""
    path = ("metadata", "labels")
    return parts.replaced(pod, path, {**parts.part(pod, *path), pod_annotations.INJECT: "true"})


def _with_labels_of(before: model.Object, pod: model.Object) -> model.Object:
    """A pod with the labels it had: the request was the command's, not the manifest's."""
    held = parts.part(before, "metadata")
    if "labels" not in held:
        return parts.replaced(pod, ("metadata", "labels"), None)
    return {**pod, "metadata": {**pod["metadata"], "labels": held["labels"]}}
