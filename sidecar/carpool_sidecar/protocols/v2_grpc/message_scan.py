"""The outermost fields of v2's two large messages, found without decoding what is in them.

Tensors are most of a message and travel as they are, so they are cut out of it as bytes. All the rest, which is the
same for most requests to a model, is left to protobuf. Encoding: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import NamedTuple

from carpool_sidecar.protocols.v2_http import splitting

# Tags: the field's number and wire type 2, which is a length and so many bytes. ModelInferRequest and
# ModelInferResponse have the first five in common.
NAME, VERSION, ID, PARAMETERS, TENSORS, REQUESTED, RAW_INPUT = (number << 3 | 2 for number in range(1, 8))
RAW_OUTPUT = REQUESTED

_REST = frozenset((PARAMETERS, TENSORS, REQUESTED))
# And of a tensor: its shape may be written in two ways.
_CONTENTS = 5 << 3 | 2
_SHAPE_ONE_BY_ONE = 3 << 3
_OF_A_TENSOR = frozenset(number << 3 | 2 for number in range(1, 6))

# A message that says more beside its data, in bytes or in fields, takes long to look through.
_MOST_REST = splitting.MAX_REST
_MOST_FIELDS = 4096

# From here on a view costs less than a copy.
_WORTH_A_VIEW = 16 * 1024


class Unreadable(Exception):
    """Not the fields that were expected: unknown ones, or no message at all."""


class CutOff(Unreadable):
    """A field ends behind the end of what it is in: this is no message."""


class TooMuch(Exception):
    """It may be a message, but one that takes long to look through."""


class Fields(NamedTuple):
    """A message taken apart: `rest` is everything but its id and its tensors' data, in the order in which it came.

    The data are `raw`, or, where there is none of that, the `contents` of each tensor: InferTensorContents.
    """

    name: bytes
    version: bytes
    id: bytes
    rest: bytes
    raw: list[bytes | memoryview]
    contents: list[bytes | memoryview]


def scan(body: bytes, raw_tag: int = RAW_INPUT) -> Fields:
    """Take a ModelInferRequest (or ModelInferResponse, with `RAW_OUTPUT`) apart; raises `Unreadable` and `TooMuch`.

    As in protobuf the last one counts of a field that may be there once.
    """
    name = version = identity = b""
    rest: list[bytes | memoryview] = []
    tensors: list[int] = []
    raw: list[bytes | memoryview] = []
    at, end = 0, len(body)
    try:
        for _ in range(_MOST_FIELDS):
            if at >= end:
                break
            tag, length, start = body[at], body[at + 1], at + 2
            if length > 0x7F:
                length, start = varint(body, at + 1)
            stop = start + length
            if tag == raw_tag:
                raw.append(body[start:stop] if length < _WORTH_A_VIEW else memoryview(body)[start:stop])
            elif tag == ID:
                identity = body[start:stop]
            else:
                if tag == TENSORS:
                    tensors.append(len(rest))
                elif tag == NAME:
                    name = body[start:stop]
                elif tag == VERSION:
                    version = body[start:stop]
                elif tag not in _REST:
                    raise Unreadable
                rest.append(body[at:stop] if length < _WORTH_A_VIEW else memoryview(body)[at:stop])
            at = stop
    except IndexError:
        raise CutOff from None
    if at != end:
        raise TooMuch if at < end else CutOff
    contents: list[bytes | memoryview] = []
    if not raw:
        left = _MOST_FIELDS
        for index in tensors:
            rest[index], data, left = _without_contents(rest[index], left)
            contents.append(data)
    if end > _MOST_REST and sum(map(len, rest)) > _MOST_REST:
        raise TooMuch
    return Fields(name, version, identity, b"".join(rest), raw, contents)


def _without_contents(field: bytes | memoryview, left: int) -> tuple[bytes, bytes | memoryview, int]:
    """A field with a tensor in it but for the tensor's contents, those, and how many more fields may be looked at."""
    rest: list[bytes | memoryview] = []
    contents: list[bytes | memoryview] = []
    end = len(field)
    _, at = varint(field, 1)
    try:
        while at < end:
            if not left:
                raise TooMuch
            left -= 1
            tag = field[at]
            length, begin = varint(field, at + 1)
            if tag == _SHAPE_ONE_BY_ONE:
                length = 0  # what was read is the value
            elif tag not in _OF_A_TENSOR:
                raise Unreadable
            stop = begin + length
            if tag == _CONTENTS:
                contents.append(field[begin:stop])
            else:
                rest.append(field[at:stop])
            at = stop
    except IndexError:
        raise CutOff from None
    if at != end:
        raise CutOff
    inner = b"".join(rest)
    # Several are merged, as they would be if one stood behind the other.
    return (
        b"".join((start(TENSORS, len(inner)), inner)),
        contents[0] if len(contents) == 1 else b"".join(contents),
        left,
    )


def start(tag: int, length: int) -> bytes:
    """What a field of `length` bytes begins with."""
    head = bytearray((tag,))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)


def varint(body: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Unreadable
