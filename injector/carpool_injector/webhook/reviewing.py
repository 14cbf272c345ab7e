"""Answers reviews: looks up what the pure parts need to know, and counts, logs and tells what came of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Protocol

from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import logs, metrics

log = logging.getLogger("carpool.injector")

_PAUSE = 0.1  # seconds: at most ten lines a second for each reason, however many pods are refused
_LONGEST = 260  # characters of what a caller names


class Lookup(Protocol):
    """Who knows namespaces; `namespaces.Namespaces` is one."""

    async def get(self, name: str) -> model.Namespace:
        """The namespace of this name; raises review.Unanswerable when that cannot be told."""


class Reviewer:
    """The handlers of both webhooks.

    `inject` and `validate` are the pure functions, bound to a configuration. `tell` hears of each pod that was looked
    at, to write Events. Dry runs get the same answers, but count as such and are not told.
    """

    def __init__(
        self,
        inject: review.Inject,
        validate: Callable[[review.Request], review.Verdict],
        namespaces: Lookup,
        counts: metrics.Metrics,
        tell: Callable[[review.Request, model.Outcome], None] = lambda request, outcome: None,
    ) -> None:
        self._inject = inject
        self._validate = validate
        self._namespaces = namespaces
        self._counts = counts
        self._tell = tell
        self._seldom = logs.Seldom(log, _PAUSE)

    async def mutate(self, request: review.Request) -> review.Answer:
        """What /mutate answers; raises errors.Malformed and review.Unanswerable."""
        namespace = model.Namespace(request.namespace)
        if request.is_new_pod:
            namespace = await self._namespaces.get(request.namespace)
        verdict = review.mutate(request, namespace, self._inject)
        self._note("mutate", request, verdict)
        if verdict.outcome is not None and not request.dry_run:
            if verdict.outcome.plan is not None:
                self._counts.injected(verdict.outcome.plan)
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
        facts = functools.partial(_facts, webhook, request, verdict, result)
        if verdict.result in ("refused", "denied"):
            self._seldom.log(logging.INFO, verdict.reason, "reviewed", **facts())
        elif log.isEnabledFor(logging.DEBUG):
            log.debug("reviewed", extra=logs.facts(**facts()))


def _facts(webhook: str, request: review.Request, verdict: review.Verdict, result: str) -> model.Object:
    texts = {
        "webhook": webhook, "uid": request.uid, "kind": request.kind, "namespace": request.namespace,
        "object": _name(request), "result": result, "reason": verdict.reason,
    }  # fmt: skip
    return {name: text[:_LONGEST] for name, text in texts.items()} | {"warnings": len(verdict.answer.warnings)}


def _name(request: review.Request) -> str:
    metadata = (request.object or {}).get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return request.name or str(metadata.get("name") or f"{metadata.get('generateName', '')}*")
