"""Bodies that come in parts, without letting callers fill the memory: their limits, and who collects them.

A body is in memory from its first byte, long before the queue knows of it, so the bytes on their way in are counted
in the same ledger as the queued ones, under one limit. Nearly all bodies are small and have arrived with their head;
for them the count is a comparison, without timer, task or reservation.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Final

from aiohttp import hdrs

from carpool.scheduling import ledger
from carpool_sidecar import errors, turns
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import v1
from carpool_sidecar.server import content_coding
from carpool_sidecar.server.http1 import exchange

_LITTLE: Final = 4 * 1024  # bytes: smaller parts cost more each than to be put together
_PUT_TOGETHER: Final = 16 * 1024

_MOST_UNREAD: Final = 64 * 1024  # bytes of a body; more are left in the socket until somebody reads

_CHUNK_OVERHEAD: Final = 5
"""Bytes of a chunk beside its data, at least: a digit and two line ends (RFC 9112, section 7.1)."""

_FREE_OVERHEAD: Final = 256 * 1024
"""Bytes of those that every body may have; beyond that, twice its data."""


class Parts:
    """What came of a body: `size` bytes, in parts none of which is empty.

    Little ones are put together, so that a client who sends a few bytes at a time gets no object for each of them.
    """

    # State: _parts, and _little, what came behind them and is to be put together.
    __slots__ = ("_little", "_parts", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._little = bytearray()
        self.size = 0

    def add(self, part: bytes) -> None:
        """More of it came."""
        self.size += len(part)
        if len(part) < _LITTLE:
            self._little += part
        if self._little and (len(part) >= _LITTLE or len(self._little) >= _PUT_TOGETHER):
            self._parts.append(bytes(self._little))
            self._little = bytearray()
        if len(part) >= _LITTLE:
            self._parts.append(part)

    def take(self) -> list[bytes]:
        """All that is here; it is the caller's."""
        parts, self._parts = self._parts, []
        if self._little:
            parts.append(bytes(self._little))
            self._little = bytearray()
        self.size = 0
        return parts


class PartialBody(Parts):
    """The body of a plain predict request on its way: the bytes of its head, and how many bytes are missing.

    `scan` looks through the parts of a large one as they come; at once it would take too long.
    """

    __slots__ = ("head", "missing", "scan", "started", "text")

    def __init__(self, text: bytes, head: calls.Head, length: int, started: float, scan: v1.RequestScan | None) -> None:
        super().__init__()
        self.text = text
        self.head = head
        self.missing = length
        self.started = started
        self.scan = scan

    def add(self, part: bytes) -> None:
        """More of it came."""
        super().add(part)
        self.missing -= len(part)
        if self.scan is not None and part:
            self.scan.feed(part)


class Limits:
    """Limits of bodies, which may be changed at any time by assigning to the attributes.

    `max_body_bytes` caps one body, as sent and as decoded. What is being received and decoded counts in `memory`,
    which tells whether there is room. `read_timeout` is in seconds, for a whole body to arrive and be decoded. What a
    request declares but has not sent is not counted: it would cost its sender nothing to keep everybody else out.
    Large ones are decoded in `turns`, which all share.
    """

    def __init__(
        self, max_body_bytes: int, memory: ledger.Ledger, read_timeout: float, worked: turns.Turns | None = None
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.memory = memory
        self.read_timeout = read_timeout
        self.turns = worked or turns.Turns()

    def check_size(self, size: int) -> None:
        """Raises `errors.PayloadTooLarge` for a body of so many bytes if that is too many."""
        if size > self.max_body_bytes:
            raise content_coding.too_large(self.max_body_bytes)

    def grow(self, reservation: ledger.Reservation, count: int) -> None:
        """Hold so many bytes more of a body; raises `errors.MemoryFull` if there is no room for them."""
        self.memory.check_room(count)
        reservation.add(count)


class CollectedBody:
    """A body that waits to be read, and the call made of it. Implements `exchange.Consumer`."""

    # State: what came and was not read; what is wrong with the rest; whoever waits for more; what takes the call out
    # of its queue.
    __slots__ = ("_exchange", "_limits", "_parts", "_waiter", "_words", "cancel")

    def __init__(self, asked: exchange.Exchange, limits: Limits) -> None:
        self._exchange = asked
        self._limits = limits
        self._parts = Parts()
        self._words = ""
        self._waiter: asyncio.Future[None] | None = None
        self.cancel: Callable[[], None] | None = None

    @property
    def can_be_read(self) -> bool:
        """Whether nothing in the head of its request says that `read` would refuse it for what it is."""
        size = self._exchange.head.length
        return (size is None or size <= self._limits.max_body_bytes) and content_coding.can_undo(self._codings)

    async def read(self) -> bytes:
        """The whole body, its Content-Encoding undone.

        Raises `errors.PayloadTooLarge` and `errors.Overloaded` before reading when Content-Length says so, else
        as soon as the body grows over a limit; `errors.BodyTooLate`; `errors.BadRequest` for broken chunking or
        coded data; `errors.UnsupportedEncoding`. However it ends, nothing stays reserved: whoever called counts the
        body from then on, with a reservation of its own or in the queue.
        """
        asked, limits = self._exchange, self._limits
        is_coded = hdrs.CONTENT_ENCODING in asked.head.headers
        if asked.head.length is not None:
            limits.check_size(asked.head.length)
            limits.memory.check_room(asked.head.length)
            if asked.reader.is_complete and not is_coded:
                return b"".join(self._parts.take())
        with limits.memory.reserve() as reservation:
            try:
                async with asyncio.timeout(limits.read_timeout):
                    asked.send_continue()
                    body = await self._collect(reservation)
                    if not is_coded:
                        return body
                    grow = functools.partial(limits.grow, reservation)
                    work = content_coding.decoding(body, self._codings, limits.max_body_bytes, grow)
                    return await limits.turns.run(work)
            except TimeoutError:
                raise errors.BodyTooLate from None

    async def _collect(self, reservation: ledger.Reservation) -> bytes:
        asked, limits, parts = self._exchange, self._limits, self._parts
        while True:
            limits.check_size(parts.size)
            if asked.reader.chunks * _CHUNK_OVERHEAD > 2 * parts.size + _FREE_OVERHEAD:
                words = f"the body comes in too small chunks: {parts.size} bytes in {asked.reader.chunks} of them"
                raise errors.BadRequest(words)
            limits.grow(reservation, parts.size - reservation.size)
            if asked.reader.is_complete:
                return b"".join(parts.take())  # no copy if there is only one
            self.check()
            asked.want(True)
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._waiter = None
                del waiter  # it keeps what is raised here, whose frames keep this one

    def check(self) -> None:
        """Raises `errors.MalformedBody` if the rest of the body is no HTTP."""
        if self._words:
            raise errors.MalformedBody(f"the body is not valid HTTP: {self._words}")

    def hand_over(self, consumer: exchange.Consumer) -> None:
        """Give what was not read to somebody else, who gets the rest as well."""
        for part in self._parts.take():
            consumer.body(part)
        self._exchange.want(True)

    @property
    def _codings(self) -> str:
        # A list header may come in several lines (RFC 9110, 5.3).
        return ",".join(self._exchange.head.headers.getall(hdrs.CONTENT_ENCODING, ()))

    # --- what comes --------------------------------------------------------------------------------------------

    def body(self, data: bytes) -> None:
        """Implements `exchange.Consumer`."""
        self._parts.add(data)

    def body_ended(self) -> None:
        """Implements `exchange.Consumer`."""

    def settled(self) -> None:
        """Implements `exchange.Consumer`."""
        if not self._wake() and self._parts.size >= _MOST_UNREAD:
            self._exchange.want(False)

    def body_broken(self, words: str) -> None:
        """Implements `exchange.Consumer`."""
        self._words = words
        self._wake()

    def caller_full(self, is_full: bool) -> None:
        """Implements `exchange.Consumer`: nothing is written before the answer."""

    def lost(self) -> None:
        """Implements `exchange.Consumer`: the task is cancelled, or the call that it made."""
        if self.cancel is not None:
            self.cancel()

    def expire(self, now: float, quiet_since: float, patience: float) -> None:
        """Implements `exchange.Consumer`: whoever reads has a time limit of its own."""

    def _wake(self) -> bool:
        """Tell whoever waits for more that there is news; returns whether somebody does."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return waiter is not None
