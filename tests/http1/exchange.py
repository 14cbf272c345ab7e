"""One stream through a sidecar: what a client sends and gets, and what its predictor gets and says.

Neither uses an HTTP library: clients send any bytes, and the predictor answers with any. Both run in virtual time,
where "nothing more will happen" is a fact: the clock moves only when all sockets are quiet. So each piece of a stream
is sent when all that the piece before it can lead to has happened.
"""

from __future__ import annotations

import asyncio
import enum
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from carpool_sidecar import errors
from carpool_sidecar.protocols import v1
from tests.http1.tables import NUMBER

QUIET = 0.01
"""Seconds after which another piece is sent; in virtual time any number of them would do."""

TIMES = {"timeout": 5.0, "head_timeout": 8.0, "keep_alive": 12.0, "connect_timeout": 3.0}
PATIENCE = 16.0  # seconds; longer than all of these
_MOMENTS = ((12.0, "idle"), (8.0, "as the head is late"), (5.0, "as time is up"), (2.0, "after lingering"))
_AT_ONCE = 1.9  # seconds; predictors take less
_ROUNDING = 1.6  # seconds by which a timer may be late: aiohttp rounds its own up to whole ones
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_SENT_BY_CHANCE = 60_000  # bytes: of more the kernel decides how many are read before a connection is closed


class End(enum.Enum):
    """How a side ends a connection."""

    HALF = "will send no more, and reads on"
    CLOSE = "closes"
    RESET = "resets"


Step = bytes | float | End
"""Bytes to be sent, virtual seconds to pass, or an end."""


class Early(tuple[Step, ...]):
    """An answer that is given as soon as the head of the request is there."""


@dataclass(frozen=True)
class Stream:
    """What one client does, and what the predictor answers to each of its requests: None is an echo."""

    group: str
    name: str
    steps: tuple[Step, ...]
    answer: tuple[Step, ...] | None = None

    @property
    def key(self) -> str:
        """Its name among all."""
        return f"{self.group}: {self.name}"

    @property
    def seconds(self) -> float:
        """How long the client and the predictor take, at most."""
        steps = (*self.steps, *(self.answer or ()))
        return sum(QUIET if isinstance(step, bytes) else step for step in steps if not isinstance(step, End))

    def numbered(self, number: int) -> tuple[list[Step], tuple[Step, ...] | None]:
        """Its steps and its answer with a number of their own."""
        digits = b"%06d" % number
        fill = [step.replace(NUMBER, digits) if isinstance(step, bytes) else step for step in self.steps]
        return fill, self.answer


# --- the client -------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """Sends the steps of a stream, one when all is quiet after the other, and reads until the server ends."""

    # State: all that was read; how and when the server ended; when anything last happened.
    def __init__(self) -> None:
        self.data = bytearray()
        self.end = ""
        self._loop = asyncio.get_running_loop()
        self._latest = self._ended_at = 0.0
        self._over = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._latest = self._loop.time()

    def eof_received(self) -> bool:
        self._end("closed")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("closed" if exc is None else "reset")

    def _end(self, how: str) -> None:
        if not self.end:
            self.end, self._ended_at = how, self._loop.time()
        if not self._over.done():
            self._over.set_result(None)

    async def converse(self, steps: Sequence[Step]) -> None:
        """Carry out the steps and wait for the end."""
        await asyncio.sleep(QUIET)  # a listening socket lets in a few in a turn
        for step in steps:
            self._latest = self._loop.time()
            if self.end:
                break
            match step:
                case bytes():
                    self._transport.write(step)
                    await asyncio.sleep(QUIET)
                case End.HALF:
                    self._transport.write_eof()
                case End():
                    self.end = "left"
                    _leave(self._transport, step)
                case _:
                    await asyncio.sleep(step)
        await asyncio.wait([self._over], timeout=PATIENCE)
        self.end = self.end or "open"
        _leave(self._transport, End.RESET)

    def told(self, sent: int) -> str:
        """How it ended, and after how long without anything."""
        if self.end in ("open", "left"):
            return self.end
        seconds = self._ended_at - self._latest
        name = next((name for moment, name in _MOMENTS if moment - 0.05 <= seconds <= moment + _ROUNDING), "")
        how = "closed or reset" if sent > _SENT_BY_CHANCE else self.end
        return f"{how}, {name or ('at once' if seconds < _AT_ONCE else f'after {seconds:.0f} s')}"


def _leave(transport: asyncio.Transport, how: Step) -> None:
    if how is End.RESET:
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
    else:
        transport.close()


# --- the predictor ----------------------------------------------------------------------------------------------

_OWN_NUMBER = re.compile(rb"-(\d{6})")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9a-fA-F]+)[^\r\n]*\r\n")
_SOON = 0.2  # seconds: a connection that is closed later was kept
_NEXT = b"/next-"  # a model that answers as it should
_GREETING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "


@dataclass
class Reached:
    """One request as it came to the predictor; `body` is what came of it, and `end` what became of its connection."""

    head: bytes
    body: bytes = b""
    end: str = "kept"

    def told(self) -> str:
        """The request in a line; fields are sorted, as the order of different ones means nothing (RFC 9110, 5.3)."""
        start, *fields = self.head.decode("latin-1").split("\r\n")
        named = sorted(fields, key=lambda line: line.partition(":")[0].lower())
        return " | ".join([start, *(_shortened(line) for line in named), _shortened(self.body.decode("latin-1"))]) + (
            "" if self.end == "kept" else f" [{self.end}]"
        )


class Predictor:
    """Listens for a sidecar; `seen` are the requests, and `answers` what is said to each, by numbers of streams."""

    def __init__(self) -> None:
        self.seen: dict[int, list[Reached]] = {}
        self.answers: dict[int, tuple[Step, ...] | None] = {}
        self.connections: set[PredictorConnection] = set()

    async def listen(self, port: int) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: PredictorConnection(self), "127.0.0.1", port, backlog=1024)

    async def close(self) -> None:
        """End, with all connections."""
        self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        await self._server.wait_closed()

    def sweep(self) -> None:
        """Close all connections."""
        for connection in list(self.connections):
            connection.is_ours = True
            connection.transport.close()

    def came(self, reached: Reached) -> tuple[Step, ...] | None:
        """A head came: what to answer."""
        found = _OWN_NUMBER.search(reached.head)
        number = int(found[1]) if found else 0
        self.seen.setdefault(number, []).append(reached)
        return None if _NEXT in reached.head else self.answers.get(number)


class PredictorConnection(asyncio.Protocol):
    """Reads what a good HTTP client writes, and nothing else."""

    # State: bytes that came and were not read; the request whose body comes, with how its end is found; the script of
    # its answer, and whether that has begun, is done, and since when; whether this side ended the connection.
    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._data = b""
        self._request: Reached | None = None
        self._missing = 0
        self._is_chunked = self._is_tunnel = self._has_begun = self._is_answered = False
        self._script: tuple[Step, ...] | None = None
        self.is_ours = False
        self._answered_at = 0.0
        self._answering: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._predictor.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._is_tunnel and self._request is not None:
            self._request.body += b"[" + data + b"]"
            self.transport.write(b"tunnelled:" + data)
            self._data = b""
        else:
            self._read()

    def eof_received(self) -> bool | None:
        if self._is_tunnel and self._request is not None:
            self._request.body += b"[end]"
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._predictor.connections.discard(self)
        if self._answering is not None:
            self._answering.cancel()
        is_soon = not self._is_answered or self._loop.time() < self._answered_at + _SOON
        if self._request is not None and not self.is_ours and is_soon:
            self._request.end = "reset" if exc else "closed"
            if not self._is_answered:
                self._request.end += " before its answer"

    def _read(self) -> None:
        while self._request is None or self._is_answered:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head, self._data = self._data[:end], self._data[end + 4 :]
            self._request, self._has_begun, self._is_answered = Reached(head), False, False
            length = _LENGTH.search(head)
            self._is_chunked = _CHUNKED.search(head) is not None
            self._missing = int(length[1]) if length and not self._is_chunked else 0
            self._script = self._predictor.came(self._request)
            if isinstance(self._script, Early):
                self._answer(self._script)
            if not self._read_body(self._request):
                return
        self._read_body(self._request)

    def _read_body(self, request: Reached) -> bool:
        """Whether it is complete, and answered."""
        if self._is_chunked:
            while True:
                size = _CHUNK.match(self._data)
                if size is None:
                    return False
                count = int(size[1], 16)
                if not count:
                    end = self._data.find(b"\r\n\r\n", size.end() - 2)
                    if end < 0:
                        return False
                    request.body += b"".join(
                        b"{%b}" % line for line in self._data[size.end() : end].split(b"\r\n") if line
                    )
                    self._data, self._is_chunked = self._data[end + 4 :], False
                    break
                if len(self._data) < size.end() + count + 2:
                    return False
                request.body += self._data[size.end() : size.end() + count]
                self._data = self._data[size.end() + count + 2 :]
        taken = self._data[: self._missing]
        request.body += taken
        self._data = self._data[len(taken) :]
        self._missing -= len(taken)
        if self._missing:
            return False
        if not self._has_begun and self._script is not None:
            self._answer(self._script)
        elif not self._has_begun:
            self.transport.write(echo(request))
        self._is_answered = self._answering is None
        self._answered_at = self._loop.time()
        return self._is_answered

    def _answer(self, script: tuple[Step, ...]) -> None:
        self._has_begun = True
        self._answering = self._loop.create_task(self._act(script), name="answer")

    async def _act(self, script: tuple[Step, ...]) -> None:
        for step in script:
            match step:
                case bytes():
                    self.transport.write(step)
                    self._is_tunnel = self._is_tunnel or step.startswith(_GREETING)
                    if step is not script[-1]:
                        await asyncio.sleep(QUIET)
                case End.HALF:
                    self.transport.write_eof()
                    return  # it answers nobody from then on
                case End():
                    self.is_ours = True
                    _leave(self.transport, step)
                case _:
                    await asyncio.sleep(step)
        self._answering = None
        if not self._is_tunnel:
            self._is_answered = not self._missing and not self._is_chunked
            self._answered_at = self._loop.time()
            if self._data:
                self._read()


def echo(request: Reached) -> bytes:
    """An answer to any request: predictions that are the instances, or the body as it came."""
    start = request.head.split(b"\r\n", 1)[0]
    method, target = start.split(b" ")[:2]
    body = b"passed:" + method + b":" + request.body
    if method == b"POST" and b":predict" in target.replace(b"%3A", b":"):
        try:
            rows = [bytes(row) for row in v1.parse_request(request.body).rows]
        except (errors.CarpoolError, errors.Unbatchable):
            rows = []
        body = b'{"predictions":[%b]}' % b",".join(rows) if rows else body
    head = b"HTTP/1.1 200 OK\r\nDate: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head if method == b"HEAD" else head + body


# --- what is kept -----------------------------------------------------------------------------------------------

_DATE = re.compile(r"\r\nDate: [^\r]+")
_BATCH_ID = re.compile(r'("batchId":"|carpool-batch-id: )[0-9a-f-]{36}')
_LOOPBACK = re.compile(r"127\.0\.0\.1:\d{4,5}")
# At the deadline of the last request of a batch two timers fall due at once, the request's and the batch's.
_LATE = re.compile(
    r"Content-Length: \d+\r\n\r\n\{\"error\":\""
    r"(?:no answer within the request's deadline|the predictor did not answer in time)\"\}"
)
_SERVER = re.compile(r"\r\nServer: Python/[^\r]+")
_IN_CHUNKS = re.compile(r"\r\nTransfer-Encoding: chunked\r\n(?:[^\r]+\r\n)*\r\n")
_LONG = re.compile(r"([a-zA-Z0-9,\[ ])\1{40,}")


def _shortened(text: str) -> str:
    return _LONG.sub(lambda run: f"{run[1]}*{len(run[0])}", text)


@dataclass
class Outcome:
    """What one stream led to, in words: the answers, the end, and the requests that reached the predictor."""

    answers: str
    end: str
    reached: list[str] = field(default_factory=list)

    def told(self) -> str:
        """All of it, to be kept and compared."""
        return "\n".join([*(f"> {line}" for line in self.reached), f"< {self.answers}", f"= {self.end}"])


def rechunked(text: str) -> str:
    """Answers, in which bodies in chunks are in one: where they are cut means nothing (RFC 9112, 7.1)."""
    found = _IN_CHUNKS.search(text)
    if found is None:
        return text
    head, rest, body = text[: found.end()], text[found.end() :], ""
    while (size := _CHUNK.match(rest.encode("latin-1"))) and (count := int(size[1], 16)):
        end = size.end() + count
        if rest[end : end + 2] != "\r\n":
            break
        body += rest[size.end() : end]
        rest = rest[end + 2 :]
    return f"{head}{len(body):x}\r\n{body}\r\n" * bool(body) + head * (not body) + rechunked(rest)


def masked(text: str, number: int) -> str:
    """Without what differs from run to run."""
    text = _LATE.sub("{it is late}", _SERVER.sub("\r\nServer: Python", rechunked(text)))
    # Before the number, as an id of a batch may have its digits by chance.
    text = _BATCH_ID.sub(r"\1?", _LOOPBACK.sub("127.0.0.1:?", _DATE.sub("\r\nDate: ?", text)))
    return _shortened(text.replace(f"{number:06d}", NUMBER.decode()))


def outcome(stream: Stream, client: Client, number: int, reached: Sequence[Reached]) -> Outcome:
    """What is kept of one stream."""
    sent = sum(len(step) for step in stream.steps if isinstance(step, bytes))
    answers = masked(client.data.decode("latin-1"), number)
    lines = sorted(masked(each.told(), number) for each in reached)
    return Outcome(answers.replace("\r\n", "⏎"), client.told(sent), lines)
