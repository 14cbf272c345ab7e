"""What becomes of a request that is no plain predict request: an answer of our own, a call in a batch, or the relay.

Own answers are given at once where nobody has to be asked. A call whose head or body is unusual gets a task, which
reads, asks and waits; the relay is callbacks only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from aiohttp import hdrs

from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.protocols import interface
from carpool_sidecar.server import content_coding, headers, local_answers, predict, responses
from carpool_sidecar.server.http1 import bodies, exchange, messages, relay, requests
from carpool_sidecar.upstream import readiness

_MOST_HEADS: Final = 512 * 1024  # bytes of heads that are remembered

_Work = Callable[[exchange.Exchange], Coroutine[object, object, None]]


class Handler:
    """Answers exchanges. `plain` is None when batching is off.

    `v1_models` answers for a predictor that does not speak v1 itself.
    """

    def __init__(
        self,
        rules: predict.PredictRules,
        plain: requests.PlainRequests | None,
        relays: relay.Relays,
        ready: readiness.Readiness,
        v1_models: local_answers.V1Models | None = None,
    ) -> None:
        self._rules = rules
        self._plain = plain
        self._relays = relays
        self._ready = ready
        self._v1_models = v1_models
        self._life = rules.life
        self._metrics = rules.metrics
        self._heads: caches.Cache[bytes, messages.RequestHead] = caches.Cache("read_heads", _MOST_HEADS)

    def read_head(self, text: bytes) -> messages.RequestHead:
        """As `messages.read_head`, which raises `messages.Malformed`; heads repeat."""
        found = self._heads.get(text)
        if found is None:
            found = messages.read_head(text)
            self._heads.put(text, found, len(text))
        return found

    def begin(self, asked: exchange.Exchange) -> None:
        """Answer a request, now or later; errors become answers here and nowhere else.

        What is nobody's decision but a bug is logged and answered 500, as long as no byte of an answer was sent; after
        that the connection is closed.
        """
        try:
            self._begin(asked)
        except Exception:
            self._bug(asked)

    def _begin(self, asked: exchange.Exchange) -> None:
        head, life, models = asked.head, self._life, self._v1_models
        refused = headers.objection(head.version, head.headers)
        if refused is not None:
            self._metrics.malformed.labels(refused.status).inc()
            self._respond(asked, refused)
        elif local_answers.is_probe(head.headers):
            ready = self._ready.check
            self._tell(asked, lambda: local_answers.probe_answer(head.headers, life.draining, ready))
        elif life.draining and local_answers.comes_from_prober(head.headers):
            self._respond(asked, local_answers.shutting_down())
        elif models is not None and models.answers(head.method, head.target):
            if life.admits():
                self._tell(asked, lambda: models.answer(head.target))
            else:
                self._respond(asked, responses.Dialect().error(errors.Draining()))
        else:
            self._serve(asked)

    def _serve(self, asked: exchange.Exchange) -> None:
        """Put it in a batch, or pass it on."""
        head, match = asked.head, None
        if self._plain is not None:
            try:
                match = self._rules.routes.match(head.method, head.target, head.headers)
            except errors.Unbatchable as verdict:
                self._metrics.unbatched(verdict.reason)
            else:
                if match is None and head.method == "POST":
                    self._metrics.unbatched(errors.NotBatched.OTHER_PATH)
        if self._plain is None or match is None:
            self._pass_on(asked)
        else:
            self._start(asked, functools.partial(self._batch, plain=self._plain, match=match))

    # --- own answers -------------------------------------------------------------------------------------------

    def _tell(self, asked: exchange.Exchange, answer: Callable[[], Awaitable[responses.Response]]) -> None:
        """Give an answer for which the predictor may have to be asked; nobody reads the body."""

        async def tell(asked: exchange.Exchange) -> None:
            self._respond(asked, await answer())

        asked.drop_body()
        self._start(asked, tell)

    def _respond(self, asked: exchange.Exchange, answer: responses.Response) -> None:
        """Give a complete answer, which ends its connection if connections are to end."""
        asked.respond(answer, close=self._life.parting)

    # --- calls in batches --------------------------------------------------------------------------------------

    async def _batch(self, asked: exchange.Exchange, plain: requests.PlainRequests, match: routes.Match) -> None:
        """Make a call of a request once its body is read; from then on it is as any other."""
        rules, clock = self._rules, asyncio.get_running_loop().time
        request = asked.head
        outcome: errors.CarpoolError
        body: bytes | None = None
        try:
            self._life.check_open()
            if match.by_body is not None:
                body = await self._read(asked, match)
            before = clock()
            with rules.bodies.memory.reserve(len(body or b"")):
                route = await rules.route(request.headers, match, body)
            spent = clock() - before
            if body is None:
                body = await self._read(asked, match)
            head = rules.head(request.target, request.headers, match, route, spent)
            payload = await self._payload(head, body, match)
            made = plain.serve(asked, head, payload, len(body), asked.started)
            if not asked.is_over:
                asked.cancel = functools.partial(plain.driver.cancel, made)
            return
        except errors.Unbatchable as verdict:
            self._metrics.unbatched(verdict.reason)
            self._pass_on(asked, body, match.error_words)
            return
        except errors.CarpoolError as error:
            # Bare: else this frame and the error keep each other, and the body, alive.
            outcome = errors.bare(error)
        except Exception:
            outcome = rules.bug()
        words = match.error_words
        if words is not None and words.of_body is not None and body is not None:
            words = await rules.bodies.turns.run(words.of_body(body))
        answer = rules.render_outcome(
            outcome,
            plain.clock() - asked.started,
            is_v1=match.protocol == "v1",
            is_accepted=False,
            words=words,
            host=request.headers.get("Host"),
        )
        self._respond(asked, answer)

    async def _read(self, asked: exchange.Exchange, match: routes.Match) -> bytes:
        """The decoded body, within all limits; raises `errors.CarpoolError`.

        Raises `errors.Unbatchable`, with the body unread, where the media type speaks against a predict request and
        it is known beforehand that the body cannot be looked at.
        """
        limits = self._rules.bodies
        if not match.says_so:
            try:
                limits.check(asked.head.length or 0)
                content_coding.coding_of(_codings(asked))
            except (errors.PayloadTooLarge, errors.UnsupportedEncoding):
                raise errors.Unbatchable(errors.NotBatched.MEDIA_TYPE) from None
        return await read_body(asked, limits)

    async def _payload(self, head: calls.Head, body: bytes, match: routes.Match) -> interface.Payload:
        """The rows of a decoded body; raises `errors.CarpoolError`.

        Raises `errors.Unbatchable` if it is valid but has to travel alone, or is what its media type says and no
        predict request at all.
        """
        codec, limits = head.route.codec, self._rules.bodies
        most = int(self._rules.bounds.max_queue_instances)
        try:
            if len(body) < codec.large:
                return codec.parse(body, most, head.json_size)
            with limits.memory.reserve(len(body)):
                return await limits.turns.run(codec.parse_in_steps(body, most, head.json_size))
        except errors.BadRequest:
            if match.says_so:
                raise
            raise errors.Unbatchable(errors.NotBatched.MEDIA_TYPE) from None

    # --- all else ----------------------------------------------------------------------------------------------

    def _pass_on(
        self, asked: exchange.Exchange, body: bytes | None = None, words: calls.ErrorWords | None = None
    ) -> None:
        """Pass a request on, with this `body` if it was read, and decoded."""
        dialect = responses.Dialect(words)

        def refuse(error: errors.CarpoolError) -> None:
            answer = dialect.error(error)
            self._metrics.answered("passthrough", answer.status)
            self._respond(asked, answer)

        try:
            self._life.check_open()
            if asked.head.method == "CONNECT":
                raise errors.BadRequest("CONNECT is not supported: this is not a forward proxy")
            passed = relay.Relay(self._relays, asked, refuse, body)
        except errors.CarpoolError as error:
            refuse(errors.bare(error))
            return
        if body is not None:
            asked.connection.hold(asked, len(body))
        passed.start()

    # --- tasks -------------------------------------------------------------------------------------------------

    def _start(self, asked: exchange.Exchange, work: _Work) -> None:
        asked.cancel = asyncio.get_running_loop().create_task(self._run(asked, work), name="request").cancel

    async def _run(self, asked: exchange.Exchange, work: _Work) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):  # a task keeps what it raises, and all frames
                await work(asked)  # called here, as a client may leave before the task begins
        except Exception:
            self._bug(asked)

    def _bug(self, asked: exchange.Exchange) -> None:
        error = self._rules.bug()
        if asked.is_begun:
            asked.connection.transport.abort()
        else:
            self._respond(asked, responses.Dialect().error(error))


async def read_body(asked: exchange.Exchange, limits: bodies.Limits) -> bytes:
    """The whole body of a request, its Content-Encoding undone.

    Raises `errors.PayloadTooLarge` and `errors.Overloaded` before reading when Content-Length says so, else
    as soon as the body grows over a limit; `errors.BodyTooLate`; `errors.BadRequest` for broken chunking or
    coded data; `errors.UnsupportedEncoding`. What comes is counted by the exchange. However this ends, nothing stays
    reserved: whoever called counts the body from then on, with a reservation of its own or in the queue.
    """
    is_coded = hdrs.CONTENT_ENCODING in asked.head.headers
    if asked.head.length is not None:
        limits.check(asked.head.length)
        limits.memory.check_room(asked.head.length - asked.unread.size)
        if asked.reader.is_complete and not is_coded:
            return b"".join(asked.take())
    with limits.memory.reserve() as reservation:
        try:
            async with asyncio.timeout(limits.read_timeout):
                asked.send_continue()
                body = await _collect(asked, limits)
                if not is_coded:
                    return body
                reservation.add(len(body))

                def grow(count: int) -> None:
                    limits.memory.check_room(count)
                    reservation.add(count)

                work = content_coding.decoding(body, _codings(asked), limits.max_body_bytes, grow)
                return await limits.turns.run(work)
        except TimeoutError:
            raise errors.BodyTooLate from None


async def _collect(asked: exchange.Exchange, limits: bodies.Limits) -> bytes:
    parts = asked.unread
    while True:
        limits.check(parts.size, asked.reader.chunks)
        limits.memory.check_room(0)
        if asked.reader.is_complete:
            return b"".join(asked.take())  # no copy if there is only one
        if asked.broken:
            raise errors.MalformedBody(f"the body is not valid HTTP: {asked.broken}")
        await asked.news()


def _codings(asked: exchange.Exchange) -> str:
    # A list header may come in several lines (RFC 9110, 5.3).
    return ",".join(asked.head.headers.getall(hdrs.CONTENT_ENCODING, ()))
