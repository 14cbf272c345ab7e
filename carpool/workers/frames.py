"""The messages between the server and a worker: length-prefixed frames on a stream socket, moved without copies.

A frame is a header (kind, 2 bytes; body length, 8 bytes; network byte order) and a body. To the worker: kind CALL
and the call. From the worker: READY once, or UNUSABLE with a message, and then for each call, in order, its answer
under a kind that the two agree on (the predictor: HTTP statuses). The worker reads and writes with blocking calls, the
server feeds a `Decoder`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence

Buffer = bytes | bytearray | memoryview

CALL = 0
READY = 1
UNUSABLE = 2
# All other kinds are answers.

_HEADER = struct.Struct("!HQ")
_READ_AHEAD = 64 * 1024


def header(kind: int, length: int) -> bytes:
    """The header of a frame whose body is `length` bytes long."""
    return _HEADER.pack(kind, length)


def send(sock: socket.socket, kind: int, body: Sequence[Buffer]) -> None:
    """Write one frame on a blocking socket, its body given in pieces. Raises OSError if the peer is gone."""
    pieces: list[Buffer] = [header(kind, sum(len(piece) for piece in body)), *body]
    sent = sock.sendmsg(pieces)
    for piece in pieces:
        if sent < len(piece):
            sock.sendall(memoryview(piece)[sent:])
        sent = max(0, sent - len(piece))


def receive(sock: socket.socket) -> tuple[int, bytes] | None:
    """Read one frame from a blocking socket: `(kind, body)`, or None at the end of the stream.

    A stream that ends within a frame ends like one between frames: nobody waits for the answer any more.
    """
    head = _receive_exactly(sock, _HEADER.size)
    if head is None:
        return None
    kind, length = _HEADER.unpack(head)
    body = _receive_exactly(sock, length)
    return None if body is None else (kind, body)


def _receive_exactly(sock: socket.socket, length: int) -> bytes | None:
    # With MSG_WAITALL the kernel fills one bytes object of the full length; a signal may still cut it short.
    received = sock.recv(length, socket.MSG_WAITALL) if length else b""
    while len(received) < length:
        more = sock.recv(length - len(received), socket.MSG_WAITALL)
        if not more:
            return None
        received += more
    return received


class Decoder:
    """Finds frames in a stream that arrives in pieces of any size, for `asyncio.BufferedProtocol`.

    Small frames come many at a time through one fixed buffer. A frame too large for it is received straight into
    memory of its own size.
    """

    def __init__(self) -> None:
        self._fixed = bytearray(_READ_AHEAD)
        self._held = 0  # bytes of `_fixed` that are an unfinished frame
        # While a large frame arrives: its kind, its body, and how much of that is there.
        self._kind = 0
        self._large: bytearray | None = None
        self._filled = 0

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return memoryview(self._fixed)[self._held :]

    def received(self, count: int) -> Iterable[tuple[int, Buffer]]:
        """Take note of `count` new bytes in `buffer()`; the frames that are now complete, in order."""
        if self._large is None:
            return self._scan(self._held + count)
        self._filled += count
        if self._filled < len(self._large):
            return ()
        frame = (self._kind, self._large)
        self._large = None
        return (frame,)

    def _scan(self, end: int) -> list[tuple[int, Buffer]]:
        frames: list[tuple[int, Buffer]] = []
        at = 0
        while end - at >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._fixed, at)
            start = at + _HEADER.size
            if length > _READ_AHEAD - _HEADER.size:
                self._begin_large(kind, length, start, end)
                return frames
            if end - start < length:
                break
            frames.append((kind, bytes(memoryview(self._fixed)[start : start + length])))
            at = start + length
        self._held = end - at
        self._fixed[: self._held] = self._fixed[at:end]
        return frames

    def _begin_large(self, kind: int, length: int, start: int, end: int) -> None:
        # Longer than the fixed buffer can hold, so the frame cannot be complete yet.
        self._kind, self._large, self._filled = kind, bytearray(length), end - start
        self._large[: self._filled] = memoryview(self._fixed)[start:end]
        self._held = 0
