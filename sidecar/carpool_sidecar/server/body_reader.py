"""Reading request bodies without letting callers fill the memory.

A body is in memory from its first byte, long before the queue knows of it, so the bytes on their way in are counted
in the same ledger as the queued ones, under one limit. Nearly all bodies are small and have arrived with their head;
for them the count is a comparison, without timer, task or reservation.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Protocol

from aiohttp import hdrs
from multidict import MultiMapping

from carpool.scheduling import ledger
from carpool_sidecar import errors, turns
from carpool_sidecar.server import content_coding

_CHUNK_OVERHEAD = 5
"""Bytes of a chunk beside its data, at least: a digit and two line ends (RFC 9112, section 7.1)."""

_FREE_OVERHEAD = 256 * 1024
"""Bytes of those that every body may have; beyond that, twice its data."""

_SMALL, _MANY = 4096, 1024
"""Parts of a body that are smaller than so many bytes are joined when there are so many in a row."""


class Source(Protocol):
    """A request whose body comes.

    `length` is that of the body, or None if it comes in chunks, of which there were `chunks` so far.
    """

    @property
    def headers(self) -> MultiMapping[str]: ...

    @property
    def length(self) -> int | None: ...

    @property
    def chunks(self) -> int: ...

    @property
    def is_complete(self) -> bool:
        """Whether all of the body came."""
        ...

    def send_continue(self) -> None:
        """Let the caller go on with its body, if it waits for that."""

    async def read(self) -> bytes:
        """What came since the last call, at least a byte, or nothing at the end.

        Raises `errors.MalformedBody` for broken chunking.
        """
        ...


class BodyReader:
    """Reads bodies, within limits that may be changed at any time by assigning to the attributes.

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

    async def read(self, source: Source) -> bytes:
        """The whole body, its Content-Encoding undone.

        Raises `errors.PayloadTooLarge` and `errors.Overloaded` before reading when Content-Length says so, else
        as soon as the body grows over a limit; `errors.BodyTooLate`; `errors.BadRequest` for broken chunking or
        coded data; `errors.UnsupportedEncoding`. However it ends, nothing stays reserved: whoever called counts the
        body from then on, with a reservation of its own or in the queue.
        """
        is_coded = hdrs.CONTENT_ENCODING in source.headers
        if source.length is not None:
            self._check_size(source.length)
            self.memory.check_room(source.length)
            if source.is_complete and not is_coded:
                return await source.read()
        with self.memory.reserve() as reservation:
            try:
                async with asyncio.timeout(self.read_timeout) as timeout:
                    source.send_continue()
                    body = await self._collect(source, reservation)
                    return await self._decode(source, body, reservation) if is_coded else body
            except TimeoutError:
                if timeout.expired():
                    raise errors.BodyTooLate from None
                raise  # the operating system's: the connection is dead

    def can_read(self, source: Source) -> bool:
        """Whether nothing in the head of a request says that `read` would refuse its body for what it is."""
        size = source.length
        return (size is None or size <= self.max_body_bytes) and content_coding.can_undo(_codings(source))

    async def _collect(self, source: Source, reservation: ledger.Reservation) -> bytes:
        is_chunked = source.length is None
        parts, received, small = [], 0, 0
        while part := await source.read():
            received += len(part)
            self._check_size(received)
            if is_chunked:
                _check_chunks(source.chunks, received)
            self._grow(reservation, len(part))
            parts.append(part)
            small = small + 1 if len(part) < _SMALL else 0
            if small == _MANY:  # an object for each would take many times their size
                parts[-small:] = [b"".join(parts[-small:])]
                small = 0
        return b"".join(parts)  # no copy if there is only one

    async def _decode(self, source: Source, body: bytes, reservation: ledger.Reservation) -> bytes:
        grow = functools.partial(self._grow, reservation)
        work = content_coding.decoding(body, _codings(source), self.max_body_bytes, grow)
        return await self.turns.run(work)

    def _check_size(self, size: int) -> None:
        if size > self.max_body_bytes:
            raise content_coding.too_large(self.max_body_bytes)

    def _grow(self, reservation: ledger.Reservation, count: int) -> None:
        self.memory.check_room(count)
        reservation.add(count)


def _check_chunks(count: int, size: int) -> None:
    if count * _CHUNK_OVERHEAD > 2 * size + _FREE_OVERHEAD:
        raise errors.BadRequest(f"the body comes in too small chunks: {size} bytes in {count} of them")


def _codings(source: Source) -> str:
    # A list header may come in several lines (RFC 9110, 5.3).
    return ",".join(source.headers.getall(hdrs.CONTENT_ENCODING, ()))
