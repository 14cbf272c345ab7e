"""One client connection, byte by byte: what is written when, and what came back when.

A client that uses an HTTP library sends what the library thinks is HTTP. These send any bytes, cut anywhere, and read
until the server closes, so the answers, their moments and the end of the connection are all on record.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

_READ = 1 << 20
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Wait:
    """Let so many seconds pass; in virtual time everything that can happen has happened then."""

    seconds: float


# Hundreds of these are still less than what counts as another moment.
SHORTLY = Wait(1e-5)


@dataclass(frozen=True)
class Turns:
    """Let the event loop turn so many times; two are the least for what was written to be read by itself."""

    count: int


# Hundreds of clients come at once, and a turn lets 16 in (carpool_sidecar.server.listening).
_ACCEPTED = Turns(40)


class Leave(enum.Enum):
    """How a client may end its side before the server does."""

    HALF_CLOSE = "says that it will send no more, and reads on"
    RESET = "is gone"
    CLOSE = "closes politely without reading on"


class Reading(enum.Enum):
    """Whether the client takes what it gets."""

    STOP = "leaves everything in its socket from now on"
    GO_ON = "reads again"


Step = bytes | Wait | Turns | Leave | Reading


@dataclass
class Transcript:
    """What one client got.

    `events` are the bytes read at one moment, in seconds since the connection was made; `end` tells who ended the
    connection ("closed" or "reset" by the server, "left" by the client, "open": nobody did) and `ended` when.
    """

    events: list[tuple[float, bytes]] = field(default_factory=list)
    end: str = "open"
    ended: float = 0.0

    @property
    def data(self) -> bytes:
        """All that was read."""
        return b"".join(data for _, data in self.events)

    @property
    def count(self) -> int:
        """How many answers that were."""
        return self.data.count(b"HTTP/1.")

    def hear(self, moment: float, data: bytes) -> None:
        """Bytes arrived; those of one moment are one event, however the reads cut them."""
        moment = round(moment, 2)
        if self.events and self.events[-1][0] == moment:
            self.events[-1] = (moment, self.events[-1][1] + data)
        else:
            self.events.append((moment, data))


class Client:
    """Carries out steps on one connection to `port`.

    If a server has not closed after `patience` seconds, the client goes with a reset: the end of one that goes politely
    comes behind all that it sent, where a server that reads no more may not see it.
    """

    def __init__(self, port: int, patience: float, receive_buffer: int | None = None) -> None:
        self._port = port
        self._patience = patience
        self._transcript = Transcript()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)

    async def converse(self, steps: Sequence[Step]) -> Transcript:
        """Connect, carry out `steps`, and read until the end."""
        self._loop = asyncio.get_running_loop()
        with self._socket:
            await self._loop.sock_connect(self._socket, ("127.0.0.1", self._port))
            # What is sent before the server accepts is read at once, whatever pauses lie between.
            await self._act(_ACCEPTED)
            self._began = self._loop.time()
            self._listening = asyncio.create_task(self._listen(), name="client")
            try:
                await self._take_part(steps)
            finally:
                self._listening.cancel()
                await asyncio.wait([self._listening])
        return self._transcript

    async def _take_part(self, steps: Sequence[Step]) -> None:
        try:
            async with asyncio.timeout(self._patience):
                if await self._speak(steps):
                    await self._listening
        except TimeoutError:
            self._reset_on_close()
            self._transcript.ended = self._patience

    async def _speak(self, steps: Sequence[Step]) -> bool:
        """Whether the client is still there after its last step."""
        for step in steps:
            if self._listening.done():
                return True
            if isinstance(step, Leave) and step is not Leave.HALF_CLOSE:
                return self._leave(step)
            await self._act(step)
        return True

    async def _act(self, step: Step) -> None:
        match step:
            case bytes():
                await self._write(step)
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Turns(count):
                for _ in range(count):
                    await asyncio.sleep(0)
            case Reading.STOP:
                self._may_read.clear()
            case Reading.GO_ON:
                self._may_read.set()
            case Leave.HALF_CLOSE:
                self._socket.shutdown(socket.SHUT_WR)

    async def _write(self, data: bytes) -> None:
        writing = asyncio.ensure_future(self._loop.sock_sendall(self._socket, data))
        # A server that closes may leave the rest of what we write unread for good.
        await asyncio.wait([writing, self._listening], return_when=asyncio.FIRST_COMPLETED)
        writing.cancel()
        await asyncio.wait([writing])
        if not writing.cancelled():
            writing.exception()  # it closed its side: what it said before is still to be read

    def _leave(self, step: Leave) -> bool:
        if step is Leave.RESET:
            self._reset_on_close()
        self._end("left")
        return False

    def _reset_on_close(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    async def _listen(self) -> None:
        while True:
            await self._may_read.wait()
            try:
                data = await self._loop.sock_recv(self._socket, _READ)
            except ConnectionError:
                return self._end("reset")
            if not data:
                return self._end("closed")
            self._transcript.hear(self._loop.time() - self._began, data)

    def _end(self, how: str) -> None:
        self._transcript.end = how
        self._transcript.ended = round(self._loop.time() - self._began, 2)
