"""Complete answers as aiohttp responses.

Predictions are answered thousands of times a second, always with the same few headers, so their head is written
directly; aiohttp's general way of building and checking a response costs as much as all the rest of a request here.
"""

from __future__ import annotations

import asyncio
import email.utils
import functools
import time

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from sidecar.http import answers

# Up to this size one more copy is cheaper than one more system call, and the socket's buffer takes all of it.
LARGE = 64 * 1024


def respond(request: web.BaseRequest, answer: answers.Answer, close: bool = False) -> web.StreamResponse:
    """The response for an answer; with `close` the connection ends after it."""
    is_plain = answer.status == 200 and request.version == HttpVersion11 and request.keep_alive
    if is_plain and not close and not answer.close:
        return _Predictions(answer)
    response = web.Response(status=answer.status, headers=CIMultiDict(answer.headers), body=answer.body)
    if close or answer.close:
        response.force_close()
    return response


async def deliver(request: web.BaseRequest, response: web.StreamResponse, timeout: float | None = None) -> None:
    """Write a complete response; returns when all but the last of it is on its way.

    Left to aiohttp this happens after the handler, where nothing counts it: shutdown would cut it off, and a caller
    that does not read would keep its memory for good. After `timeout` seconds such a connection is aborted.
    """
    try:
        if timeout is None:
            await _write(request, response)
        else:
            async with asyncio.timeout(timeout):
                await _write(request, response)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass  # the caller left


async def _write(request: web.BaseRequest, response: web.StreamResponse) -> None:
    await response.prepare(request)
    await response.write_eof()


class _Predictions(web.StreamResponse):
    """A 200 with a body in memory, on an HTTP/1.1 connection that stays open.

    Only for headers of our own making, and values that came in a header and are UTF-8: nothing is checked here.
    """

    def __init__(self, answer: answers.Answer) -> None:
        super().__init__()
        self._answer = answer
        self._is_written = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        writer = request.writer
        if self._is_written:
            return writer
        self._is_written = True
        self._keep_alive = True
        body = self._answer.body
        head = _head(self._answer.headers, int(time.time())) + b"Content-Length: %d\r\n\r\n" % len(body)
        if len(body) <= LARGE:
            await writer.write(head + body)
        else:
            await writer.write(head)
            await writer.write(body)
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """All is written by `prepare`."""


@functools.lru_cache(maxsize=64)
def _head(headers: tuple[tuple[str, str], ...], second: int) -> bytes:
    """Status line and headers but the last. `second` is the Unix time for Date (RFC 9110, 6.6.1)."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    head = f"HTTP/1.1 200 OK\r\n{''.join(lines)}Date: {email.utils.formatdate(second, usegmt=True)}\r\n"
    return head.encode()
