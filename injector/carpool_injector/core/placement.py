"""The sidecar into a draft and out of it again: its container, its volume, the app's hook, the status."""

from __future__ import annotations

import carpool_injector
from carpool_injector.core import container, edits, model, pod_annotations, pods, status
from carpool_injector.core.config import Config
from carpool_injector.core.copy_on_write import Draft
from carpool_injector.core.errors import Refusal
from carpool_injector.core.takeover import choice, context

_HOOK = "preStop"
_PORT_NAMES = (
    edits.APP_PORT_NAME, edits.APP_GRPC_PORT_NAME, container.ADMIN_PORT_NAME, context.DATA_PORT_NAME,
    context.GRPC_PORT_NAME,
)  # fmt: skip


def check_names(pod: pods.Pod, config: Config) -> None:
    """Raises `Refusal` for a container or volume of our name that may be something else: no status speaks of it.

    With the sidecar's own image it is the pod owner's way to add variables and mounts, which are kept.
    """
    if status.read(pod) is not None:
        return
    if any(volume.name == container.TOKEN_SHIELD for volume in pod.spec.volumes):
        raise Refusal("name-taken", f"there is a volume named {container.TOKEN_SHIELD!r} already", "rename it")
    for found in pod.all_containers:
        for port in found.ports:
            if port.name in _PORT_NAMES and found.name != model.CONTAINER:
                raise Refusal("name-taken", f"a port of container {found.name!r} is named {port.name!r}", "rename it")
    images = {config.image, *config.channels.values()}
    for found in pod.all_containers:
        if found.name == model.CONTAINER and found.image not in images:
            raise Refusal(
                "name-taken",
                f"there is a container named {model.CONTAINER!r} already, with the image {(found.image or '')[:80]!r}",
                "rename it; or give it the sidecar's image, and its variables and mounts are kept",
            )


def put(draft: Draft, asked: context.Context, plan: model.Plan) -> status.Injected:
    """Take the app's place as planned and put the sidecar in. Returns the status, which the pod has by then."""
    effects = choice.WAYS[plan.takeover].apply(draft, plan, asked)
    app = draft.container(plan.container)
    if effects.readiness is None and app.get("readinessProbe"):
        effects = effects.with_readiness(edits.resolved_probe(app, app["readinessProbe"]))
    built = container.build(asked.pod, plan, effects, asked.settings, asked.config)
    group, other = ("initContainers", "containers") if plan.native else ("containers", "initContainers")
    sidecar = container.merged(draft.sidecar(), built)
    draft.remove(other, model.CONTAINER)
    draft.put(group, sidecar)
    draft.put("volumes", container.volume())
    _hook(app, plan.admin_port)
    done = _status(asked, plan, effects)
    draft.annotate(pod_annotations.STATUS, done.text())
    return done


def revert(draft: Draft, done: status.Injected) -> None:
    """Give the app its place back; the sidecar itself stays where it is, for `put` or `remove`."""
    choice.WAYS[done.takeover].revert(draft, done)
    _unhook(draft.container(done.container), done.admin_port)


def remove(draft: Draft, pod: pods.Pod) -> None:
    """Take the status out, and container and volume if it says that they are ours."""
    if status.read(pod) is not None:
        for group in ("initContainers", "containers"):
            draft.remove(group, model.CONTAINER)
        draft.remove("volumes", container.TOKEN_SHIELD)
    draft.unannotate(pod_annotations.STATUS)


def _status(asked: context.Context, plan: model.Plan, effects: context.Effects) -> status.Injected:
    return status.Injected(
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
