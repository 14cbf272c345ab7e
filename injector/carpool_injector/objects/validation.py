"""What people hear when they apply a workload or an InferenceService whose pods are to get the sidecar.

Warnings about pods reach controllers, not people; here they reach whoever ran `kubectl apply`. Denied is only what
this person asked for and cannot have: not what was wrong before (an old object can always be scaled), and nothing that
a controller applies, KServe's above all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from carpool_injector.core import errors, model, pod_annotations, pods
from carpool_injector.core.config import Config
from carpool_injector.objects import inference_services, lints, review, workloads

_BAD_SETTINGS = "bad-annotation"
_NO_NAMESPACE = model.Namespace("")  # what the namespace asks for is nothing that this person could mend


@dataclass(slots=True)
class Findings:
    """`problems` by what they are about: the same key before an update means that it was wrong already."""

    problems: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    refused: tuple[str, str] | None = None
    """Code and text of why the pod cannot be injected, its settings aside."""
    reason: str = ""
    concerned: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What objects are held against: the injector itself, bound to a configuration, and that configuration."""

    inject: review.Inject
    config: Config


def validate(request: review.Request, rules: Rules) -> review.Verdict:
    """What the validating webhook answers. Raises errors.Malformed when the object has no pod template."""
    if request.operation not in ("CREATE", "UPDATE") or request.subresource or request.object is None:
        return review.Verdict(review.Answer(), "ignored", "not-applied")
    found = examine(request.object, request.old_object, rules)
    if found is None:
        return review.Verdict(review.Answer(), "ignored", "other-kind")
    before = _before(request.old_object, rules)
    new = {key: text for key, text in found.problems.items() if key not in before}
    if new and not _is_controlled(request.object):
        answer = review.Answer(False, warnings=found.warnings, message=_message(request.object, new.values()))
        return review.Verdict(answer, "denied", found.reason)
    warnings = (*found.problems.values(), *found.warnings)
    return review.Verdict(review.Answer(warnings=warnings), "warned" if warnings else "fine", found.reason)


def examine(thing: model.Object, old: model.Object | None, rules: Rules) -> Findings | None:
    """What is to be said of an object, and of its change from `old`; None for kinds that make no pods."""
    if workloads.group_kind(thing) == workloads.INFERENCE_SERVICE:
        return _inference_service(thing, old, rules)
    if workloads.group_kind(thing) == ("", "Pod"):
        return None
    template = workloads.template(thing)
    return None if template is None else _workload(thing, template.pod, rules)


def _before(old: model.Object | None, rules: Rules) -> Mapping[str, str]:
    try:
        found = examine(old, None, rules) if old is not None else None
    except errors.Malformed:  # it was admitted once; nothing to hold against it now
        found = None
    return found.problems if found else {}


def _workload(thing: model.Object, pod: model.Object, rules: Rules) -> Findings:
    found = _pod(pod, rules)
    metadata = inference_services.part(pod, "metadata")
    found.warnings += _useless_labels(metadata)
    if not _is_of_kserve(thing):
        found.warnings += _misplaced(thing, metadata)
    return found


def _inference_service(thing: model.Object, old: model.Object | None, rules: Rules) -> Findings:
    """Only bad settings are problems: what cannot be injected is guessed from a pod that KServe may make otherwise."""
    if thing.get("apiVersion") != "serving.kserve.io/v1beta1":
        return Findings()
    service = inference_services.read(thing)
    found = _pod(inference_services.stand_in(service), rules)
    if found.refused:
        code, text = found.refused
        del found.problems[code]
        if service.mode != "Knative":
            found.warnings.insert(0, f"in Standard mode its pods get no Carpool sidecar: {text}")
    found.warnings += _useless_labels(inference_services.part(thing, "metadata"))
    if found.concerned:
        was = inference_services.read(old) if old is not None else None
        found.warnings += lints.check(lints.Change(service, was, rules.config.defaults.get("max-batch-size")))
    return found


def _pod(pod: model.Object, rules: Rules) -> Findings:
    """What would happen to a pod, were it for its own labels and annotations only."""
    outcome = rules.inject(pod, _NO_NAMESPACE)
    annotations = inference_services.texts(inference_services.part(pod, "metadata"), "annotations")
    refusal = outcome.refusal
    found = Findings(
        concerned=outcome.result != "unconcerned" or any(key.startswith(model.PREFIX) for key in annotations)
    )
    found.warnings = [
        text for text in outcome.warnings if outcome.result != "refused" or not text.endswith(str(refusal))
    ]
    found.warnings += [text for text in pod_annotations.unknown(annotations) if text not in found.warnings]
    problems: Iterable[str] = _bad_settings(annotations, rules.config)
    if outcome.result == "refused" and isinstance(refusal, errors.BadSettings):
        problems = refusal.problems
    elif outcome.result == "refused" and refusal is not None:
        found.refused, found.reason = (refusal.code, str(refusal)), refusal.code
        found.problems[refusal.code] = str(refusal)
    for text in problems:
        found.problems[text], found.reason = text, _BAD_SETTINGS
    return found


def _bad_settings(annotations: Mapping[str, str], config: Config) -> Iterator[str]:
    """Problems of annotations that nobody looks at yet, as the sidecar was not asked for."""
    try:
        pod_annotations.read([pod_annotations.defaults(config), pod_annotations.Source(annotations)], config)
    except errors.BadSettings as error:
        yield from error.problems


def _useless_labels(metadata: model.Object) -> Iterator[str]:
    for key in inference_services.texts(metadata, "labels"):
        if key.startswith(model.PREFIX) and key != pod_annotations.INJECT:
            yield f"label {key[:80]} has no effect: settings are annotations"


def _misplaced(thing: model.Object, template: model.Object) -> Iterator[str]:
    """Annotations and the opt-in of a workload itself, which do not reach its pods."""
    metadata = inference_services.part(thing, "metadata")
    for kind in ("labels", "annotations"):
        below = inference_services.texts(template, kind)
        for key in inference_services.texts(metadata, kind):
            if key.startswith(model.PREFIX) and key not in below:
                yield f"{key[:80]} in metadata.{kind} does not reach the pods; put it in the pod template's metadata"


def _is_of_kserve(thing: model.Object) -> bool:
    return pods.KSERVE_POD in inference_services.texts(inference_services.part(thing, "metadata"), "labels")


def _is_controlled(thing: model.Object) -> bool:
    """Whether a controller applies this: a denial would stop it, and nobody would hear of it."""
    references = inference_services.part(thing, "metadata").get("ownerReferences")
    owners = references if isinstance(references, list) else []
    return _is_of_kserve(thing) or any(isinstance(owner, dict) and owner.get("controller") is True for owner in owners)


def _message(thing: model.Object, problems: Iterable[str]) -> str:
    return f"{workloads.describe(thing)} cannot get the Carpool sidecar: {'; '.join(problems)}"
