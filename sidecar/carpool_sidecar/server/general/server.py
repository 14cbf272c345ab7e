"""The general HTTP server: aiohttp's, with limits that it does not have.

It serves all that is no plain predict request. aiohttp waits for the rest of a head as long as for a new request, which
is an hour, keeps up to 8 MB of it, and counts no connections. It takes all that was read at once, which are tens of
thousands of chunks where each has a byte. It logs malformed HTTP as an error with a traceback, and the error quotes the
line that was malformed: anyone who reaches the port could fill the log with that, and a line may hold credentials.

A head that is not waited for any more is refused as if it were malformed: so aiohttp answers what came before it first,
and closes the connection after the refusal.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, http, http_exceptions, web

from carpool.runtime import deadline_timer
from carpool.scheduling import ledger
from carpool_sidecar import errors
from carpool_sidecar.protocols import v1
from carpool_sidecar.server import data_port, lingering, listening, responses
from carpool_sidecar.server.fast import progress
from carpool_sidecar.server.general import body_reader, one_by_one, request_handler

MAX_HEAD = 256 * 1024
"""Bytes of a whole head."""

MAX_LINES = 1000
"""Fields of a head."""

_MOST_TRAILERS = 64 * 1024  # bytes

# A head is refused as soon as it is over ours; of what comes in one step aiohttp takes all.
_AIOHTTPS_LIMITS = {"max_line_size": 2 * MAX_HEAD, "max_field_size": 2 * MAX_HEAD, "max_headers": MAX_HEAD}

_MOST_BEGUN = 128
"""Messages, and chunks of bodies, of one connection that may begin in one turn of the loop."""

_STEP, _LONGEST_STEP = 2048, 16 * 1024
"""Bytes between looks at how many these are, 340 chunks at most; and where none began for a while."""

_ROUND = 0.5  # seconds between looks at heads that have begun
_GLANCE = 0.01  # likewise at who has just connected, in the end
_JSON = (("Content-Type", "application/json"),)
_TOO_LARGE = responses.Response(
    431, _JSON, b'{"error":"the head of the request is larger than %d bytes"}' % MAX_HEAD, close=True
)
_TOO_MANY_LINES = responses.Response(
    431, _JSON, b'{"error":"the head of the request has more than %d lines"}' % MAX_LINES, close=True
)


class Server(web.Server):
    """Makes aiohttp's protocols, and watches over heads that have begun.

    `refusal` makes the answer to a request that is given up after so many seconds. What clients hold back of heads
    counts in `memory`. `options` are those of aiohttp's protocols. Once `ending` is set, no connection lingers.
    """

    # State: the connections whose clients have begun a head and not ended it, and the timer while there are any; what
    # listens, where there is no fast lane.
    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limit: data_port.ConnectionLimit,
        memory: ledger.Ledger,
        clock: Callable[[], float],
        head_timeout: float,
        refusal: Callable[[errors.CarpoolError, float], responses.Response],
        **options: Any,
    ) -> None:
        super().__init__(self._handle, handler_cancellation=True)  # a caller that leaves is taken out of the queue
        self.limit = limit
        self.memory = memory
        self.clock = clock
        self.refusal = refusal
        self._options = _AIOHTTPS_LIMITS | options
        self._answer = handler
        self._head_timeout = head_timeout
        self._waiting: dict[Connection, None] = {}
        self._timer = deadline_timer.DeadlineTimer(self._go_round, clock)
        self._listeners: list[listening.Listener] = []
        self.ending = asyncio.Event()

    async def listen(self, host: str, port: int, backlog: int) -> None:
        """Accept connections; raises `OSError` if the port is taken."""
        self._listeners += await listening.listen(
            host, port, backlog, self, self, self.limit, responses.too_many_connections
        )

    async def stop_listening(self) -> None:
        """Accept nothing more; returns when those who have just connected have asked, or had a moment to.

        A connection that is closed before that tells them nothing.
        """
        while self._listeners:
            await self._listeners.pop().close()
        begun, end = self.clock() - data_port.LINGER, self.clock() + data_port.LINGER
        # A glance now and then, once, rather than an event that each read would have to set.
        while self.clock() < end and self._may_be_asked(begun):  # noqa: ASYNC110
            await asyncio.sleep(_GLANCE)

    def _may_be_asked(self, begun: float) -> bool:
        return any(isinstance(each, Connection) and each.may_ask(begun) for each in self.connections)

    @property
    def open(self) -> int:
        """Connections that are here now."""
        return len(self.connections)

    @property
    def asked(self) -> int:
        """Requests that ever came to them."""
        return self.requests_count

    @property
    def waiting(self) -> int:
        """Requests being handled."""
        return self.memory.active

    def __call__(
        self, since: float | None = None, home: data_port.Home | None = None, size: int | None = None
    ) -> web.RequestHandler:
        """A protocol; one with a `home` is for a connection that comes from there, is counted there, and goes back.

        With a `size` it takes so many bytes, which are one request, and home keeps what follows.
        """
        return Connection(self, since, home, size, loop=asyncio.get_running_loop(), **self._options)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.stop()

    def began(self, connection: Connection) -> None:
        """A head has begun."""
        self._waiting[connection] = None
        self._timer.look_by(self.clock() + _ROUND)

    def ended(self, connection: Connection) -> None:
        """It is complete, or its connection is gone."""
        self._waiting.pop(connection, None)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        if not isinstance(connection, Connection):
            raise TypeError("connections of this server are made by it")
        connection.is_busy = True
        try:
            refused = _objection(request)
            return await self._answer(request) if refused is None else request_handler.refuse(request, refused)
        finally:
            connection.is_busy = False

    def _go_round(self, now: float) -> float:
        """End connections whose time is up; returns when to look again."""
        for connection in list(self._waiting):
            connection.expire(now, self._head_timeout)
        return now + _ROUND if self._waiting else math.inf


def _objection(request: web.BaseRequest) -> responses.Response | None:
    """What to say to a head that came as a whole and is over the limits, if this one is."""
    fields = request.raw_headers
    if len(fields) > MAX_LINES:
        return _TOO_MANY_LINES
    size = len(request.raw_path) + sum([len(name) + len(value) + len(": \r\n") for name, value in fields])
    return _TOO_LARGE if size > MAX_HEAD else None


class Connection(web.RequestHandler, body_reader.Chunked):
    """aiohttp's protocol, with an eye on heads. `is_busy` while a request is being answered."""

    # State beside aiohttp's: _watch until the connection is lost; _held bytes of a head that _began then, the first one
    # _since if not now, and _timed, how many heads came before it; _came when the client did; _is_in once it counts
    # among the connections; _later, bytes for the next turns; _is_full while aiohttp wants no more; _home until the
    # connection goes back there or is lost, _answered requests meanwhile, and _due bytes of the only one if their
    # number is known; _is_refused once nothing more is taken.
    def __init__(
        self, server: Server, since: float | None, home: data_port.Home | None, size: int | None, **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._parser = self._parser_one_by_one()
        self.is_busy = False
        self._since = since
        self._server = server
        self._watch: progress.Watch | None = progress.Watch()
        self._held = server.memory.reserve()
        self._later_held = server.memory.reserve()
        self._began = 0.0
        self._timed = -1
        self._came = server.clock()
        self._is_in = self._is_full = False
        self._later = b""
        self._home = home
        self._due = size
        self._answered = 0
        self._is_refused = False

    def _parser_one_by_one(self) -> Any:
        parser = http.HttpRequestParser(
            self, self._loop, self._read_bufsize,
            max_line_size=self.max_line_size, max_field_size=self.max_field_size, max_headers=self.max_headers,
            # Pass-through keeps bodies as they are, and the reader of bodies has its own limits.
            auto_decompress=False, payload_exception=web.RequestPayloadError, max_msg_queue_size=1,
        )  # fmt: skip
        return one_by_one.OneByOne(parser, lambda: self._max_msg_queue_size - len(self._messages))

    @property
    def chunks(self) -> int:
        """Implements `body_reader.Chunked`."""
        return 0 if self._watch is None else self._watch.chunks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._home is not None:
            return
        self._is_in = self._server.limit.enter()
        if not self._is_in and self.transport is not None:
            self.transport.write(responses.too_many_connections())
            self._watch = None
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._is_in:
            self._is_in = False
            self._server.limit.leave()
        self._hold(0)
        self._server.ended(self)
        self._watch = None
        self._put_off(b"")
        home, self._home = self._home, None
        super().connection_lost(exc)
        if home is not None:
            home.connection_lost(exc if isinstance(exc, Exception) else None)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """aiohttp's last step of a request, after which the connection may go home.

        To say that the client is gone ends aiohttp's task, and so does without cancelling it.
        """
        parser: Any = self._parser
        if parser is not None:
            parser.answered = request.content
        resp, is_gone = await super().finish_response(request, resp, start_time)
        if request.content.exception() is not None:
            request.content.feed_eof()  # else aiohttp would wait for the rest of a malformed body
        if self._watch is not None:
            self._look(self._watch)
        self._answered += 1
        try:
            await request.writer.drain()  # else small answers would pile up for a client that does not read
        except ConnectionError:
            return resp, True
        if self._watch is not None and self._has_trailers and self._has_done_all:
            self._watch.has_trailers = False
            self._parser = self._parser_one_by_one()
        if not is_gone and resp.keep_alive and self._has_done_all:
            is_gone = self._go_home(request.task)
        if not is_gone and self._due is not None and self._home is not None:
            self._due = None  # what is left of the request is read and dropped, and what follows is served here
            if rest := self._home.give():
                self.data_received(rest)
        has_more = request.keep_alive or not request.content.is_eof() or hdrs.UPGRADE in request.headers
        has_ended = self._is_refused or parser is None or parser.has_ended
        is_last = not resp.keep_alive and (has_more or has_ended)
        if not is_gone and (is_last or self._has_trailers):
            await self._linger()
            is_gone = True  # aiohttp would wait for the rest of a body that nobody wants
        return resp, is_gone

    async def _linger(self) -> None:
        """Tell the client that this was all, and read on until it is gone, or quiet for a while."""
        transport, ending = self.transport, self._server.ending
        if transport is None or transport.is_closing():
            return
        self._is_refused = True
        self._held.resize(0)
        self._put_off(b"")
        stay = lingering.Lingering(transport, self)
        told = asyncio.ensure_future(ending.wait())
        try:
            await asyncio.wait(
                [stay.ended, told], return_when=asyncio.FIRST_COMPLETED
            )  # cancelled when the client goes
        finally:
            told.cancel()
            stay.close()

    @property
    def _has_trailers(self) -> bool:
        """Whether what is behind may have got a trailer for a header: aiohttp's parser keeps the last one for that."""
        return self._watch is not None and self._watch.has_trailers

    @property
    def _has_done_all(self) -> bool:
        """Whether all that came is answered, and no part of another request is here."""
        watch = self._watch
        is_whole = watch is not None and watch.is_between and watch.heads == self._answered
        return is_whole and not self._later

    def _go_home(self, task: asyncio.Task[None]) -> bool:
        """Whether the connection is its home's now; this has to be cleared up when `task` has ended."""
        transport, home = self.transport, self._home
        if home is None or transport is None or transport.is_closing() or not home.come_back():
            return False
        if self._is_full:
            transport.resume_reading()  # aiohttp had enough of a body that nobody wanted
        self.transport = self._home = None
        task.add_done_callback(lambda _: self.connection_lost(None))
        return True

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's way to answer a head that is refused or malformed, in its turn."""
        if isinstance(exc, _Refused):
            return request_handler.refuse(request, exc.answer)
        if not isinstance(exc, http_exceptions.HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
        body = v1.render_error(f"malformed HTTP: {one_by_one.told(exc)}")
        return request_handler.refuse(request, responses.Response(400, _JSON, body, close=True))

    def data_received(self, data: bytes) -> None:
        if self._watch is None or not data:  # aiohttp itself calls with nothing, to go on with what it has
            self._parse(data)
        elif self._is_refused:
            # Read, so that a client that leaves is noticed; in each turn of the loop once, as others want theirs.
            self._read_on(False)
            asyncio.get_running_loop().call_soon(self._read_on, True)
        elif self._due is not None and len(data) > self._due:
            own, behind, self._due = data[: self._due], data[self._due :], 0
            if self._home is not None:
                self._home.keep(behind)
            if own:
                self._receive(own)
        else:
            if self._due is not None:
                self._due -= len(data)
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        if self._later:
            self._put_off(self._later + data)
            self._read_on(False)  # aiohttp has reasons of its own to read on
        else:
            self._take(data)

    def pause_reading(self) -> None:
        self._is_full = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if not self._is_full:
            return  # aiohttp calls this for each piece that is read of a body, paused or not
        self._is_full = False
        super().resume_reading(resume_parser)
        if self._later:
            self._go_on_later()

    @property
    def _has_enough(self) -> bool:
        """Whether aiohttp wants no more for now: of a body, or since so many requests wait.

        Its parser may have kept some bytes then, and would put what comes to those. If they end with a request for a
        protocol that it does not know, it would drop what is behind.
        """
        return self._is_full or self._buffer_paused

    def _resume_reading_for_buffer(self) -> None:
        """aiohttp's way to want more, when it has looked through all that it kept."""
        super()._resume_reading_for_buffer()
        if self._later:
            self._go_on_later()

    def set_parser(self, *arguments: Any, **options: Any) -> None:
        """aiohttp's way to hand the connection over to another protocol, which gets what was put off, too.

        Raises `ConnectionResetError` if something of that was dropped, or taken for requests: aiohttp knows of no other
        protocol than WebSocket.
        """
        watch = self._watch
        if self._is_refused or self._messages or (watch is not None and watch.is_open):
            raise ConnectionResetError("not all that came is here")
        super().set_parser(*arguments, **options)
        self._hold(0)
        self._watch = None
        later = self._later
        if later:
            self._put_off(b"")
            self._read_on(True)
            self._parse(later)

    def may_ask(self, begun: float) -> bool:
        """Whether the client came since then and has asked nothing yet, or has begun to ask since then.

        Not of a connection with a home, where that is looked after.
        """
        watch = self._watch
        if watch is None or self._home is not None:
            return False
        return self._began >= begun if watch.is_open else not watch.heads and self._came >= begun

    def expire(self, now: float, head_timeout: float) -> None:
        """Refuse a head if its client does not go on with it; that it waits for an answer is no such case.

        A client that does not take the refusal either loses its connection.
        """
        if self.is_busy:
            self._began = now
        elif now - self._began > head_timeout and not self._later:
            if not self._is_refused:
                self._refuse(self._server.refusal(errors.HeadTooLate(), now - self._began), now)
            elif self.transport is not None:
                self.transport.abort()

    def _take(self, data: bytes) -> None:
        """Take what a turn of the loop has time for, and put off the rest."""
        watch = self._watch
        while data and watch is not None and not self._is_refused:
            parser: Any = self._parser
            if parser.has_ended:
                self._is_refused = True
                return
            if self._upgraded:
                self._parse(data)  # aiohttp keeps it for the other protocol, and reads no more when that is much
                return
            taken, is_enough = self._extent(watch, data)
            part, data = (data, b"") if taken == len(data) else (data[:taken], data[taken:])
            self._parse(part)
            self._look(watch)
            if data and not self._is_refused and (is_enough or self._has_enough):
                self._put_off(data)
                self._go_on_later()
                return
            watch = self._watch

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        self._hear_the_rest()

    def _hear_the_rest(self) -> None:
        parser: Any = self._parser  # none once the connection is lost
        if isinstance(parser, one_by_one.OneByOne) and parser.has_more_to_tell:
            super().data_received(b"")

    def _extent(self, watch: progress.Watch, data: bytes) -> tuple[int, bool]:
        """How many bytes to take at once, and whether they are enough for one turn."""
        begun, at, step = watch.begun, 0, _STEP
        most = begun + _MOST_BEGUN
        with memoryview(data) as view:
            while at < len(data):
                part = view[at : at + step]
                taken = watch.feed(part)
                at += taken
                if watch.begun > most:
                    return at, True
                if watch.is_behind_change:
                    break
                step = _STEP if watch.begun > begun else min(2 * step, _LONGEST_STEP)
                begun = watch.begun
        return at, False

    def _put_off(self, data: bytes) -> None:
        """Make this what is taken in later turns; it counts as bytes held, unless it waits for aiohttp.

        That counts as little as what aiohttp's parser keeps: it is no more than was read at once.
        """
        self._later_held.resize(0 if self._has_enough else len(data))
        self._later = data

    def _read_on(self, wanted: bool) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing():
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _go_on_later(self) -> None:
        self._read_on(False)
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        later = self._later
        if not later or self._has_enough:
            return  # it was handed over, or is gone on with when aiohttp wants more
        self._put_off(b"")
        if self._watch is None:
            return
        self._take(later)
        if not self._later and not self._is_full:
            super().resume_reading(resume_parser=False)

    def _look(self, watch: progress.Watch) -> None:
        """Count what came of a head, if that is not complete; each has a clock of its own."""
        parser: Any = self._parser
        if watch.trailer_size > _MOST_TRAILERS and parser.is_in_body and not self._is_refused:
            self._is_refused = True
            parser.break_body(http_exceptions.BadHttpMessage(f"more than {_MOST_TRAILERS} bytes of trailers"))
        if not watch.is_open:
            self._since = None
            self._hold(0)
            return
        if self._timed != watch.heads:
            self._timed = watch.heads
            self._began = self._server.clock() if self._since is None else self._since
            self._since = None
        self._hold(watch.head_size)

    def _hold(self, size: int) -> None:
        """Count so many bytes of a head, and refuse it if they are too many.

        Not behind a request for a change of protocols: until that is answered they may be no head. aiohttp takes no
        more then than fits into one of its buffers.
        """
        server, before = self._server, self._held.size
        self._held.resize(size)
        if not size:
            if before:
                server.ended(self)
            return
        server.began(self)
        if self._upgraded or self._is_refused:
            return
        parser: Any = self._parser
        if parser.is_in_body and not self._is_full:
            return  # all that came belongs to a body: the watch does not know the ends of chunks where protocols change
        if size > MAX_HEAD:
            self._refuse(_TOO_LARGE, server.clock())
        elif self._watch is not None and self._watch.lines > MAX_LINES:
            self._refuse(_TOO_MANY_LINES, server.clock())
        elif not server.memory.has_room(0):
            now = server.clock()
            self._refuse(server.refusal(errors.MemoryFull(), now - self._began), now)

    def _refuse(self, answer: responses.Response, now: float) -> None:
        """Answer the head that has begun when it is its turn, and take nothing more."""
        parser: Any = self._parser
        self._is_refused = True
        self._began = now
        if self._later:
            self._put_off(b"")
            self._read_on(not self._is_full)
        parser.refuse(_Refused(answer))
        self._parse(b"")


class _Refused(http_exceptions.HttpProcessingError):
    """A head gets this answer."""

    def __init__(self, answer: responses.Response) -> None:
        super().__init__(code=answer.status)
        self.answer = answer


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The `logger` of an aiohttp server: malformed HTTP is one line at debug, without a word of what was sent.

    Everything else is logged as aiohttp asks, bugs with their traceback.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, None)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, http_exceptions.HttpProcessingError):
            super().log(logging.DEBUG, f"{msg}: %s", *args, type(error).__name__)
        else:
            super().log(level, msg, *args, **kwargs)
