"""HTTP/2 as an attacker writes it (RFC 9113): nothing is checked, so that everything wrong can be said.

On purpose without the server's own module for frames: a mistake in that must not be hidden by its own double.
"""

from __future__ import annotations

import struct

import hpack

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
UNKNOWN = 0xBE
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4
WIDEST = 2**31 - 1

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE = 9
CANCEL = 8

_HEAD = struct.Struct(">HBBBL")

Fields = tuple[tuple[bytes, bytes], ...]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def unpack(data: bytes | bytearray, at: int = 0) -> tuple[int, int, int, int]:
    """Size of the payload, kind, flags and stream of the frame whose head is at this place."""
    high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
    return high << 8 | low, kind, flags, stream & WIDEST


def settings(**values: int) -> bytes:
    """SETTINGS: `initial_window` and no other so far."""
    known = {"initial_window": INITIAL_WINDOW_SIZE}
    return frame(SETTINGS, payload=b"".join(struct.pack(">HL", known[name], value) for name, value in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4))


def reset(stream: int) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4))


def ping(payload: bytes = b"attacker", flags: int = 0) -> bytes:
    """PING."""
    return frame(PING, flags, 0, payload)


def call(path: str, *more: tuple[bytes, bytes], **changed: bytes) -> Fields:
    """The fields of a gRPC call; `changed` are pseudo-headers and others by name with underscores for hyphens."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path.encode(), b":authority": b"attacked"}
    fields |= {b"te": b"trailers", b"content-type": b"application/grpc"}
    for name, value in changed.items():
        key = name.replace("_", "-").encode()
        fields[b":method" if key == b"method" else key] = value
    return (*fields.items(), *more)


def block(fields: Fields) -> bytes:
    """Compressed without the table, so that the same block stands for these fields wherever it is sent."""
    encoder = hpack.Encoder()
    return bytes(encoder.encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields], huffman=False))


def indexed(fields: Fields) -> tuple[bytes, bytes]:
    """A block that enters these fields into the table, and a short one that says them again."""
    encoder = hpack.Encoder()
    return bytes(encoder.encode(fields)), bytes(encoder.encode(fields))


def open_stream(stream: int, head: bytes, flags: int = 0) -> bytes:
    """HEADERS with a whole block."""
    return frame(HEADERS, END_HEADERS | flags, stream, head)


def message(payload: bytes, flag: int = 0) -> bytes:
    """A gRPC message, as it stands in DATA."""
    return struct.pack(">BL", flag, len(payload)) + payload


def data(stream: int, body: bytes, size: int = 16_384, flags: int = END_STREAM) -> bytes:
    """DATA frames of at most `size` bytes; the last has the flags."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    last = len(pieces) - 1
    return b"".join(frame(DATA, flags if at == last else 0, stream, piece) for at, piece in enumerate(pieces))
