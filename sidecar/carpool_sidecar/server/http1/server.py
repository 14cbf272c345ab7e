"""The data port: takes connections, and watches over them.

A general HTTP server spends more on a small predict request than all the rest of the sidecar: it starts a coroutine,
copies headers into maps, and builds a response object. Plain predict requests need none of that here, and pay for none
of it; all others are read by the same connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from carpool.runtime import deadline_timer
from carpool_sidecar import config
from carpool_sidecar.server import listening, responses
from carpool_sidecar.server.http1 import connection as connections
from carpool_sidecar.server.http1 import handler as handlers
from carpool_sidecar.server.http1 import heads, requests

# Seconds between looks at the clock on behalf of all connections; a timer for each would cost as much as an answer.
_SHORTEST_ROUND, _LONGEST_ROUND = 0.05, 1.0
_ROUNDS_IN_A_TIMEOUT = 4

_MOST_TURNED_AWAY = 64  # at once; others are closed as soon as they were told

LINGER = 0.25
"""Seconds that a client who has just connected gets to ask before its connection is closed unasked."""


class Server:
    """Listens, and watches over its connections. Where nothing is batched, there are no plain predict requests."""

    # State: the connections, the event that is set when one is gone, and the timer while there are any; those that were
    # one too many and are read for a while; what listens.
    def __init__(
        self,
        chosen: config.Settings,
        plain: requests.PlainRequests,
        answering: handlers.Handler,
        limit: listening.ConnectionLimit,
    ) -> None:
        self.requests = plain
        self.handler = answering
        self.reader = heads.Reader(plain.rules) if chosen.enable_batcher else None
        self.keep_alive = chosen.keep_alive
        self.head_timeout = chosen.head_timeout
        self._limit = limit
        self._connections: set[connections.Connection] = set()
        self._turned_away: set[connections.Connection] = set()
        self._gone = asyncio.Event()
        self._timer = deadline_timer.DeadlineTimer(self._go_round, plain.clock)
        self._listeners: list[listening.Listener] = []

    async def listen(self, host: str, port: int, backlog: int) -> None:
        """Accept connections; raises `OSError` if the port is taken."""
        self._listeners += await listening.listen(
            (host, port), backlog, lambda: connections.Connection(self), self.crowd, self._limit,
            responses.too_many_connections,
        )  # fmt: skip

    async def close(self, patience: float) -> None:
        """Accept nothing more and end all connections; last answers have `patience` seconds to be given and read.

        Clients who have just connected may be about to ask, and get an answer: a connection that is closed before that
        tells them nothing.
        """
        while self._listeners:
            await self._listeners.pop().close()
        begun = self.requests.clock() - LINGER
        asking = {connection for connection in self._connections if connection.may_ask(begun)}
        for connection in self._connections - asking:
            connection.shut()
        await self._until_gone(lambda: bool(asking & self._connections), min(patience, LINGER))
        await listening.until_read()
        for connection in asking & self._connections:
            connection.shut()
        await self._until_gone(lambda: bool(self._connections), patience)
        for connection in [*self._connections, *self._turned_away]:
            connection.cut()
        self._timer.stop()

    async def _until_gone(self, is_anybody: Callable[[], bool], patience: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while is_anybody():
                    self._gone.clear()
                    await self._gone.wait()

    def joined(self, connection: connections.Connection) -> bool:
        """A client connected: whether it may stay."""
        if not self._limit.enter():
            return False
        self._connections.add(connection)
        self._timer.look_by(self.requests.clock() + self._pause)
        return True

    def may_linger(self, connection: connections.Connection) -> bool:
        """Whether a client too many is read for a while, for what it has sent by then would cost it our words.

        No more than a few are, or a flood of clients would hold as many connections as they like.
        """
        may = len(self._turned_away) < _MOST_TURNED_AWAY
        if may:
            self._turned_away.add(connection)
            self._timer.look_by(self.requests.clock() + self._pause)
        return may

    def left(self, connection: connections.Connection) -> None:
        """A connection ended, whether it was to stay or not."""
        self._turned_away.discard(connection)
        if connection in self._connections:
            self._connections.remove(connection)
            self._gone.set()
            self._limit.leave()

    def crowd(self) -> listening.Crowd:
        """Who is in, and what they ask."""
        return listening.Crowd(len(self._connections), self.requests.submitted, self.requests.memory.active)

    def _go_round(self, now: float) -> float:
        """End connections whose time is up; returns when to look again."""
        for connection in [*self._connections, *self._turned_away]:
            connection.expire(now)
        return now + self._pause if self._connections or self._turned_away else math.inf

    @property
    def _pause(self) -> float:
        # Asked for anew each time, as the time for a body may be changed while running.
        shortest = min(self.keep_alive, self.head_timeout, self.requests.rules.bodies.read_timeout)
        return max(_SHORTEST_ROUND, min(_LONGEST_ROUND, shortest / _ROUNDS_IN_A_TIMEOUT))
