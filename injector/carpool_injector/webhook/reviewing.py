"""Answers reviews: looks up what the pure parts need to know, then counts and logs the outcome and writes Events.

An Event tells the owner of a pod that asked for the sidecar and was refused it. Warnings about pods reach the
controller that creates them, not a person; `kubectl describe` of the ReplicaSet or Job shows its Events. They are
written after the answer, from a short queue and at a limited rate; a failure is only logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from carpool.program import logs
from carpool_injector.api import kube
from carpool_injector.core import model
from carpool_injector.objects import restarts, review
from carpool_injector.webhook import cluster, metrics

log = logging.getLogger("carpool.injector")

_PAUSE = 0.1  # seconds: at most ten lines a second for each reason, however many pods are refused
_LONGEST = 260  # characters of what a caller names


class Reviewer:
    """The handlers of both webhooks.

    `inject` and `validate` are the pure functions, bound to a configuration. `tell` is called for each reviewed pod, to
    write Events. Dry runs get the same answers, but count as such and are not told.
    """

    def __init__(
        self,
        inject: review.Inject,
        validate: Callable[[review.Request], review.Verdict],
        namespaces: cluster.Namespaces,
        counts: metrics.Metrics,
        tell: Callable[[review.Request, model.Outcome], None] | None = None,
    ) -> None:
        self._inject = inject
        self._validate = validate
        self._namespaces = namespaces
        self._counts = counts
        self._tell = tell
        self._limited_log = logs.RateLimitedLog(log, interval=_PAUSE)

    async def mutate(self, request: review.Request) -> review.Answer:
        """What /mutate answers; raises refusals.Malformed and review.Unanswerable."""
        namespace = model.Namespace(request.namespace)
        if request.is_new_pod:
            namespace = await self._namespaces.get(request.namespace)
        verdict = review.mutate(request, namespace, self._inject)
        self._note("mutate", request, verdict)
        if verdict.outcome is not None and not request.dry_run:
            if verdict.outcome.plan is not None:
                self._counts.injected(verdict.outcome.plan)
            if self._tell is not None:
                self._tell(request, verdict.outcome)
        return verdict.answer

    async def validate(self, request: review.Request) -> review.Answer:
        """What /validate answers; raises as `mutate` does."""
        verdict = self._validate(request)
        self._note("validate", request, verdict)
        return verdict.answer

    def _note(self, webhook: str, request: review.Request, verdict: review.Verdict) -> None:
        result = "dry-run" if request.dry_run else verdict.result
        self._counts.reviewed(webhook, result, verdict.reason)
        is_refusal = verdict.result in ("refused", "denied")
        if not is_refusal and not log.isEnabledFor(logging.DEBUG):
            return
        texts = {
            "webhook": webhook, "uid": request.uid, "kind": request.kind, "namespace": request.namespace,
            "object": _name(request), "result": result, "reason": verdict.reason,
        }  # fmt: skip
        facts: model.Object = {name: text[:_LONGEST] for name, text in texts.items()}
        facts["warnings"] = len(verdict.answer.warnings)
        if is_refusal:
            self._limited_log.log(logging.INFO, verdict.reason, "reviewed", **facts)
        else:
            log.debug("reviewed", extra=logs.facts(**facts))


def _name(request: review.Request) -> str:
    metadata = (request.object or {}).get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return request.name or str(metadata.get("name") or f"{metadata.get('generateName', '')}*")


REASON = "CarpoolSidecarRefused"
_QUEUED = 256
_REMEMBERED = 1024
_REPEAT_AFTER = 600.0  # seconds: a ReplicaSet that keeps failing tells of it again
_EVENT_PAUSE = 0.1  # seconds between two events: at most ten a second, whatever is deployed
_TIMEOUT = 5.0
MESSAGE_LENGTH = 1024  # of an Event's note (k8s.io/kubernetes, pkg/apis/core/validation/events.go)


@dataclass(frozen=True, slots=True)
class Event:
    """A warning about `owner` (apiVersion, kind, name, uid) in a namespace, told again after so many seconds."""

    namespace: str
    owner: model.Object
    message: str
    reason: str = REASON
    again_after: float = _REPEAT_AFTER


class Events:
    """A bounded queue of Events. Start `deliver` in a task; `tell` and `put` never wait and never raise."""

    def __init__(self, api: kube.Kube, counts: metrics.Metrics, clock: Callable[[], float]) -> None:
        self._api = api
        self._counts = counts
        self._clock = clock
        self._limited_log = logs.RateLimitedLog(log, interval=1.0)
        # All mutable state: the Events to write, and when each was written last.
        self._queue: asyncio.Queue[Event] = asyncio.Queue(_QUEUED)
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()

    def tell(self, request: review.Request, outcome: model.Outcome) -> None:
        """Queues an Event for a refused pod that has an owner, unless it is a dry run or a repetition."""
        owner = restarts.owner_of(request.object or {})
        if owner is None or request.dry_run or outcome.refusal is None or outcome.result != "refused":
            return
        text = f"Pods are created without the Carpool sidecar: {outcome.refusal}"
        self.put(Event(request.namespace, owner, text[:MESSAGE_LENGTH]))

    def put(self, event: Event) -> None:
        """Queues an Event, unless it is a repetition."""
        if self._repeated(event):
            self._counts.events.labels("repeated").inc()
            return
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self._counts.events.labels("dropped").inc()

    async def deliver(self) -> None:
        """Writes the queued Events, until cancelled."""
        while True:
            await self._write(await self._queue.get())
            await asyncio.sleep(_EVENT_PAUSE)

    def _repeated(self, event: Event) -> bool:
        key, now = (str(event.owner.get("uid", "")), event.message), self._clock()
        told = self._told.get(key)
        if told is not None and now - told < event.again_after:
            return True
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return False

    async def _write(self, event: Event) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._api.create_event(event.namespace, event.owner, event.reason, event.message)
        except Exception as error:
            self._counts.events.labels("failed").inc()
            facts = {"namespace": event.namespace, "error": f"{type(error).__name__}: {error}"[:300]}
            self._limited_log.warning("failed", "an Event could not be written", **facts)
        else:
            self._counts.events.labels("sent").inc()
