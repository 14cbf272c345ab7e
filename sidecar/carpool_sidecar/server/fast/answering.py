"""The answering half of a client's connection on the fast lane: each answer in its turn, and no more than is read.

A client that sends and does not read must not fill the memory: while its answers wait in the transport, nothing more
is read from it, large answers count as bodies held, and if it takes too long the connection is cut.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Hashable
from typing import cast

from carpool.program import allocator
from carpool_sidecar.server.fast import requests


class Answering(asyncio.Protocol):
    """Keeps the exchanges of a connection in order; subclasses read requests and put them into `_pending`."""

    # _pending: requests without an answer yet, in order. _touched: when the client last did something, or was last
    # answered. _unsent, _unsent_bytes: answers, and their bytes, that the client has not read.
    # _is_paused: there are such. _is_held: bytes of the client have to wait for answers. _is_over: closed, lost, or
    # another protocol's.
    __slots__ = (
        "_desk", "_is_held", "_is_over", "_is_paused", "_pending", "_touched", "_transport", "_unsent", "_unsent_bytes",
    )  # fmt: skip

    def __init__(self, desk: requests.Desk) -> None:
        self._desk = desk
        self._pending: collections.deque[requests.Exchange] = collections.deque()
        self._touched = desk.clock()
        self._is_held = self._is_over = self._is_paused = False
        self._unsent = self._unsent_bytes = 0

    def _free(self) -> None:
        """Answers have begun or ceased to wait for the client, or are all given: look anew at what may be read."""

    # --- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._drop_pending()
        self._all_sent()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._touched = self._desk.clock()
        self._free()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._transport.set_write_buffer_limits()
        self._all_sent()
        self._free()

    # --- answers -----------------------------------------------------------------------------------------------

    def answered(self, exchange: requests.Exchange, message: bytes, body: bytes, close: bool) -> None:
        """Part of `exchanges.Connection`."""
        if self._is_over:
            return  # the client left between its answer's making and its turn
        pending = self._pending
        if pending[0] is not exchange:
            exchange.message = (message, body, close)
            self._desk.lane.bodies.buffered_bytes += len(message) + len(body)
            return
        pending.popleft()
        self._write(message, body, close)
        while pending and (following := pending[0].message) is not None:
            pending.popleft()
            self._desk.lane.bodies.buffered_bytes -= len(following[0]) + len(following[1])
            self._write(*following)
        if self._is_held and not pending:
            self._free()

    @property
    def peer(self) -> Hashable:
        """Part of `exchanges.Connection`."""
        address: Hashable = self._transport.get_extra_info("peername")
        return address

    def is_last(self, exchange: requests.Exchange) -> bool:
        """Part of `exchanges.Connection`."""
        return not self._pending or self._pending[-1] is exchange

    def shut(self) -> None:
        """End the connection; an answer that the client does not read is cut off."""
        if self._is_paused:
            self._transport.abort()
        else:
            self._close()

    def cut(self) -> None:
        """End the connection now, unread answers or not."""
        self._transport.abort()

    def _write(self, message: bytes, body: bytes, close: bool) -> None:
        self._touched = self._desk.now
        self._transport.write(message)
        if body:
            self._write_large(body)
        if self._is_paused:
            self._unsent += 1
            self._unsent_bytes += len(message) + len(body)
            self._desk.lane.bodies.buffered_bytes += len(message) + len(body)
        else:
            self._desk.life.leave()
        if close:
            self._close()

    def _write_large(self, body: bytes) -> None:
        # The transport keeps all of it until its last byte is sent, so it waits for the client until then.
        self._transport.set_write_buffer_limits(0)
        self._transport.write(body)
        if not self._is_paused:
            self._transport.set_write_buffer_limits()

    def _all_sent(self) -> None:
        bodies = self._desk.lane.bodies
        bodies.buffered_bytes -= self._unsent_bytes
        if self._unsent_bytes > allocator.LARGE:
            bodies.on_large_body()
        for _ in range(self._unsent):
            self._desk.life.leave()
        self._unsent = self._unsent_bytes = 0

    def _expire_answers(self, now: float) -> None:
        if now - self._touched > self._desk.lane.time_to_read(self._unsent_bytes):
            self._transport.abort()

    def _close(self) -> None:
        self._is_over = True
        self._touched = self._desk.clock()
        self._drop_pending()
        self._transport.close()

    def _drop_pending(self) -> None:
        while self._pending:
            exchange = self._pending.popleft()
            if exchange.message is not None:
                self._desk.lane.bodies.buffered_bytes -= len(exchange.message[0]) + len(exchange.message[1])
            self._desk.lane.driver.cancel(exchange)
            self._desk.life.leave()
