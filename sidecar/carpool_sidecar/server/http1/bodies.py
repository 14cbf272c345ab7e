"""Bodies that come in parts, without letting callers fill the memory: their parts, and their limits.

A body is in memory from its first byte, long before the queue knows of it, so the bytes on their way in are counted
in the same ledger as the queued ones, under one limit. Nearly all bodies are small and have arrived with their head;
for them the count is a comparison, without timer, task or reservation.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from carpool.scheduling import ledger
from carpool_sidecar import errors
from carpool_sidecar import turns as turns_
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import v1
from carpool_sidecar.server import content_coding

_LITTLE: Final = 4 * 1024  # bytes: smaller parts cost more each than to be put together
_PUT_TOGETHER: Final = 16 * 1024

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
        self._little: bytearray | None = None
        self.size = 0

    def add(self, part: bytes) -> None:
        """More of it came."""
        self.size += len(part)
        little = self._little
        if len(part) < _LITTLE:
            if little is None:
                little = self._little = bytearray()
            little += part
        if little and (len(part) >= _LITTLE or len(little) >= _PUT_TOGETHER):
            self._parts.append(bytes(little))
            self._little = None
        if len(part) >= _LITTLE:
            self._parts.append(part)

    def take(self) -> list[bytes]:
        """All that is here; it is the caller's."""
        parts, self._parts = self._parts, []
        if self._little:
            parts.append(bytes(self._little))
            self._little = None
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
        super().add(part)
        self.missing -= len(part)
        if self.scan is not None and part:
            self.scan.feed(part)


@dataclasses.dataclass
class Limits:
    """Limits of bodies, which may be changed at any time by assigning to the attributes.

    `max_body_bytes` caps one body, as sent and as decoded. What is being received and decoded counts in `memory`,
    which tells whether there is room. `read_timeout` is in seconds, for a whole body to arrive and be decoded. What a
    request declares but has not sent is not counted: it would cost its sender nothing to keep everybody else out.
    Large ones are decoded in `turns`, which all share.
    """

    max_body_bytes: int
    memory: ledger.Ledger
    read_timeout: float
    turns: turns_.Turns = dataclasses.field(default_factory=turns_.Turns)

    def check(self, size: int, chunks: int = 0) -> None:
        """Raises `errors.PayloadTooLarge` for too many bytes, `errors.BadRequest` if the chunks are too small."""
        if size > self.max_body_bytes:
            raise content_coding.too_large(self.max_body_bytes)
        if chunks * _CHUNK_OVERHEAD > 2 * size + _FREE_OVERHEAD:
            raise errors.BadRequest(f"the body comes in too small chunks: {size} bytes in {chunks} of them")
