"""Pods that should have the sidecar and were created without it: found, counted and named in the log.

With failurePolicy Ignore a pod goes without whenever the webhook cannot be called, and nobody is told: the API server
writes a line into its own log. It happens while no injector answers, and for some seconds after a restart of the API
server, which reads its webhook configurations before it takes requests but not its Services, so that it does not know
yet where to send a review.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from carpool.program import logs
from carpool_injector.core import model, pod_annotations, refusals
from carpool_injector.webhook import metrics

log = logging.getLogger("carpool.injector")

PAUSE = 120.0  # seconds from one look to the next
_FIRST = 15.0  # seconds until the first one: the cache of namespaces comes first
_SHOWN = 5  # pods that a line of the log names
_ASKING = ("true", "enabled")
_NAME_LABEL = "kubernetes.io/metadata.name"
BY_POD, BY_NAMESPACE = "pod", "namespace"


class Source(Protocol):
    """Who knows pods and the registration; `kube.Kube` is one. All may raise anything when they cannot be had."""

    async def list_pod_metadata(self) -> list[model.Object]:
        """The metadata of all pods that have not ended."""

    async def list_pods(self, namespace: str | None = None, label_selector: str = "") -> list[model.Object]:
        """The pods of a namespace."""

    async def read_webhooks(self, kind: str, name: str) -> model.Object | None:
        """A webhook configuration."""


class MissedPods:
    """Start `follow` in a task.

    `namespaces` are those that are known by now. `inject` tells what would become of a pod, and may raise anything.
    """

    def __init__(
        self,
        source: Source,
        registration: str,
        namespaces: Callable[[], Mapping[str, model.Namespace]],
        inject: Callable[[model.Object, model.Namespace], model.Outcome],
        counts: metrics.Metrics,
    ) -> None:
        self._source = source
        self._registration = registration
        self._namespaces = namespaces
        self._inject = inject
        self._counts = counts
        # All mutable state: what was found last, so that the log tells of changes only.
        self._told: frozenset[str] = frozenset()

    async def follow(self) -> None:
        """Looks again and again, until cancelled. While nothing can be read the last counts stay."""
        await asyncio.sleep(_FIRST)
        while True:
            try:
                await self.look()
            except Exception as error:
                facts = logs.facts(error=f"{type(error).__name__}: {error}"[:300], again_in_seconds=PAUSE)
                log.warning("pods without their sidecar could not be looked for", extra=facts)
            await asyncio.sleep(PAUSE)

    async def look(self) -> None:
        """Counts the pods that are there now. Raises what the source raises."""
        reached = await self._reached()
        by_pod = {_name(pod) for pod in await self._source.list_pod_metadata() if _asks(pod) and _is_bare(pod)}
        by_pod = {name for name in by_pod if name.partition("/")[0] in reached}
        by_namespace = {
            _name(pod)
            for namespace in reached.values()
            if namespace.labels.get(pod_annotations.INJECT) in _ASKING
            for pod in await self._source.list_pods(namespace.name)
            if await self._would_be_injected(pod, namespace)
        }
        self._counts.missed.labels(BY_POD).set(len(by_pod))
        self._counts.missed.labels(BY_NAMESPACE).set(len(by_namespace - by_pod))
        self._tell(frozenset(by_pod | by_namespace))

    async def _would_be_injected(self, pod: model.Object, namespace: model.Namespace) -> bool:
        await asyncio.sleep(0)  # each costs up to a millisecond, and reviews come meanwhile
        if not _is_bare(pod) or _has_ended(pod):
            return False
        try:
            return self._inject(pod, namespace).result == "injected"
        except refusals.Malformed:
            return False

    async def _reached(self) -> dict[str, model.Namespace]:
        """The namespaces whose pods the API server sends us; all that are known where the registration is not ours."""
        found = await self._source.read_webhooks("MutatingWebhookConfiguration", self._registration)
        entries = (found or {}).get("webhooks") or [{}]
        selector = entries[0].get("namespaceSelector") or {}
        terms = selector.get("matchExpressions") or ()
        return {name: each for name, each in self._namespaces().items() if _matches(terms, each)}

    def _tell(self, found: frozenset[str]) -> None:
        if found - self._told:
            rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            shown = ", ".join(sorted(found)[:_SHOWN]) + rest
            text = "pods that should have the sidecar were created without it, restart them when it suits: %s"
            log.warning(text, shown, extra=logs.facts(pods=len(found)))
        self._told = found


def _matches(terms: Iterable[model.Object], namespace: model.Namespace) -> bool:
    """A selector's matchExpressions, as the API server reads them."""
    labels = {_NAME_LABEL: namespace.name, **namespace.labels}
    for term in terms:
        value, values = labels.get(str(term.get("key"))), term.get("values") or ()
        fits = {
            "In": value in values,
            "NotIn": value is None or value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not fits.get(str(term.get("operator")), True):
            return False
    return True


def _metadata(pod: model.Object) -> model.Object:
    found = pod.get("metadata")
    return found if isinstance(found, dict) else {}


def _name(pod: model.Object) -> str:
    return f"{_metadata(pod).get('namespace')}/{_metadata(pod).get('name')}"


def _asks(pod: model.Object) -> bool:
    labels, annotations = _metadata(pod).get("labels") or {}, _metadata(pod).get("annotations") or {}
    return bool(labels.get(pod_annotations.INJECT, annotations.get(pod_annotations.INJECT)) == "true")


def _is_bare(pod: model.Object) -> bool:
    """Whether the injector has never seen it: it leaves a status on each pod that asks, also where it refuses."""
    metadata = _metadata(pod)
    annotations = metadata.get("annotations") or {}
    is_mirror = "kubernetes.io/config.mirror" in annotations
    return pod_annotations.STATUS not in annotations and not metadata.get("deletionTimestamp") and not is_mirror


def _has_ended(pod: model.Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
