"""The outermost fields of v2's two large messages, found without decoding what is in them.

Tensors are most of a message and travel as they are, so they are cut out of it as bytes. All the rest, which is the
same for most requests to a model, is left to protobuf. Encoding: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import NamedTuple

# Tags: the field's number and wire type 2, which is a length and so many bytes. ModelInferRequest and
# ModelInferResponse have the first five in common.
NAME, VERSION, ID, PARAMETERS, TENSORS, REQUESTED, RAW_INPUT = (number << 3 | 2 for number in range(1, 8))
RAW_OUTPUT = REQUESTED

_REST = frozenset((PARAMETERS, TENSORS, REQUESTED))

# From here on a view costs less than a copy.
_WORTH_A_VIEW = 16 * 1024


class Unreadable(Exception):
    """Not the fields that were expected: unknown ones, or no message at all."""


class Fields(NamedTuple):
    """A message taken apart: `rest` is everything but its id and its raw tensors, in the order in which it came."""

    name: bytes
    version: bytes
    id: bytes
    rest: bytes
    raw: list[bytes | memoryview]


def scan(body: bytes, raw_tag: int = RAW_INPUT) -> Fields:
    """Take a ModelInferRequest (or ModelInferResponse, with `RAW_OUTPUT`) apart; raises `Unreadable`.

    As in protobuf the last one counts of a field that may be there once.
    """
    name = version = identity = b""
    rest: list[bytes] = []
    raw: list[bytes | memoryview] = []
    at, end = 0, len(body)
    try:
        while at < end:
            tag, length, start = body[at], body[at + 1], at + 2
            if length > 0x7F:
                length, start = _varint(body, at + 1)
            stop = start + length
            if tag == raw_tag:
                raw.append(body[start:stop] if length < _WORTH_A_VIEW else memoryview(body)[start:stop])
            elif tag == ID:
                identity = body[start:stop]
            else:
                rest.append(body[at:stop])
                if tag == NAME:
                    name = body[start:stop]
                elif tag == VERSION:
                    version = body[start:stop]
                elif tag not in _REST:
                    raise Unreadable
            at = stop
    except IndexError:
        raise Unreadable from None
    if at != end:
        raise Unreadable
    return Fields(name, version, identity, b"".join(rest), raw)


def start(tag: int, length: int) -> bytes:
    """What a field of `length` bytes begins with."""
    head = bytearray((tag,))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A length that is written in more than one byte, and where it ends; no message has 2 GiB."""
    value = 0
    for shift in range(0, 35, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Unreadable
