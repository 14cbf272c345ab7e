"""A predictor made of bytes, for tests of what travels over connections to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import httptools

TARGET = "/v1/models/m:predict"
ANSWER = b'{"predictions":[]}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def http(body: bytes = ANSWER, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    """An answer with a Content-Length; `headers` are whole lines."""
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), headers, body)


class Peer(asyncio.Protocol):
    """The predictor's end of a connection. `gone` is set when the connection is."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport
        self.gone = asyncio.Event()
        self.lines: list[bytes] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = b""
        self.pieces: list[bytes] = []

    @property
    def body(self) -> bytes:
        """The latest request's."""
        return b"".join(self.pieces)

    def say(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_made(self, transport) -> None:
        self.transport = transport
        self._wire.peers.append(self)

    def connection_lost(self, exc) -> None:
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.headers, self.pieces = [], []

    def on_url(self, target: bytes) -> None:
        self.target = target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._wire.on_head(self)

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)
        self._wire.on_body(self, data)

    def on_message_complete(self) -> None:
        self._wire.requested(self)


class Wire:
    """Answers each request with the next of `answers`, or `ANSWER`; None means not yet."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.peers: list[Peer] = []
        self.requests: list[Peer] = []
        self.port = 0
        self.on_head: Callable[[Peer], None] = lambda peer: None
        self.on_body: Callable[[Peer, bytes], None] = lambda peer, data: None
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(lambda: Peer(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        for peer in self.peers:
            peer.transport.abort()
        for peer in self.peers:
            await peer.gone.wait()
        self._server.close()
        await self._server.wait_closed()

    def requested(self, peer: Peer) -> None:
        self.requests.append(peer)
        answer = self.answers.pop(0) if self.answers else http()
        if answer is not None:
            peer.say(answer)
        self._news.set()

    async def received(self, count: int) -> None:
        """Wait for so many requests in all."""
        while len(self.requests) < count:
            self._news.clear()
            await self._news.wait()


class Bare:
    """A predictor whose sockets the loop does not watch, so that they can speak at any moment."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]

    async def accept(self) -> socket.socket:
        accepted, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        return accepted

    async def answer(self, accepted: socket.socket, answer: bytes) -> None:
        await asyncio.get_running_loop().sock_recv(accepted, 10_000)
        accepted.send(answer)


async def ask(predictor, body=(b"{}",), timeout: float = 5.0) -> bytes:
    """Post a small body and wait for what comes back."""
    return (await predictor.predict(TARGET, (), body, timeout)).body


async def turns(count: int = 10) -> None:
    """Let the loop come round so often."""
    for _ in range(count):
        await asyncio.sleep(0)


async def closed(peer: Peer) -> None:
    """Closed at once, that is: long before a connection is closed for being idle."""
    async with asyncio.timeout(2):
        await peer.gone.wait()
