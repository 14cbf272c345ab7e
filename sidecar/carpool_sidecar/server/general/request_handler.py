"""The data port: decides which lane a request takes, and renders what went wrong."""

from __future__ import annotations

import asyncio
import logging
import time

from aiohttp import web

from carpool_sidecar import drain, errors, metrics
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.server import dialects, framing, health, predict, response_bytes, v1_models
from carpool_sidecar.server.general import aiohttp_responses, passthrough
from carpool_sidecar.upstream import readiness

log = logging.getLogger("carpool.sidecar.server")


class Front:
    """The aiohttp handler of the data port. `lane` is None when batching is off.

    `v1_models` answers for a predictor that does not speak v1 itself.
    """

    def __init__(
        self,
        lane: predict.PredictLane | None,
        relay: passthrough.PassThrough,
        ready: readiness.Readiness,
        life: drain.Lifecycle,
        counters: metrics.Metrics,
        v1_models: v1_models.V1Models | None = None,
    ) -> None:
        self._lane = lane
        self._v1_models = v1_models
        self._relay = relay
        self._ready = ready
        self._life = life
        self._metrics = counters

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; errors become answers here and nowhere else.

        What is nobody's decision but a bug is logged and answered 500, in every lane, as long as no byte of an answer
        was sent; after that the connection is closed.
        """
        with self._life.ledger.reserve(requests=1):
            try:
                return await self._answer(request)
            except Exception:
                if request.writer.output_size:
                    raise  # the server logs it and closes the connection
                self._bug()
                return aiohttp_responses.respond(request, dialects.Dialect().error(errors.CarpoolError()))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        refused = framing.objection(request.version, request.headers)
        if refused is not None:
            return aiohttp_responses.refuse(request, refused)
        if health.is_probe(request.headers):
            told = await health.answer(request.headers, self._life.draining, self._ready.check)
            return aiohttp_responses.respond(request, told)
        if self._life.draining and health.comes_from_prober(request.headers):
            return aiohttp_responses.respond(request, health.shutting_down())
        if self._v1_models is not None:
            told_instead = await self._v1_models.answer(request.method, request.raw_path)
            if told_instead is not None:
                return aiohttp_responses.respond(request, told_instead)
        lane = self._lane
        if lane is None:
            return await self._pass_on(request)
        try:
            match = lane.routes.match(request.method, request.raw_path, request.headers)
        except errors.Unbatchable as verdict:
            self._metrics.unbatched(verdict.reason)
            match = None
        if match is None:
            return await self._pass_on(request)
        return await self._batch(request, lane, match)

    async def _batch(
        self, request: web.BaseRequest, lane: predict.PredictLane, match: routes.Match
    ) -> web.StreamResponse:
        started = time.perf_counter()  # the loop's own clock may count whole milliseconds
        clock = asyncio.get_running_loop().time
        outcome: calls.Outcome
        body: bytes | None = None
        try:
            self._life.check_open()
            asked = clock()
            route = await lane.route(request.headers, match)
            spent = clock() - asked
            body = await lane.read(request, match)
            outcome = await lane.outcome(request, body, match, route, spent)
            answer = lane.tell(outcome, match.is_v1)
        except errors.Unbatchable as verdict:
            self._metrics.unbatched(verdict.reason)
            with lane.hold(body or b""):
                return await self._pass_on(request, body)
        except errors.CarpoolError as error:
            outcome = errors.bare(error)  # else this frame and the error keep each other, and the body, alive
            answer = lane.tell_early(outcome, match.is_v1)
        except Exception:
            self._bug()
            outcome = errors.CarpoolError()
            answer = lane.tell_early(outcome, match.is_v1)
        if isinstance(outcome, errors.CarpoolError):
            self._metrics.refused.labels(outcome.reason).inc()
        self._metrics.predicted(answer.status, time.perf_counter() - started)
        response = aiohttp_responses.respond(request, answer, close=self._life.draining)
        if len(answer.body) <= response_bytes.LARGE:
            await aiohttp_responses.deliver(request, response)
        else:
            with lane.hold(answer.body):
                await aiohttp_responses.deliver(request, response, lane.time_to_read(len(answer.body)))
        return response

    def _bug(self) -> None:
        """Tell of the exception that is being handled."""
        self._metrics.internal_errors.labels("general_lane").inc()
        log.exception("a request failed for a reason that is a bug")

    async def _pass_on(self, request: web.BaseRequest, body: bytes | None = None) -> web.StreamResponse:
        try:
            self._life.check_open()
            response = await self._relay.handle(request, body)
        except errors.CarpoolError as error:
            response = aiohttp_responses.respond(request, dialects.Dialect().error(error))
        except Exception:
            self._metrics.answered("passthrough", errors.STATUSES[errors.CarpoolError])
            raise
        self._metrics.answered("passthrough", response.status)
        return response
