"""The attacker's connections: raw sockets that note how the server ends them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from benchmarks.attack import frames, target

CODES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
    "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
)  # fmt: skip
_READ = 256 * 1024
_GONE = (ConnectionError, BrokenPipeError)


class Gone(Exception):
    """The server has closed the connection."""


class Link:
    """One connection. `is_closed` once the server has ended it; `received` counts what was read."""

    def __init__(self, to: target.Target, sock: socket.socket) -> None:
        self._to = to
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Task[None] | None = None
        self._words = ""
        self._watch: Watch | None = None
        self._news = asyncio.Event()
        self.received = 0
        self.is_closed = False

    def read_all(self, watch: Watch | None = None) -> None:
        """Keep reading what comes."""
        self._watch = watch
        self._reader = asyncio.create_task(self._read())

    async def answered(self, streams: int) -> None:
        """Wait until the server has ended so many streams of a watched connection. Raises as `send`."""
        try:
            async with asyncio.timeout(self._to.left):
                while self._watch is not None and self._watch.ended < streams:
                    if self.is_closed:
                        raise Gone
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise target.Exhausted("time") from None

    async def read_some(self, count: int) -> bytes:
        """At most so many bytes; empty at the end. Not together with `read_all`; raises `target.Exhausted`."""
        try:
            async with asyncio.timeout(self._to.left):
                found = await self._loop.sock_recv(self._sock, count)
        except _GONE:
            found = b""
        except TimeoutError:
            raise target.Exhausted("time") from None
        self.received += len(found)
        if not found:
            self._end("closed")
        return found

    async def send(self, data: bytes) -> None:
        """All of it, as fast as the server takes it. Raises `Gone`, and `target.Exhausted` at the end of time."""
        if self.is_closed:
            raise Gone
        self._to.spend_bytes(len(data))
        try:
            async with asyncio.timeout(self._to.left):
                await self._loop.sock_sendall(self._sock, data)
        except _GONE:
            await asyncio.sleep(0.02)  # lets the reader find the last words, if there are any
            self._end("reset")
            raise Gone from None
        except TimeoutError:
            raise target.Exhausted("time") from None

    async def flood(self, piece: bytes, most: int = 64_000_000) -> None:
        """Send this again and again, at most so many bytes in all. Raises as `send`."""
        chunk = piece * max(1, _READ // len(piece))
        for _ in range(most // len(chunk)):
            await self.send(chunk)

    async def linger(self) -> None:
        """Stay until the server ends the connection or the time is over."""
        if self._reader is not None:
            await asyncio.wait((self._reader,), timeout=self._to.left)
        else:
            await asyncio.sleep(self._to.left)

    async def close(self) -> None:
        """Leave."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._sock.close()

    async def _read(self) -> None:
        words = "closed"
        try:
            while data := await self._loop.sock_recv(self._sock, _READ):
                self.received += len(data)
                if self._watch is not None:
                    self._words = self._watch(data) or self._words
                    self._news.set()
        except _GONE:
            words = "reset"
        self._end(words)

    def _end(self, words: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._news.set()
            self._to.told.note_end(self._words or words, self._to.elapsed)


class Watch:
    """Looks at the frames an HTTP/2 server sends: notes the streams that it resets, and finds GOAWAY.

    `ended` counts the streams that the server has ended in any way.
    """

    # State: the beginning of a frame whose rest is to come, and bytes of payload that are to come and of no interest.
    def __init__(self, told: target.Told) -> None:
        self._told = told
        self._rest = b""
        self._skip = 0
        self.ended = 0

    def __call__(self, data: bytes) -> str | None:
        """The code's name, if these bytes complete a GOAWAY."""
        words = None
        data = self._rest + data
        at = min(self._skip, len(data))
        self._skip -= at
        while len(data) - at >= frames.HEAD_SIZE:
            size, kind, flags, _ = frames.unpack(data, at)
            start = at + frames.HEAD_SIZE
            is_last = kind in (frames.GOAWAY, frames.RST_STREAM)
            if is_last and len(data) - start < size:
                break
            if kind == frames.GOAWAY:
                words = "GOAWAY " + _name(data[start + 4 : start + 8])
            elif kind == frames.RST_STREAM:
                self._told.resets += 1
                self.ended += 1
            elif kind in (frames.DATA, frames.HEADERS) and flags & frames.END_STREAM:
                self.ended += 1
            at = start + size
            if at > len(data):
                self._skip, at = at - len(data), len(data)
        self._rest = data[at:]
        return words


def _name(code: bytes) -> str:
    number = int.from_bytes(code)
    return CODES[number] if number < len(CODES) else str(number)


async def connect(to: target.Target, port: int, receive_buffer: int = 0) -> Link:
    """A connection. Raises `Gone` if the server does not take one in, and `target.Exhausted`."""
    to.spend_connection()
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        async with asyncio.timeout(max(0.01, to.left)):
            await asyncio.get_running_loop().sock_connect(sock, (to.host, port))
    except (OSError, TimeoutError):
        sock.close()
        raise Gone from None
    return Link(to, sock)


@contextlib.asynccontextmanager
async def http2(
    to: target.Target, *, reads: bool = True, receive_buffer: int = 0, **settings: int
) -> AsyncIterator[Link]:
    """A connection to the gRPC port after its greeting. One that does not read lets everything pile up."""
    link = await connect(to, to.grpc_port, receive_buffer)
    try:
        await link.send(frames.PREFACE + frames.settings(**settings))
        if reads:
            link.read_all(Watch(to.told))
        yield link
    finally:
        await link.close()


@contextlib.asynccontextmanager
async def http1(
    to: target.Target, *, reads: bool = True, receive_buffer: int = 0, port: int | None = None
) -> AsyncIterator[Link]:
    """A connection to the HTTP port, or another."""
    link = await connect(to, to.http_port if port is None else port, receive_buffer)
    try:
        if reads:
            link.read_all()
        yield link
    finally:
        await link.close()
