"""Bytes of a client, cut into frames: preface, sizes, padding, and header blocks spread over several frames."""

from __future__ import annotations

from collections.abc import Iterator

from carpool_sidecar.server.http2 import errors, frames

_PRIORITY_SIZE = 5
_FREE_CONTINUATIONS = 8
"""Continuations that may be as short as they like; on top of these each has to bring 1 KiB."""


class Reader:
    """Of one connection. `most` bounds a frame, `most_block` a header block, both in bytes."""

    # State. has_begun: the preface was read. _rest: the beginning of a frame, to be looked at when it has _wanted
    # bytes. _open: stream and flags of HEADERS to be continued, _block: their fields so far, in so many _parts.
    __slots__ = ("_block", "_has_settings", "_most", "_most_block", "_open", "_parts", "_rest", "_wanted", "has_begun")

    def __init__(self, most: int, most_block: int) -> None:
        self._most = most
        self._most_block = most_block
        self._rest = bytearray()
        self._wanted = len(frames.PREFACE)
        self._open: tuple[int, int] | None = None
        self._block = bytearray()
        self._parts = 0
        self._has_settings = False
        self.has_begun = False

    def read(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Type, flags, stream and payload of each frame that is complete by now, to be taken to the end.

        HEADERS come without padding and priority and with their continuations, so that their payloads are whole
        blocks; each part of a block before its last comes as an empty CONTINUATION. Raises `ConnectionFault`.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = 0 if self.has_begun else self._begin(data)
        size, most, unpack = len(data), self._most, frames.unpack_head
        self._wanted = frames.HEAD_SIZE
        while self.has_begun and size - at >= frames.HEAD_SIZE:
            word, flags, number = unpack(data, at)
            length = word >> 8
            if length > most:
                raise errors.ConnectionFault(errors.Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = at + frames.HEAD_SIZE
            if start + length > size:
                self._wanted = frames.HEAD_SIZE + length
                break
            at = start + length
            kind = word & 0xFF
            if self._open is not None or kind == frames.CONTINUATION or not self._has_settings:
                self._check_order(kind, flags, number & frames.STREAM_MASK)
            payload = data[start:at]
            if kind == frames.HEADERS:
                payload = self._fields(flags, number & frames.STREAM_MASK, payload)
            elif kind == frames.CONTINUATION:
                kind, flags, payload = self._continue(flags, payload)
            if self._open is None:
                yield kind, flags, number & frames.STREAM_MASK, payload
            else:
                yield frames.CONTINUATION, flags, number & frames.STREAM_MASK, b""
        if at < size:
            self._rest += data[at:]

    def _begin(self, data: bytes) -> int:
        """Look for the preface; returns where frames begin, once all of it is there."""
        size = len(frames.PREFACE)
        if not frames.PREFACE.startswith(data[:size]):
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "not HTTP/2 with prior knowledge")
        self.has_begun = len(data) >= size
        return size if self.has_begun else 0

    def _check_order(self, kind: int, flags: int, number: int) -> None:
        """SETTINGS come first, and nothing between HEADERS and their continuations."""
        if not self._has_settings:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._has_settings = True
        elif self._open is None:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "CONTINUATION of nothing")
        elif kind != frames.CONTINUATION or number != self._open[0]:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "a header block was not continued")

    def _fields(self, flags: int, number: int, payload: bytes) -> bytes:
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < _PRIORITY_SIZE:
                raise errors.ConnectionFault(errors.Code.FRAME_SIZE_ERROR, "HEADERS end within their priority")
            if frames.priority(payload) == number:
                raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "a stream depends on itself")
            payload = payload[_PRIORITY_SIZE:]
        if not flags & frames.END_HEADERS:
            self._open, self._parts = (number, flags), 0
            self._block = bytearray(payload)
        return payload

    def _continue(self, flags: int, payload: bytes) -> tuple[int, int, bytes]:
        """As if all of the block had come in HEADERS."""
        self._block += payload
        self._parts += 1
        if len(self._block) > self._most_block or self._parts > _FREE_CONTINUATIONS + len(self._block) // 1024:
            raise errors.ConnectionFault(errors.Code.ENHANCE_YOUR_CALM, "a header block of too many bytes or frames")
        if not flags & frames.END_HEADERS or self._open is None:
            return frames.HEADERS, 0, b""
        first, self._open = self._open[1], None
        block, self._block = bytes(self._block), bytearray()
        return frames.HEADERS, first, block
