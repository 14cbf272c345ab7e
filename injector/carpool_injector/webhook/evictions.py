"""Pods that missed the sidecar are evicted, if the admin wants that, so that their owners make new ones that have it.

Carefully: one pod of each owner in a look, and while its others are ready; only pods that would be injected now; within
PodDisruptionBudgets, which the API server holds evictions to. An owner whose new pods miss the sidecar again is left
alone for an hour.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterator, Set

from carpool.program import logs
from carpool_injector.api import calls, kube
from carpool_injector.core import model
from carpool_injector.objects import restarts
from carpool_injector.webhook import metrics, missed

log = logging.getLogger("carpool.injector")

_AT_ONCE = 10  # evictions in a look, however many owners have pods to restart
_LEFT_ALONE = datetime.timedelta(hours=1)
_REMEMBERED = 4096  # owners
# Annotations by which a pod asks not to be moved (cluster-autoscaler, Karpenter), and what they say then.
_DO_NOT_DISTURB = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


class Evictions:
    """`restart` is called with the pods that were found. `injects` tells whether a new pod would get the sidecar."""

    def __init__(
        self,
        api: kube.Kube,
        injects: Callable[[model.Object], bool],
        is_ready: Callable[[], bool],
        counts: metrics.Metrics,
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._api = api
        self._injects = injects
        self._is_ready = is_ready
        self._counts = counts
        self._now = now
        # All mutable state: when a pod of each owner was evicted last, by the owner's uid.
        self._last: dict[str, datetime.datetime] = {}

    async def restart(self, found: Set[tuple[str, str]]) -> None:
        """Evicts some of these pods, given as namespace and name. Raises what `list_pods` raises."""
        left = _AT_ONCE
        for namespace in sorted({namespace for namespace, _ in found}) if self._is_ready() else ():
            names = {name for space, name in found if space == namespace}
            for owner, members in _by_owner(await self._api.list_pods(namespace)):
                chosen = self._chosen(owner, members, names) if left else None
                if chosen is not None:
                    left -= 1
                    await self._evict(namespace, owner, chosen)

    def _chosen(self, owner: model.Object, members: list[model.Object], missed: Set[str]) -> model.Object | None:
        wanted = [pod for pod in members if pod["metadata"]["name"] in missed and _may_go(pod)]
        last = self._last.get(owner["uid"])
        if not wanted or any(pod["metadata"].get("deletionTimestamp") for pod in members):
            return None
        if last is not None and self._now() - last < _LEFT_ALONE and any(_created(pod) >= last for pod in wanted):
            return None  # new pods miss it as well
        unready = [pod for pod in members if not _is_ready(pod)]
        candidates = [pod for pod in wanted if pod in unready] or ([] if unready else wanted)
        candidates.sort(key=lambda pod: str(pod["metadata"]["name"]))  # which other replicas choose as well
        return next((pod for pod in candidates if self._injects(pod)), None)

    async def _evict(self, namespace: str, owner: model.Object, pod: model.Object) -> None:
        metadata = pod["metadata"]
        facts = {"namespace": namespace, "pod": metadata["name"], "owner": f"{owner['kind']}/{owner['name']}"}
        try:
            await self._api.evict_pod(namespace, metadata["name"], metadata["uid"])
        except Exception as error:
            result = "refused" if isinstance(error, calls.Unavailable) else "failed"
            self._counts.restarts.labels(result).inc()
            log.info("a pod without its sidecar was not evicted: %s", error, extra=logs.facts(**facts))
            return
        self._last.pop(owner["uid"], None)  # the newest last
        self._last[owner["uid"]] = self._now().replace(microsecond=0)
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
        self._counts.restarts.labels("evicted").inc()
        log.info("a pod without its sidecar was evicted", extra=logs.facts(**facts))


def _by_owner(pods: list[model.Object]) -> Iterator[tuple[model.Object, list[model.Object]]]:
    """The pods of each owner that makes new ones."""
    found: dict[str, tuple[model.Object, list[model.Object]]] = {}
    for pod in pods:
        owner = restarts.owner_of(pod)
        if owner is not None and owner["kind"] in restarts.MAKERS and not missed.has_ended(pod):
            found.setdefault(owner["uid"], (owner, []))[1].append(pod)
    yield from found.values()


def _may_go(pod: model.Object) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return not any(annotations.get(key) == value for key, value in _DO_NOT_DISTURB.items())


def _created(pod: model.Object) -> datetime.datetime:
    return datetime.datetime.fromisoformat(str(pod["metadata"]["creationTimestamp"]))


def _is_ready(pod: model.Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
