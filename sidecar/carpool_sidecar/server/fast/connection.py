"""A client's connection on the fast lane: plain predict requests, as many and as close together as the client likes.

Bytes are taken as they come. What is complete and plain becomes a call at once; everything else makes this step aside
for the general server, which gets the bytes and serves the connection from then on. So nothing here answers an error
of the client, but what stops arriving.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from carpool.program import allocator
from carpool_sidecar import errors
from carpool_sidecar.batching import model_registry, routes
from carpool_sidecar.server import responses
from carpool_sidecar.server.fast import answering, heads, requests
from carpool_sidecar.server.fast import body as arrivals

_MOST_PENDING = 64
"""Pipelined requests that may wait for their answers, all with one batch key; more are not understood yet."""

_MOST_HELD = 64 * 1024
"""Bytes of those; more are left in the socket."""


class Lane(Protocol):
    """What the connections of a lane share."""

    desk: requests.Desk
    reader: heads.Reader
    keep_alive: float
    head_timeout: float

    def joined(self, connection: Connection) -> bool:
        """A client connected: whether it may stay."""
        ...

    def left(self, connection: Connection) -> None:
        """It is gone, or the general server's."""
        ...

    def general(self, since: float | None) -> asyncio.Protocol:
        """A general server for one connection, whose client has been at its first head since then."""
        ...


class Connection(answering.Answering):
    """One connection, from its start to its end or to the first request for the general server."""

    # State beside the answers': _shape, of the last head. _rest: bytes not yet understood, with _beginning while they
    # are the start of a head that came at _began. _body: a body that is arriving. _waiting: to be told of a model.
    __slots__ = ("_began", "_beginning", "_body", "_is_reading", "_lane", "_rest", "_shape", "_waiting")

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane.desk)
        self._lane = lane
        self._shape: heads.Shape | None = None
        self._rest = b""
        self._beginning: heads.Beginning | None = None
        self._began = 0.0
        self._body: arrivals.Body | None = None
        self._is_reading = True
        self._waiting: model_registry.Waiting | None = None

    # --- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._lane.joined(self):
            self._transport.write(b"".join(responses.render(responses.TOO_MANY_CONNECTIONS, close=True)))
            self._close()

    def data_received(self, data: bytes) -> None:
        self._touched = self._desk.clock()
        if self._body is not None:
            self._collect(self._body, data)
        elif self._is_held:
            self._hold(self._rest + data)
        elif self._rest:
            self._serve(self._rest + data)
        else:
            self._serve(data)

    def eof_received(self) -> None:
        """As for Go's and aiohttp's servers, this means the client is gone: the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._lane.left(self)
        self._drop_body()
        self._keep(b"")
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._desk.life.leave()
        super().connection_lost(exc)

    # --- requests ----------------------------------------------------------------------------------------------

    def _serve(self, data: bytes) -> None:
        """Take all requests that are complete in `data`, which begins with one."""
        at, size = 0, len(data)
        if self._rest:
            self._keep(b"")
        while at < size and not self._is_over:
            shape = self._shape
            plain = (shape.match(data, at) if shape is not None else None) or self._read(data, at)
            if plain is None:
                return
            self._beginning = None
            end, length, head = plain
            stop = end + length
            if stop > size:
                self._begin_body(data, at, plain)
                return
            if self._is_paused or len(self._pending) >= _MOST_PENDING:
                self._hold(data[at:])
                return
            exchange = self._desk.accept(head, data[end:stop], self, self._touched)
            if exchange is None:
                self._step_aside(data[at:])
                return
            if self._pending and exchange.key != self._pending[-1].key:
                # Each key is a queue, and queues take turns: one connection must not have many of them at once.
                self._desk.withdraw(exchange)
                self._hold(data[at:])
                return
            self._pending.append(exchange)
            self._desk.submit(exchange)
            at = stop

    def _read(self, data: bytes, at: int) -> heads.Plain | None:
        """The head at `at` in full; None if more of it has to come, or if this is not for us any more."""
        end = data.find(b"\r\n\r\n", at) + 4
        if end < 4:
            self._wait_for_head(data[at:])
            return None
        try:
            found = self._lane.reader.read(data[at:end])
        except routes.NotKnownYet as pause:
            self._beginning = None
            self._hold(data[at:])
            self._desk.life.enter()
            self._waiting = pause.wait(self._learned)
            return None
        if found is None:
            self._beginning = None
            self._step_aside(data[at:])
            return None
        (_, length, head), self._shape = found
        return end, length, head

    def _learned(self, _: object) -> None:
        self._waiting = None
        self._go_on()
        self._desk.life.leave()

    def _wait_for_head(self, begun: bytes) -> None:
        more = begun = begun.lstrip(b"\r\n")  # empty lines before a request are none of it (RFC 9112, section 2.2)
        if not begun:
            self._keep(b"")
            return
        if self._beginning is None:
            self._beginning = heads.Beginning()
            self._began = self._touched
        else:
            more = begun[self._beginning.size :]
        if len(begun) <= heads.MAX_HEAD and self._beginning.may_go_on(more):
            self._keep(begun)
            if not self._desk.lane.bodies.has_room(0):
                error = errors.MemoryFull()
                self._end(error, self._began)
        else:
            self._beginning = None
            self._step_aside(begun, since=self._began)

    def _begin_body(self, data: bytes, at: int, plain: heads.Plain) -> None:
        end, length, head = plain
        start = data[end:]
        if self._pending:
            self._hold(data[at:])
        elif not self._desk.takes(length):
            self._step_aside(data[at:])
        else:
            self._body = arrivals.Body(data[at:end], head, length, start, self._touched, self._desk.scan(head, length))
            self._desk.lane.bodies.buffered_bytes += len(start)
            self._desk.life.enter()

    def _collect(self, body: arrivals.Body, data: bytes) -> None:
        data, following = (data, b"") if len(data) <= body.missing else (data[: body.missing], data[body.missing :])
        if not self._desk.lane.bodies.has_room(len(data)):
            self._drop_body()
            self._step_aside(body.text, *body.parts, data, following)
            return
        body.add(data)
        self._desk.lane.bodies.buffered_bytes += len(data)
        if not body.missing:
            self._finish(body, following)
        elif body.scan is not None:
            self._let_others_in()

    def _let_others_in(self) -> None:
        # libuv reads up to 32 times in a row from one socket: 8 MB, and several milliseconds.
        if self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._update_reading)

    def _finish(self, body: arrivals.Body, following: bytes) -> None:
        self._drop_body()
        whole = b"".join(body.parts)
        body.parts.clear()
        exchange = self._desk.accept(body.head, whole, self, body.started, body.scan)
        if exchange is None:
            self._step_aside(body.text, whole, following)
            return
        del whole
        self._pending.append(exchange)
        self._desk.submit(exchange)
        if following:
            self._serve(following)

    def _drop_body(self) -> None:
        if self._body is None:
            return
        bodies = self._desk.lane.bodies
        bodies.buffered_bytes -= self._body.received
        if self._body.received > allocator.LARGE:
            bodies.on_large_body()
        self._desk.life.leave()
        self._body = None

    # --- other ways on -----------------------------------------------------------------------------------------

    def _step_aside(self, *parts: bytes, since: float | None = None) -> None:
        """Leave the connection, with the bytes that were not served here, to the general server.

        `since` is when the first of them came, if that was not now.
        """
        if self._pending or self._is_paused:
            self._hold(b"".join(parts))  # answers come in order
            return
        self._lane.left(self)
        self._is_over = True
        self._keep(b"")
        general = self._lane.general(since)
        self._transport.set_protocol(general)
        general.connection_made(self._transport)
        for part in parts:
            if part:
                general.data_received(part)

    def _hold(self, data: bytes) -> None:
        self._keep(data)
        self._is_held = True
        self._update_reading()

    def _keep(self, data: bytes) -> None:
        """Make this what is not yet understood; it counts as bytes held."""
        self._desk.lane.bodies.buffered_bytes += len(data) - len(self._rest)
        self._rest = data

    def _go_on(self) -> None:
        if self._is_over or self._is_paused or self._pending or not self._is_held:
            return
        self._is_held = False
        self._update_reading()
        self._serve(self._rest)

    def _free(self) -> None:
        self._update_reading()
        if self._is_held and not self._pending and not self._is_paused:
            # Not now: this may be in the midst of `_serve`, or of the driver's answers to others.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _update_reading(self) -> None:
        # What is held is read on for a while, because only a connection that is read tells that its client has left.
        is_enough = self._is_held and (len(self._rest) >= _MOST_HELD or not self._desk.lane.bodies.has_room(0))
        wanted = not (is_enough or self._is_paused)
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- time --------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End the connection if it is idle, or the client busy with nothing, for longer than it may."""
        lane, bodies = self._lane, self._desk.lane.bodies
        if self._is_paused or self._is_over:
            self._expire_answers(now)
        elif self._pending or self._is_held:
            pass  # the core watches over what it was given
        elif self._body is not None:
            if now - self._body.started > bodies.read_timeout:
                self._end(errors.BodyTooLate(), self._body.started)
        elif self._rest:
            if now - self._began > lane.head_timeout:
                self._end(errors.HeadTooLate(), self._began)
        elif now - self._touched > lane.keep_alive:
            self._close()

    def _end(self, error: errors.CarpoolError, since: float) -> None:
        self._drop_body()
        self._keep(b"")
        self._transport.write(self._desk.refusal(error, since))
        self._close()
