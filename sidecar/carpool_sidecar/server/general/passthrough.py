"""The streaming reverse proxy: every request that is not batched reaches the predictor as it is.

Bodies are never collected. A chunk is read from one side only after the chunk before it was taken by the other, so
memory stays constant and a slow reader slows its sender down, in both directions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import aiohttp
import yarl
from aiohttp import web

from carpool_sidecar import errors
from carpool_sidecar.batching import routes
from carpool_sidecar.server import headers, unread
from carpool_sidecar.server.general import tunnel
from carpool_sidecar.upstream import aiohttp_client

log = logging.getLogger("carpool.sidecar.server")

_LARGEST_FIELD, _MOST_FIELDS = 256 * 1024, 1000  # of an answer's head, as of a request's
_INVENTED_BY_CLIENT = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_INVENTED_BY_SERVER = ("Content-Type", "Server")
_Hold = Callable[[int], AbstractContextManager[object]]


class PassThrough:
    """Forwards requests to the predictor at `base` (scheme, host and port) and streams its answers back.

    Make it inside a running event loop. `connect_timeout` is in seconds; nothing else is timed, because an event
    stream may last for hours. While `is_ending` callers' connections are closed behind their answers. `on_bug` is
    called when an answer breaks off for a reason that is a bug, and is in the log. `hold` counts so many bytes while
    they wait for a caller to read.
    """

    def __init__(
        self,
        base: yarl.URL,
        *,
        connect_timeout: float,
        is_ending: Callable[[], bool],
        on_bug: Callable[[], None] = lambda: None,
        hold: _Hold = lambda size: nullcontext(),
    ) -> None:
        self._base = base
        self._hold = hold
        self._on_bug = on_bug
        self._is_ending = is_ending
        self._tunnels = tunnel.Tunnels()
        self._session = aiohttp_client.open_session(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout),
            skip_auto_headers=_INVENTED_BY_CLIENT,
            auto_decompress=False,
            max_line_size=_LARGEST_FIELD,
            max_field_size=_LARGEST_FIELD,
            max_headers=_MOST_FIELDS,
        )

    async def handle(self, request: web.BaseRequest, known_body: bytes | None = None) -> web.StreamResponse:
        """Forward `request`; its body is `known_body` if that was read (and decoded) already, else it is streamed.

        The answer has reached the caller when this returns. Raises `errors.BadRequest` or an `errors.UpstreamError`
        while no byte of an answer was sent. If the predictor's answer breaks off later, the caller's connection is
        reset, so that a part is never taken for the whole. Cancelling this closes the predictor's connection.
        Headers that are not UTF-8 cannot be passed on as they are: `errors.BadRequest` if they are the caller's,
        `errors.UpstreamBroken` if they are the predictor's. So too if these have control characters.
        """
        upload = _Upload(request, known_body)
        upgrade = headers.requested_upgrade(request)
        upstream = await self._ask(request, upload, upgrade)
        try:
            _check_headers(upstream)
            if upstream.status != 101:
                return await _relay(upstream, request, self._is_ending(), self._on_bug, self._hold)
            if upgrade is None:
                raise errors.UpstreamBroken("the predictor switched protocols without being asked")
            return await self._tunnels.relay(upstream, request)
        finally:
            upstream.close()

    @property
    def tunnels(self) -> int:
        """Upgraded connections that are open now."""
        return len(self._tunnels)

    async def close(self) -> None:
        """Close all tunnels and all connections to the predictor."""
        await self._tunnels.close()
        await self._session.close()

    async def _ask(self, request: web.BaseRequest, upload: _Upload, upgrade: str | None) -> aiohttp.ClientResponse:
        """Send the request and wait for the head of the answer. aiohttp repeats idempotent requests once."""
        outgoing = headers.outgoing_headers(request)
        if upgrade is not None:
            outgoing["Connection"], outgoing["Upgrade"] = "Upgrade", upgrade
        data = upload.data()
        if upload.known is not None:
            outgoing["Content-Length"] = str(len(upload.known))
            outgoing.popall("Content-Encoding", None)
        elif data is None and "Content-Length" in outgoing:
            outgoing["Content-Length"] = "0"  # whoever waits for a body that never comes takes the next request for it
        try:
            with aiohttp_client.translated():
                return await self._session.request(
                    request.method,
                    aiohttp_client.address(self._base, _target(request)),
                    headers=outgoing,
                    data=data,
                    allow_redirects=False,
                )
        except errors.UpstreamError:
            if upload.error is not None:
                raise errors.MalformedBody(f"the body is not valid HTTP: {upload.error}") from upload.error
            raise


def _target(request: web.BaseRequest) -> str:
    if request.method == "CONNECT":
        raise errors.BadRequest("CONNECT is not supported: this is not a forward proxy")
    return routes.origin_form(request.raw_path)


class _Upload:
    """A request body on its way to the predictor; remembers whether the caller broke it."""

    def __init__(self, request: web.BaseRequest, known: bytes | None) -> None:
        self.known = known
        self.error: Exception | None = None
        self._request = request

    def data(self) -> aiohttp_client.KnownBody | AsyncIterator[bytes] | None:
        if self.known is not None:
            return aiohttp_client.KnownBody(self.known)
        return self._stream() if self._request.body_exists else None

    async def _stream(self) -> AsyncIterator[bytes]:
        if headers.expects_continue(self._request):
            headers.send_continue(self._request)
        try:
            # Maybe empty: aiohttp holds the head back until the first piece, and a predictor may answer to that alone.
            yield self._request.content.read_nowait()
            while chunk := await self._request.content.readany():
                yield chunk
        except Exception as error:
            if isinstance(error, web.RequestPayloadError):
                self.error = error
            # aiohttp's reader keeps what it raises, and its writer what it catches: without the frames from then on, as
            # those have both of them, and the body.
            asyncio.get_running_loop().call_soon(errors.bare, error)
            raise


class _Relayed(web.StreamResponse):
    """An answer that carries the predictor's header fields and no others, but for framing and Date.

    A Date is owed by whoever passes a message on (RFC 9110, section 6.6.1); a Content-Type that the predictor did
    not state would be a guess.
    """

    async def _prepare_headers(self) -> None:
        unstated = [name for name in _INVENTED_BY_SERVER if name not in self.headers]
        await super()._prepare_headers()
        for name in unstated:
            self.headers.popall(name, None)


def _check_headers(upstream: aiohttp.ClientResponse) -> None:
    for name, value in upstream.headers.items():
        if not headers.is_utf8(value):
            raise errors.UpstreamBroken(f"the value of the predictor's header {name} is not valid UTF-8")
        if headers.has_control(value):
            raise errors.UpstreamBroken(f"the value of the predictor's header {name} has a control character")


async def _relay(
    upstream: aiohttp.ClientResponse, request: web.BaseRequest, close: bool, on_bug: Callable[[], None], hold: _Hold
) -> web.StreamResponse:
    is_sayable = upstream.reason is not None and not headers.has_control(upstream.reason)
    answer = _Relayed(
        status=upstream.status,
        reason=upstream.reason if is_sayable else "",  # nobody needs it (RFC 9112, section 4)
        headers=headers.end_to_end(upstream.headers),
    )
    if close:
        answer.force_close()
    try:
        await answer.prepare(request)
        with _noticing_loss(upstream):
            await _copy(upstream.content, answer, hold)
    except errors.UpstreamError as error:
        log.warning("the predictor's answer broke off, the caller's connection is reset: %s", error)
        _reset(request)
    except ConnectionError:
        log.debug("the caller left before its answer was complete")
    except Exception:
        if not answer.prepared:
            raise
        on_bug()
        log.exception("relaying an answer failed for a reason that is a bug, the caller's connection is reset")
        _reset(request)
    return answer


@contextmanager
def _noticing_loss(upstream: aiohttp.ClientResponse) -> Iterator[None]:
    """Make a reader of the answer's body fail when the connection ends before the body does.

    aiohttp's C parser (3.14) closes the connection on a malformed chunk, but leaves the reader waiting for ever.
    """
    protocol = None if upstream.connection is None else upstream.connection.protocol
    closed = None if protocol is None else protocol.closed
    if closed is None:
        yield  # the body is complete already, or its end was fed with the connection's
        return

    def fail(_: asyncio.Future[None]) -> None:
        if not upstream.content.is_eof() and upstream.content.exception() is None:
            upstream.content.set_exception(aiohttp.ClientPayloadError("malformed body"))

    closed.add_done_callback(fail)
    # aiohttp makes this future for who asks for it, and that is we. It outlives the answer, as the connection does.
    closed.remove_done_callback(_look_at)
    closed.add_done_callback(_look_at)
    try:
        yield
    finally:
        closed.remove_done_callback(fail)


def _look_at(closed: asyncio.Future[None]) -> None:
    """Why a connection was lost is told in other ways; an exception that nobody has looked at would be logged."""
    if not closed.cancelled():
        closed.exception()


async def _copy(source: aiohttp.StreamReader, answer: web.StreamResponse, hold: _Hold) -> None:
    while True:
        with aiohttp_client.translated():
            chunk = await source.readany()
        if not chunk:
            return await answer.write_eof()
        with hold(len(chunk)):
            await answer.write(chunk)


def _reset(request: web.BaseRequest) -> None:
    """End the caller's connection with a TCP reset; an HTTP/1.0 caller would take a plain close for the end."""
    transport = request.transport
    if transport is None:
        return
    unread.reset(transport)
