"""Pods that should have the sidecar and were created without it: found, counted, named in the log, told to owners.

With failurePolicy Ignore a pod goes without whenever the webhook cannot be called, and nobody is told: the API server
writes a line into its own log. It happens while no injector answers, and for some seconds after a restart of the API
server, which reads its webhook configurations before it takes requests but not its Services, so that it does not know
yet where to send a review.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Set

from carpool.program import logs
from carpool_injector import rounds
from carpool_injector.api import kube
from carpool_injector.core import model, pod_annotations, refusals
from carpool_injector.objects import reach, restarts, review
from carpool_injector.webhook import metrics, reviewing

log = logging.getLogger("carpool.injector")

PAUSE = 120.0  # seconds from one look to the next
_FIRST = 15.0  # seconds until the first one: the cache of namespaces comes first
_SHOWN = 5  # pods that a line of the log names
_ASKING = ("true", "enabled")
BY_POD, BY_NAMESPACE = "pod", "namespace"
REASON = "CarpoolSidecarMissed"
_AGAIN_AFTER = 3600.0  # seconds: as long as the API server keeps an Event


def would_inject(
    inject: review.Inject, namespaces: Callable[[], Mapping[str, model.Namespace]], pod: model.Object
) -> bool:
    """Whether a pod like this one would get the sidecar; none that is malformed."""
    name = pod["metadata"]["namespace"]
    try:
        return inject(pod, namespaces().get(name, model.Namespace(name))).result == "injected"
    except refusals.Malformed:
        return False


class MissedPods:
    """Start `follow` in a task.

    `namespaces` are those that are known by now; `injects` tells whether a pod would get the sidecar. `put` is called
    with an Event for each owner of such pods, `restart` with all of them, as namespace and name.
    """

    def __init__(
        self,
        api: kube.Kube,
        registration: str,
        namespaces: Callable[[], Mapping[str, model.Namespace]],
        injects: Callable[[model.Object], bool],
        counts: metrics.Metrics,
        put: Callable[[reviewing.Event], None] | None = None,
        restart: Callable[[Set[tuple[str, str]]], Awaitable[None]] | None = None,
    ) -> None:
        self._api = api
        self._registration = registration
        self._namespaces = namespaces
        self._injects = injects
        self._counts = counts
        self._put = put
        self._restart = restart
        # All mutable state: what was found last, so that the log tells of changes only.
        self._told: frozenset[str] = frozenset()

    async def follow(self) -> None:
        """Looks again and again, until cancelled. While nothing can be read the last counts stay."""
        await asyncio.sleep(_FIRST)
        await rounds.repeat(self.look, _failed, first=PAUSE, longest=PAUSE)

    async def look(self) -> float:
        """Counts and tells of the pods that are there now; the seconds until the next look. Raises calls.Failure."""
        registration = await self._api.read_webhooks("MutatingWebhookConfiguration", self._registration)
        # Whose pods the API server sends us; all that are known where the registration is not ours.
        reached = reach.reached(registration, self._namespaces().values())
        bare = {_name(pod): pod for pod in await self._api.list_pod_metadata() if _asks(pod) and _is_bare(pod)}
        by_pod = {name: pod for name, pod in bare.items() if name[0] in reached}
        by_namespace = {
            _name(pod): pod
            for namespace in reached.values()
            if namespace.labels.get(pod_annotations.INJECT) in _ASKING
            for pod in await self._api.list_pods(namespace.name)
            if await self._would_get_it(pod)
        }
        self._counts.missed.labels(BY_POD).set(len(by_pod))
        self._counts.missed.labels(BY_NAMESPACE).set(len(by_namespace.keys() - by_pod.keys()))
        found = {**by_namespace, **by_pod}
        self._tell(frozenset("/".join(name) for name in found))
        if self._put is not None:
            for event in _events(found):
                self._put(event)
        if self._restart is not None:
            await self._restart(found.keys())
        return PAUSE

    async def _would_get_it(self, pod: model.Object) -> bool:
        await asyncio.sleep(0)  # each costs up to a millisecond, and reviews come meanwhile
        return _is_bare(pod) and not has_ended(pod) and self._injects(pod)

    def _tell(self, found: frozenset[str]) -> None:
        if found - self._told:
            rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            shown = ", ".join(sorted(found)[:_SHOWN]) + rest
            text = "pods that should have the sidecar were created without it, restart them when it suits: %s"
            log.warning(text, shown, extra=logs.facts(pods=len(found)))
        self._told = found


def _failed(error: Exception, again_in_seconds: float) -> None:
    facts = logs.facts(error=f"{type(error).__name__}: {error}"[:300], again_in_seconds=again_in_seconds)
    log.warning("pods without their sidecar could not be looked for", extra=facts)


def _name(pod: model.Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _events(found: Mapping[tuple[str, str], model.Object]) -> Iterator[reviewing.Event]:
    """An Event for each owner of these pods; of one that has none, about itself."""
    by_owner: dict[str, list[model.Object]] = {}
    for pod in (found[place] for place in sorted(found)):
        uid = (restarts.owner_of(pod) or pod["metadata"])["uid"]
        by_owner.setdefault(uid, []).append(pod)
    for pods in by_owner.values():
        first = pods[0]
        namespace, name = _name(first)
        itself = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": first["metadata"]["uid"]}
        shown = name if len(pods) == 1 else f"{name} and {len(pods) - 1} more"
        text = (
            f"Created without the Carpool sidecar that it should have: {shown}. No injector could be called then, or "
            f"it was asked for later. To get it: {restarts.advice(first)}"
        )
        owner = restarts.owner_of(first) or itself
        yield reviewing.Event(namespace, owner, text[: reviewing.MESSAGE_LENGTH], REASON, _AGAIN_AFTER)


def _asks(pod: model.Object) -> bool:
    labels, annotations = pod["metadata"].get("labels") or {}, pod["metadata"].get("annotations") or {}
    return bool(labels.get(pod_annotations.INJECT, annotations.get(pod_annotations.INJECT)) == "true")


def _is_bare(pod: model.Object) -> bool:
    """Whether the injector has never seen it: it leaves a status on each pod that asks, also where it refuses."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    is_mirror = "kubernetes.io/config.mirror" in annotations
    return pod_annotations.STATUS not in annotations and not metadata.get("deletionTimestamp") and not is_mirror


def has_ended(pod: model.Object) -> bool:
    """Whether its containers run no more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
