"""Tensors in their two forms in gRPC: raw bytes, and lists of numbers (`InferTensorContents`).

Batches are made of raw bytes. Lists are turned into those and, for who sent or would have got lists, back again.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2

from carpool_sidecar.protocols.v2_grpc import message_scan
from carpool_sidecar.protocols.v2_http import requests


class Datatype(NamedTuple):
    """`size` is bytes per element, None for BYTES; `field` is the list its elements are in, None if there is none."""

    size: int | None
    field: str | None
    kind: str = ""  # numpy's name for it; of integers and booleans


DATATYPES = {
    "BOOL": Datatype(1, "bool_contents", "?"),
    "INT8": Datatype(1, "int_contents", "<i1"),
    "INT16": Datatype(2, "int_contents", "<i2"),
    "INT32": Datatype(4, "int_contents", "<i4"),
    "INT64": Datatype(8, "int64_contents", "<i8"),
    "UINT8": Datatype(1, "uint_contents", "<u1"),
    "UINT16": Datatype(2, "uint_contents", "<u2"),
    "UINT32": Datatype(4, "uint_contents", "<u4"),
    "UINT64": Datatype(8, "uint64_contents", "<u8"),
    "FP16": Datatype(2, None),
    "BF16": Datatype(2, None),
    "FP32": Datatype(4, "fp32_contents"),
    "FP64": Datatype(8, "fp64_contents"),
    "BYTES": Datatype(None, "bytes_contents"),
}

_LENGTH = struct.Struct("<I")
_NUMBERS = {field.name: field.number for field in service_pb2.InferTensorContents.DESCRIPTOR.fields}

# What is looked at number by number: at most so many, in at most so many bytes. It takes some milliseconds.
_MOST_LISTED = 256 * 1024
_MOST_LOOKED_AT = 1024 * 1024


class Misfit(Exception):
    """A tensor whose data are not what its shape and datatype say; the text says what is wrong."""


class TooMany(Exception):
    """A tensor that takes long to look through, so that nobody here says whether it is right."""


@contextmanager
def naming(noun: str, tensor: str) -> Iterator[None]:
    """Begins what a `Misfit` says with the tensor's name."""
    try:
        yield
    except Misfit as error:
        raise Misfit(f"{noun} {tensor[:200]!r}: {error}") from None


def check_raw(data: bytes | memoryview, datatype: str, shape: Sequence[int]) -> Sequence[int] | None:
    """Where each row of BYTES ends, after a 0; None for others, whose rows are of one size.

    Raises `Misfit` unless `data` are exactly such a tensor's elements in raw form.
    """
    size = DATATYPES[datatype].size
    count = math.prod(shape)
    if size is not None:
        if len(data) != count * size:
            raise Misfit(f"{count * size} bytes are needed for shape {list(shape)} of {datatype}; got {len(data)}")
        return None
    rows = shape[0] if shape else 1
    ends = requests.row_ends(data, rows, count // rows if rows else 0)
    if ends is None:
        raise Misfit(f"{count} elements of BYTES, each after its length, do not fill {len(data)} bytes")
    return ends


def to_raw(
    written: bytes | memoryview, datatype: str, shape: Sequence[int], is_bounded: bool = False
) -> bytes | memoryview:
    """The raw form of an InferTensorContents message; raises `Misfit` unless it has just what shape and datatype say.

    Raises `TooMany` if the time for that `is_bounded` and not enough.
    """
    kind = DATATYPES[datatype]
    if kind.field is None:
        raise Misfit(f"{datatype} has no typed contents: send it in raw_input_contents")
    count = math.prod(shape)
    tag = _NUMBERS[kind.field] << 3 | 2
    if kind.size is None:
        raw = _strings(written, tag, count)
        if raw is not None:
            return raw
    elif not kind.kind and (packed := _packed(written, tag)) is not None and len(packed) == count * kind.size:
        return packed  # floating point numbers are packed as raw form has them
    # Each number takes a byte at least: with fewer bytes they are not there, which is soon found out.
    if is_bounded and (len(written) > _MOST_LOOKED_AT or _MOST_LISTED < count <= len(written)):
        raise TooMany
    contents = service_pb2.InferTensorContents.FromString(bytes(written))
    listed = [(field.name, len(values)) for field, values in contents.ListFields()]
    if listed != [(kind.field, count)] and (listed or count):
        given = ", ".join(f"{number} in {name}" for name, number in listed) or "none"
        raise Misfit(f"{count} elements in {kind.field} are needed for shape {list(shape)} of {datatype}; got {given}")
    values = getattr(contents, kind.field)
    if kind.size is None:
        return b"".join([_LENGTH.pack(len(value)) + value for value in values])
    if not kind.kind:
        tidy: bytes = contents.SerializeToString()
        return tidy[len(tidy) - count * kind.size :]
    return _integers(values, datatype, kind.kind)


def _packed(written: bytes | memoryview, tag: int) -> bytes | memoryview | None:
    """The only field of a message, which has this tag; None if there is another or none."""
    if not written or written[0] != tag:
        return None
    start = message_scan.start(tag, len(written))  # about as long as what begins the field
    for at in (len(start), len(start) - 1):
        if bytes(written[:at]) == message_scan.start(tag, len(written) - at):
            return written[at:]
    return None


def _strings(written: bytes | memoryview, tag: int, count: int) -> bytes | None:
    """The raw form of so many strings, each a field with this tag; None if there is anything else.

    Looks at no more strings than there should be.
    """
    pieces: list[bytes | memoryview] = []
    at, end = 0, len(written)
    for _ in range(count):
        if at >= end or written[at] != tag:
            return None
        try:
            length, at = message_scan.varint(written, at + 1)
        except (IndexError, message_scan.Unreadable):
            return None
        pieces += (_LENGTH.pack(length & 0xFFFFFFFF), written[at : at + length])
        at += length
    return b"".join(pieces) if at == end else None


def to_contents(data: bytes | memoryview, datatype: str) -> Any:
    """The `InferTensorContents` of a tensor in raw form; its datatype has to have a list."""
    size, field, kind = DATATYPES[datatype]
    if field is None:
        raise ValueError(f"{datatype} has no list")
    if size is None:
        return service_pb2.InferTensorContents(bytes_contents=_elements(data))
    if kind:
        return service_pb2.InferTensorContents(**{field: np.frombuffer(data, kind).tolist()})
    tag = _NUMBERS[field] << 3 | 2
    return service_pb2.InferTensorContents.FromString(b"".join((message_scan.start(tag, len(data)), data)))


def has_lists(datatypes: Sequence[str]) -> bool:
    """Whether tensors of all these datatypes can be written as lists."""
    return all(DATATYPES[datatype].field is not None for datatype in datatypes)


def _integers(values: Any, datatype: str, kind: str) -> bytes:
    widest = {"b": "?", "i": "<i8", "u": "<u8"}[np.dtype(kind).kind]
    wide = np.fromiter(values, widest, len(values))  # from a list it would make another list first
    narrow = wide.astype(kind)
    if not np.array_equal(wide, narrow):
        raise Misfit(f"{wide[wide != narrow][0]} is out of the range of {datatype}")
    return narrow.tobytes()


def _elements(data: bytes | memoryview) -> Iterator[bytes]:
    """The elements of a BYTES tensor in raw form, which was found in order before."""
    at, view = 0, memoryview(data)
    while at < len(view):
        length = _LENGTH.unpack_from(view, at)[0]
        at += 4 + length
        yield bytes(view[at - length : at])
