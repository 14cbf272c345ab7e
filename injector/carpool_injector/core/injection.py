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

import json
from collections.abc import Iterator, Sequence

import carpool_injector
from carpool_injector.core import (
    container,
    decision,
    edits,
    list_servers,
    meshes,
    model,
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
from carpool_injector.core.settings import BATCH_SIZE
from carpool_injector.core.takeover import choice, context, proxies


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
    run = _Run(pod)  # step 1
    asked = decision.Asked(run.view, namespace, config, sites.is_predictor)
    try:
        decided = decision.who_asks(asked)  # step 2
    except decision.BadWord as refusal:
        return run.refused(refusal.decision, [refusal], _warnings(asked))
    if decided.reason == refusals.Skip.NOT_ASKED:
        return model.Outcome(pod, decided)
    if why := pod_annotations.why_unknown(run.view):
        return run.left_alone(decided, why)
    if not decided.inject:
        return run.without(decided, _warnings(asked))
    callers = {**_known_callers(run.before), **(called or {})}
    for_all = decision.is_for_all(decided)
    may = permission.may_inject(run.view, namespace, config, capabilities, callers, for_all)  # step 3
    if may.skip is not None:
        return run.without(model.Decision(False, False, decided.source, may.skip))
    if may.plan is None or may.site is None:
        return run.refused(decided, may.reasons, _warnings(asked))
    done = _put(run.draft, may.site, may.plan)  # step 4
    status = done.model_dump(by_alias=True, exclude_none=True)
    warnings = (*_warnings(asked), *_advice(may.site, may.plan))
    return run.outcome(decided, warnings, plan=may.plan, status=status)


def uninject(pod: model.Object) -> model.Outcome:
    """Take the sidecar out of a pod again, by what its status says.

    What cannot come back: a container of KServe's agent that was left out (KServe's webhook adds it again). A sidecar
    of which no status tells what it changed is refused, and a status without a sidecar. Raises `refusals.Malformed` if
    it is no pod.
    """
    run = _Run(pod)
    decided = model.Decision(False, True, "uninject", "uninjected", concerned=run.before is not None)
    if why := pod_annotations.why_unknown(run.view):
        return run.left_alone(decided, why)
    name, moves = (run.before.container, run.before.moves) if run.before else ("", [])
    app = Draft(pod).container(name) if name else {}
    return run.without(decided, tuple(references.edited(app, name, moves)))


class _Run:
    """A pod as it came, the draft of what it becomes, and how the two are told about in the end.

    In the draft the app has its place back, as an earlier run noted it in the status (`before`); the sidecar itself is
    still there. `view` is that of the draft.
    """

    def __init__(self, pod: model.Object) -> None:
        self._pod = pod
        self.view, self.draft = pods.read(pod), Draft(pod)
        self._detour = meshes.take_back(self.draft, self.view)
        self.before = pod_annotations.read_status(self.view)
        if self.before is not None:
            _revert(self.draft, self.before)
        if self.before is not None or self._detour is not None:
            self.view = pods.read(self.draft.pod)

    def outcome(
        self,
        decided: model.Decision,
        warnings: tuple[str, ...],
        plan: model.Plan | None = None,
        refusal: refusals.Refusal | None = None,
        status: model.Object | None = None,
    ) -> model.Outcome:
        """What became of the pod, once everything else is in its place (step 5)."""
        if self._detour is not None:
            meshes.give(self.draft, self._detour)
        operations = edits.json_patch(self._pod, self.draft.pod)
        pod = self.draft.pod if operations else self._pod
        return model.Outcome(pod, decided, operations, plan, refusal, status, warnings)

    def without(self, decided: model.Decision, warnings: tuple[str, ...] = ()) -> model.Outcome:
        """The pod goes without the sidecar."""
        _remove(self.draft, self.view)
        return self.outcome(decided, warnings)

    def refused(
        self, decided: model.Decision, reasons: Sequence[refusals.Refusal], warnings: tuple[str, ...]
    ) -> model.Outcome:
        """Likewise; if the pod asked by itself, its status says why, and warnings all that stands against it."""
        _remove(self.draft, self.view)
        told = pod_annotations.refused_status(carpool_injector.__version__, reasons[0]) if decided.explicit else None
        if told is not None:
            self.draft.annotate(pod_annotations.STATUS, json.dumps(told, separators=(",", ":")))
        warnings = (*(f"no sidecar: {each}" for each in reasons), *warnings)
        return self.outcome(decided, warnings, refusal=reasons[0], status=told)

    def left_alone(self, decided: model.Decision, why: str) -> model.Outcome:
        """A pod with a sidecar of which nothing is known stays as it is; its annotations may tell a person more."""
        refusal = Reason.UNKNOWN_SIDECAR(why=why)
        return model.Outcome(self._pod, decided, refusal=refusal, warnings=(f"no change of the sidecar: {refusal}",))


def _warnings(asked: decision.Asked) -> tuple[str, ...]:
    return (*decision.conflicts(asked), *pod_annotations.unknown(asked.pod.metadata.annotations))


def _known_callers(before: pod_annotations.Injected | None) -> references.Called:
    """What an earlier run was shown by its manifests: the webhook, which comes later, does not see Services."""
    if before is None or before.called_by is None:
        return {}
    old = {each.by_grpc: each.old for each in before.moves}
    ports = (old.get(False, before.app_port), old.get(True, before.grpc_app_port))
    return {port: before.called_by for port in ports if port}


def _put(draft: Draft, asked: context.Context, plan: model.Plan) -> pod_annotations.Injected:
    """Take the app's place as planned and put the sidecar in. Returns the status, which the pod has by then."""
    effects = choice.apply(draft, plan, asked.pod)
    built = container.build(asked.pod, plan, effects, asked.settings, asked.config)
    group, other = ("initContainers", "containers") if plan.native else ("containers", "initContainers")
    sidecar = container.merged(draft.sidecar(), built, asked.pod.metadata.annotations)
    draft.remove(other, model.CONTAINER)
    draft.put(group, sidecar)
    draft.put("volumes", container.volume())
    references.let_wait(draft.container(plan.container), plan.admin_port)
    port_start = container.needs_port_start(asked.pod, plan)
    if port_start:
        draft.set_sysctl(container.PORT_START, "0")
    done = _status_of(asked, plan, _pull_secrets(draft, asked), port_start)
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
    choice.revert(draft, done)
    references.let_go(draft.container(done.container), done.admin_port)
    for name in done.pull_secrets or ():
        draft.remove("imagePullSecrets", name)
    if done.port_start:
        draft.remove_sysctl(container.PORT_START)


def _remove(draft: Draft, pod: pods.Pod) -> None:
    """Take the status out, and container and volume if it says that they are ours."""
    if pod_annotations.read_status(pod) is not None:
        for group in edits.GROUPS:
            draft.remove(group, model.CONTAINER)
        draft.remove("volumes", pod_annotations.TOKEN_SHIELD)
    draft.unannotate(pod_annotations.STATUS)


def _status_of(
    asked: context.Context, plan: model.Plan, pull_secrets: list[str], port_start: bool
) -> pod_annotations.Injected:
    told = {each.by_grpc: each for each in plan.moves if each.told_by is not None}
    http, grpc = told.get(False), told.get(True)
    return pod_annotations.Injected(
        version=carpool_injector.__version__,
        config=asked.config.hash,
        takeover=plan.takeover,
        native=plan.native,
        container=plan.container,
        app_port=plan.app_port,
        listen_port=plan.listen_port,
        admin_port=plan.admin_port,
        told_by=http.told_by if http else None,
        added=http is not None and http.added,
        batcher=proxies.taken_batcher(asked.pod, plan),
        grpc_app_port=plan.grpc_app_port,
        grpc_listen_port=plan.grpc_listen_port,
        grpc_told_by=grpc.told_by if grpc else None,
        grpc_added=grpc.added if grpc else None,
        pull_secrets=pull_secrets or None,
        port_start=port_start or None,
        called_by=asked.site.proof or None,
    )


def _advice(asked: context.Context, plan: model.Plan) -> Iterator[str]:
    """Warnings for the person who applies the pod: it gets the sidecar, but not all of its benefits."""
    app, settings = asked.site.container, asked.settings
    yield from pod_annotations.batcher_warnings(asked.pod)
    yield from list_servers.advice(app, settings)
    yield from list_servers.advice_on_own_batches(app, settings)
    yield from list_servers.advice_on_choice(app, settings)
    limit, size = proxies.concurrency(asked.pod), settings.max_batch_size or BATCH_SIZE
    if 0 < limit < size:
        yield (
            f"containerConcurrency {limit} lets no batch grow beyond {limit} of {size}; set it to 0 and use a soft "
            "target (autoscaling.knative.dev/target)"
        )
    if references.has_own_stop(app):
        yield (
            f"container {app.name!r} has a preStop hook of its own, which is kept; it must last until the sidecar has "
            "drained (about 5 s)"
        )
    if container.outlasts_the_pod(asked.pod, settings):
        yield "carpool.dev/grace-period is longer than terminationGracePeriodSeconds, after which the pod is killed"
    yield from container.resource_advice(asked.pod, plan, settings)
    yield from meshes.advice(asked.pod, plan.admin_port)
