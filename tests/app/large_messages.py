"""Clients that send one large message, in the way of the test's choice, and leave or stay for the answer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import hpack

from benchmarks.attack import frames

WAYS = ("whole", "pieces", "chunked", "gzip")
_PIECE = 50_000
_STREAM = 1
_LATE_MS = 40
_PATIENCE = 0.1

Working = Callable[[], Awaitable[object]]
"""Returns once the predictor works on the message."""


class Message(NamedTuple):
    """A request over HTTP, or the message of a gRPC call; `status` is that of the answer where nothing goes wrong."""

    path: str
    body: bytes
    headers: str = "Content-Type: application/json\r\n"
    status: int = 200

    @property
    def is_bad(self) -> bool:
        """Whether it is refused, perhaps before it reaches the predictor."""
        return self.status not in (0, 200)


async def post(port: int, message: Message, way: str, end: str, working: Working) -> int:
    """The status of the answer; 0 if there was none, or nobody waited for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await _send(writer, message, way, end)
        if end.startswith("left"):
            await (asyncio.sleep(0.02) if "middle" in end else working())
            return 0
        with contextlib.suppress(TimeoutError, ConnectionError):  # what is passed on is never late, but left
            async with asyncio.timeout(_PATIENCE if end == "late" else None):
                answer = await reader.read()
                return int(answer[9:12] or 0)
        return 0
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _send(writer: asyncio.StreamWriter, message: Message, way: str, end: str) -> None:
    body = gzip.compress(message.body, 1) if way == "gzip" else message.body
    head = f"POST {message.path} HTTP/1.1\r\nHost: h\r\n{message.headers}Connection: close\r\n"
    head += f"carpool-timeout-ms: {_LATE_MS}\r\n" if end == "late" else ""
    head += "Content-Encoding: gzip\r\n" if way == "gzip" else ""
    head += "Transfer-Encoding: chunked\r\n" if way == "chunked" else f"Content-Length: {len(body)}\r\n"
    if "middle" in end:
        body = body[: len(body) // 2]
    writer.write(head.encode() + b"\r\n")
    if way == "whole":
        writer.write(body)
        return
    with contextlib.suppress(ConnectionError):  # it may be refused before it ends
        for at in range(0, len(body), _PIECE):
            piece = body[at : at + _PIECE]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if way == "chunked" else piece)
            await writer.drain()
        if way == "chunked" and "middle" not in end:
            writer.write(b"0\r\n\r\n")


async def call(port: int, message: Message, way: str, end: str, working: Working) -> int:
    """The same for gRPC."""
    body = frames.message(gzip.compress(message.body, 1), 1) if way == "gzip" else frames.message(message.body)
    fields = {"grpc_encoding": b"gzip"} if way == "gzip" else {}
    if end == "late":
        fields["grpc_timeout"] = b"%dm" % _LATE_MS
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(frames.PREFACE + frames.settings(initial_window=frames.WIDEST))
        writer.write(frames.window_update(0, 2**30))
        writer.write(frames.open_stream(_STREAM, frames.block(frames.call(message.path, **fields))))
        is_cut = "middle" in end
        data = frames.data(
            _STREAM, body[: len(body) // 2] if is_cut else body, flags=0 if is_cut else frames.END_STREAM
        )
        for at in range(0, len(data), _PIECE):
            writer.write(data[at : at + _PIECE])
            if way == "pieces":
                await writer.drain()
        if end.startswith("left"):
            await (asyncio.sleep(0.02) if is_cut else working())
            writer.write(frames.reset(_STREAM))
            await writer.drain()
            await asyncio.sleep(0.02)
            return 0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            return await _rpc_status(reader)
        return -1
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _rpc_status(reader: asyncio.StreamReader) -> int:
    decoder = hpack.Decoder()
    while True:
        size, kind, flags, _ = frames.unpack(await reader.readexactly(frames.HEAD_SIZE))
        payload = await reader.readexactly(size)
        if kind == frames.RST_STREAM:
            raise ConnectionResetError
        if kind == frames.HEADERS:
            told = dict(decoder.decode(payload, raw=True))
            if flags & frames.END_STREAM:
                return int(told[b"grpc-status"])
