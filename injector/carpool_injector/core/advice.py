"""Warnings about pods that get the sidecar and will not get all of its good: each with what to change."""

from __future__ import annotations

from collections.abc import Iterator

from carpool_injector.core import kserve_batcher, model, periods, pods
from carpool_injector.core.takeover import context, queue_proxy

_BATCH_SIZE = 32  # what the sidecar takes when it is told nothing
_KNATIVE_DRAIN = "/wait-for-drain"
_ISTIOS_HOOKS = "/app-lifecycle/"  # ours, rewritten by Istio


def warnings(asked: context.Context, plan: model.Plan) -> Iterator[str]:
    """Sentences for the person who applies the pod."""
    yield from kserve_batcher.warnings(asked.pod)
    yield from _concurrency(asked)
    yield from _own_hook(asked.site.container)
    if periods.is_too_long(asked.pod, asked.settings):
        yield "carpool.dev/grace-period is longer than terminationGracePeriodSeconds, after which the pod is killed"
    yield from _istio(asked.pod, plan)


def _concurrency(asked: context.Context) -> Iterator[str]:
    limit, size = queue_proxy.concurrency(asked.pod), asked.settings.max_batch_size or _BATCH_SIZE
    if 0 < limit < size:
        yield (
            f"containerConcurrency {limit} lets no batch grow beyond {limit} of {size}; set it to 0 and use a soft "
            "target (autoscaling.knative.dev/target)"
        )


def _own_hook(app: pods.Container) -> Iterator[str]:
    hook = app.lifecycle.pre_stop if app.lifecycle else None
    path = (hook.http_get.path if hook and hook.http_get else None) or ""
    if hook is None or path == _KNATIVE_DRAIN or path.startswith(_ISTIOS_HOOKS):
        return
    yield (
        f"container {app.name!r} has a preStop hook of its own, which is kept; it must last until the sidecar has "
        "drained (about 5 s)"
    )


def _istio(pod: pods.Pod, plan: model.Plan) -> Iterator[str]:
    ours = next((container for container in pod.all_containers if container.name == model.CONTAINER), None)
    if ours is None and any(container.name == "istio-proxy" for container in pod.all_containers):
        yield (
            "Istio was injected first, so it does not rewrite the sidecar's probes; with strict mTLS set "
            f'traffic.sidecar.istio.io/excludeInboundPorts: "{plan.admin_port}"'
        )
