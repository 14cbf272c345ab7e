"""Tensors in gRPC messages, in their two forms: raw bytes, and lists of numbers (`InferTensorContents`).

Batches are made of raw bytes. Lists become raw bytes, and raw bytes become lists again for callers that sent lists or
would have got them. This module also writes and reads the calls for tensors that were made of requests of other
protocols.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from google.protobuf import message as protobuf
from tritonclient.grpc import service_pb2

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps, v2

SERVICE: Final = "/inference.GRPCInferenceService/"
MODEL_INFER: Final = SERVICE + "ModelInfer"

_NUMBERS: Final = {field.name: field.number for field in service_pb2.InferTensorContents.DESCRIPTOR.fields}

# What is looked at number by number: at most so many, in at most so many bytes. It takes some milliseconds.
_MOST_LISTED: Final = 256 * 1024
_MOST_LOOKED_AT: Final = 1024 * 1024
_NUMBERS_A_STEP: Final = 16 * 1024  # bytes
_LISTED_A_STEP: Final = 8 * 1024  # numbers
_LENGTH: Final = struct.Struct("<I")


@contextmanager
def naming(noun: str, tensor: str) -> Iterator[None]:
    """Begins what an `errors.BadRequest` says with the tensor's name."""
    try:
        yield
    except v2.Misfit as misfit:
        raise v2.Misfit(f"{noun} {tensor[:200]!r}: {misfit}", misfit.not_batched) from None
    except errors.BadRequest as error:
        raise errors.BadRequest(f"{noun} {tensor[:200]!r}: {error}") from None


def check_raw(data: v2.Data, datatype: str, shape: Sequence[int]) -> steps.Steps[Sequence[int] | None]:
    """Where each row of BYTES ends, after a 0; None for others, whose rows are of one size.

    Raises `v2.Misfit` unless `data` are exactly such a tensor's elements in raw form.
    """
    count, rows = math.prod(shape), shape[0] if shape else 1
    size = v2.DATATYPES[datatype].size
    if size is None:
        ends = yield from v2.row_ends(data, rows, count // rows if rows else 0)
        if ends is not None:
            return ends
        raise v2.Misfit(f"{count} elements of BYTES, each after its length, do not fill {len(data)} bytes")
    if len(data) == count * size:
        return None
    needed = f"{count * size} bytes are needed for shape {list(shape)} of {datatype}"
    raise v2.Misfit(f"{needed}; got {len(data)}")


def to_raw(written: v2.Data, datatype: str, shape: Sequence[int], is_bounded: bool = False) -> steps.Steps[v2.Data]:
    """The raw form of an InferTensorContents message.

    Raises `v2.Misfit` unless it has just what shape and datatype say, `errors.BadRequest` for no message, and
    `errors.Unbatchable` if the time for that `is_bounded` and not enough.
    """
    kind = v2.DATATYPES[datatype]
    field = kind.contents
    if field is None:
        raise errors.BadRequest(f"{datatype} has no typed contents: send it in raw_input_contents")
    tag, count = _NUMBERS[field] << 3 | 2, math.prod(shape)
    raw: v2.Data | None
    if kind.size is None:
        raw = yield from _strings(bytes(written), tag, count)
        if raw is not None:
            return raw
    else:
        raw = _packed(written, tag)  # floating point numbers are packed as raw form has them
        if raw is not None and kind.json_type is not float:
            is_long = is_bounded and len(written) > _MOST_LOOKED_AT
            raw = None if is_long else (yield from _packed_integers(bytes(raw), tag, field, datatype))
        if raw is not None and len(raw) == count * kind.size:
            return raw
    # Each number takes a byte at least: with fewer bytes they are not there, which is soon found out.
    if is_bounded and (len(written) > _MOST_LOOKED_AT or _MOST_LISTED < count <= len(written)):
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    try:
        contents = service_pb2.InferTensorContents.FromString(bytes(written))
    except protobuf.DecodeError:
        raise errors.BadRequest("the contents are not valid InferTensorContents") from None
    listed = [(each.name, len(values)) for each, values in contents.ListFields()]
    if listed != [(field, count)] and (listed or count):
        given = ", ".join(f"{number} in {name}" for name, number in listed) or "none"
        needed = f"{count} elements in {field} are needed for shape {list(shape)} of {datatype}"
        raise v2.Misfit(f"{needed}; got {given}")
    values = getattr(contents, field)
    if kind.size is None:
        return v2.pack(values)
    if kind.json_type is float:
        tidy: bytes = contents.SerializeToString()
        return tidy[len(tidy) - count * kind.size :]
    return _integers(values, datatype)


def _packed(written: v2.Data, tag: int) -> v2.Data | None:
    """The only field of a message, which has this tag; None if there is another or none."""
    if not written or written[0] != tag:
        return None
    longest = len(start(tag, len(written)))  # or one more than what begins the field
    for at in (longest, longest - 1):
        if bytes(written[:at]) == start(tag, len(written) - at):
            return written[at:]
    return None


def _strings(data: bytes, tag: int, count: int) -> steps.Steps[bytes | None]:
    """The raw form of so many strings, each a field with this tag; None if there is anything else.

    Looks at no more strings than there should be.
    """
    pieces: list[bytes] = []
    at, end = 0, len(data)
    for first in range(0, count, v2.ELEMENTS_A_STEP):
        if first:
            yield
        found: list[bytes] = []  # of a step: all of them, as objects, would be memory that comes and goes
        for _ in range(first, min(count, first + v2.ELEMENTS_A_STEP)):
            if at >= end or data[at] != tag:
                return None
            try:
                length = data[at + 1]
                at += 2
                if length > 0x7F:
                    length, at = varint(data, at - 1)
            except (IndexError, ValueError):
                return None
            if length > end - at:
                return None
            found += (_LENGTH.pack(length), data[at : at + length])
            at += length
        pieces.append(b"".join(found))
    return b"".join(pieces) if at == end else None


def _packed_integers(text: bytes, tag: int, field: str, datatype: str) -> steps.Steps[bytes | None]:
    """The raw form of the numbers that are packed in a field with this tag; None for what is none."""
    found, at = [], 0
    while at < len(text):
        stop = min(len(text), at + _NUMBERS_A_STEP)
        while stop < len(text) and text[stop - 1] > 0x7F:  # within a number, of which the last byte is smaller
            stop += 1
        piece = text[at:stop]
        try:
            contents = service_pb2.InferTensorContents.FromString(start(tag, len(piece)) + piece)
            found.append(_integers(getattr(contents, field), datatype))
        except (protobuf.DecodeError, errors.BadRequest):
            return None  # what follows says what is wrong first
        at = stop
        if at < len(text):
            yield
    return b"".join(found)


def _integers(values: Any, datatype: str) -> bytes:
    kind = "<" + v2.DATATYPES[datatype].code
    widest = {"b": "?", "i": "<i8", "u": "<u8"}[np.dtype(kind).kind]
    wide = np.fromiter(values, widest, len(values))  # from a list it would make another list first
    narrow = wide.astype(kind)
    if not np.array_equal(wide, narrow):
        words = f"{wide[wide != narrow][0]} is out of the range of {datatype}"
        raise v2.Misfit(words, errors.NotBatched.MEMBERS)
    return narrow.tobytes()


def listed(data: v2.Data, datatype: str) -> steps.Steps[list[v2.Data]]:
    """A tensor in raw form as pieces of a list, which `contents` makes an `InferTensorContents` of.

    Pieces of several tensors, one behind the other, are the list of all their elements. The datatype has to have one.
    """
    kind = v2.DATATYPES[datatype]
    field = _field(datatype)
    if kind.json_type is float:  # floating point numbers are packed as raw form has them
        return [data]
    found: list[v2.Data] = []
    if kind.size is None:
        strings = v2.elements(data)
        while some := list(itertools.islice(strings, v2.ELEMENTS_A_STEP)):
            found.append(service_pb2.InferTensorContents(bytes_contents=some).SerializeToString())
            yield
        return found
    tag, numbers = _NUMBERS[field] << 3 | 2, np.frombuffer(data, "<" + kind.code)
    for at in range(0, len(numbers), _LISTED_A_STEP):
        some = numbers[at : at + _LISTED_A_STEP].tolist()
        packed = _packed(service_pb2.InferTensorContents(**{field: some}).SerializeToString(), tag)
        found.append(b"" if packed is None else packed)
        yield
    return found


def contents(pieces: Sequence[v2.Data], datatype: str) -> list[v2.Data]:
    """An `InferTensorContents` with these pieces of a list."""
    if v2.DATATYPES[datatype].size is None:
        return list(pieces)  # each string is a field of its own
    size = sum(map(len, pieces))
    return [start(_NUMBERS[_field(datatype)] << 3 | 2, size), *pieces] if size else []


def _field(datatype: str) -> str:
    field = v2.DATATYPES[datatype].contents
    if field is None:
        raise ValueError(f"{datatype} has no list")
    return field


def has_lists(datatypes: Sequence[str]) -> bool:
    """Whether tensors of all these datatypes can be written as lists."""
    return all(v2.DATATYPES[datatype].contents is not None for datatype in datatypes)


# --- fields -----------------------------------------------------------------------------------------------------


def start(tag: int, length: int) -> bytes:
    """What a field of `length` bytes begins with."""
    head = bytearray((tag,))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)


def varint(body: v2.Data, at: int) -> tuple[int, int]:
    """A number, and where it ends; raises `ValueError` and `IndexError` for what is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")


# --- calls ------------------------------------------------------------------------------------------------------


def write_request(
    batch_id: str, name: models.ModelName, tensors: Sequence[models.Tensor], outputs: Sequence[str] = ()
) -> tuple[str, interface.Headers, interface.Pieces]:
    """Method path, metadata and message of a call of `ModelInfer` with this id and these inputs.

    It asks for these outputs, for all if none is named.
    """
    request = service_pb2.ModelInferRequest(model_name=name.name, model_version=name.version, id=batch_id)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for output in outputs:
        request.outputs.add(name=output)
    request.raw_input_contents.extend([bytes(tensor.data) for tensor in tensors])
    return MODEL_INFER, (), [request.SerializeToString()]


def read_answer(reply: interface.UpstreamResponse) -> steps.Steps[list[models.Tensor]]:
    """The outputs of a ModelInferResponse; raises `errors.UpstreamBroken` if they are not what they say they are."""
    try:
        response = service_pb2.ModelInferResponse.FromString(reply.body)
    except protobuf.DecodeError:
        raise errors.UpstreamBroken("the predictor's answer is not a ModelInferResponse") from None
    raw = response.raw_output_contents
    if raw and len(raw) != len(response.outputs):
        told = f"{len(response.outputs)} outputs with {len(raw)} raw contents"
        raise errors.UpstreamBroken(f"the predictor answered {told}")
    found = []
    for index, output in enumerate(response.outputs):
        yield
        found.append((yield from _tensor(output, raw[index] if raw else None)))
    return found


def _tensor(output: Any, data: v2.Data | None) -> steps.Steps[models.Tensor]:
    shape, datatype = tuple(output.shape), output.datatype
    if datatype not in v2.DATATYPES or min(shape, default=0) < 0:
        raise errors.UpstreamBroken(f"the predictor's output {output.name!r} is {datatype} of shape {list(shape)}")
    try:
        if data is None:
            data = yield from to_raw(output.contents.SerializeToString(), datatype, shape)
        else:
            yield from check_raw(data, datatype, shape)
    except errors.BadRequest as error:
        raise errors.UpstreamBroken(f"the predictor's output {output.name!r}: {error}") from None
    return models.Tensor(output.name, datatype, shape, data)
