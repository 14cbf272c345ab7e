"""The general lane: decides what becomes of a request that came through aiohttp, and renders what went wrong.

Responses are written directly: aiohttp's general way of building and checking one costs as much as all the rest of a
request here.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from carpool_sidecar import errors
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.protocols import interface
from carpool_sidecar.server import headers, local_answers, predict, responses, unread
from carpool_sidecar.server.general import passthrough
from carpool_sidecar.upstream import readiness

_LANE: predict.LaneName = "general_lane"


class RequestHandler:
    """The aiohttp handler of the data port. `outcomes` is None when batching is off.

    `v1_models` answers for a predictor that does not speak v1 itself.
    """

    def __init__(
        self,
        rules: predict.PredictRules,
        outcomes: predict.Outcomes | None,
        relay: passthrough.PassThrough,
        ready: readiness.Readiness,
        v1_models: local_answers.V1Models | None = None,
    ) -> None:
        self._rules = rules
        self._outcomes = outcomes
        self._relay = relay
        self._ready = ready
        self._v1_models = v1_models
        self._life = rules.life
        self._metrics = rules.metrics

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
                return respond(request, responses.Dialect().error(self._rules.bug(_LANE)))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        refused = headers.objection(request.version, request.headers)
        if refused is not None:
            return refuse(request, refused)
        if local_answers.is_probe(request.headers):
            told = await local_answers.probe_answer(request.headers, self._life.draining, self._ready.check)
            return respond(request, told)
        if self._life.draining and local_answers.comes_from_prober(request.headers):
            return respond(request, local_answers.shutting_down())
        if self._v1_models is not None:
            told_instead = await self._v1_models.answer(request.method, request.raw_path)
            if told_instead is not None:
                return respond(request, told_instead)
        match = None
        if self._outcomes is not None:
            try:
                match = self._rules.routes.match(request.method, request.raw_path, request.headers)
            except errors.Unbatchable as verdict:
                self._metrics.unbatched(verdict.reason)
            else:
                if match is None and request.method == "POST":
                    self._metrics.unbatched(errors.NotBatched.OTHER_PATH)
        if self._outcomes is None or match is None:
            return await self._pass_on(request)
        return await self._batch(request, self._outcomes, match)

    async def _batch(
        self, request: web.BaseRequest, outcomes: predict.Outcomes, match: routes.Match
    ) -> web.StreamResponse:
        started = time.perf_counter()  # the loop's own clock may count whole milliseconds
        rules, clock = self._rules, asyncio.get_running_loop().time
        memory = rules.bodies.memory
        outcome: calls.Outcome
        body: bytes | None = None
        is_accepted = True
        try:
            self._life.check_open()
            if match.by_body is not None:
                body = await self._read(request, match)
            asked = clock()
            route = await rules.route(request.headers, match, body)
            spent = clock() - asked
            if body is None:
                body = await self._read(request, match)
            head = rules.head(request.raw_path, request.headers, match, route, spent)
            payload = await self._payload(head, body, match)
            outcome = await outcomes.of(head, payload, len(body), request.transport)
        except errors.Unbatchable as verdict:
            self._metrics.unbatched(verdict.reason)
            with memory.reserve(len(body or b"")):
                return await self._pass_on(request, body, match.error_words)
        except errors.CarpoolError as error:
            # Bare: else this frame and the error keep each other, and the body, alive.
            outcome, is_accepted = errors.bare(error), False
        except Exception:
            outcome, is_accepted = rules.bug(_LANE), False
        del body  # while the answer is delivered nothing needs it
        answer = rules.render_outcome(
            outcome,
            _LANE,
            time.perf_counter() - started,
            is_v1=match.protocol == "v1",
            is_accepted=is_accepted,
            words=match.error_words,
            host=request.headers.get("Host"),
        )
        response = respond(request, answer, close=self._life.parting)
        if len(answer.body) <= responses.LARGE:
            await deliver(request, response)
        else:
            with memory.reserve(len(answer.body)):
                await deliver(request, response, rules.patience.seconds(len(answer.body)))
        return response

    async def _read(self, request: web.BaseRequest, match: routes.Match) -> bytes:
        """The decoded body, within all limits; raises `errors.CarpoolError`.

        Raises `errors.Unbatchable`, with the body unread, where the media type speaks against a predict request and
        it is known beforehand that the body cannot be looked at.
        """
        if not match.says_so and not self._rules.bodies.can_read(request):
            raise errors.Unbatchable(errors.NotBatched.MEDIA_TYPE)
        return await self._rules.bodies.read(request)

    async def _payload(self, head: calls.Head, body: bytes, match: routes.Match) -> interface.Payload:
        """The rows of a decoded body; raises `errors.CarpoolError`.

        Raises `errors.Unbatchable` if it is valid but has to travel alone, or is what its media type says and no
        predict request at all.
        """
        codec, bodies = head.route.codec, self._rules.bodies
        most = int(self._rules.bounds.max_queue_instances)
        try:
            if len(body) < codec.large:
                return codec.parse(body, most, head.json_size)
            with bodies.memory.reserve(len(body)):
                return await bodies.turns.run(codec.parse_in_steps(body, most, head.json_size))
        except errors.BadRequest:
            if match.says_so:
                raise
            raise errors.Unbatchable(errors.NotBatched.MEDIA_TYPE) from None

    async def _pass_on(
        self, request: web.BaseRequest, body: bytes | None = None, words: calls.ErrorWords | None = None
    ) -> web.StreamResponse:
        try:
            self._life.check_open()
            response = await self._relay.handle(request, body)
        except errors.CarpoolError as error:
            response = respond(request, (responses.Dialect(words) if words else responses.Dialect()).error(error))
        except Exception:
            self._metrics.answered("passthrough", errors.STATUSES[errors.CarpoolError])
            raise
        self._metrics.answered("passthrough", response.status)
        return response


def respond(request: web.BaseRequest, answer: responses.Response, close: bool = False) -> web.StreamResponse:
    """The response for an answer; with `close` the connection ends after it."""
    if request.version == HttpVersion11 and request.method != "HEAD":
        return _Complete(answer, close or answer.close or not request.keep_alive)
    response = _Unnamed(status=answer.status, headers=CIMultiDict(answer.headers), body=answer.body)
    if close or answer.close:
        response.force_close()
    return response


def refuse(request: web.BaseRequest, answer: responses.Response) -> web.StreamResponse:
    """The response to a request of any version, in HTTP/1.1, after which the connection ends."""
    return _Complete(answer if request.method != "HEAD" else answer._replace(body=b""), close=True)


async def deliver(request: web.BaseRequest, response: web.StreamResponse, timeout: float | None = None) -> None:
    """Write a complete response; returns when all but the last of it is on its way, or all if there is a `timeout`.

    Left to aiohttp this happens after the handler, where nothing counts it: shutdown would cut it off, and a caller
    that does not read would keep its memory for good. After `timeout` seconds such a connection is aborted.
    """
    try:
        if timeout is None:
            await _write(request, response)
        else:
            async with asyncio.timeout(timeout):
                await _write_all(request, response)
    except TimeoutError:
        if request.transport is not None:
            unread.reset(request.transport)
    except ConnectionError:
        pass  # the caller left


async def _write(request: web.BaseRequest, response: web.StreamResponse) -> None:
    await response.prepare(request)
    await response.write_eof()


async def _write_all(request: web.BaseRequest, response: web.StreamResponse) -> None:
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the caller left")
    # The transport keeps all of a large piece until its last byte is sent, so it waits for the caller until then.
    transport.set_write_buffer_limits(0)
    try:
        await _write(request, response)
        await request.writer.drain()
    finally:
        if not transport.is_closing():
            transport.set_write_buffer_limits()


class _Unnamed(web.Response):
    """An answer to HEAD or over HTTP/1.0: the fields of any other, none of which names a server."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


class _Complete(web.StreamResponse):
    """An answer with its body in memory, to an HTTP/1.1 request that is not HEAD."""

    def __init__(self, answer: responses.Response, close: bool) -> None:
        super().__init__(status=answer.status)
        self._answer: responses.Response | None = answer
        self._closes = close

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        writer = request.writer
        if self._answer is not None:
            self._keep_alive = not self._closes
            # aiohttp keeps the response until the connection's next request: keep no body with it.
            pieces, self._answer = responses.render(self._answer, self._closes), None
            for piece in pieces:
                await writer.write(piece)
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """All is written by `prepare`."""
