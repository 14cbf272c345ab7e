"""The connections of the admin port: few, none for long that asks nothing, and whoever comes gets in.

Nothing on this port is worth many connections, and the files that they take are the data port's. But a probe that is
turned away takes the pod out of service or restarts it: so it is not the newcomer who has to go when there are too
many, but who has asked nothing for longest. What lasts, a preStop hook or a live page, is left alone: it gets no more
than three quarters of the places, and who asks for more is told so.
"""

from __future__ import annotations

import asyncio
import collections
import math
import operator
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from carpool.runtime import deadline_timer
from carpool_sidecar.server import admin_access, unread

MOST: Final = 32
"""Connections at once: eight are live pages' at most, the others probes', scrapes' and preStop hooks'."""

MOST_DRAIN_WAITS: Final = MOST // 2

LONGEST_IDLE: Final = 45.0
"""Seconds until an idle connection is closed; no usual interval of scrapes, so that none meets its end."""

LONGEST_UNREAD: Final = 30.0
"""Seconds that a client may take nothing, at most; see `unread.Watch`."""

_ROUND: Final = 1.0  # seconds between looks at all of them
_LASTING: Final = frozenset({"/drain", "/drained", "/events"})


class _Client:
    """One connection: its socket, once that is known, and since when it is as it is."""

    # State: all of it. has_asked: a request came, once; is_asking: one is being answered; is_lasting: that may last.
    def __init__(self, since: float) -> None:
        self.socket: socket.socket | None = None
        self.since = since
        self.has_asked = self.is_asking = self.is_lasting = False

    @property
    def is_gone(self) -> bool:
        return self.socket is not None and self.socket.fileno() < 0


class Clients:
    """Watches over all connections of the admin port, and by `watch` over those that take nothing.

    The first request has to come within `head_timeout` seconds, each other within `keep_alive`, or 45 s.
    """

    # State: the connections that are in, or were lately; the timer while there are any.
    def __init__(self, watch: unread.Watch, head_timeout: float, keep_alive: float, clock: Callable[[], float]) -> None:
        self._watch = watch
        self._first, self._next = head_timeout, min(keep_alive, LONGEST_IDLE)
        self._clock = clock
        self._clients: dict[asyncio.Transport, _Client] = {}
        self._timer = deadline_timer.DeadlineTimer(self._go_round, clock)

    def came(self, caller: socket.socket, transport: asyncio.Transport) -> None:
        """A caller is in; somebody else may have to go."""
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
    async def look_on(self, request: web.Request, handler: admin_access.Handler) -> web.StreamResponse:
        """Know over which connections requests are being answered."""
        if request.transport is None:
            return await handler(request)
        client = self._client(request.transport)
        client.has_asked = client.is_asking = True
        client.is_lasting, client.since = request.path in _LASTING, self._clock()
        try:
            return await handler(request)
        finally:
            client.is_asking, client.since = False, self._clock()

    def stop(self) -> None:
        """Watch over nobody any more."""
        self._timer.stop()
        self._watch.stop()
        self._clients.clear()

    def _client(self, transport: asyncio.Transport) -> _Client:
        # Whichever is told first: that it is in, or its first request.
        return self._clients.setdefault(transport, _Client(self._clock()))

    def _least_important(self, newcomer: asyncio.Transport) -> asyncio.Transport:
        """Who has asked nothing for longest; where all ask, who did so last of those whose answers do not last."""
        others = [(client.since, each, client) for each, client in self._clients.items() if each is not newcomer]
        since = operator.itemgetter(0)
        idle = [each for each in others if not each[2].is_asking]
        if idle:
            return min(idle, key=since)[1]
        asking = [each for each in others if not each[2].is_lasting]
        return max(asking, key=since)[1] if asking else newcomer

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


class DrainWaits:
    """Places for those who wait for the end of a drain: few, shared alike by the addresses that ask.

    Anybody may wait, so one who asks very often must keep out nobody else: where all places are taken, the address
    that has most of them gives up its latest to one that has at least two fewer.
    """

    # State: the time limits of those who wait, in the order in which they came, with their addresses.
    def __init__(self) -> None:
        self._waits: dict[asyncio.Timeout, str] = {}

    async def wait(self, until_drained: Callable[[], Awaitable[None]], address: str, longest: float) -> bool:
        """Wait, `longest` seconds at most; returns False as soon as there is no place."""
        if not self._has_place(address):
            return False
        limit = asyncio.timeout(longest)
        self._waits[limit] = address
        try:
            async with limit:
                await until_drained()
        except TimeoutError:
            return limit in self._waits
        finally:
            self._waits.pop(limit, None)
        return True

    def _has_place(self, address: str) -> bool:
        """Whether one more may wait, for whom somebody else may have to leave."""
        if len(self._waits) < MOST_DRAIN_WAITS:
            return True
        counts = collections.Counter(self._waits.values())
        greedy, count = counts.most_common(1)[0]
        if counts[address] + 1 >= count:
            return False
        latest = [limit for limit, each in self._waits.items() if each == greedy][-1]
        del self._waits[latest]
        if not latest.expired():
            latest.reschedule(0.0)
        return True
