"""Reading request bodies without letting callers fill the memory.

A body is in memory from its first byte, long before the queue knows of it, so the bytes on their way in are counted
in the same ledger as the queued ones, under one limit. Nearly all bodies are small and have arrived with their head;
for them the count is a comparison, without timer, task or reservation.
"""

from __future__ import annotations

import abc
import asyncio
import functools

from aiohttp import hdrs, web

from carpool.scheduling import ledger
from carpool_sidecar import errors, turns
from carpool_sidecar.server import content_coding, headers

_CHUNK_OVERHEAD = 5
"""Bytes of a chunk beside its data, at least: a digit and two line ends (RFC 9112, section 7.1)."""

_FREE_OVERHEAD = 256 * 1024
"""Bytes of those that every body may have; beyond that, twice its data."""

_SMALL, _MANY = 4096, 1024
"""Parts of a body that are smaller than so many bytes are joined when there are so many in a row."""


class Chunked(abc.ABC):
    """A connection that tells in how many chunks the present body came so far."""

    @property
    @abc.abstractmethod
    def chunks(self) -> int:
        """So many."""


class BodyReader:
    """Reads bodies, within limits that may be changed at any time by assigning to the attributes.

    `max_body_bytes` caps one body, as sent and as decoded. What is being received and decoded counts in `memory`,
    which tells whether there is room. `read_timeout` is in seconds, for a whole body to arrive and be decoded. What a
    request declares but has not sent is not counted: it would cost its sender nothing to keep everybody else out.
    Large ones are decoded in `turns`, which all lanes share.
    """

    def __init__(
        self, max_body_bytes: int, memory: ledger.Ledger, read_timeout: float, worked: turns.Turns | None = None
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.memory = memory
        self.read_timeout = read_timeout
        self.turns = worked or turns.Turns()

    async def read(self, request: web.BaseRequest) -> bytes:
        """The whole body of `request`, its Content-Encoding undone (the server must not undo it itself).

        Raises `errors.PayloadTooLarge` and `errors.Overloaded` before reading when Content-Length says so, else
        as soon as the body grows over a limit; `errors.BodyTooLate`; `errors.BadRequest` for broken chunking or
        coded data; `errors.UnsupportedEncoding`. When the client leaves, aiohttp's exception for that passes
        through. However it ends, nothing stays reserved: whoever called counts the body from then on, with a
        reservation of its own or in the queue.
        """
        content = request.content
        is_coded = hdrs.CONTENT_ENCODING in request.headers
        if content.is_eof() and not is_coded:
            self._check_size(content.total_bytes)
            self.memory.check_room(content.total_bytes)
            return content.read_nowait()
        if request.content_length is not None:
            self._check_size(request.content_length)
            self.memory.check_room(request.content_length)
        with self.memory.reserve() as reservation:
            try:
                async with asyncio.timeout(self.read_timeout) as timeout:
                    body = await self._receive(request, reservation)
                    return await self._decode(request, body, reservation) if is_coded else body
            except TimeoutError:
                if timeout.expired():
                    raise errors.BodyTooLate from None
                raise  # the operating system's: the connection is dead

    def can_read(self, request: web.BaseRequest) -> bool:
        """Whether nothing in the head of `request` says that `read` would refuse its body for what it is."""
        size = request.content_length
        return (size is None or size <= self.max_body_bytes) and content_coding.can_undo(_codings(request))

    async def _receive(self, request: web.BaseRequest, reservation: ledger.Reservation) -> bytes:
        if headers.expects_continue(request):
            headers.send_continue(request)
        try:
            return await self._collect(request, reservation)
        except web.RequestPayloadError as error:
            raise errors.MalformedBody(f"the body is not valid HTTP: {error}") from None

    async def _collect(self, request: web.BaseRequest, reservation: ledger.Reservation) -> bytes:
        content, connection = request.content, request.protocol
        is_chunked = request.content_length is None
        parts, received, small = [], 0, 0
        while not content.at_eof():
            # readany() takes all chunks at once; what has none it would only join for a first time.
            part = await content.readany() if is_chunked else (await content.readchunk())[0]
            received += len(part)
            self._check_size(received)
            if is_chunked and isinstance(connection, Chunked):
                _check_chunks(connection.chunks, received)
            self._grow(reservation, len(part))
            parts.append(part)
            small = small + 1 if len(part) < _SMALL else 0
            if small == _MANY:  # an object for each would take many times their size
                parts[-small:] = [b"".join(parts[-small:])]
                small = 0
        return b"".join(parts)  # no copy if there is only one

    async def _decode(self, request: web.BaseRequest, body: bytes, reservation: ledger.Reservation) -> bytes:
        grow = functools.partial(self._grow, reservation)
        work = content_coding.decoding(body, _codings(request), self.max_body_bytes, grow)
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


def _codings(request: web.BaseRequest) -> str:
    # A list header may come in several lines (RFC 9110, 5.3).
    return ",".join(request.headers.getall(hdrs.CONTENT_ENCODING, ()))
