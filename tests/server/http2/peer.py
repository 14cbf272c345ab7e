"""A client's end of a connection without a socket, and a door that notes what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import hpack

from carpool.scheduling import ledger
from carpool_sidecar.server.http2 import connection, frames, headers, limits, server_stream

POST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/some.Service/Call"),
    (b":authority", b"here"),
    (b"te", b"trailers"),
)
HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
OK = ((b"grpc-status", b"0"),)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def word(self) -> int:
        """Its last four bytes, which in GOAWAY without a reason, RST_STREAM and WINDOW_UPDATE is the number."""
        return int.from_bytes(self.payload[-4:])


class Call:
    """A handler that notes everything and does nothing."""

    def __init__(self, stream: server_stream.ServerStream, head: headers.Head) -> None:
        self.stream = stream
        self.head = head
        self.body = b""
        self.events: list[str] = []

    def data(self, data: bytes) -> None:
        self.body += data

    def end(self) -> None:
        self.events.append("end")

    def cancelled(self) -> None:
        self.events.append("cancelled")

    def writable(self) -> None:
        self.events.append("writable")


class Notes:
    """A door that keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
        self.calls.append(Call(stream, head))
        return self.calls[-1]


class Peer:
    """The client, and the connection it talks to."""

    def __init__(
        self,
        door: server_stream.Service | None = None,
        chosen: limits.Limits | None = None,
        memory: ledger.Ledger | None = None,
    ) -> None:
        self.notes = Notes()
        self.failures: list[Exception] = []
        self.now = 1000.0
        self.wakes = self.turns = 0
        self.connection = connection.Connection(
            door or self.notes,
            chosen or limits.Limits(),
            self._wake,
            self.failures.append,
            lambda: self.now,
            memory or ledger.Ledger(),
        )
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()

    def receive(self, data: bytes) -> None:
        """Send this, and give the connection the turns that it needs, which are counted."""
        self.connection.feed(data)
        self.turns = 0
        while self.connection.has_more:
            self.connection.go_on()
            self.turns += 1

    def _wake(self) -> None:
        self.wakes += 1

    def begin(self, **settings: int) -> Peer:
        """Exchange greetings, which are not looked at."""
        chosen = {frames.Setting[name.upper()]: value for name, value in settings.items()}
        self.receive(frames.PREFACE + frames.settings(chosen))
        self.read()
        return self

    def headers(self, stream: int, flags: int = 0, fields: headers.Headers = POST) -> bytes:
        """HEADERS as a client would write them."""
        return frames.headers(stream, self.encoder.encode(fields), flags, frames.MOST_MAX_FRAME)

    def say(self, *parts: bytes) -> list[Frame]:
        """Send this; returns what comes back."""
        self.receive(b"".join(parts))
        return self.read()

    def call(self, stream: int = 1, body: bytes = b"") -> Call:
        """A whole request; returns its handler."""
        data = frames.frame(frames.DATA, frames.END_STREAM, stream, body)
        self.receive(self.headers(stream) + data)
        return self.notes.calls[-1]

    def read(self) -> list[Frame]:
        """All frames that the server sends by now."""
        data = b""
        while piece := self.connection.take():
            data += piece
        return parse(data)

    def fields(self, frame: Frame) -> list[tuple[bytes, bytes]]:
        """What HEADERS say."""
        return [(bytes(name), bytes(value)) for name, value in self.decoder.decode(frame.payload, raw=True)]


def parse(data: bytes) -> list[Frame]:
    """Complete frames and nothing else."""
    found, at = [], 0
    while at < len(data):
        word, flags, stream = frames.unpack_head(data, at)
        end = at + frames.HEAD_SIZE + (word >> 8)
        assert end <= len(data)
        found.append(Frame(word & 0xFF, flags, stream, data[at + frames.HEAD_SIZE : end]))
        at = end
    return found


async def until(happened: Callable[[], object], step: float = 0.001) -> None:
    """Wait for what only another process or the kernel brings about, so that no event can tell."""
    while not happened():  # noqa: ASYNC110
        await asyncio.sleep(step)
