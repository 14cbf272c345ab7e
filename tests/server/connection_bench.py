"""The data port's connections without sockets: transport, driver and whoever answers are under the test's thumb."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from carpool.program import allocator
from carpool.runtime import driver
from carpool.scheduling import ledger, messages
from carpool_sidecar import config, drain, errors, metrics
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.protocols import interface, v1
from carpool_sidecar.server import predict, responses
from carpool_sidecar.server.http1 import bodies, exchange, handler, heads, relay, requests
from carpool_sidecar.server.http1 import connection as connections
from carpool_sidecar.server.http1 import messages as http_messages
from carpool_sidecar.upstream import readiness

PREDICT = b"/v1/models/m:predict"
BODY = b'{"instances":[1]}'
V1_ROUTE = calls.Route(v1.Codec(), None)  # type: ignore[arg-type] # nothing is sent
V1_ROUTES = routes.Routes(V1_ROUTE, routes.Models(None, None))  # type: ignore[arg-type] # no v2 request comes
# As asyncio and uvloop have them.
_HIGH_WATER, _LOW_WATER = 64 * 1024, 16 * 1024


def post(body: bytes = BODY, *lines: bytes, target: bytes = PREDICT, length: int | None = None) -> bytes:
    """A plain predict request; `length` is what it says of its body, if that is not the truth."""
    size = len(body) if length is None else length
    head = [b"POST %b HTTP/1.1" % target, b"Host: h", b"Content-Type: application/json", *lines]
    return b"".join(line + b"\r\n" for line in head) + b"Content-Length: %d\r\n\r\n%b" % (size, body)


def get(target: bytes = b"/v1/models") -> bytes:
    """A request that is no plain predict request."""
    return b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target


class Transport(asyncio.Transport):
    """A client's end as well: `received` is what it read, `writes` how it was written, until `stall` it reads all.

    It leaves when it reads that the server's side has ended, unless it `stays`.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.received = b""
        self.writes: list[bytes] = []
        self.is_lost = self.is_aborted = self.is_ended = self.stays = False
        self._unread = b""
        self._is_stalled = self._is_paused = self._is_closing = False
        self._is_reading = True
        self._high_water, self._room = _HIGH_WATER, 0
        protocol.connection_made(self)

    # --- the client --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Bytes arrive; only if the other end wants them."""
        assert self._is_reading
        assert not self._is_closing
        self.protocol.data_received(data)

    def leave(self) -> None:
        self._is_closing = True
        self._lose()

    def stall(self, room: int = 0) -> None:
        """Stop reading, with room for so many bytes in the socket's buffers."""
        self._is_stalled = True
        self._room = room

    def go_on_reading(self) -> None:
        self._is_stalled = False
        self._deliver()

    @property
    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.received.split(b"HTTP/1.1 ")[1:]]

    # --- the server's side -------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self.is_lost:
            return
        self.writes.append(data)
        taken = data[: self._room]
        self._room -= len(taken)
        self.received += taken
        self._unread += data[len(taken) :]
        if not self._is_stalled:
            self._deliver()
        elif len(self._unread) > self._high_water and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water = _HIGH_WATER if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unread)

    def pause_reading(self) -> None:
        assert self._is_reading
        self._is_reading = False

    def resume_reading(self) -> None:
        assert not self._is_reading
        self._is_reading = True

    def is_reading(self) -> bool:
        return self._is_reading

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def write_eof(self) -> None:
        """A client that reads sees it, and leaves unless it is to stay."""
        self.is_ended = True
        if not self._unread and not self.stays:
            asyncio.get_running_loop().call_soon(self._lose)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._unread:
                asyncio.get_running_loop().call_soon(self._lose)

    def abort(self) -> None:
        self._is_closing = self.is_aborted = True
        self._unread = b""
        asyncio.get_running_loop().call_soon(self._lose)

    def _deliver(self) -> None:
        self.received += self._unread
        self._unread = b""
        if self._is_paused:
            self._is_paused = False
            self.protocol.resume_writing()
        if self._is_closing or (self.is_ended and not self.stays):
            self._lose()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.protocol.connection_lost(None)


class Asked:
    """A request that is no plain predict request: implements `exchange.Consumer`, and answers when it is told to.

    `data` is all that came of it, and what is held behind it.
    """

    def __init__(self, asked: exchange.Exchange, text: bytes) -> None:
        self.exchange = asked
        self.content = b""
        self.is_lost = self.is_whole = False
        self.words = ""
        self._text = text
        asked.consumer, asked.on_body, asked.cancel = self, self.came, self.lost
        self.came(b"".join(asked.take()))
        if asked.broken:
            self.broken(asked.broken)

    @property
    def data(self) -> bytes:
        connection = self.exchange.connection
        assert isinstance(connection, connections.Connection)
        return self._text + self.content + connection._rest

    def answer(self, close: bool = False) -> None:
        """Give an answer, after which nothing is held for it any more."""
        self.exchange.respond(responses.Response(200, (), b"asked"), close)

    def came(self, data: bytes) -> None:
        self.content += data
        self.is_whole = self.exchange.reader.is_complete

    def broken(self, words: str) -> None:
        self.words = words

    def caller_full(self, is_full: bool) -> None:
        """Nothing is read from anywhere."""

    def lost(self) -> None:
        self.is_lost = True

    def expire(self, now: float, quiet_since: float, patience: float) -> None:
        """It waits for ever."""


class Handler(handler.Handler):
    """`asked` are the requests that are not answered here."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._text = b""

    def read_head(self, text: bytes) -> http_messages.RequestHead:
        self._text = text
        return http_messages.read_head(text)

    def begin(self, asked: exchange.Exchange) -> None:
        self.asked.append(Asked(asked, self._text))


class OwnHandler(handler.Handler):
    """The sidecar's own, of which no probe asks anything; what it would pass on is kept: `passed`."""

    def __init__(self, bench: Bench) -> None:
        nobody = cast(relay.Relays, None), cast(readiness.Readiness, None)
        super().__init__(bench.rules, bench.requests, *nobody)
        self.passed: list[exchange.Exchange] = []

    def _pass_on(
        self, asked: exchange.Exchange, body: bytes | None = None, words: calls.ErrorWords | None = None
    ) -> None:
        self.passed.append(asked)


class Driver(driver.Driver):
    """`calls` are those that wait, `cancelled` those whose client left; `on_submit` may answer at once, or fail."""

    def __init__(self, memory: ledger.Ledger) -> None:  # of the real one it has no state
        self.calls: list[calls.Call] = []
        self._memory = memory
        self.cancelled: list[calls.Call] = []
        self.on_submit: Callable[[calls.Call], None] = lambda call: None
        self.submitted = 0

    def submit(self, call: calls.Call) -> None:
        self.submitted += 1
        self.calls.append(call)
        self._memory.held += call.size
        self.on_submit(call)

    def cancel(self, call: calls.Call) -> None:
        if call in self.calls:
            self._remove(call)
            self.cancelled.append(call)

    def _remove(self, call: calls.Call) -> None:
        self.calls.remove(call)
        self._memory.held -= call.size

    def answer(self, call: calls.Call | None = None, rows: list[bytes] | None = None) -> None:
        """Give the first call, or this one, its own instances back, or these predictions."""
        call = call or self.calls[0]
        self._remove(call)
        echo, call.payload = [bytes(row) for row in call.payload.rows], None
        found = interface.BatchPredictions(b"predictions", echo if rows is None else rows)
        call.replier.answer([messages.Answer(call, [messages.Piece(0, "an-id", found.rows)])], found)

    def refuse(self, error: errors.CarpoolError, call: calls.Call | None = None) -> None:
        call = call or self.calls[0]
        self._remove(call)
        call.replier.refuse(call, error)


class Bench:
    """Connections and what they share, on a clock that stands still until `pass_time`."""

    def __init__(self, ways: routes.Routes = V1_ROUTES, **chosen: Any) -> None:
        self.now = 1000.0
        self.settings = config.Settings(policy="window", **chosen)
        self.memory = ledger.Ledger(self.settings.max_queue_bytes)
        self.memory.large = allocator.LARGE
        self.driver = Driver(self.memory)
        self.bodies = bodies.Limits(self.settings.max_body_bytes, self.memory, self.settings.timeout)
        self.life = drain.Lifecycle(self.memory)
        self.metrics = metrics.Metrics()
        limits = self.settings.scheduler_limits
        self.rules = predict.PredictRules(self.settings, limits, self.bodies, ways, self.life, self.metrics)
        self.requests = requests.PlainRequests(self.rules, self.driver, lambda: self.now)
        self.reader: heads.Reader | None = heads.Reader(self.rules)
        self.handler: handler.Handler = Handler()
        self.keep_alive, self.head_timeout = self.settings.keep_alive, self.settings.head_timeout
        self.connections: set[connections.Connection] = set()

    @property
    def asked(self) -> list[Asked]:
        """The requests that are no plain predict requests."""
        assert isinstance(self.handler, Handler)
        return self.handler.asked

    def connect(self) -> Transport:
        return Transport(connections.Connection(self))

    async def pass_time(self, seconds: float) -> None:
        """In steps, as the server's own timer does; after each the connections are looked after."""
        steps = max(1, int(seconds * 4))
        for _ in range(steps):
            self.now += seconds / steps
            for connection in list(self.connections):
                connection.expire(self.now)
            await asyncio.sleep(0)

    # --- what connections ask for ------------------------------------------------------------------------------

    def joined(self, connection: connections.Connection) -> bool:
        self.connections.add(connection)
        return True

    def may_linger(self, connection: connections.Connection) -> bool:
        return True

    def left(self, connection: connections.Connection) -> None:
        self.connections.discard(connection)


async def settle() -> None:
    """Let all run that is due."""
    for _ in range(5):
        await asyncio.sleep(0)
