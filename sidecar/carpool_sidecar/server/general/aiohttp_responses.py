"""Complete answers as aiohttp responses, written directly: aiohttp's general way of building and checking a response
costs as much as all the rest of a request here.
"""

from __future__ import annotations

import asyncio

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from carpool_sidecar.server import dialects, response_bytes


def respond(request: web.BaseRequest, answer: dialects.Answer, close: bool = False) -> web.StreamResponse:
    """The response for an answer; with `close` the connection ends after it."""
    if request.version == HttpVersion11 and request.method != "HEAD":
        return _Complete(answer, close or answer.close or not request.keep_alive)
    response = _Unnamed(status=answer.status, headers=CIMultiDict(answer.headers), body=answer.body)
    if close or answer.close:
        response.force_close()
    return response


def refuse(request: web.BaseRequest, answer: dialects.Answer) -> web.StreamResponse:
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
            request.transport.abort()
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

    def __init__(self, answer: dialects.Answer, close: bool) -> None:
        super().__init__(status=answer.status)
        self._answer: dialects.Answer | None = answer
        self._closes = close

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        writer = request.writer
        if self._answer is not None:
            self._keep_alive = not self._closes
            # aiohttp keeps the response until the connection's next request: keep no body with it.
            pieces, self._answer = response_bytes.render(self._answer, self._closes), None
            for piece in pieces:
                await writer.write(piece)
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """All is written by `prepare`."""
