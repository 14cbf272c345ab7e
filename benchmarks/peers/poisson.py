"""Open-loop load: requests leave when they are due, whether or not earlier ones have been answered.

Send times are drawn ahead (a Poisson process, seeded), and latency counts from the moment a request was *meant* to
leave. A client that waits for an answer or for a free connection before it sends the next request leaves out just
the requests that a slow server would have kept waiting: coordinated omission, named by Gil Tene ("How NOT to Measure
Latency"; https://github.com/giltene/wrk2 has the argument). So this one opens another connection whenever all are
busy, and reports how late it was itself.

Plain sockets and a selector instead of an event loop: a request leaves with the system call that sends it. Timers of
event loops tick in whole milliseconds, so the last stretch before a send is spent polling: the client needs a core.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks import client, load

FIRST_CONNECTIONS = 32
PATIENCE = 5.0  # seconds to wait for answers when all requests are sent
_POLLED = 0.0015  # seconds before a send that are polled through; a selector's time-out may end a millisecond late
_STALE = 2.0  # seconds unused after which a connection is left alone: uvicorn closes them after 5
_RECEIVE = 1 << 16


@dataclass
class OpenLoop:
    """What one run saw. Times in seconds.

    `requests` were answered 2xx of `sent`; the percentiles and the `longest` are of those. `lag_p99` and `lag_max` say
    how late the client itself sent, `connections` how many it needed. `is_saturated`: so many were unanswered at once
    that the run was broken off, and the percentiles say nothing.
    """

    sent: int
    requests: int
    p50: float
    p99: float
    longest: float
    lag_p99: float
    lag_max: float
    connections: int
    is_saturated: bool
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class Samples:
    """Everything that one run saw: each latency, and how late each request left, in seconds; see `OpenLoop`."""

    latencies: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    connections: int = 0
    is_saturated: bool = False
    errors: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Samples) -> Samples:
        """Two runs at the same time, of two clients, as one."""
        return Samples(
            self.latencies + other.latencies,
            self.lags + other.lags,
            self.connections + other.connections,
            self.is_saturated or other.is_saturated,
            self.errors + other.errors,
        )

    def outcome(self) -> OpenLoop:
        """The figures of it."""
        latencies, lags = sorted(self.latencies), sorted(self.lags)
        return OpenLoop(
            sent=len(lags),
            requests=len(latencies),
            p50=load.percentile(latencies, 0.50),
            p99=load.percentile(latencies, 0.99),
            longest=load.percentile(latencies, 1.0),
            lag_p99=load.percentile(lags, 0.99),
            lag_max=load.percentile(lags, 1.0),
            connections=self.connections,
            is_saturated=self.is_saturated,
            errors=dict(self.errors),
        )


def draw(rate: float, seconds: float, seed: int) -> list[float]:
    """The send times of a Poisson process of so many requests/s, in seconds from its start."""
    generator = random.Random(seed)
    times: list[float] = []
    at = generator.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += generator.expovariate(rate)
    return times


def run(
    address: load.Address,
    request: bytes,
    times: Sequence[float],
    most_outstanding: int,
    is_right: Callable[[bytes], bool] = lambda answer: True,
    patience: float = PATIENCE,
) -> OpenLoop:
    """Send `request` at each of `times`, in seconds from now; break off when `most_outstanding` are unanswered.

    A 2xx answer that is not right counts as an error, and so does none within `patience` seconds of the last request.
    Raises `OSError` if there is no connection at the start.
    """
    return sample(address, [request], times, most_outstanding, is_right, patience).outcome()


def sample(
    address: load.Address,
    requests: Sequence[bytes],
    times: Sequence[float],
    most_outstanding: int,
    is_right: Callable[[bytes], bool] = lambda answer: True,
    patience: float = PATIENCE,
) -> Samples:
    """As `run`, with requests that take turns, and with all that was seen."""
    sender = _Sender(address, requests, most_outstanding, is_right)
    with _no_collections(), contextlib.closing(sender):
        sender.connect_ahead(FIRST_CONNECTIONS)
        sender.run(times, patience)
    return sender.samples


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Garbage collection would be a lag of the client's own making; there is hardly any garbage in cycles here."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Connection:
    """One keep-alive connection. `intended` is when the request on it was due; None while it is free.

    `unsent` is what the socket has not taken of it.
    """

    __slots__ = ("buffer", "intended", "socket", "unsent", "used")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.buffer = b""
        self.unsent = memoryview(b"")
        self.intended: float | None = None
        self.used = time.perf_counter()


class _Sender:
    def __init__(
        self, address: load.Address, requests: Sequence[bytes], most_outstanding: int, is_right: Callable[[bytes], bool]
    ) -> None:
        self._address = address
        self._requests = itertools.cycle(requests)
        self._most_outstanding = most_outstanding
        self._is_right = is_right
        self._selector = selectors.DefaultSelector()
        # The state of a run: who is free, how many wait for an answer, and what came of the rest.
        self._free: list[_Connection] = []
        self._outstanding = 0
        self.samples = Samples()

    def connect_ahead(self, count: int) -> None:
        for _ in range(count):
            connected = socket.create_connection(self._address)
            connected.setblocking(False)
            self._free.append(self._adopt(connected))

    def run(self, times: Sequence[float], patience: float) -> None:
        start = time.perf_counter() + 0.01
        for moment in times:
            self._wait_until(start + moment)
            if self._outstanding >= self._most_outstanding:
                self.samples.is_saturated = True
                break
            self._send(start + moment)
        deadline = time.perf_counter() + patience
        while self._outstanding and time.perf_counter() < deadline:
            self._poll(0.1)
        if self._outstanding and not self.samples.is_saturated:
            self.samples.errors["no answer"] += self._outstanding

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.socket.close()
        self._selector.close()

    def _wait_until(self, moment: float) -> None:
        """Handle answers until then, and once at least. Ends late only by what a single answer takes."""
        self._poll(0)
        while (pause := moment - time.perf_counter()) > 0:
            self._poll(max(0.0, pause - _POLLED) // 0.001 * 0.001)

    def _send(self, intended: float) -> None:
        connection = self._take()
        connection.intended, connection.unsent = intended, memoryview(next(self._requests))
        self._outstanding += 1
        self.samples.lags.append(time.perf_counter() - intended)
        self._write(connection)

    def _take(self) -> _Connection:
        """A free connection, the last used first, or a new one."""
        if self._free and time.perf_counter() - self._free[-1].used < _STALE:
            return self._free.pop()
        fresh = socket.socket()
        fresh.setblocking(False)
        fresh.connect_ex(self._address)  # in progress, or done: on loopback the kernel shakes hands at once
        return self._adopt(fresh)

    def _adopt(self, connected: socket.socket) -> _Connection:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(connected)
        self._selector.register(connected, selectors.EVENT_READ, connection)
        self.samples.connections += 1
        return connection

    def _write(self, connection: _Connection) -> None:
        """Send what the socket takes, and the rest once it takes more."""
        try:
            written = connection.socket.send(connection.unsent)
        except BlockingIOError:  # still connecting: the server's backlog is full
            written = 0
        except OSError as error:
            self._lose(connection, str(error))
            return
        connection.unsent = connection.unsent[written:]
        if connection.unsent:
            self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _poll(self, timeout: float) -> None:
        for key, events in self._selector.select(timeout):
            connection: _Connection = key.data
            if events & selectors.EVENT_WRITE and connection.unsent:
                self._selector.modify(connection.socket, selectors.EVENT_READ, connection)
                self._write(connection)
            elif events & selectors.EVENT_READ:
                self._read(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_RECEIVE)
        except OSError as error:
            self._lose(connection, str(error))
            return
        if not data:
            self._lose(connection, "connection closed")
            return
        connection.buffer += data
        try:
            answer = client.parse_response(connection.buffer)
        except ValueError as error:
            self._lose(connection, str(error))
            return
        if answer is not None and connection.intended is not None:
            self._answered(connection, connection.intended, *answer)

    def _answered(self, connection: _Connection, intended: float, status: int, body: bytes) -> None:
        if connection.unsent:
            self._lose(connection, f"status {status} before all was sent")
            return
        now = time.perf_counter()
        self._outstanding -= 1
        connection.buffer, connection.intended, connection.used = b"", None, now
        self._free.append(connection)
        if not 200 <= status < 300:
            self.samples.errors[f"status {status}"] += 1
        elif not self._is_right(body):
            self.samples.errors["wrong answer"] += 1
        else:
            self.samples.latencies.append(now - intended)

    def _lose(self, connection: _Connection, reason: str) -> None:
        """Give a connection up; an error only if a request was on it."""
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.intended is None:
            self._free.remove(connection)
        else:
            self._outstanding -= 1
            self.samples.errors[reason] += 1
