"""May this pod be injected? `may_inject` is the whole answer: how, or every reason why not.

Who asks for the sidecar is another question (`decision.who_asks`). The steps stand in `may_inject` in their order; each
is a function that refuses by raising, and one that needs the result of another is left out where there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from carpool_injector.core import (
    container,
    list_rules,
    list_servers,
    meshes,
    model,
    pod_annotations,
    pods,
    references,
    sites,
)
from carpool_injector.core.config import Config
from carpool_injector.core.refusals import Reason, Refusal, Skip
from carpool_injector.core.settings import Settings
from carpool_injector.core.takeover import choice, context

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answer:
    """With a `plan` for this `site`, yes. Else `skip`: the pod was not meant; or `reasons`, the first that counts."""

    reasons: tuple[Refusal, ...] = ()
    skip: Skip | None = None
    site: context.Context | None = None
    plan: model.Plan | None = None


def may_inject(
    pod: pods.Pod,
    namespace: model.Namespace,
    config: Config,
    capabilities: model.Capabilities,
    called: references.Called | None = None,
    for_all: bool = False,
) -> Answer:
    """Whether and how this pod can get the sidecar, or all reasons why it cannot.

    `called` are the ports that Services target, as far as they are known. `for_all`: its namespace asks, for whatever
    runs in it.
    """
    reasons: list[Refusal] = []

    def tried(step: Callable[..., _T], *of: object) -> _T | None:
        try:
            return step(*of)
        except Refusal as refusal:
            reasons.append(refusal)
            return None

    settings = tried(pod_annotations.read_settings, sources(pod, namespace, config), config)
    if settings is not None and (skip := skip_reason(pod, settings.components)):
        return Answer(skip=skip)
    if settings is not None and for_all and list_servers.gains_nothing(pod, settings):
        return Answer(skip=Skip.BATCHES_ITSELF)
    reasons += [Reason.WINDOWS()] if pod.is_for_windows else []
    reasons += [Reason.HOST_NETWORK()] if pod.spec.host_network else []
    if settings is not None:
        tried(check_lists, pod, settings, config)
    tried(_check_names, pod, config)
    site = tried(sites.find, pod, settings, called) if settings is not None else None
    if settings is None or site is None:
        return Answer(tuple(reasons))
    listed = list_servers.chosen(site.container, settings)
    if listed is not None:
        settings = settings.model_copy(update={"lists": listed.rule})
    asked = context.Context(pod, site, settings, config, capabilities)
    plan = tried(choice.plan, asked)
    if plan is not None:
        tried(meshes.check, pod, plan.admin_port)
        tried(container.check_port_start, pod, plan)
    tried(container.period_flags, pod, settings)
    return Answer(tuple(reasons), None, asked, _told(plan, pod, listed) if plan and not reasons else None)


def sources(pod: pods.Pod, namespace: model.Namespace, config: Config) -> list[pod_annotations.Source]:
    """Where settings come from, the weakest first."""
    return [
        pod_annotations.defaults(config),
        pod_annotations.Source(namespace.annotations, f"namespace {namespace.name}"),
        pod_annotations.Source(pod_annotations.batcher_settings(pod), "KServe's batcher"),
        pod_annotations.Source(pod.metadata.annotations),
    ]


def skip_reason(pod: pods.Pod, components: str | None) -> Skip | None:
    """A reason where the request was meant for another pod, None where it was meant for this one.

    Annotations of an InferenceService reach its transformer, its explainer and the workers of a multi-node predictor.
    """
    if "kubernetes.io/config.mirror" in pod.metadata.annotations:
        return Skip.MIRROR_POD
    if not sites.is_kserve(pod):
        return None
    if pod.container("worker-container") is not None:
        return Skip.MULTI_NODE_WORKER
    component = pod.metadata.labels.get(pods.COMPONENT)
    wanted = (components or "predictor").split(",")
    return Skip.OTHER_COMPONENT if component is not None and component not in wanted else None


_PORT_NAMES = {*references.PORT_NAMES, container.ADMIN_PORT_NAME}


def _check_names(pod: pods.Pod, config: Config) -> None:
    """Raises `Refusal` for a container or volume of our name that may be something else: no status speaks of it.

    With the sidecar's own image it is the pod owner's way to add variables and mounts, which are kept.
    """
    if pod_annotations.read_status(pod) is not None:
        return
    if any(volume.name == pod_annotations.TOKEN_SHIELD for volume in pod.spec.volumes):
        raise Reason.VOLUME_NAME_TAKEN(name=pod_annotations.TOKEN_SHIELD)
    for found in pod.all_containers:
        for port in found.ports:
            if port.name in _PORT_NAMES and found.name != model.CONTAINER:
                raise Reason.PORT_NAME_TAKEN(container=found.name, name=port.name)
    images = {config.image, *config.channels.values()}
    own = pod.any_container(model.CONTAINER)
    if own is not None and own.image not in images:
        raise Reason.CONTAINER_NAME_TAKEN(name=model.CONTAINER, image=(own.image or "")[:80])


def check_lists(pod: pods.Pod, settings: Settings, config: Config) -> None:
    """Raises `Refusal` for files of rules that the sidecar's container does not mount: it would end at once.

    The admin's default may name a file that is part of the admin's image.
    """
    if settings.lists is None or settings.lists == config.defaults.get("lists"):
        return
    own = pod.any_container(model.CONTAINER)
    mounts = [str(mount.get("mountPath")).rstrip("/") for mount in (own.volume_mounts if own else ())]
    for file in list_rules.files(settings.lists):
        if not any(file == mount or file.startswith(f"{mount}/") for mount in mounts):
            raise Reason.LISTS_NOT_MOUNTED(file=file, name=model.CONTAINER)


def _told(plan: model.Plan, pod: pods.Pod, listed: list_servers.ListServer | None) -> model.Plan:
    """The plan, with what is done beside the takeover."""
    steps = [f"the sidecar batches lists by its rule {listed.rule}, as {listed.why}"] if listed else []
    if container.needs_port_start(pod, plan):
        step = f"the pod gets the sysctl {container.PORT_START}, so that the sidecar may listen on ports below 1024"
        steps.append(step)
    return dataclasses.replace(plan, steps=(*plan.steps, *steps), lists=listed.rule if listed else "")
