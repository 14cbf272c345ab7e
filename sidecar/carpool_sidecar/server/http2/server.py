"""HTTP/2 on sockets: listening, writing, sharing the loop, and ending connections whose clients are silent or do not
read.

All answers of one turn of the loop leave in one write. A connection that is done tells its client so and stops writing,
but goes on reading for a moment: if it closed with bytes unread, the kernel would reset the connection, and the client
would lose its last answers.

Conformance is tested with h2spec (https://github.com/summerwind/h2spec): `python -m tests.server.http2.echo 8080`
serves, then `h2spec generic -p 8080 -P /late`, and the same with `http2` and `hpack`. One failure is expected: in 4.2,
h2spec takes 16 KiB for the largest frame, though the server allows more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, cast

from carpool.scheduling import ledger
from carpool_sidecar.server import listening
from carpool_sidecar.server.http2 import connection, limits, server_stream

log = logging.getLogger("carpool.sidecar.server")

_SHORTEST_ROUND: Final = 0.05
_LONGEST_ROUND: Final = 0.5
"""Seconds between looks at all connections. A timer for each connection would cost as much as an answer."""

_ROUNDS_IN_A_TIMEOUT: Final = 4

_LINGER: Final = 1.0
"""Seconds that a client has to close its side, or to say that it knows that the server is leaving."""

_WRITE_BUFFER: Final = 256 * 1024

_LIGHT: Final = 4 * 1024
"""Bytes at once that never wait for a turn: a few small calls."""

_MOST_DRAINED: Final = 1024 * 1024
"""Bytes that are read of a client that broke a rule, so that it gets to know of it."""

_WRITES_A_TURN: Final = 4
"""Writes, of 256 KiB mostly, before the other connections get their turn."""


class ServerProtocol(asyncio.Protocol):
    """One client of the server."""

    # State. _is_reading: within a turn, which writes at its end; _is_due: a write will follow in the next turn of the
    # loop; _is_held: nothing is read until what was received has had its turns. _is_lost, _has_parted: nothing will be
    # read, or written, any more. _began, _quiet_since, _deaf_since, _parting_since: times of the loop; _last_seen,
    # _progress_seen: the last stream and the progress then. _buffered: what is in the socket's buffer while it is
    # full. _drained: bytes that came after the connection had parted. _opened: streams counted so far.
    _transport: asyncio.Transport
    connection: connection.Connection

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._is_reading = self._is_held = self._is_lost = False
        self._is_due = True  # so that nothing is written before there is a transport
        self._has_parted = False
        self._began = self._quiet_since = self._deaf_since = self._loop.time()
        self._parting_since: float | None = None
        self._last_seen = self._progress_seen = self._drained = self._opened = 0
        self._buffered = server.memory.reserve()

    # --- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not one by inheritance
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        server = self._server
        self.connection = connection.Connection(
            server.service, server.limits, self._wake, server.report, self._loop.time, server.memory
        )
        server.joined(self)
        self._flush_due()

    def data_received(self, data: bytes) -> None:
        if self._has_parted:
            self._drain(len(data))
            return
        self.connection.feed(data)
        if len(data) <= _LIGHT or self._server.turns.has_room:
            self.take_turn()
        else:
            self._hold()

    def _drain(self, size: int) -> None:
        """Drop what came too late. A client that sends more than it may, or broke a rule and goes on, is cut off."""
        self._drained += size
        most = _MOST_DRAINED if self.connection.is_broken else 2 * self._server.limits.connection_window
        if self._drained > most:
            self.cut()

    def eof_received(self) -> None:
        """A client that sends no more cannot acknowledge what it gets: the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_parted = self._is_lost = True
        self._buffered.release()
        self.connection.lost()
        if self._server.memory.on_large is not None:
            self._server.memory.on_large()
        self._go_on_or_rest()

    def pause_writing(self) -> None:
        self.connection.sender.is_paused = True
        self._buffered.resize(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.connection.sender.is_paused = False
        self._buffered.release()
        self._flush()

    # --- turns -------------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        """Implements `limits.TurnTaker`."""
        self._is_reading = True
        try:
            self.connection.go_on()
        except Exception as error:
            self._give_up(error)
        finally:
            self._is_reading = False
        self._server.turns.spend(self.connection.work)
        opened = (self.connection.last + 1) // 2
        self._server.asked += opened - self._opened
        self._opened = opened
        self._flush()
        self._go_on_or_rest()

    def _go_on_or_rest(self) -> None:
        if self.connection.has_more:
            self._hold()
        elif self._is_lost:
            self._server.left(self)
        elif self._is_held:
            self._is_held = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _hold(self) -> None:
        """Read nothing until there was a turn for what is there."""
        if not self._is_held and not self._is_lost:
            self._is_held = True
            self._transport.pause_reading()
        self._server.turns.wait(self)

    def _give_up(self, error: Exception) -> None:
        """A bug was caught: nobody knows what this connection's state is."""
        self._server.report(error)
        self._has_parted = True
        self.cut()

    # --- writing -----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._is_reading and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._is_due = False
        self._flush()

    def _flush(self) -> None:
        try:
            self._write()
        except Exception as error:
            self._give_up(error)

    def _write(self) -> None:
        current = self.connection
        for _ in range(_WRITES_A_TURN):
            if current.sender.is_paused or self._has_parted:
                return
            data = current.take()
            if not data:
                break
            self._transport.write(data)
        else:
            self._wake()
            return
        if current.is_done and not current.has_more:
            self._has_parted = True
            self._parting_since = self._loop.time()
            if self._transport.can_write_eof() and not self._transport.is_closing():
                try:
                    self._transport.write_eof()
                except OSError:  # the client has reset the connection since the last write
                    self.cut()

    # --- for the server ----------------------------------------------------------------------------------------

    @property
    def is_closed_to_new_streams(self) -> bool:
        """Whether the server takes no more streams; true within `_LINGER` and a round of the server's after `leave`."""
        return self._has_parted or self.connection.is_closed_to_new_streams

    def leave(self) -> None:
        """Take no more streams, finish those that run, then close."""
        if not self.connection.is_leaving:
            self._parting_since = self._loop.time()
            self.connection.leave()
            self._flush()

    def cut(self) -> None:
        """Close at once."""
        self._transport.abort()

    def expire(self, now: float) -> None:
        """End the connection if its client does nothing, or reads nothing, for longer than it may."""
        if self._has_parted:
            silence = now - (self._parting_since or 0.0)
            if silence > _LINGER and not self._transport.get_write_buffer_size():
                self._transport.close()
            elif silence > self._server.patience():
                self.cut()
            return
        current, chosen = self.connection, self._server.limits
        if self._is_deaf(now):
            self.cut()
            return
        current.cut_slow(now, self._server.patience())
        if self._parting_since is not None:
            if now - self._parting_since > _LINGER:
                current.close_to_new_streams()
        elif self._server.is_leaving and now - self._began > _LINGER:
            self.leave()
        elif current.streams or current.last != self._last_seen:
            self._quiet_since, self._last_seen = now, current.last
        elif not current.has_begun:
            if now - self._quiet_since > chosen.handshake:
                current.close_to_new_streams()
        elif now - self._quiet_since > chosen.keep_alive:
            self.leave()
        self._flush()

    def _is_deaf(self, now: float) -> bool:
        sender = self.connection.sender
        if not sender.is_stuck or sender.progress != self._progress_seen:
            self._deaf_since, self._progress_seen = now, sender.progress
        return now - self._deaf_since > self._server.patience()


class Server:
    """HTTP/2 over cleartext TCP, with prior knowledge; `service` gets every request.

    `report` gets what handlers raise, and the bugs of the server itself; without it, they are logged. `memory` counts
    what clients have not read, and has no limit unless given. The server closes clients beyond the `connection_limit`
    at once. `patience` gives the seconds of `limits.Limits.patience` where these change.
    """

    # State. connections: the clients. is_leaving: clients are asked to find another server. _changed: set when a client
    # is gone or a round is over. _timer: the next round, while there are clients.
    def __init__(
        self,
        service: server_stream.Service,
        chosen: limits.Limits | None = None,
        report: Callable[[Exception], None] | None = None,
        memory: ledger.Ledger | None = None,
        connection_limit: listening.ConnectionLimit | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        self.service = service
        self.limits = chosen or limits.Limits()
        self.report = report or _log
        self.memory = ledger.Ledger() if memory is None else memory
        self._connection_limit = connection_limit
        self.patience = patience or (lambda: self.limits.patience)
        shortest = min(self.limits.keep_alive, self.limits.handshake, self.limits.patience)
        self._round = max(_SHORTEST_ROUND, min(_LONGEST_ROUND, shortest / _ROUNDS_IN_A_TIMEOUT))
        self._clients: set[ServerProtocol] = set()
        self.is_leaving = self._is_closing = False
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[listening.Listener] = []
        self.asked = 0
        """Streams that clients ever opened."""

    @property
    def open(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    @property
    def port(self) -> int:
        """The port in use, also where 0 was asked for; 0 unless somebody listens."""
        return self._listeners[0].port if self._listeners else 0

    async def listen(self, host: str, port: int, backlog: int = 100) -> None:
        """Accept connections; raises `OSError` if the port is taken."""
        loop = asyncio.get_running_loop()
        self.turns = limits.Turns(loop.call_soon)
        self._listeners += await listening.listen(
            (host, port), backlog, lambda: ServerProtocol(self), self.crowd, self._connection_limit
        )

    def crowd(self) -> listening.Crowd:
        """Who is in, and what they ask."""
        return listening.Crowd(len(self._clients), self.asked, self.memory.active)

    def goaway(self) -> None:
        """Ask all clients to open no more streams on their connections, and close each when it has its answers.

        Clients may connect anew and are served until `turn_away` or `close`, and are asked again after a second: by
        then they may find another server.
        """
        self.is_leaving = True
        for client in list(self._clients):
            client.leave()

    async def turn_away(self) -> None:
        """Accept no more connections, and return when no client opens streams any more, or within two seconds.

        Running streams go on.
        """
        await self._shut()
        while not all(client.is_closed_to_new_streams for client in self._clients):
            await self._change()

    async def close(self, patience: float) -> None:
        """Accept no more connections; running streams have `patience` seconds to end, then they are cancelled."""
        await self._shut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._wait_for_all()
        for client in list(self._clients):
            client.cut()
        await self._wait_for_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _shut(self) -> None:
        self._is_closing = True
        while self._listeners:
            await self._listeners.pop().close()
        self.goaway()

    async def _wait_for_all(self) -> None:
        while self._clients:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # --- for the connections -----------------------------------------------------------------------------------

    def joined(self, client: ServerProtocol) -> None:
        """A client connected."""
        if self._connection_limit is not None and not self._connection_limit.enter():
            client.cut()
            return
        self._clients.add(client)
        if self._is_closing:
            client.leave()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._round, self._go_round)

    def left(self, client: ServerProtocol) -> None:
        """A client is gone."""
        if client in self._clients:
            self._clients.remove(client)
            if self._connection_limit is not None:
                self._connection_limit.leave()
        self._changed.set()

    def _go_round(self) -> None:
        loop = asyncio.get_running_loop()
        for client in list(self._clients):
            client.expire(loop.time())
        self._changed.set()
        self._timer = loop.call_later(self._round, self._go_round) if self._clients else None


def _log(error: Exception) -> None:
    log.error("the HTTP/2 server caught a bug", exc_info=error)
