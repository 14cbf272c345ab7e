"""The one function behind webhook, command line and tests: what becomes of a pod.

Stages: undo what an earlier run did, decide, read the settings, find where predictions enter, plan, build, diff. Doing
it twice is doing it once, in whatever order other webhooks come in between.
"""

from __future__ import annotations

import carpool_injector
from carpool_injector.core import (
    advice,
    decision,
    errors,
    kserve_batcher,
    model,
    patch,
    placement,
    pod_annotations,
    pods,
    sites,
    status,
    suitability,
)
from carpool_injector.core.config import Config
from carpool_injector.core.copy_on_write import Draft
from carpool_injector.core.takeover import choice, context


def inject(
    pod: model.Object, config: Config, namespace: model.Namespace, capabilities: model.Capabilities
) -> model.Outcome:
    """Put the sidecar into a pod, if somebody asked for it and it can be done.

    The pod given is never changed. Raises `errors.Malformed` if it is no pod; anything else is a bug.
    """
    draft, view = _reverted(pod)
    asked = decision.Asked(view, namespace, config, sites.is_predictor)
    try:
        decided = decision.decide(asked)
    except decision.BadWord as refusal:
        return _refused(pod, draft, asked, refusal.decision, refusal)
    if decided.reason == "not-asked":
        return model.Outcome(pod, decided)
    try:
        return _injected(pod, draft, asked, decided, capabilities)
    except errors.Refusal as refusal:
        return _refused(pod, draft, asked, decided, refusal)


def uninject(pod: model.Object) -> model.Outcome:
    """Take the sidecar out of a pod again, by what its status says.

    What cannot come back: a container of KServe's agent that was left out (KServe's webhook adds it again).
    Raises `errors.Malformed` if it is no pod.
    """
    draft, view = _reverted(pod)
    decided = model.Decision(False, True, "uninject", "uninjected", concerned=status.read(view) is not None)
    return _without(pod, draft, view, decided, ())


def _reverted(pod: model.Object) -> tuple[Draft, pods.Pod]:
    """A draft in which the app has its place back (the sidecar itself is still there), and the view of it."""
    view, draft = pods.read(pod), Draft(pod)
    before = status.read(view)
    if before is None:
        return draft, view
    placement.revert(draft, before)
    return draft, pods.read(draft.pod)


def _warnings(asked: decision.Asked) -> tuple[str, ...]:
    return (*decision.conflicts(asked), *pod_annotations.unknown(asked.pod.metadata.annotations))


def _injected(
    pod: model.Object,
    draft: Draft,
    asked: decision.Asked,
    decided: model.Decision,
    capabilities: model.Capabilities,
) -> model.Outcome:
    view, config = asked.pod, asked.config
    if not decided.inject:
        return _without(pod, draft, view, decided, _warnings(asked))
    settings = pod_annotations.read(_sources(asked), config)
    reason = suitability.skip_reason(view, settings.components)
    if reason is not None:
        return _without(pod, draft, view, model.Decision(False, False, decided.source, reason), ())
    suitability.check(view)
    placement.check_names(view, config)
    site = context.Context(view, sites.find(view, settings), settings, config, capabilities)
    plan = choice.plan(site)
    done = placement.put(draft, site, plan)
    warnings = (*_warnings(asked), *advice.warnings(site, plan))
    return _outcome(pod, draft, decided, warnings, plan=plan, status=done.model_dump(by_alias=True, exclude_none=True))


def _sources(asked: decision.Asked) -> list[pod_annotations.Source]:
    """Where settings come from, the weakest first."""
    return [
        pod_annotations.defaults(asked.config),
        pod_annotations.Source(asked.namespace.annotations, f"namespace {asked.namespace.name}"),
        pod_annotations.Source(kserve_batcher.settings(asked.pod), "KServe's batcher"),
        pod_annotations.Source(asked.pod.metadata.annotations),
    ]


def _without(
    pod: model.Object, draft: Draft, view: pods.Pod, decided: model.Decision, warnings: tuple[str, ...]
) -> model.Outcome:
    placement.remove(draft, view)
    return _outcome(pod, draft, decided, warnings)


def _refused(
    pod: model.Object, draft: Draft, asked: decision.Asked, decided: model.Decision, refusal: errors.Refusal
) -> model.Outcome:
    """The pod goes without; if it asked itself, it is told in its status."""
    placement.remove(draft, asked.pod)
    told = status.refused(carpool_injector.__version__, refusal) if decided.explicit else None
    if told is not None:
        draft.annotate(pod_annotations.STATUS, status.text(told))
    warnings = (f"no sidecar: {refusal}", *_warnings(asked))
    return _outcome(pod, draft, decided, warnings, refusal=refusal, status=told)


def _outcome(
    pod: model.Object,
    draft: Draft,
    decided: model.Decision,
    warnings: tuple[str, ...],
    plan: model.Plan | None = None,
    refusal: errors.Refusal | None = None,
    status: model.Object | None = None,
) -> model.Outcome:
    operations = patch.between(pod, draft.pod)
    return model.Outcome(
        pod=draft.pod if operations else pod,
        decision=decided,
        patch=operations,
        plan=plan,
        refusal=refusal,
        status=status,
        warnings=warnings,
    )
