"""What the validating webhook tells people who apply a workload or an InferenceService that asks for the sidecar.

Warnings about pods reach controllers, not people; these reach whoever ran `kubectl apply`. A denial concerns only what
this person asked for and cannot have: not what was wrong before (an old object can always be scaled), and nothing that
a controller applies, KServe's above all. The lints warn of what is likely to go wrong with an InferenceService; they
never deny, because KServe's defaults may still change what they look at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from carpool_injector.core import model, pod_annotations, pods, refusals
from carpool_injector.core.config import Config
from carpool_injector.objects import inference_services, parts, review, workloads

_NO_NAMESPACE = model.Namespace("")  # the person who applies the object cannot change what its namespace asks for


@dataclass(slots=True)
class Findings:
    """What is to be said of an object. `refused` says why the pod cannot be injected, its settings aside; `is_guess`:
    of a pod that may be made otherwise, so that this is no problem.
    """

    bad_settings: Sequence[str] = ()
    refused: refusals.Refusal | None = None
    is_guess: bool = False
    warnings: list[str] = field(default_factory=list)
    concerned: bool = False

    @property
    def problems(self) -> dict[str, str]:
        """By what they are about: the same key before an update means that it was wrong already."""
        refused = {self.refused.code: str(self.refused)} if self.refused and not self.is_guess else {}
        return refused | {text: text for text in self.bad_settings}

    @property
    def reason(self) -> str:
        """The code of what is wrong."""
        if self.bad_settings:
            return refusals.Reason.BAD_ANNOTATION.code
        return self.refused.code if self.refused else ""


@dataclass(frozen=True, slots=True)
class Rules:
    """What objects are held against: the injector itself, bound to a configuration, and that configuration."""

    inject: review.Inject
    config: Config


def validate(request: review.Request, rules: Rules) -> review.Verdict:
    """What the validating webhook answers. Raises refusals.Malformed when the object has no pod template."""
    thing, old = request.object, request.old_object
    if request.operation not in ("CREATE", "UPDATE") or request.subresource or thing is None:
        return review.Verdict(review.Answer(), "ignored", refusals.Skip.NOT_APPLIED)
    found = examine(thing, old, rules)
    if found is None:
        return review.Verdict(review.Answer(), "ignored", refusals.Skip.OTHER_KIND)
    before: Findings | None = None
    with contextlib.suppress(refusals.Malformed):  # it was admitted once; nothing to hold against it now
        before = examine(old, None, rules) if old is not None else None
    known = before.problems if before else {}
    new = [text for key, text in found.problems.items() if key not in known]
    if new and not _is_controlled(thing):
        message = f"{workloads.describe(thing)} cannot get the Carpool sidecar: {'; '.join(new)}"
        return review.Verdict(review.Answer(False, warnings=found.warnings, message=message), "denied", found.reason)
    warnings = (*found.problems.values(), *found.warnings)
    return review.Verdict(review.Answer(warnings=warnings), "warned" if warnings else "fine", found.reason)


def examine(thing: model.Object, old: model.Object | None, rules: Rules) -> Findings | None:
    """What is to be said of an object, and of its change from `old`; None for kinds that make no pods."""
    if workloads.group_kind(thing) == workloads.INFERENCE_SERVICE:
        return _inference_service(thing, old, rules)
    template = workloads.template(thing) if workloads.group_kind(thing) != ("", "Pod") else None
    if template is None:
        return None
    found = _pod(template.pod, rules)
    found.warnings += _useless_labels(template.pod)
    found.warnings += _selected(thing)
    if not _is_of_kserve(thing):
        found.warnings += _misplaced(thing, template.pod)
    return found


def _inference_service(thing: model.Object, old: model.Object | None, rules: Rules) -> Findings:
    """Only bad settings are problems: what cannot be injected is guessed from a pod that KServe may make otherwise."""
    if thing.get("apiVersion") != "serving.kserve.io/v1beta1":
        return Findings()
    service = inference_services.read(thing)
    found = _pod(inference_services.stand_in(service), rules)
    found.is_guess = True
    if found.refused and service.mode != "Knative":
        found.warnings.insert(0, f"in Standard mode its pods get no Carpool sidecar: {found.refused}")
    found.warnings += _useless_labels(thing)
    if found.concerned:
        was = inference_services.read(old) if old is not None else None
        change = Change(service, was, rules.config.defaults.get("max-batch-size"))
        found.warnings += [text for lint in LINTS for text in lint(change)]
    return found


def _pod(pod: model.Object, rules: Rules) -> Findings:
    """What would happen to a pod, were it for its own labels and annotations only."""
    outcome = rules.inject(pod, _NO_NAMESPACE)
    annotations = parts.texts(pod, "metadata", "annotations")
    refusal = outcome.refusal if outcome.result == "refused" else None
    found = Findings(
        concerned=outcome.result != "unconcerned" or any(key.startswith(model.PREFIX) for key in annotations),
        warnings=[text for text in outcome.warnings if refusal is None or not text.endswith(str(refusal))],
    )
    found.warnings += [text for text in pod_annotations.unknown(annotations) if text not in found.warnings]
    if isinstance(refusal, refusals.BadSettings):
        found.bad_settings = refusal.problems
        return found
    found.refused = refusal
    try:  # nobody looks at them yet where the sidecar was not asked for
        sources = [pod_annotations.defaults(rules.config), pod_annotations.Source(annotations)]
        pod_annotations.read_settings(sources, rules.config)
    except refusals.BadSettings as error:
        found.bad_settings = error.problems
    return found


def _useless_labels(thing: model.Object) -> Iterator[str]:
    for key in parts.texts(thing, "metadata", "labels"):
        if key.startswith(model.PREFIX) and key != pod_annotations.INJECT:
            yield f"label {key[:80]} has no effect: settings are annotations"


def _selected(thing: model.Object) -> Iterator[str]:
    """Our label in a selector, which can never be changed: nobody could switch the sidecar off by it."""
    selected = {**parts.texts(thing, "spec", "selector"), **parts.texts(thing, "spec", "selector", "matchLabels")}
    if pod_annotations.INJECT in selected:
        yield (
            f"spec.selector names {pod_annotations.INJECT}, and selectors cannot be changed: leave it to the pod "
            "template's labels, or ask by the annotation of that name"
        )


def _misplaced(thing: model.Object, pod: model.Object) -> Iterator[str]:
    """Annotations and the opt-in of a workload itself, which do not reach its pods."""
    for kind in ("labels", "annotations"):
        below = parts.texts(pod, "metadata", kind)
        for key in parts.texts(thing, "metadata", kind):
            if key.startswith(model.PREFIX) and key not in below:
                yield f"{key[:80]} in metadata.{kind} does not reach the pods; put it in the pod template's metadata"


def _is_of_kserve(thing: model.Object) -> bool:
    return pods.KSERVE_POD in parts.texts(thing, "metadata", "labels")


def _is_controlled(thing: model.Object) -> bool:
    """Whether a controller applies this: a denial would stop it without a person noticing."""
    owners = parts.parts(thing, "metadata", "ownerReferences")
    return _is_of_kserve(thing) or any(owner.get("controller") is True for owner in owners)


_BATCH_SIZE = 32  # of the sidecar, when nobody chooses one
_SIZE, _LATENCY = model.PREFIX + "max-batch-size", model.PREFIX + "max-latency"


@dataclass(frozen=True, slots=True)
class Change:
    """An InferenceService as applied and, on an UPDATE, as it was. `default_size`: the admin's max-batch-size."""

    new: inference_services.InferenceService
    old: inference_services.InferenceService | None = None
    default_size: str | None = None

    @property
    def max_batch_size(self) -> int:
        """What the sidecar will run with: annotation, else KServe's batcher, else the defaults."""
        predictor = self.new.predictor
        for text in (
            predictor.annotations.get(_SIZE),
            str((predictor.batcher or {}).get("maxBatchSize")),
            self.default_size,
        ):
            if text is not None and text.isascii() and text.isdecimal() and int(text):
                return int(text)
        return _BATCH_SIZE


def mode(change: Change) -> Iterator[str]:
    """The annotation of the mode has a value that KServe knows, and one whose pods get sidecars."""
    value = change.new.annotations.get(inference_services.MODE)
    if value is not None and value not in inference_services.MODES:
        allowed = ", ".join(inference_services.MODES)
        yield f"annotation {inference_services.MODE}: got {value[:80]!r}: KServe knows {allowed}"
    if change.new.mode == "ModelMesh":
        yield "pods of ModelMesh get no Carpool sidecar; use Standard or Knative"


def reach(change: Change) -> Iterator[str]:
    """What stands in metadata reaches all components."""
    others = [name for name in change.new.components if name != "predictor"]
    held = [key for key in (*change.new.annotations, *change.new.labels) if key.startswith(model.PREFIX)]
    if others and held:
        where = "spec.predictor.annotations (labels: spec.predictor.labels)"
        yield f"{held[0]} in metadata reaches the {' and '.join(others)} as well; better put it in {where}"


def concurrency(change: Change) -> Iterator[str]:
    """Knative's queue-proxy lets so many requests through at once, and stands in front of the sidecar (kserve#2102)."""
    limit = parts.whole(change.new.predictor.spec.get("containerConcurrency"))
    size = change.max_batch_size
    if change.new.mode != "Standard" and limit is not None and 0 < limit < size:
        yield (
            f"containerConcurrency {limit} is below the max batch size {size}: with Knative no batch of one-instance "
            f"requests grows beyond {limit}; use 0, and the annotation autoscaling.knative.dev/target"
        )


def two_voices(change: Change) -> Iterator[str]:
    """KServe's batcher and our annotations name the same thing."""
    batcher = change.new.predictor.batcher or {}
    for name, key in (("maxBatchSize", _SIZE), ("maxLatency", _LATENCY)):
        ours, theirs = change.new.predictor.annotations.get(key), batcher.get(name)
        if ours is not None and theirs is not None and ours != str(theirs):
            yield f"{key} ({ours[:20]}) wins over spec.predictor.batcher.{name} ({str(theirs)[:20]})"


def toggled_agent(change: Change) -> Iterator[str]:
    """In Standard mode KServe turns the Service to another port at once, not when new pods are ready."""
    if change.old is None or change.new.mode == "Knative":
        return
    had, has = change.old.predictor.agent, change.new.predictor.agent
    if bool(had) != bool(has):
        verb, to = ("adding", "9081") if has else ("removing", "the model server's port")
        yield (
            f"{verb} spec.predictor.{had or has} turns the Service to {to} before new pods are ready: in Standard mode "
            "calls fail until then; prefer a new InferenceService"
        )


def unknown_server(change: Change) -> Iterator[str]:
    """In Standard mode, where KServe puts no agent in front, the sidecar has to take the model server's port."""
    predictor = change.new.predictor
    runtime = predictor.runtime
    if change.new.mode == "Knative" or predictor.agent or not runtime:
        return
    told = {f"{model.PREFIX}app-port-arg", f"{model.PREFIX}app-port-env"} & predictor.annotations.keys()
    if told or inference_services.is_movable(predictor):
        return
    known = f"the port of {runtime[:60]!r} cannot be taken over"
    if predictor.kserves_runtime is None:
        known = f"it is not known here whether the port of {runtime[:60]!r} can be taken over"
    yield (
        f"in Standard mode {known}; set spec.predictor.batcher: {{}}, or name its port flag in "
        f"{model.PREFIX}app-port-arg"
    )


def canary_agent(change: Change) -> Iterator[str]:
    """KServe puts its agent into a canary's pods, and lets their Service send past it (reconcileCanaryDeployments)."""
    for name, canary in change.new.canaries:
        annotations = canary.annotations
        if canary.agent and annotations.get(f"{model.PREFIX}takeover") != "port-swap":
            yield (
                f"canary {name[:60]!r} has spec.predictor.{canary.agent}, and KServe (v0.20) sends its calls to the "
                f"model server, past KServe's agent and the sidecar in its place: set {model.PREFIX}takeover: "
                f"port-swap in its annotations, or remove the {canary.agent}"
            )


def explainer_batcher(change: Change) -> Iterator[str]:
    """KServe turns the explainer's Service to 9081 in Standard mode, and puts nothing there."""
    explainer = change.new.components.get("explainer")
    if explainer is not None and explainer.batcher is not None and change.new.mode != "Knative":
        yield "remove spec.explainer.batcher: in Standard mode it turns the Service to 9081, where nothing listens"


LINTS: tuple[Callable[[Change], Iterator[str]], ...] = (
    mode, reach, concurrency, two_voices, toggled_agent, unknown_server, canary_agent,
    explainer_batcher,
)  # fmt: skip
