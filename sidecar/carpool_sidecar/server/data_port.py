"""The data port: every connection begins on the fast lane.

A general HTTP server spends more on a small predict request than all the rest of the sidecar: it starts a coroutine,
copies headers into maps, and builds a response object. Plain predict requests need none of that. What a connection of
this lane does not recognise as one of those it leaves to the general server, bytes and all, so there is one answer to
every question about HTTP; it comes back when that is answered, so that one odd request does not slow down those behind
it. How many clients may be connected at once is counted for all ports and protocols together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable
from typing import Protocol

from carpool.runtime import deadline_timer
from carpool_sidecar import config, files, metrics
from carpool_sidecar.server import listening, responses, unread
from carpool_sidecar.server.fast import connection as connections
from carpool_sidecar.server.fast import heads, questions, requests

log = logging.getLogger("carpool.sidecar.server")

# Seconds between looks at the clock on behalf of all connections; a timer for each would cost as much as an answer.
_SHORTEST_ROUND, _LONGEST_ROUND = 0.05, 1.0
_ROUNDS_IN_A_TIMEOUT = 4

LINGER = 0.25
"""Seconds that a client who has just connected gets to ask before its connection is closed unasked."""

_MOST_CONNECTIONS = 10_000
# What the sidecar needs for itself: ports, the way to the predictor, and what is the admin port's.
_OWN_FILES = 64


class Home(Protocol):
    """A connection that a general server has on loan."""

    def keep(self, data: bytes) -> None:
        """Bytes came behind the request that is on loan."""
        ...

    def give(self) -> bytes:
        """Hand over all that was to be kept."""
        ...

    def come_back(self) -> bool:
        """All that came is answered: whether the transport has another protocol from here on."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        ...


class FastLane:
    """Listens, and watches over the connections that are not on loan to `general` servers."""

    # State: the connections that are here and those on loan, the event that is set when one of the former is gone, and
    # the timer while there are any; what listens.
    def __init__(
        self,
        chosen: config.Settings,
        fast_requests: requests.FastRequests,
        general: Callable[[float | None, Home, int | None], asyncio.Protocol],
        limit: ConnectionLimit,
        asking: questions.Questions | None = None,
    ) -> None:
        """Questions are left to the general servers, too, unless there is somebody for them."""
        self.requests = fast_requests
        self.questions = asking
        self.reader = heads.Reader(fast_requests.rules)
        self.keep_alive = chosen.keep_alive
        self.head_timeout = chosen.head_timeout
        self._general = general
        self._limit = limit
        self._connections: set[connections.Connection] = set()
        self._lent: set[connections.Connection] = set()
        self._is_closed = False
        self._gone = asyncio.Event()
        self._timer = deadline_timer.DeadlineTimer(self._go_round, fast_requests.clock)
        self._listeners: list[listening.Listener] = []

    async def listen(self, host: str, port: int, backlog: int) -> None:
        """Accept connections; raises `OSError` if the port is taken."""
        self._listeners += await listening.listen(
            host, port, backlog, self._connection, self, self._limit, responses.too_many_connections
        )

    async def close(self, patience: float) -> None:
        """Accept nothing more and end all connections that are here; last answers have `patience` seconds to be read.

        Clients who have just connected may be about to ask, and get an answer: a connection that is closed before that
        tells them nothing. None comes back any more.
        """
        self._is_closed = True
        while self._listeners:
            await self._listeners.pop().close()
        begun = self.requests.clock() - LINGER
        asking = {connection for connection in self._connections | self._lent if connection.may_ask(begun)}
        for connection in self._connections - asking:
            connection.shut()
        await self._until_gone(lambda: bool(asking & self._connections), min(patience, LINGER))
        for connection in asking & self._connections:
            connection.shut()
        await self._until_gone(lambda: bool(self._connections or asking & self._lent), patience)
        for connection in list(self._connections):
            connection.cut()
        self._timer.stop()

    async def _until_gone(self, is_anybody: Callable[[], bool], patience: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while is_anybody():
                    self._gone.clear()
                    await self._gone.wait()

    def _connection(self) -> connections.Connection:
        return connections.Connection(self)

    def joined(self, connection: connections.Connection) -> bool:
        """A client connected: whether it may stay."""
        if not self._limit.enter():
            return False
        self._connections.add(connection)
        self._timer.look_by(self.requests.clock() + self._pause)
        return True

    def left(self, connection: connections.Connection) -> None:
        """A connection ended, here or on loan; nothing if it was not to stay."""
        if connection in self._connections:
            self._connections.remove(connection)
        elif connection in self._lent:
            self._lent.remove(connection)
        else:
            return
        self._gone.set()
        self._limit.leave()

    @property
    def open(self) -> int:
        """Connections that are here now."""
        return len(self._connections)

    @property
    def asked(self) -> int:
        """Predict requests that ever came to them."""
        return self.requests.submitted

    @property
    def waiting(self) -> int:
        """Requests being handled, here or elsewhere."""
        return self.requests.memory.active

    def lend(
        self, connection: connections.Connection, reason: metrics.Handover, size: int | None, since: float | None
    ) -> asyncio.Protocol:
        """A general server for a connection, whose client has been at its first head since then."""
        self._connections.remove(connection)
        self._lent.add(connection)
        self.requests.rules.metrics.handovers.labels(reason).inc()
        self._gone.set()
        return self._general(since, connection, size)

    def returned(self, connection: connections.Connection) -> bool:
        """Whether a connection on loan may come back."""
        if self._is_closed:
            return False
        self._lent.remove(connection)
        self._connections.add(connection)
        self._timer.look_by(self.requests.clock() + self._pause)
        return True

    def _go_round(self, now: float) -> float:
        """End connections whose time is up; returns when to look again."""
        for connection in list(self._connections):
            connection.expire(now)
        return now + self._pause if self._connections else math.inf

    @property
    def _pause(self) -> float:
        # Asked for anew each time, as the time for a body may be changed while running.
        shortest = min(self.keep_alive, self.head_timeout, self.requests.rules.bodies.read_timeout)
        return max(_SHORTEST_ROUND, min(_LONGEST_ROUND, shortest / _ROUNDS_IN_A_TIMEOUT))


def usual_limit() -> int:
    """The limit where none was chosen: half of the open files, as a request passed through takes a second, at most
    10,000."""
    return max(1, min(_MOST_CONNECTIONS, (files.limit() - _OWN_FILES) // 2))


class ConnectionLimit:
    """Counts clients that connect and leave. `open` is how many there are; `on_refused` is called for each too many.

    All who come in are looked after by the `watch`, if there is one.
    """

    def __init__(self, most: int, on_refused: Callable[[], None], watch: unread.Watch | None = None) -> None:
        self.open = 0
        self._most = most
        self._on_refused = on_refused
        self._watch = watch

    def has_file(self, number: int) -> bool:
        """Implements `listening.Limit`."""
        if files.is_spared(number):
            log.warning("a client was refused: the limit of open files is reached")
            self._on_refused()
            return False
        return True

    def came(self, caller: socket.socket, transport: asyncio.Transport) -> None:
        """Implements `listening.Limit`."""
        if self._watch is not None:
            self._watch.add(caller, transport)

    def enter(self) -> bool:
        """A client connected: whether it may stay. If so, `leave` has to be called when it is gone."""
        if self.open >= self._most:
            self._on_refused()
            return False
        self.open += 1
        return True

    def leave(self) -> None:
        """The counterpart of `enter`."""
        self.open -= 1
