"""The one function behind webhook, command line and tests: what becomes of a pod.

The steps; 2 and 3 can end without the sidecar (`refusals`):

1. revert: undo what an earlier run did (`takeover`), so that a second run starts from the same pod as the first, and
   what a mesh did to probes (`meshes`), which is done again at the end
2. decide: who asks for the sidecar, and who forbids it (`decision`)
3. permit: may this pod be injected, and how, or all reasons why not (`permission`)
4. put: apply the plan, build the container (`container`), write the status annotation
5. diff: a JSON Patch from the pod that came to the pod that goes (`edits`)

Injecting twice is injecting once, whichever other webhooks come in between.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import carpool_injector
from carpool_injector.core import (
    container,
    decision,
    edits,
    list_servers,
    meshes,
    model,
    own_batches,
    permission,
    pod_annotations,
    pods,
    references,
    refusals,
    sites,
)
from carpool_injector.core.config import Config
from carpool_injector.core.edits import Draft
from carpool_injector.core.refusals import Reason
from carpool_injector.core.takeover import choice, context, port_swap, proxies


def inject(
    pod: model.Object,
    config: Config,
    namespace: model.Namespace,
    capabilities: model.Capabilities,
    called: references.Called | None = None,
) -> model.Outcome:
    """Put the sidecar into a pod, if somebody asked for it and it can be done.

    `called` are the ports that Services target, as far as they are known. The pod given is never changed. Raises
    `refusals.Malformed` if it is no pod; anything else is a bug.
    """
    draft, view = _reverted(pod)  # step 1
    asked = decision.Asked(view, namespace, config, sites.is_predictor)
    try:
        decided = decision.who_asks(asked)  # step 2
    except decision.BadWord as refusal:
        return _refused(pod, draft, asked, refusal.decision, refusal)
    if decided.reason == refusals.Skip.NOT_ASKED:
        return model.Outcome(pod, decided)
    if why := pod_annotations.why_unknown(view):
        return _left_alone(pod, decided, why)
    return _injected(pod, draft, asked, decided, capabilities, {**_known_callers(pod), **(called or {})})


def uninject(pod: model.Object) -> model.Outcome:
    """Take the sidecar out of a pod again, by what its status says.

    What cannot come back: a container of KServe's agent that was left out (KServe's webhook adds it again). A sidecar
    of which no status tells what it changed is refused, and a status without a sidecar. Raises `refusals.Malformed` if
    it is no pod.
    """
    draft, view = _reverted(pod)
    done = pod_annotations.read_status(view)
    decided = model.Decision(False, True, "uninject", "uninjected", concerned=done is not None)
    if why := pod_annotations.why_unknown(view):
        return _left_alone(pod, decided, why)
    warnings = tuple(port_swap.edited(Draft(pod).container(done.container), done)) if done else ()
    return _without(pod, draft, view, decided, warnings)


def _reverted(pod: model.Object) -> tuple[Draft, pods.Pod]:
    """A draft in which the app has its place back (the sidecar itself is still there), and the view of it."""
    view, draft = pods.read(pod), Draft(pod)
    detour = meshes.take_back(draft, view)
    before = pod_annotations.read_status(view)
    if before is None and detour is None:
        return draft, view
    if detour is not None:
        draft.at_last = functools.partial(meshes.give, detour=detour)
    if before is not None:
        _revert(draft, before)
    return draft, pods.read(draft.pod)


def _warnings(asked: decision.Asked) -> tuple[str, ...]:
    return (*decision.conflicts(asked), *pod_annotations.unknown(asked.pod.metadata.annotations))


def _injected(
    pod: model.Object,
    draft: Draft,
    asked: decision.Asked,
    decided: model.Decision,
    capabilities: model.Capabilities,
    called: references.Called,
) -> model.Outcome:
    view = asked.pod
    if not decided.inject:
        return _without(pod, draft, view, decided, _warnings(asked))
    may = permission.may_inject(  # step 3
        view, asked.namespace, asked.config, capabilities, called, decision.is_for_all(decided)
    )
    if may.skip is not None:
        return _without(pod, draft, view, model.Decision(False, False, decided.source, may.skip), ())
    if may.plan is None or may.site is None:
        return _refused(pod, draft, asked, decided, *may.reasons)
    done = _put(draft, may.site, may.plan)  # step 4
    warnings = (*_warnings(asked), *_advice(may.site, may.plan))
    return _outcome(
        pod, draft, decided, warnings, plan=may.plan, status=done.model_dump(by_alias=True, exclude_none=True)
    )


def _known_callers(pod: model.Object) -> references.Called:
    """What an earlier run was shown by its manifests: the webhook, which comes later, does not see Services."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    is_there = "calledBy" in annotations.get(pod_annotations.STATUS, "")  # which saves most pods a second reading
    done = pod_annotations.read_status(pods.read(pod)) if is_there else None
    if done is None or done.called_by is None:
        return {}
    is_moved = done.takeover == "port-swap" and (done.told_by is not None or done.grpc_told_by is None)
    port = done.listen_port if is_moved else done.app_port
    return dict.fromkeys((port, *([done.grpc_listen_port] if done.grpc_listen_port else [])), done.called_by)


def _without(
    pod: model.Object, draft: Draft, view: pods.Pod, decided: model.Decision, warnings: tuple[str, ...]
) -> model.Outcome:
    _remove(draft, view)
    return _outcome(pod, draft, decided, warnings)


def _refused(
    pod: model.Object,
    draft: Draft,
    asked: decision.Asked,
    decided: model.Decision,
    refusal: refusals.Refusal,
    *others: refusals.Refusal,
) -> model.Outcome:
    """The pod goes without; if it asked by itself, its status says why, and warnings all that stands against it."""
    _remove(draft, asked.pod)
    told = pod_annotations.refused_status(carpool_injector.__version__, refusal) if decided.explicit else None
    if told is not None:
        draft.annotate(pod_annotations.STATUS, pod_annotations.status_text(told))
    warnings = (*(f"no sidecar: {each}" for each in (refusal, *others)), *_warnings(asked))
    return _outcome(pod, draft, decided, warnings, refusal=refusal, status=told)


def _left_alone(pod: model.Object, decided: model.Decision, why: str) -> model.Outcome:
    """A pod with a sidecar of which nothing is known stays as it is, with what its annotations may tell a person."""
    refusal = Reason.UNKNOWN_SIDECAR(why=why)
    return model.Outcome(pod, decided, refusal=refusal, warnings=(f"no change of the sidecar: {refusal}",))


def _outcome(
    pod: model.Object,
    draft: Draft,
    decided: model.Decision,
    warnings: tuple[str, ...],
    plan: model.Plan | None = None,
    refusal: refusals.Refusal | None = None,
    status: model.Object | None = None,
) -> model.Outcome:
    operations = edits.json_patch(pod, draft.finish())  # step 5
    return model.Outcome(
        pod=draft.pod if operations else pod,
        decision=decided,
        patch=operations,
        plan=plan,
        refusal=refusal,
        status=status,
        warnings=warnings,
    )


_HOOK = "preStop"


def _put(draft: Draft, asked: context.Context, plan: model.Plan) -> pod_annotations.Injected:
    """Take the app's place as planned and put the sidecar in. Returns the status, which the pod has by then."""
    effects = choice.WAYS[plan.takeover].apply(draft, plan, asked)
    app = draft.container(plan.container)
    if effects.readiness is None and app.get("readinessProbe"):
        effects = effects.with_readiness(edits.resolved_probe(app, app["readinessProbe"]))
    built = container.build(asked.pod, plan, effects, asked.settings, asked.config)
    group, other = ("initContainers", "containers") if plan.native else ("containers", "initContainers")
    sidecar = container.merged(draft.sidecar(), built, asked.pod.metadata.annotations)
    draft.remove(other, model.CONTAINER)
    draft.put(group, sidecar)
    draft.put("volumes", container.volume())
    _hook(app, plan.admin_port)
    port_start = container.needs_port_start(asked.pod, plan)
    if port_start:
        draft.set_sysctl(container.PORT_START, "0")
    done = _status_of(asked, plan, effects, _pull_secrets(draft, asked))
    done = done.model_copy(update={"port_start": port_start or None})
    draft.annotate(pod_annotations.STATUS, done.text())
    return done


def _pull_secrets(draft: Draft, asked: context.Context) -> list[str]:
    """Let the kubelet pull the sidecar's image. Returns the names that the pod did not have."""
    own = {reference.name for reference in asked.pod.spec.image_pull_secrets}
    added = [name for name in dict.fromkeys(asked.config.image_pull_secrets) if name not in own]
    for name in added:
        draft.put("imagePullSecrets", {"name": name})
    return added


def _revert(draft: Draft, done: pod_annotations.Injected) -> None:
    """Give the app its place back; the sidecar itself stays where it is, for `put` or `remove`."""
    choice.WAYS[done.takeover].revert(draft, done)
    _unhook(draft.container(done.container), done.admin_port)
    for name in done.pull_secrets or ():
        draft.remove("imagePullSecrets", name)
    if done.port_start:
        draft.remove_sysctl(container.PORT_START)


def _remove(draft: Draft, pod: pods.Pod) -> None:
    """Take the status out, and container and volume if it says that they are ours."""
    if pod_annotations.read_status(pod) is not None:
        for group in ("initContainers", "containers"):
            draft.remove(group, model.CONTAINER)
        draft.remove("volumes", pod_annotations.TOKEN_SHIELD)
    draft.unannotate(pod_annotations.STATUS)


def _status_of(
    asked: context.Context, plan: model.Plan, effects: context.Effects, pull_secrets: list[str]
) -> pod_annotations.Injected:
    return pod_annotations.Injected(
        version=carpool_injector.__version__,
        config=asked.config.hash,
        takeover=plan.takeover,
        native=plan.native,
        container=plan.container,
        app_port=plan.app_port,
        listen_port=plan.listen_port,
        admin_port=plan.admin_port,
        told_by=effects.told_by,
        added=effects.added,
        batcher=effects.batcher,
        grpc_app_port=plan.grpc_app_port,
        grpc_listen_port=plan.grpc_listen_port,
        grpc_told_by=effects.grpc.told_by if effects.grpc else None,
        grpc_added=effects.grpc.added if effects.grpc else None,
        pull_secrets=pull_secrets or None,
        called_by=asked.site.proof or None,
    )


def _hook(app: model.Object, admin_port: int) -> None:
    """Let the app serve until the sidecar has drained: the kubelet stops apps before native sidecars."""
    lifecycle = app.get("lifecycle") or {}
    if not lifecycle.get(_HOOK):
        app["lifecycle"] = {**lifecycle, _HOOK: container.drained_hook(admin_port)}


def _unhook(app: model.Object, admin_port: int) -> None:
    lifecycle = dict(app.get("lifecycle") or {})
    action = (lifecycle.get(_HOOK) or {}).get("httpGet") or {}
    if (action.get("path"), action.get("port")) != (container.DRAINED, admin_port):
        return
    del lifecycle[_HOOK]
    if lifecycle:
        app["lifecycle"] = lifecycle
    else:
        del app["lifecycle"]


_BATCH_SIZE = 32  # the sidecar's own default
_KNATIVE_DRAIN = "/wait-for-drain"


def _advice(asked: context.Context, plan: model.Plan) -> Iterator[str]:
    """Warnings for the person who applies the pod: it gets the sidecar, but not all of its benefits."""
    yield from pod_annotations.batcher_warnings(asked.pod)
    yield from list_servers.advice(asked.site.container, asked.settings)
    yield from own_batches.advice(asked.site.container, asked.settings)
    yield from _concurrency_advice(asked)
    yield from _hook_advice(asked.site.container)
    if container.outlasts_the_pod(asked.pod, asked.settings):
        yield "carpool.dev/grace-period is longer than terminationGracePeriodSeconds, after which the pod is killed"
    yield from container.resource_advice(asked.pod, plan, asked.settings)
    yield from meshes.advice(asked.pod, plan.admin_port)


def _concurrency_advice(asked: context.Context) -> Iterator[str]:
    limit, size = proxies.concurrency(asked.pod), asked.settings.max_batch_size or _BATCH_SIZE
    if 0 < limit < size:
        yield (
            f"containerConcurrency {limit} lets no batch grow beyond {limit} of {size}; set it to 0 and use a soft "
            "target (autoscaling.knative.dev/target)"
        )


def _hook_advice(app: pods.Container) -> Iterator[str]:
    hook = app.lifecycle.pre_stop if app.lifecycle else None
    path = (hook.http_get.path if hook and hook.http_get else None) or ""
    if hook is None or path == _KNATIVE_DRAIN:
        return
    yield (
        f"container {app.name!r} has a preStop hook of its own, which is kept; it must last until the sidecar has "
        "drained (about 5 s)"
    )
