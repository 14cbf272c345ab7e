"""The connections of the admin port: few, none for long that asks nothing, and whoever comes gets in.

Nothing on this port is worth many connections, and the files that they take are the data port's. But a probe that is
turned away takes the pod out of service or restarts it: so it is not the newcomer who has to go when there are too
many, but who has asked nothing for longest, and where more than half are being answered, who has asked last.
"""

from __future__ import annotations

import asyncio
import math
import operator
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from carpool.runtime import deadline_timer
from carpool_sidecar.server import unread

MOST: Final = 32
"""Connections at once: eight are live pages' at most, the others probes', scrapes' and preStop hooks'."""

LONGEST_IDLE: Final = 45.0
"""Seconds until an idle connection is closed; no usual interval of scrapes, so that none meets its end."""

LONGEST_UNREAD: Final = 30.0
"""Seconds that a client may take nothing, at most; see `unread.Watch`."""

_ROUND: Final = 1.0  # seconds between looks at all of them

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Client:
    """One connection: its socket, once that is known, and since when it is as it is."""

    # State: all of it. has_asked: a request came, once; is_asking: one is being answered.
    def __init__(self, since: float) -> None:
        self.socket: socket.socket | None = None
        self.since = since
        self.has_asked = self.is_asking = False

    @property
    def is_gone(self) -> bool:
        return self.socket is not None and self.socket.fileno() < 0

    def change(self, is_asking: bool, now: float) -> None:
        """A request begins or ends."""
        self.has_asked, self.is_asking, self.since = True, is_asking, now


class Clients:
    """Watches over all connections of the admin port, and by `watch` over those that take nothing.

    The first request has to come within `head_timeout` seconds, each other within `keep_alive`, or 45 s.
    """

    # State: the connections that are in, or were lately; the timer while there are any; how many requests came.
    def __init__(self, watch: unread.Watch, head_timeout: float, keep_alive: float, clock: Callable[[], float]) -> None:
        self._watch = watch
        self._first, self._next = head_timeout, min(keep_alive, LONGEST_IDLE)
        self._clock = clock
        self._clients: dict[asyncio.Transport, _Client] = {}
        self._timer = deadline_timer.DeadlineTimer(self._go_round, clock)
        self.asked = 0

    @property
    def open(self) -> int:
        """Implements `listening.Crowd`."""
        return len(self._clients)

    @property
    def waiting(self) -> int:
        """Implements `listening.Crowd`."""
        return sum(each.is_asking for each in self._clients.values())

    def has_file(self, number: int) -> bool:
        """Implements `listening.Limit`."""
        return True

    def came(self, caller: socket.socket, transport: asyncio.Transport) -> None:
        """Implements `listening.Limit`."""
        self._watch.add(caller, transport)
        self._client(transport).socket = caller
        if len(self._clients) > MOST:
            self._forget_gone()
        if len(self._clients) > MOST:
            leaver = self._least_important(transport)
            del self._clients[leaver]
            unread.reset(leaver)
        self._timer.look_by(self._clock() + _ROUND)

    @web.middleware
    async def look_on(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Know over which connections requests are being answered."""
        self.asked += 1
        if request.transport is None:
            return await handler(request)
        client = self._client(request.transport)
        client.change(True, self._clock())
        try:
            return await handler(request)
        finally:
            client.change(False, self._clock())

    def stop(self) -> None:
        """Watch over nobody any more."""
        self._timer.stop()
        self._watch.stop()
        self._clients.clear()

    def _client(self, transport: asyncio.Transport) -> _Client:
        # Whichever is told first: that it is in, or its first request.
        return self._clients.setdefault(transport, _Client(self._clock()))

    def _least_important(self, newcomer: asyncio.Transport) -> asyncio.Transport:
        """Who has asked nothing for longest, or, where more than half are being answered, who has asked last."""
        others = [(client, each) for each, client in self._clients.items() if each is not newcomer]
        asking = [(client.since, each) for client, each in others if client.is_asking]
        idle = [(client.since, each) for client, each in others if not client.is_asking]
        if len(asking) > MOST // 2 or not idle:
            return max(asking, key=operator.itemgetter(0))[1]
        return min(idle, key=operator.itemgetter(0))[1]

    def _forget_gone(self) -> None:
        for each in [each for each, client in self._clients.items() if client.is_gone]:
            del self._clients[each]

    def _go_round(self, now: float) -> float:
        """Close those whose time is up; returns when to look again, or infinity."""
        self._forget_gone()
        for each, client in self._clients.items():
            if not client.is_asking and now - client.since > (self._next if client.has_asked else self._first):
                each.close()
        return now + _ROUND if self._clients else math.inf
