"""A lean HTTP/1.1 client connection, so that the load generator is not what is being measured.

One connection carries one request at a time. Requests are complete byte strings, made beforehand; answers are
handed over as status and body. It understands what model servers send: Content-Length and chunked bodies (RFC 9112,
sections 6 and 7). General HTTP clients spend several times as long on a request.
"""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Protocol, cast

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy


def get(url: str, timeout: float) -> bytes:
    """The body of a page, for probes and metrics.

    Raises `OSError` when nobody answers in time or the status is not 2xx, `http.client.HTTPException` when the
    answer is not HTTP.
    """
    try:
        with _DIRECT.open(url, timeout=timeout) as page:
            return bytes(page.read())
    except urllib.error.HTTPError as error:
        error.close()  # it holds the answer
        raise


class Receiver(Protocol):
    """Whoever uses a connection. Exactly one of the two is called for each request sent."""

    def answered(self, connection: Connection, status: int, body: bytes) -> None: ...

    def lost(self, connection: Connection, reason: str) -> None: ...


JSON: Mapping[str, str] = {"Content-Type": "application/json"}


def post(host: str, path: str, body: bytes, headers: Mapping[str, str] = JSON) -> bytes:
    """A complete POST request with a body; `headers` besides Host and Content-Length."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{''.join(lines)}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection(asyncio.Protocol):
    """A keep-alive connection with at most one request outstanding."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._outstanding = False

    def send(self, request: bytes) -> None:
        """Write one request. Must not be called before the answer to the previous one has arrived."""
        if self._transport is None or self._transport.is_closing():
            self._receiver.lost(self, "connection closed")
            return
        self._outstanding = True
        self._transport.write(request)

    def close(self) -> None:
        """Close without telling the receiver."""
        self._outstanding = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            parsed = parse_response(self._buffer)
        except ValueError as error:
            self.connection_lost(error)
            self.close()
            return
        if parsed is not None and self._outstanding:
            self._outstanding = False
            self._buffer.clear()
            self._receiver.answered(self, *parsed)

    def connection_lost(self, error: Exception | None) -> None:
        if self._outstanding:
            self._outstanding = False
            self._receiver.lost(self, str(error or "connection closed"))


def parse_response(data: bytes | bytearray) -> tuple[int, bytes] | None:
    """`(status, body)`, or None while the response is incomplete.

    Raises `ValueError` for a response whose end cannot be known from its head.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    status, start = int(data[9:12]), end + 4
    length = _LENGTH.search(data, 0, end)
    if length is not None:
        stop = start + int(length[1])
        return (status, bytes(data[start:stop])) if len(data) >= stop else None
    if _CHUNKED.search(data, 0, end) is None:
        raise ValueError("response without Content-Length or chunked encoding")
    body = _join_chunks(data, start)
    return None if body is None else (status, body)


def _join_chunks(data: bytes | bytearray, at: int) -> bytes | None:
    pieces: list[bytes] = []
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line].split(b";")[0], 16)
        start, at = line + 2, line + 4 + size
        if len(data) < at:
            return None
        if size == 0:
            return b"".join(pieces)
        pieces.append(bytes(data[start : start + size]))
    return None
