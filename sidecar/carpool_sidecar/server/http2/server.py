"""Listens, and watches over all connections.

Conformance is tested with h2spec (https://github.com/summerwind/h2spec): `python -m tests.server.http2.echo 8080`
serves, then `h2spec generic -p 8080 -P /late`, and the same with `http2` and `hpack`. One failure is expected: in 4.2,
h2spec takes 16 KiB for the largest frame, though the server allows more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from carpool_sidecar.server.http2 import limits, protocol, streams, turns, unread

log = logging.getLogger("carpool.sidecar.server")

# Seconds between looks at the clock on behalf of all connections; a timer for each would cost as much as an answer.
_SHORTEST_ROUND, _LONGEST_ROUND = 0.05, 0.5
_ROUNDS_IN_A_TIMEOUT = 4


class ConnectionLimit(Protocol):
    """Counts clients of all ports."""

    def enter(self) -> bool:
        """A client connected: whether it may stay."""
        ...

    def leave(self) -> None:
        """One that might stay is gone."""
        ...


class Server:
    """HTTP/2 over cleartext TCP, with prior knowledge; `door` gets every request.

    `report` gets what handlers raise, and what only a bug of the server itself can; without it, it is logged. `memory`
    counts what clients have not read, and is without limit unless given. Clients beyond the `connection_limit` are
    closed at once.
    """

    def __init__(
        self,
        door: streams.Door,
        chosen: limits.Limits | None = None,
        report: Callable[[Exception], None] | None = None,
        memory: unread.Memory | None = None,
        connection_limit: ConnectionLimit | None = None,
    ) -> None:
        self.door = door
        self._connection_limit = connection_limit
        self.limits = chosen or limits.Limits()
        self.report = report or _log
        self.memory: unread.Memory = unread.Unlimited() if memory is None else memory
        shortest = min(self.limits.keep_alive, self.limits.handshake, self.limits.patience)
        self._round = max(_SHORTEST_ROUND, min(_LONGEST_ROUND, shortest / _ROUNDS_IN_A_TIMEOUT))
        self._clients: set[protocol.ServerProtocol] = set()
        self.is_leaving = False
        self._changed = asyncio.Event()  # a client is gone, or time has passed
        self._timer: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._is_closing = False

    @property
    def connections(self) -> int:
        """Clients connected now."""
        return len(self._clients)

    @property
    def port(self) -> int:
        """The port in use, also where 0 was asked for; 0 before `listen`."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server is not None else 0

    async def listen(self, host: str, port: int, backlog: int = 100) -> None:
        """Accept connections; raises `OSError` if the port is taken."""
        loop = asyncio.get_running_loop()
        self.turns = turns.Turns(loop.call_soon)
        self._server = await loop.create_server(lambda: protocol.ServerProtocol(self), host, port, backlog=backlog)

    def goaway(self) -> None:
        """Ask all clients to open no more streams on their connections, and close each when it has its answers.

        Clients may connect anew and are served, until `turn_away` or `close`, and asked again after a second: by then
        they may find somebody else.
        """
        self.is_leaving = True
        for client in list(self._clients):
            client.leave()

    async def turn_away(self) -> None:
        """Accept no more connections, and return when no client opens streams any more, or within two seconds.

        Running streams go on."""
        self._shut()
        while not all(client.is_settled for client in self._clients):
            await self._change()

    async def close(self, patience: float) -> None:
        """Accept nothing more; running streams have `patience` seconds to end, then they are cancelled."""
        self._shut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._wait_for_all()
        for client in list(self._clients):
            client.cut()
        await self._wait_for_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _shut(self) -> None:
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        self.goaway()

    async def _wait_for_all(self) -> None:
        while self._clients:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def joined(self, client: protocol.ServerProtocol) -> None:
        """See `protocol.Owner`."""
        if self._connection_limit is not None and not self._connection_limit.enter():
            client.cut()
            return
        self._clients.add(client)
        if self._is_closing:
            client.leave()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._round, self._go_round)

    def left(self, client: protocol.ServerProtocol) -> None:
        """See `protocol.Owner`."""
        if client in self._clients:
            self._clients.remove(client)
            if self._connection_limit is not None:
                self._connection_limit.leave()
        self._changed.set()

    def _go_round(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for client in list(self._clients):
            client.expire(now)
        self._changed.set()
        if self._clients:
            self._timer = asyncio.get_running_loop().call_later(self._round, self._go_round)


def _log(error: Exception) -> None:
    log.error("the HTTP/2 server caught a bug", exc_info=error)
