"""The messages between a process and its workers, on a stream socket.

A message is a header (kind, 1 byte; number of buffers, 4 bytes; length of the pickle, 8 bytes; network byte order), the
lengths of the buffers (8 bytes each), the pickle, and the buffers. To the worker: SETUP and MODEL, once, then CALL.
From it: READY or FAILED, once, then RESULT or RAISED for each call, in order. BYTES may stand for CALL and for RESULT.
The end of the stream ends the worker.

`Channel` writes and reads with blocking calls; an event loop feeds a `Decoder`.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
from collections import deque

from carpool.workers.payload import Buffer, Payload

_HEADER = struct.Struct("!BIQ")
_LENGTH = struct.calcsize("!Q")
_READ_AHEAD = 64 * 1024
_LARGE = 16 * 1024  # bytes; what is missing of so much is received where it belongs, with no copy on the way
_MOST_PIECES = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16  # of one system call


class Kind(enum.IntEnum):
    """What a message is."""

    SETUP = 0
    MODEL = 1
    READY = 2
    FAILED = 3
    CALL = 4
    RESULT = 5
    RAISED = 6
    BYTES = 7
    """A call, or its result, that is bytes and not a pickle."""


_KINDS = tuple(Kind)


class Ended(Exception):
    """The other process is gone, or has closed its end. An unfinished message is lost."""


def encoded(kind: Kind, body: Payload) -> list[Buffer]:
    """The pieces of a message, to be written one after the other."""
    lengths = [len(buffer) for buffer in body.buffers]
    head = _HEADER.pack(kind, len(lengths), sum(map(len, body.pieces)))
    if lengths:
        head += struct.pack(f"!{len(lengths)}Q", *lengths)
    return [head, *body.pieces, *body.buffers]


class Channel:
    """One end of the socket. One thread at a time may send, and one receive."""

    # Mutable state: the decoder, and messages that are not taken yet.
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._decoder = Decoder()
        self._received: deque[tuple[Kind, Payload]] = deque()

    def send(self, kind: Kind, body: Payload) -> None:
        """Write one message. Raises `Ended`."""
        pieces = encoded(kind, body)
        try:
            while pieces:
                pieces = _after(pieces, self.sock.sendmsg(pieces[:_MOST_PIECES]))
        except OSError as error:
            raise Ended from error

    def receive(self) -> tuple[Kind, Payload]:
        """Read one message. Raises `Ended`."""
        self._wait()
        return self._received.popleft()

    def next_kind(self) -> Kind:
        """Wait for a message, which is then for `receive`; what it is. Raises `Ended`."""
        self._wait()
        return self._received[0][0]

    def _wait(self) -> None:
        while not self._received:
            try:
                count = self.sock.recv_into(self._decoder.buffer())
            except OSError as error:
                raise Ended from error
            if not count:
                raise Ended
            self._received += self._decoder.received(count)

    def receive_now(self) -> tuple[Kind, Payload] | None:
        """The next message if all of it is here; None also at the end of the stream, of which `receive` tells."""
        if not self._received:
            try:
                count = self.sock.recv_into(self._decoder.buffer(), 0, socket.MSG_DONTWAIT)
            except OSError:
                return None
            self._received += self._decoder.received(count)
        return self._received.popleft() if self._received else None


class Decoder:
    """Finds messages in a stream that arrives in pieces of any size.

    Small messages come many at a time through one fixed buffer. Large parts are received straight into memory of their
    own size.
    """

    # Mutable state: the parts of the message that have begun; `_missing`, memory that is to be filled next; and
    # `_is_direct`, whether the next bytes go there and not through `_ahead`.
    def __init__(self) -> None:
        self._ahead = memoryview(bytearray(_READ_AHEAD))
        self._is_direct = False
        self._begin()

    def _begin(self) -> None:
        self._head = bytearray(_HEADER.size)
        self._pickled: bytearray | None = None
        self._buffers: list[Buffer] | None = None
        self._missing: list[Buffer] = [self._head]

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        first = self._missing[0]
        self._is_direct = len(first) >= _LARGE
        return memoryview(first) if self._is_direct else self._ahead

    def received(self, count: int) -> list[tuple[Kind, Payload]]:
        """Take note of `count` new bytes in `buffer()`; the messages that are now complete, in order."""
        held = self._ahead[: 0 if self._is_direct else count]
        if self._is_direct:
            self._missing = _after(self._missing, count)
        found: list[tuple[Kind, Payload]] = []
        while True:
            if self._missing and self._missing[0] is self._head:
                held = _take_whole(held, found)
            held = self._fill(held)
            if self._missing:
                return found
            message = self._go_on()
            if message is not None:
                found.append(message)

    def _fill(self, held: memoryview) -> memoryview:
        """Move bytes to where they are missing; those that are left."""
        while held and self._missing:
            first = memoryview(self._missing[0])
            count = min(len(first), len(held))
            first[:count] = held[:count]
            held = held[count:]
            self._missing = _after(self._missing, count)
        return held

    def _go_on(self) -> tuple[Kind, Payload] | None:
        """What was missing is there: the message if it is complete, else see what it needs next."""
        kind, count, length = _HEADER.unpack(self._head)
        start = count * _LENGTH
        if self._pickled is None:
            self._pickled = bytearray(start + length)
            self._missing = _after([self._pickled], 0)
            return None
        if count and self._buffers is None:
            self._buffers = [bytearray(each) for each in struct.unpack_from(f"!{count}Q", self._pickled)]
            self._missing = _after(self._buffers, 0)
            return None
        pickled = memoryview(self._pickled)[start:] if count else self._pickled
        message = _KINDS[kind], Payload([pickled], self._buffers or [])
        self._begin()
        return message


def _take_whole(held: memoryview, found: list[tuple[Kind, Payload]]) -> memoryview:
    """Find the messages without buffers that lie there as a whole, the usual case in short; what comes after them."""
    at, end = 0, len(held)
    while end - at >= _HEADER.size:
        kind, count, length = _HEADER.unpack_from(held, at)
        start = at + _HEADER.size
        if count or end - start < length:
            break
        at = start + length
        found.append((_KINDS[kind], Payload([bytes(held[start:at])], [])))
    return held[at:]


def _after(pieces: list[Buffer], count: int) -> list[Buffer]:
    """The pieces without their first `count` bytes, and without empty ones at the beginning."""
    for place, piece in enumerate(pieces):
        if len(piece) > count:
            return [memoryview(piece)[count:], *pieces[place + 1 :]] if count else pieces[place:]
        count -= len(piece)
    return []
