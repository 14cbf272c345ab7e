"""HTTP/2 frames as bytes (RFC 9113, sections 4 to 7): how they are written, and how a client's bytes are cut into them.

Nothing here knows which streams a connection has. What a client does wrong is raised as one of two errors, by what it
costs: the connection or one stream.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final

from carpool.compiled import mypyc_attr

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE: Final = 9
LEAST_MAX_FRAME: Final = 2**14
MOST_MAX_FRAME: Final = 2**24 - 1
MOST_WINDOW: Final = 2**31 - 1
FIRST_WINDOW: Final = 2**16 - 1
"""The window of every stream and connection until settings or updates change it."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

STREAM_MASK: Final = 0x7FFFFFFF
"""The 31 bits of a stream's number; the 32nd is reserved."""

_HEAD: Final = struct.Struct(">IBI")  # length and type share the first four bytes
_SETTING: Final = struct.Struct(">HI")
_WORD: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")
_PRIORITY_SIZE: Final = 5
_FREE_CONTINUATIONS: Final = 8
"""CONTINUATION frames that may be as short as they like; each further one has to bring 1 KiB on average."""

pack_head: Final = _HEAD.pack
"""Takes (payload length << 8 | type, flags, stream)."""

unpack_head: Final = _HEAD.unpack_from
"""The reverse, from bytes and an offset; the stream's reserved bit is still set."""


class Code(enum.IntEnum):
    """Error codes (section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Setting(enum.IntEnum):
    """The settings that this server knows; it ignores all others."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


@mypyc_attr(native_class=False)
class _Http2Error(Exception):
    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


@mypyc_attr(native_class=False)
class Http2ConnectionError(_Http2Error):
    """The connection's state is unknown or its client is hostile: the connection ends with GOAWAY and this code."""


@mypyc_attr(native_class=False)
class Http2StreamError(_Http2Error):
    """One stream cannot go on: it ends with RST_STREAM and this code. The other streams are served."""


# --- what is sent ----------------------------------------------------------------------------------------------


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Any frame."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    """SETTINGS that state `values`."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream 0 is the connection."""
    return _HEAD.pack(4 << 8 | WINDOW_UPDATE, 0, stream) + _WORD.pack(increment)


def rst_stream(stream: int, code: int) -> bytes:
    """RST_STREAM."""
    return _HEAD.pack(4 << 8 | RST_STREAM, 0, stream) + _WORD.pack(code)


def goaway(last: int, code: int, reason: str = "") -> bytes:
    """GOAWAY: the server does not handle streams above `last`."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last, code) + reason.encode())


def headers(stream: int, block: bytes, flags: int, max_frame: int) -> bytes:
    """HEADERS, followed by CONTINUATION frames where the receiver's `max_frame` asks for them.

    `flags` must not contain END_HEADERS.
    """
    if len(block) <= max_frame:
        return _HEAD.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream) + block
    pieces = [block[at : at + max_frame] for at in range(0, len(block), max_frame)]
    first = frame(HEADERS, flags, stream, pieces[0])
    between = [frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]]
    return b"".join((first, *between, frame(CONTINUATION, END_HEADERS, stream, pieces[-1])))


# --- what is received ------------------------------------------------------------------------------------------


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Pairs of identifier and value. Raises `Http2ConnectionError` if the size is wrong."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return _SETTING.iter_unpack(payload)


def read_word(payload: bytes, name: str) -> int:
    """The only number in RST_STREAM or WINDOW_UPDATE, with its reserved bit. Raises `Http2ConnectionError`."""
    if len(payload) != _WORD.size:
        raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, f"{name} of {len(payload)} bytes, not 4")
    return int.from_bytes(payload)


def unpadded(payload: bytes) -> bytes:
    """The payload of a frame with the flag PADDED, without its padding. Raises `Http2ConnectionError`."""
    if not payload:
        raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "a padded frame without its pad length")
    end = len(payload) - payload[0]
    if end < 1:
        raise Http2ConnectionError(Code.PROTOCOL_ERROR, "more padding than the frame has room for")
    return payload[1:end]


def priority(payload: bytes) -> int:
    """The stream that five bytes of priority name; the rest of the scheme is deprecated and ignored."""
    return int.from_bytes(payload[:4]) & STREAM_MASK


class FrameReader:
    """Cuts the bytes of one connection into frames.

    `most` bounds the payload of a frame, `most_block` a header block, both in bytes.
    """

    # State. has_begun: the preface was read. _rest: the beginning of a frame, which is read once it has _wanted bytes.
    # _open: stream and flags of HEADERS to be continued; _block: their fields so far, in _parts
    __slots__ = ("_block", "_has_settings", "_most", "_most_block", "_open", "_parts", "_rest", "_wanted", "has_begun")

    def __init__(self, most: int, most_block: int) -> None:
        self._most = most
        self._most_block = most_block
        self._rest = bytearray()
        self._wanted = len(PREFACE)
        self._open: tuple[int, int] | None = None
        self._block = bytearray()
        self._parts = 0
        self._has_settings = False
        self.has_begun = False

    def read(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Type, flags, stream and payload of each complete frame; the caller has to take all of them.

        HEADERS come without padding and priority and joined with their continuations: their payloads are whole header
        blocks. Each part of a block but the last comes as an empty CONTINUATION. Raises `Http2ConnectionError`.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = 0 if self.has_begun else self._begin(data)
        size, most, unpack = len(data), self._most, unpack_head
        self._wanted = HEAD_SIZE
        while self.has_begun and size - at >= HEAD_SIZE:
            word, flags, number = unpack(data, at)
            length = word >> 8
            if length > most:
                raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = at + HEAD_SIZE
            if start + length > size:
                self._wanted = HEAD_SIZE + length
                break
            at = start + length
            kind = word & 0xFF
            if self._open is not None or kind == CONTINUATION or not self._has_settings:
                self._check_order(kind, flags, number & STREAM_MASK)
            payload = data[start:at]
            if kind == HEADERS:
                payload = self._fields(flags, number & STREAM_MASK, payload)
            elif kind == CONTINUATION:
                kind, flags, payload = self._continue(flags, payload)
            if self._open is None:
                yield kind, flags, number & STREAM_MASK, payload
            else:
                yield CONTINUATION, flags, number & STREAM_MASK, b""
        if at < size:
            self._rest += data[at:]

    def _begin(self, data: bytes) -> int:
        """Check the preface; returns where the frames begin, or 0 while the preface is incomplete."""
        size = len(PREFACE)
        if not PREFACE.startswith(data[:size]):
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "not HTTP/2 with prior knowledge")
        self.has_begun = len(data) >= size
        return size if self.has_begun else 0

    def _check_order(self, kind: int, flags: int, number: int) -> None:
        """Check that SETTINGS come first, and that only continuations follow incomplete HEADERS."""
        if not self._has_settings:
            if kind != SETTINGS or flags & ACK:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._has_settings = True
        elif self._open is None:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "CONTINUATION of nothing")
        elif kind != CONTINUATION or number != self._open[0]:
            raise Http2ConnectionError(Code.PROTOCOL_ERROR, "a header block was not continued")

    def _fields(self, flags: int, number: int, payload: bytes) -> bytes:
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < _PRIORITY_SIZE:
                raise Http2ConnectionError(Code.FRAME_SIZE_ERROR, "HEADERS end within their priority")
            if priority(payload) == number:
                raise Http2ConnectionError(Code.PROTOCOL_ERROR, "a stream depends on itself")
            payload = payload[_PRIORITY_SIZE:]
        if not flags & END_HEADERS:
            self._open, self._parts = (number, flags), 0
            self._block = bytearray(payload)
        return payload

    def _continue(self, flags: int, payload: bytes) -> tuple[int, int, bytes]:
        """The frame that HEADERS with the whole block would have been, once it is complete."""
        self._block += payload
        self._parts += 1
        if len(self._block) > self._most_block or self._parts > _FREE_CONTINUATIONS + len(self._block) // 1024:
            raise Http2ConnectionError(Code.ENHANCE_YOUR_CALM, "a header block of too many bytes or frames")
        if not flags & END_HEADERS or self._open is None:
            return HEADERS, 0, b""
        first, self._open = self._open[1], None
        block, self._block = bytes(self._block), bytearray()
        return HEADERS, first, block
