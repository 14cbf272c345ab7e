"""Events for the owner of a pod that asked for the sidecar and did not get it.

Warnings about pods reach the controller that creates them, not a person; `kubectl describe` of the ReplicaSet or Job
shows its Events. They are a courtesy: written behind the answer, from a short queue, each seldom, and when one fails
the log says so and nothing else happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import logs, metrics

log = logging.getLogger("carpool.injector")

REASON = "CarpoolSidecarRefused"
_QUEUED = 256
_REMEMBERED = 1024
_REPEAT_AFTER = 600.0  # seconds: a ReplicaSet that keeps failing tells of it again
_PAUSE = 0.1  # seconds between two events: at most ten a second, whatever is deployed
_TIMEOUT = 5.0
_LONGEST_NAME = 320  # above what Kubernetes allows of an owner: what is queued and remembered has to be bounded
_MESSAGE_LENGTH = 1024  # of an Event's note (k8s.io/kubernetes, pkg/apis/core/validation/events.go)


@dataclass(frozen=True, slots=True)
class Event:
    """A warning about `owner` (apiVersion, kind, name, uid) in a namespace."""

    namespace: str
    owner: model.Object
    message: str
    reason: str = REASON


class Sink(Protocol):
    """Who writes Events; `kube.Kube` is one."""

    async def create_event(self, namespace: str, owner: model.Object, reason: str, message: str) -> None:
        """Writes a Warning; raises anything when that fails."""


class Events:
    """A bounded queue of Events. Start `deliver` in a task; `tell` never waits and never raises."""

    def __init__(self, sink: Sink, counts: metrics.Metrics, clock: Callable[[], float]) -> None:
        self._sink = sink
        self._counts = counts
        self._clock = clock
        self._seldom = logs.Seldom(log)
        # All mutable state: what waits, and what was told when.
        self._queue: asyncio.Queue[Event] = asyncio.Queue(_QUEUED)
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()

    def tell(self, request: review.Request, outcome: model.Outcome) -> None:
        """Queues an Event for a refused pod that has an owner, unless the same was told lately or it is a dry run."""
        event = None if request.dry_run else _event(request, outcome)
        if event is None:
            return
        if self._repeated(event):
            self._counts.events.labels("repeated").inc()
            return
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self._counts.events.labels("dropped").inc()

    async def deliver(self) -> None:
        """Writes what was told, until cancelled."""
        while True:
            await self._write(await self._queue.get())
            await asyncio.sleep(_PAUSE)

    def _repeated(self, event: Event) -> bool:
        key, now = (str(event.owner.get("uid", "")), event.message), self._clock()
        told = self._told.get(key)
        if told is not None and now - told < _REPEAT_AFTER:
            return True
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return False

    async def _write(self, event: Event) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._sink.create_event(event.namespace, event.owner, event.reason, event.message)
        except Exception as error:
            self._counts.events.labels("failed").inc()
            facts = {"namespace": event.namespace, "error": f"{type(error).__name__}: {error}"[:300]}
            self._seldom.warning("failed", "an Event could not be written", **facts)
        else:
            self._counts.events.labels("sent").inc()


def _event(request: review.Request, outcome: model.Outcome) -> Event | None:
    owner = _owner(request.object or {})
    if owner is None or outcome.refusal is None or outcome.result != "refused":
        return None
    text = f"Pods are created without the Carpool sidecar: {outcome.refusal}"
    return Event(request.namespace, owner, text[:_MESSAGE_LENGTH])


def _owner(pod: model.Object) -> model.Object | None:
    """The owner that manages the pod; None when it has none that can be named."""
    references = (pod.get("metadata") or {}).get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict) and reference.get("controller") is True and _is_named(reference):
            return {key: reference[key] for key in ("apiVersion", "kind", "name", "uid")}
    return None


def _is_named(reference: model.Object) -> bool:
    texts = [reference.get(key) for key in ("apiVersion", "kind", "name", "uid")]
    return all(isinstance(text, str) and 0 < len(text) <= _LONGEST_NAME for text in texts)
