"""Frames of HTTP/2 as bytes (RFC 9113, sections 4 and 6). Nothing here knows a connection's state."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

from carpool_sidecar.server.http2 import errors

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE = 9
LEAST_MAX_FRAME, MOST_MAX_FRAME = 2**14, 2**24 - 1
MOST_WINDOW = 2**31 - 1
FIRST_WINDOW = 2**16 - 1
"""Of every stream and connection, before anybody says otherwise."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

STREAM_MASK = 0x7FFFFFFF
"""Of 32 bits, those of a stream's number; the first one is reserved."""

_HEAD = struct.Struct(">IBI")  # length and type share the first four bytes
_SETTING = struct.Struct(">HI")
_WORD = struct.Struct(">I")
_TWO_WORDS = struct.Struct(">II")

pack_head = _HEAD.pack
"""Of (payload length << 8 | type, flags, stream)."""

unpack_head = _HEAD.unpack_from
"""The reverse, from bytes and an offset; the stream's reserved bit is still in."""


class Setting(enum.IntEnum):
    """Settings this server knows; all others are ignored."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


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
    """GOAWAY: streams above `last` were not and will not be looked at."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last, code) + reason.encode())


def headers(stream: int, block: bytes, flags: int, max_frame: int) -> bytes:
    """HEADERS with as many CONTINUATION frames as the receiver's `max_frame` asks for; `flags` without END_HEADERS."""
    if len(block) <= max_frame:
        return _HEAD.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream) + block
    pieces = [block[at : at + max_frame] for at in range(0, len(block), max_frame)]
    first = frame(HEADERS, flags, stream, pieces[0])
    between = [frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]]
    return b"".join((first, *between, frame(CONTINUATION, END_HEADERS, stream, pieces[-1])))


# --- what is received ------------------------------------------------------------------------------------------


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Pairs of identifier and value. Raises `ConnectionFault` if the size is wrong."""
    if len(payload) % _SETTING.size:
        raise errors.ConnectionFault(errors.Code.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return _SETTING.iter_unpack(payload)


def read_word(payload: bytes, name: str) -> int:
    """The one number in RST_STREAM, or in WINDOW_UPDATE less its reserved bit. Raises `ConnectionFault`."""
    if len(payload) != _WORD.size:
        raise errors.ConnectionFault(errors.Code.FRAME_SIZE_ERROR, f"{name} of {len(payload)} bytes, not 4")
    return int.from_bytes(payload)


def unpadded(payload: bytes) -> bytes:
    """DATA or HEADERS with the flag PADDED, less its padding. Raises `ConnectionFault`."""
    if not payload:
        raise errors.ConnectionFault(errors.Code.FRAME_SIZE_ERROR, "a padded frame without its pad length")
    end = len(payload) - payload[0]
    if end < 1:
        raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "more padding than the frame has room for")
    return payload[1:end]


def priority(payload: bytes) -> int:
    """The stream that five bytes of priority depend on; the rest of the scheme is deprecated and ignored."""
    return int.from_bytes(payload[:4]) & STREAM_MASK
