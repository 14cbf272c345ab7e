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

from sidecar.rpc import fields


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


class Misfit(Exception):
    """A tensor whose data are not what its shape and datatype say; the text says what is wrong."""


@contextmanager
def naming(noun: str, tensor: str) -> Iterator[None]:
    """Begins what a `Misfit` says with the tensor's name."""
    try:
        yield
    except Misfit as error:
        raise Misfit(f"{noun} {tensor[:200]!r}: {error}") from None


def check_raw(data: bytes | memoryview, datatype: str, shape: Sequence[int]) -> None:
    """Raises `Misfit` unless `data` are exactly such a tensor's elements in raw form."""
    size = DATATYPES[datatype].size
    count = math.prod(shape)
    if size is None:
        row_ends(data, count, 1)
    elif len(data) != count * size:
        raise Misfit(f"{count * size} bytes are needed for shape {list(shape)} of {datatype}; got {len(data)}")


def row_ends(data: bytes | memoryview, rows: int, elements: int) -> list[int]:
    """Where each row of a BYTES tensor ends; raises `Misfit` unless the last one ends where `data` does."""
    ends, at, read = [], 0, _LENGTH.unpack_from
    try:
        for _ in range(rows):
            for _ in range(elements):
                at += 4 + read(data, at)[0]
            ends.append(at)
    except struct.error:
        at = -1
    if at != len(data):
        raise Misfit(f"{rows * elements} elements of BYTES, each after its length, do not fill {len(data)} bytes")
    return ends


def to_raw(contents: Any, datatype: str, shape: Sequence[int]) -> bytes:
    """The raw form of an `InferTensorContents`; raises `Misfit` unless it has just what shape and datatype say."""
    kind = DATATYPES[datatype]
    if kind.field is None:
        raise Misfit(f"{datatype} has no typed contents: send it in raw_input_contents")
    listed = [(field.name, len(values)) for field, values in contents.ListFields()]
    count = math.prod(shape)
    if listed != [(kind.field, count)] and (listed or count):
        given = ", ".join(f"{number} in {name}" for name, number in listed) or "none"
        raise Misfit(f"{count} elements in {kind.field} are needed for shape {list(shape)} of {datatype}; got {given}")
    values = getattr(contents, kind.field)
    if kind.size is None:
        return b"".join([_LENGTH.pack(len(value)) + value for value in values])
    if not kind.kind:  # protobuf packs floating point numbers as raw form has them, in the only field that is there
        packed: bytes = contents.SerializeToString()
        return packed[len(packed) - count * kind.size :]
    return _integers(values, datatype, kind.kind)


def to_contents(data: bytes | memoryview, datatype: str) -> Any:
    """The `InferTensorContents` of a tensor in raw form; its datatype has to have a list."""
    size, field, kind = DATATYPES[datatype]
    if field is None:
        raise ValueError(f"{datatype} has no list")
    if size is None:
        return service_pb2.InferTensorContents(bytes_contents=_elements(data))
    if kind:
        return service_pb2.InferTensorContents(**{field: np.frombuffer(data, kind).tolist()})
    tag = service_pb2.InferTensorContents.DESCRIPTOR.fields_by_name[field].number << 3 | 2
    return service_pb2.InferTensorContents.FromString(b"".join((fields.start(tag, len(data)), data)))


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
