"""gRPC's messages on a stream: each after a flag and its length.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md and compression.md beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sidecar import errors
from sidecar.rpc import inflating, statuses

ENCODINGS = {b"gzip": 31, b"deflate": 15}
"""What can be undone, by zlib's window bits for it."""

ACCEPTED = b"identity,deflate,gzip"

_PREFIX = struct.Struct(">BI")


def frame(pieces: Sequence[bytes | memoryview]) -> bytes:
    """One message, given in pieces, uncompressed."""
    return b"".join([_PREFIX.pack(0, sum(map(len, pieces))), *pieces])


class Unframer:
    """Finds the messages in the data of one stream.

    `limit` is the bytes that a message may have, as sent and decompressed; `encoding` is the value of grpc-encoding.
    """

    # State: what has come of the message that is incomplete, its bytes, and how many it takes to go on.
    __slots__ = ("_encoding", "_limit", "_needed", "_parts", "held")

    def __init__(self, limit: int, encoding: bytes | None = None) -> None:
        self._limit = limit
        self._encoding = encoding
        self._parts: list[bytes] = []
        self._needed = _PREFIX.size
        self.held = 0
        """Bytes of a message that is not complete."""

    def feed(self, data: bytes) -> list[bytes | inflating.Inflation]:
        """The messages that are complete now; those that are compressed have yet to be inflated.

        Raises `errors.PayloadTooLarge` as soon as one says that it is over the limit, and `statuses.Fault` for what
        cannot be read. Nothing can be fed after that.
        """
        self._parts.append(data)
        self.held += len(data)
        if self.held < self._needed:
            return []
        buffer = b"".join(self._parts)  # no copy if there is only one
        messages: list[bytes | inflating.Inflation] = []
        at = 0
        while (left := len(buffer) - at) >= _PREFIX.size:
            flag, length = _PREFIX.unpack_from(buffer, at)
            if length > self._limit:
                raise self._too_large()
            self._needed = _PREFIX.size + length
            if left < self._needed:
                break
            messages.append(self._decoded(flag, buffer[at + _PREFIX.size : at + self._needed]))
            at += self._needed
            self._needed = _PREFIX.size
        self.held = len(buffer) - at
        self._parts = [buffer[at:]] if self.held else []
        return messages

    def end(self) -> None:
        """No more will come; raises `statuses.Fault` in the middle of a message."""
        if self.held:
            raise statuses.Fault(statuses.INTERNAL, "the stream ended in the middle of a message")

    def drop(self) -> None:
        """Keep nothing of what came."""
        self._parts, self.held = [], 0

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
