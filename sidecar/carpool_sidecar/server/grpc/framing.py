"""gRPC's messages on a stream: each after a flag and its length.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md and compression.md beside it.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import statuses
from carpool_sidecar.server.grpc import inflating

ENCODINGS = {b"gzip": 31, b"deflate": 15}
"""What can be undone, by zlib's window bits for it."""

ACCEPTED = b"identity,deflate,gzip"

_MOST_GROWTH = 8 * 1024 * 1024
"""Bytes of a message for which there may be memory before they come."""

_PREFIX = struct.Struct(">BI")


def frame(pieces: Sequence[bytes | memoryview]) -> bytes:
    """One message, given in pieces, uncompressed."""
    return b"".join([_PREFIX.pack(0, sum(map(len, pieces))), *pieces])


class Unframer:
    """Finds the messages in the data of one stream.

    `limit` is the bytes that a message may have, as sent and decompressed; `encoding` is the value of grpc-encoding.
    """

    # State: the beginning of a prefix; or the message that is incomplete, of so many bytes in all, with its flag and
    # the size to which it has grown.
    __slots__ = ("_encoding", "_flag", "_length", "_limit", "_message", "_prefix", "_size", "held")

    def __init__(self, limit: int, encoding: bytes | None = None) -> None:
        self._limit = limit
        self._encoding = encoding
        self._prefix = b""
        self._message: io.BytesIO | None = None
        self._flag = self._length = self._size = 0
        self.held = 0
        """Bytes of a message that is not complete."""

    def feed(self, data: bytes) -> list[bytes | inflating.Inflation]:
        """The messages that are complete now; those that are compressed have yet to be inflated.

        Raises `errors.PayloadTooLarge` as soon as one says that it is over the limit, and `statuses.Fault` for what
        cannot be read. Nothing can be fed after that.
        """
        messages: list[bytes | inflating.Inflation] = []
        at = 0
        if self._message is not None:
            at = self._length - self._message.tell()
            if at > len(data):
                self._add(self._message, data)
                self.held += len(data)
                return messages
            self._add(self._message, memoryview(data)[:at])
            message, self._message = self._message.getvalue(), None
            messages.append(self._decoded(self._flag, message))
        elif self._prefix:
            data = self._prefix + data
        while (left := len(data) - at) >= _PREFIX.size:
            flag, length = _PREFIX.unpack_from(data, at)
            if length > self._limit:
                raise self._too_large()
            start = at + _PREFIX.size
            at = start + length
            if at > len(data):
                self._prefix, self.held = b"", left
                self._flag, self._length, self._size = flag, length, 0
                self._message = io.BytesIO()
                self._add(self._message, memoryview(data)[start:])
                return messages
            messages.append(self._decoded(flag, data[start:at]))
        self._prefix, self.held = data[at:], left
        return messages

    def end(self) -> None:
        """No more will come; raises `statuses.Fault` in the middle of a message."""
        if self.held:
            raise statuses.Fault(statuses.INTERNAL, "the stream ended in the middle of a message")

    def drop(self) -> None:
        """Keep nothing of what came."""
        self._prefix, self._message, self.held = b"", None, 0

    def _add(self, message: io.BytesIO, data: bytes | memoryview) -> None:
        """Append, and grow ahead: by what has come, not by what is said to come.

        So a large message is never copied as a whole, which would take long, and small pieces cost what they count.
        """
        end = message.tell() + len(data)
        if end > self._size:
            self._size = min(self._length, end + min(end // 2, _MOST_GROWTH))
            message.seek(self._size - 1)
            message.write(b"\0")
            message.seek(end - len(data))
        message.write(data)

    def _decoded(self, flag: int, message: bytes) -> bytes | inflating.Inflation:
        if flag == 0:
            return message
        if flag != 1:
            raise statuses.Fault(statuses.INTERNAL, f"a message begins with {flag}; allowed: 0, 1 (compressed)")
        if self._encoding in (None, b"identity"):
            raise statuses.Fault(statuses.INTERNAL, "a message is compressed, but grpc-encoding does not say how")
        bits = ENCODINGS.get(self._encoding or b"")
        if bits is None:
            words = f"grpc-encoding {self._encoding!r} is unknown; allowed: {ACCEPTED.decode()}"
            raise statuses.Fault(statuses.UNIMPLEMENTED, words)
        return inflating.Inflation(message, bits, self._encoding or b"", self._limit)

    def _too_large(self) -> errors.PayloadTooLarge:
        return errors.PayloadTooLarge(f"a message is larger than the limit of {self._limit} bytes")
