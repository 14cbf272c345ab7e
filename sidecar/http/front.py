"""The data port: decides which lane a request takes, and renders what went wrong."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from sidecar import calls, errors, lifecycle, metrics
from sidecar.http import answers, health, passthrough, predict, responses
from sidecar.upstream import readiness
from sidecar.wire import v1

log = logging.getLogger("carpool.http")


class Front:
    """The aiohttp handler of the data port. `lane` is None when batching is off."""

    def __init__(
        self,
        lane: predict.PredictLane | None,
        relay: passthrough.PassThrough,
        ready: readiness.Readiness,
        life: lifecycle.Lifecycle,
        counters: metrics.Metrics,
    ) -> None:
        self._lane = lane
        self._relay = relay
        self._ready = ready
        self._life = life
        self._metrics = counters

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; errors become answers here and nowhere else."""
        self._life.enter()
        try:
            if health.is_probe(request.headers):
                return responses.respond(
                    request, await health.answer(request.headers, self._life.draining, self._ready.check)
                )
            if self._life.draining and health.comes_from_prober(request.headers):
                return responses.respond(request, health.shutting_down())
            if self._lane and predict.is_batchable(request.method, request.raw_path, request.headers):
                return await self._batch(request, self._lane)
            return await self._pass_on(request)
        finally:
            self._life.leave()

    async def _batch(self, request: web.BaseRequest, lane: predict.PredictLane) -> web.StreamResponse:
        started = asyncio.get_running_loop().time()
        outcome: calls.Outcome
        try:
            self._life.check_open()
            body = await lane.read(request)
            outcome = await lane.outcome(request, body)
            answer = lane.tell(outcome)
        except v1.Columnar:
            return await self._pass_on(request, body)
        except errors.CarpoolError as error:
            outcome = error
            answer = lane.tell_early(error)
        except Exception:
            log.exception("a request failed for a reason that is a bug")
            outcome = errors.CarpoolError()
            answer = lane.tell_early(outcome)
        if isinstance(outcome, errors.CarpoolError):
            self._metrics.refused.labels(outcome.reason).inc()
        self._metrics.answered("batched", answer.status)
        self._metrics.request_seconds.observe(asyncio.get_running_loop().time() - started)
        return responses.respond(request, answer, close=self._life.draining)

    async def _pass_on(self, request: web.BaseRequest, body: bytes | None = None) -> web.StreamResponse:
        try:
            self._life.check_open()
            response = await self._relay.handle(request, body)
        except errors.CarpoolError as error:
            response = responses.respond(request, answers.Dialect().error(error))
        self._metrics.answered("passthrough", response.status)
        return response
