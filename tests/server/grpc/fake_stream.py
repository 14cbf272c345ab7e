"""The server's side of one HTTP/2 stream, written down instead of sent."""

from __future__ import annotations

import asyncio

import hpack

from carpool_sidecar.server.grpc import arrivals
from carpool_sidecar.server.http2 import headers, server_stream


class FakeStream(server_stream.ServerStream):
    """`headers` and `trailers` are as given; `over` is set once the answer is complete.

    It has no connection, so every method that a handler may call is its own.
    """

    is_blocked = False
    connection = 0

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.trailers: dict[bytes, bytes] = {}
        self.sent = b""
        self.granted = 0
        self.charged = 0
        self.connection = id(self)
        self.over = asyncio.Event()

    def answer(self, head: headers.Headers, body: bytes, trailers: headers.Headers) -> None:
        self.start(head)
        self.send(body)
        self.finish(trailers)

    def answer_encoded(self, head: bytes, body: bytes, trailers: bytes) -> None:
        self.answer(_decoded(head), body, _decoded(trailers))

    def start(self, headers: headers.Headers) -> None:
        assert not self.headers, "begun twice"
        self.headers = dict(headers)

    def send(self, data: bytes) -> None:
        assert self.headers, "not begun"
        assert not self.over.is_set(), "sent after the end"
        self.sent += data

    def finish(self, trailers: headers.Headers) -> None:
        assert not self.over.is_set(), "ended twice"
        self.trailers = dict(trailers)
        self.over.set()

    def reset(self, code: int) -> None:
        self.over.set()

    def consumed(self, count: int) -> None:
        self.granted += count

    def charge(self, work: int) -> None:
        self.charged += work

    @property
    def messages(self) -> list[bytes]:
        found = arrivals.Unframer(2**30).feed(self.sent) if self.sent else []
        return [message for message in found if isinstance(message, bytes)]

    @property
    def status(self) -> int:
        return int(self.trailers[b"grpc-status"])

    async def end(self) -> None:
        async with asyncio.timeout(5):
            await self.over.wait()


def _decoded(block: bytes) -> headers.Headers:
    return tuple(hpack.Decoder().decode(block, raw=True))
