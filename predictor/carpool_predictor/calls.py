"""Calls of bytes between the server and its workers, several of which are under way at once.

They are messages as those of the library, which has one call at a time and reads with blocking calls. Here small ones
are read many at a time, by an event loop as well.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable

from carpool.workers import child, errors, messages
from carpool.workers.payload import Buffer, Payload

_READ_AHEAD = 64 * 1024
_LARGE = 16 * 1024  # bytes; what is missing of so much is received where it belongs, with no copy on the way

Message = tuple[messages.Kind, Payload]
Answer = Callable[[messages.Kind, Payload], Message]
"""What answers a message that is no call of bytes."""


class Calls:
    """In a worker: calls as they come, for a model that serves them itself.

    Calls of other kinds are answered between them. One thread takes calls; any may answer, in the order of the calls,
    one at a time. Nobody has to notice that the socket has ended but who asks for the `next`.
    """

    # Mutable state: the decoder, and messages that are not taken yet.
    def __init__(self, channel: messages.Channel, answer: Answer) -> None:
        self._channel = channel
        self._answer = answer
        self._decoder = Decoder()
        self._received: deque[Message] = deque()

    def next(self) -> Buffer:
        """The next call, once it is here. Raises `messages.Ended`."""
        while True:
            while not self._received:
                self._read()
            kind, body = self._received.popleft()
            if kind is messages.Kind.BYTES:
                return body.pieces[0]
            self._channel.send(*self._answer(kind, body))

    def next_now(self) -> Buffer | None:
        """The next call if it is here, with none of another kind before it."""
        with contextlib.suppress(messages.Ended):
            if not self._received:
                self._read(socket.MSG_DONTWAIT)
        if not self._received or self._received[0][0] is not messages.Kind.BYTES:
            return None
        return self._received.popleft()[1].pieces[0]

    def answer(self, pieces: list[Buffer]) -> None:
        """What the first call has come to that is not answered yet."""
        with contextlib.suppress(messages.Ended):
            self._channel.send(messages.Kind.BYTES, Payload(pieces, []))

    def fail(self, error: BaseException) -> None:
        """Or what it has failed with; `errors.EndWorker` ends the process."""
        if isinstance(error, errors.EndWorker):
            child.end()
        with contextlib.suppress(messages.Ended):
            self._channel.send(*child.raised(error))

    def _read(self, flags: int = 0) -> None:
        try:
            count = self._channel.sock.recv_into(self._decoder.buffer(), 0, flags)
        except OSError as error:  # also if nothing is here now
            raise messages.Ended from error
        if not count:
            raise messages.Ended
        self._received += self._decoder.received(count)


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
        self._head = bytearray(messages.HEADER.size)
        self._pickled: bytearray | None = None
        self._buffers: list[Buffer] | None = None
        self._missing: list[Buffer] = [self._head]

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        first = self._missing[0]
        self._is_direct = len(first) >= _LARGE
        return memoryview(first) if self._is_direct else self._ahead

    def received(self, count: int) -> list[Message]:
        """Take note of `count` new bytes in `buffer()`; the messages that are now complete, in order."""
        held = self._ahead[: 0 if self._is_direct else count]
        if self._is_direct:
            self._missing = messages.after(self._missing, count)
        found: list[Message] = []
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
            self._missing = messages.after(self._missing, count)
        return held

    def _go_on(self) -> Message | None:
        """What was missing is there: the message if it is complete, else see what it needs next."""
        kind, count, length = messages.HEADER.unpack(self._head)
        start = count * messages.LENGTH
        if self._pickled is None:
            self._pickled = bytearray(start + length)
            self._missing = messages.after([self._pickled], 0)
            return None
        if count and self._buffers is None:
            self._buffers = [bytearray(each) for each in struct.unpack_from(f"!{count}Q", self._pickled)]
            self._missing = messages.after(self._buffers, 0)
            return None
        pickled = memoryview(self._pickled)[start:] if count else self._pickled
        message = messages.KINDS[kind], Payload([pickled], self._buffers or [])
        self._begin()
        return message


def _take_whole(held: memoryview, found: list[Message]) -> memoryview:
    """Find the messages without buffers that lie there as a whole, the usual case in short; what comes after them."""
    at, end = 0, len(held)
    while end - at >= messages.HEADER.size:
        kind, count, length = messages.HEADER.unpack_from(held, at)
        start = at + messages.HEADER.size
        if count or end - start < length:
            break
        at = start + length
        found.append((messages.KINDS[kind], Payload([bytes(held[start:at])], [])))
    return held[at:]
