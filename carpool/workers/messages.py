"""The messages between a process and its workers, on a stream socket.

A message is a header (kind, 1 byte; number of buffers, 4 bytes; length of the pickle, 8 bytes; network byte order), the
lengths of the buffers (8 bytes each), the pickle, and the buffers. To the worker: SETUP and MODEL, once, then CALL.
From it: READY or FAILED, once, then RESULT or RAISED for each call, in order. BYTES may stand for CALL and for RESULT.
The end of the stream ends the worker.
"""

from __future__ import annotations

import enum
import os
import socket
import struct

from carpool.workers.payload import Buffer, Payload

HEADER = struct.Struct("!BIQ")
LENGTH = struct.calcsize("!Q")
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


KINDS = tuple(Kind)


class Ended(Exception):
    """The other process is gone, or has closed its end. An unfinished message is lost."""


def encoded(kind: Kind, body: Payload) -> list[Buffer]:
    """The pieces of a message, to be written one after the other."""
    lengths = [len(buffer) for buffer in body.buffers]
    head = HEADER.pack(kind, len(lengths), sum(map(len, body.pieces)))
    if lengths:
        head += struct.pack(f"!{len(lengths)}Q", *lengths)
    return [head, *body.pieces, *body.buffers]


class Channel:
    """One end of the socket. One thread at a time may send, and one receive."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, kind: Kind, body: Payload) -> None:
        """Write one message. Raises `Ended`."""
        pieces = encoded(kind, body)
        try:
            while pieces:
                pieces = after(pieces, self.sock.sendmsg(pieces[:_MOST_PIECES]))
        except OSError as error:
            raise Ended from error

    def receive(self) -> tuple[Kind, Payload]:
        """Read one message, large parts straight into memory of their own size. Raises `Ended`."""
        head = bytearray(HEADER.size)
        self._fill(head)
        kind, count, length = HEADER.unpack(head)
        lengths, pickled = bytearray(count * LENGTH), bytearray(length)
        self._fill(lengths, pickled)
        buffers: list[Buffer] = [bytearray(each) for each in struct.unpack(f"!{count}Q", lengths)]
        self._fill(*buffers)
        return KINDS[kind], Payload([pickled], buffers)

    def next_kind(self) -> Kind:
        """Wait for a message, which is then for `receive`; what it is. Raises `Ended`."""
        try:
            begin = self.sock.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise Ended from error
        if not begin:
            raise Ended
        return KINDS[begin[0]]

    def _fill(self, *pieces: Buffer) -> None:
        missing = after(list(pieces), 0)
        try:
            while missing:
                count = self.sock.recvmsg_into(missing[:_MOST_PIECES])[0]
                if not count:
                    raise Ended
                missing = after(missing, count)
        except OSError as error:
            raise Ended from error


def after(pieces: list[Buffer], count: int) -> list[Buffer]:
    """The pieces without their first `count` bytes, and without empty ones at the beginning."""
    for place, piece in enumerate(pieces):
        if len(piece) > count:
            return [memoryview(piece)[count:], *pieces[place + 1 :]] if count else pieces[place:]
        count -= len(piece)
    return []
