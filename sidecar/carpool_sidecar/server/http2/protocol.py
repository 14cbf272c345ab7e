"""A connection's socket: when to write, when a client has been silent or deaf for too long, and how to part.

Answers of one turn of the loop leave in one write. A connection that is done says so and stops writing, but goes on
reading for a moment: closing with bytes unread would make the kernel reset the connection, and the client lose its
last answers.
"""

from __future__ import annotations

import asyncio
import typing

from carpool_sidecar.server.http2 import connection, limits, streams, turns, unread

_LINGER = 1.0
"""Seconds that a client has to close its side, or to say that it knows of our leaving."""

_WRITE_BUFFER = 256 * 1024

_LIGHT = 4 * 1024
"""Bytes at once that are never kept waiting for a turn: a few small calls."""

_MOST_DRAINED = 1024 * 1024
"""Bytes read of a client that broke a rule, so that it gets to know of it."""

_WRITES_A_TURN = 4
"""Writes, of 256 KiB mostly, before the other connections get their turn."""


class Owner(typing.Protocol):
    """The server."""

    door: streams.Door
    limits: limits.Limits
    turns: turns.Turns
    memory: unread.Memory
    is_leaving: bool
    """Whether clients are to look for others."""

    def report(self, error: Exception) -> None:
        """A bug, of a handler or of the connection itself, was caught."""
        ...

    def joined(self, client: ServerProtocol) -> None:
        """A client connected."""
        ...

    def left(self, client: ServerProtocol) -> None:
        """It is gone."""
        ...


class ServerProtocol(asyncio.Protocol):
    """One client of the server."""

    # State. _is_reading: within a turn, which writes at its end; _is_due: a write is to come in the next turn of the
    # loop; _is_held: nothing is read until what was received has had its turns. _is_lost, _has_parted: nothing will be
    # read, or written, any more. _began, _quiet_since, _deaf_since, _parting_since: times of the loop, with the last
    # stream and the progress that were seen then. _buffered: bytes in the socket's buffer, counted while it is full.
    # _drained: bytes that came after we had parted.
    _transport: asyncio.Transport
    connection: connection.Connection

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._is_reading = self._is_held = self._is_lost = False
        self._is_due = True  # so that nothing is written before there is a transport
        self._has_parted = False
        self._began = self._quiet_since = self._deaf_since = self._loop.time()
        self._parting_since: float | None = None
        self._last_seen = self._drained = self._buffered = 0
        self._progress_seen = 0

    # --- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = typing.cast("asyncio.Transport", transport)  # uvloop's is not one by inheritance
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        owner = self._owner
        self.connection = connection.Connection(
            owner.door, owner.limits, self._wake, owner.report, self._loop.time, owner.memory
        )
        owner.joined(self)
        self._flush_due()

    def data_received(self, data: bytes) -> None:
        if self._has_parted:
            self._drain(len(data))
            return
        self.connection.feed(data)
        if len(data) <= _LIGHT or self._owner.turns.has_room:
            self.take_turn()
        else:
            self._hold()

    def _drain(self, size: int) -> None:
        """Drop what came too late. Who sends more than it may, or broke a rule and goes on, is cut off."""
        self._drained += size
        most = _MOST_DRAINED if self.connection.is_broken else 2 * self._owner.limits.connection_window
        if self._drained > most:
            self.cut()

    def eof_received(self) -> None:
        """A client that sends no more cannot acknowledge what it gets: the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_parted = self._is_lost = True
        self._uncount()
        self.connection.lost()
        self._owner.memory.on_large_body()
        self._go_on_or_rest()

    def pause_writing(self) -> None:
        self.connection.sender.is_paused = True
        self._buffered = self._transport.get_write_buffer_size()
        self._owner.memory.buffered_bytes += self._buffered

    def resume_writing(self) -> None:
        self.connection.sender.is_paused = False
        self._uncount()
        self._flush()

    def _uncount(self) -> None:
        self._owner.memory.buffered_bytes -= self._buffered
        self._buffered = 0

    # --- turns -------------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        """Part of `turns.Client`."""
        self._is_reading = True
        try:
            self.connection.go_on()
        except Exception as error:
            self._give_up(error)
        finally:
            self._is_reading = False
        self._owner.turns.spend(self.connection.work)
        self._flush()
        self._go_on_or_rest()

    def _go_on_or_rest(self) -> None:
        if self.connection.has_more:
            self._hold()
        elif self._is_lost:
            self._owner.left(self)
        elif self._is_held:
            self._is_held = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _hold(self) -> None:
        """Read nothing until there was a turn for what is there."""
        if not self._is_held and not self._is_lost:
            self._is_held = True
            self._transport.pause_reading()
        self._owner.turns.wait(self)

    def _give_up(self, error: Exception) -> None:
        """A bug: nobody knows what this connection's state is."""
        self._owner.report(error)
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
            self._part()

    def _part(self) -> None:
        self._has_parted = True
        self._parting_since = self._loop.time()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    # --- for the server ----------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether no more streams are taken; so it is within `_LINGER` and a round of the server's after `leave`."""
        return self._has_parted or self.connection.is_settled

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
            self._expire_parted(now)
            return
        current, chosen = self.connection, self._owner.limits
        if self._is_deaf(now):
            self.cut()
            return
        current.cut_slow(now, chosen.patience)
        if self._parting_since is not None:
            if now - self._parting_since > _LINGER:
                current.settle()
        elif self._owner.is_leaving and now - self._began > _LINGER:
            self.leave()
        elif current.exchanges or current.last != self._last_seen:
            self._quiet_since, self._last_seen = now, current.last
        elif now - self._quiet_since > (chosen.keep_alive if current.has_begun else chosen.handshake):
            self.leave()
        self._flush()

    def _expire_parted(self, now: float) -> None:
        silence = now - (self._parting_since or 0.0)
        if silence > _LINGER and not self._transport.get_write_buffer_size():
            self._transport.close()
        elif silence > self._owner.limits.patience:
            self.cut()

    def _is_deaf(self, now: float) -> bool:
        sender = self.connection.sender
        if not sender.is_stuck or sender.progress != self._progress_seen:
            self._deaf_since, self._progress_seen = now, sender.progress
        return now - self._deaf_since > self._owner.limits.patience
