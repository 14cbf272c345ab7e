"""What all forms of the v2 protocol have in common: JSON, JSON with binary data behind it, and gRPC.

That is its datatypes, the elements of its tensors, the rules on which requests may share a batch, and the memory for
what was understood of messages.
Sources: Open Inference Protocol, "Tensor Data Types", and Triton's binary tensor data extension. In binary, elements
are little-endian and row-major, a BOOL takes one byte, and four bytes of length precede each element of BYTES.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from carpool_sidecar import errors
from carpool_sidecar.protocols import steps

Data = bytes | memoryview
BYTES = "BYTES"


class Datatype(NamedTuple):
    """One datatype.

    `size` is the bytes of an element, None for BYTES; `code` is its letter in `struct` and in numpy, empty for BYTES;
    `json_type` is what its elements in JSON decode to, None where JSON has no form for them; `contents` is the list of
    gRPC's InferTensorContents that holds them, None where there is none.
    """

    size: int | None
    code: str
    json_type: type | None
    contents: str | None


DATATYPES: Final[dict[str, Datatype]] = {
    "BOOL": Datatype(1, "?", bool, "bool_contents"),
    "INT8": Datatype(1, "b", int, "int_contents"),
    "INT16": Datatype(2, "h", int, "int_contents"),
    "INT32": Datatype(4, "i", int, "int_contents"),
    "INT64": Datatype(8, "q", int, "int64_contents"),
    "UINT8": Datatype(1, "B", int, "uint_contents"),
    "UINT16": Datatype(2, "H", int, "uint_contents"),
    "UINT32": Datatype(4, "I", int, "uint_contents"),
    "UINT64": Datatype(8, "Q", int, "uint64_contents"),
    "FP16": Datatype(2, "e", None, None),
    "BF16": Datatype(2, "H", None, None),  # the upper half of an FP32, for which there is no letter
    "FP32": Datatype(4, "f", float, "fp32_contents"),
    "FP64": Datatype(8, "d", float, "fp64_contents"),
    BYTES: Datatype(None, "", str, "bytes_contents"),
}

ELEMENTS_A_STEP = 2048
"""So many are looked at one by one in a step of work on a large tensor."""

# --- data in binary ---------------------------------------------------------------------------------------------

_LENGTH = struct.Struct("<I")


def row_ends(data: Data, rows: int, width: int) -> steps.Steps[Sequence[int] | None]:
    """Where each of so many rows of `width` BYTES ends, after a 0; None if these are not exactly the elements."""
    count = rows * width
    if len(data) < _LENGTH.size * count:
        return None
    if not count:
        return None if data else [0] * (rows + 1)
    ends, at, read = [0], 0, _LENGTH.unpack_from
    try:
        for start in range(0, count, ELEMENTS_A_STEP):
            if start:
                yield
            for _ in range(start, min(count, start + ELEMENTS_A_STEP)):
                at += 4 + read(data, at)[0]
                ends.append(at)
    except struct.error:  # a length would begin behind the end
        return None
    return ends[::width] if at == len(data) else None


def elements(data: Data) -> Iterator[bytes]:
    """The elements of BYTES, of which `row_ends` found that they are whole."""
    view, at = memoryview(data), 0
    while at < len(view):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(view, at)[0]
        yield bytes(view[start:at])


def pack(strings: Iterable[Data]) -> bytes:
    """These elements as BYTES."""
    return b"".join([piece for each in strings for piece in (_LENGTH.pack(len(each)), each)])


def cut(data: Data, row_size: int, ends: Sequence[int] | None, start: int, stop: int) -> Data:
    """The rows `start` to `stop` (exclusive) of data whose rows have one size, or end where `ends` says."""
    return data[start * row_size : stop * row_size] if ends is None else data[ends[start] : ends[stop]]


# --- which requests may share a batch ---------------------------------------------------------------------------

MOST_STRINGS = 100_000
"""Elements of BYTES that one request may have: with more it takes long to look through, and much memory."""

SEQUENCE = ("sequence_id", "sequence_start", "sequence_end", "correlation_id")
"""Parameters of requests that belong to others before and after them."""

_SHARED_MEMORY = "shared_memory_"
_MOST_ELEMENTS = 2**63 - 1  # dimensions are of 64 bits, and Python writes no integer of more than 4300 digits


class Misfit(errors.BadRequest):
    """Shape and data of a tensor that do not go together, so that nobody can tell its rows.

    Some servers take such a request all the same, so it is theirs to refuse: it is passed on as `not_batched`.
    """

    def __init__(self, words: str, not_batched: errors.NotBatched = errors.NotBatched.SHAPE) -> None:
        super().__init__(words)
        self.not_batched = not_batched


class Input(NamedTuple):
    """An input that a request declares: `parameters` are the names of its parameters, `is_listed` says that its
    elements are not in binary."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Collection[str]
    is_listed: bool

    @property
    def elements(self) -> int:
        """How many it should have."""
        return math.prod(self.shape)


class RequestedOutput(NamedTuple):
    """An output that a request lists, with the names of its parameters."""

    name: str
    parameters: Collection[str]


def check_batchable(
    inputs: Sequence[Input], parameters: Mapping[str, object], outputs: Sequence[RequestedOutput]
) -> int:
    """The rows of a request; raises `errors.Unbatchable` if it has to travel alone, whether its data are right or not.

    `parameters` are the request's that are in `SEQUENCE`, with their values. The order of the rules is fixed, so that a
    request that breaks several is counted under the same one in JSON, binary and gRPC.
    """
    if not all(map(_says_nothing, parameters.values())):
        raise errors.Unbatchable(errors.NotBatched.SEQUENCE)
    said = [each.parameters for each in inputs] + [each.parameters for each in outputs]
    if any(name.startswith(_SHARED_MEMORY) for names in said for name in names):
        raise errors.Unbatchable(errors.NotBatched.SHARED_MEMORY)
    for each in inputs:
        datatype = DATATYPES.get(each.datatype)
        if datatype is None or (each.is_listed and datatype.json_type is None):
            raise errors.Unbatchable(errors.NotBatched.DATATYPE)
    rows = shared_rows([each.shape for each in inputs])
    if len({each.name for each in inputs}) < len(inputs):
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    if len({each.name for each in outputs}) < len(outputs):
        raise errors.Unbatchable(errors.NotBatched.OUTPUTS)
    if sum(each.elements for each in inputs if each.datatype == BYTES) > MOST_STRINGS:
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    return rows


def shared_rows(shapes: Sequence[Sequence[int]]) -> int:
    """The first dimension of all these tensors; raises `errors.Unbatchable` if they do not have one in common."""
    rows = {shape[0] if shape else 0 for shape in shapes}
    if len(rows) != 1 or 0 in rows:
        raise errors.Unbatchable(errors.NotBatched.SHAPE)
    return rows.pop()


def check_shape(place: str, shape: Sequence[int]) -> None:
    """Raises `Misfit` for a shape that does not say how many rows and elements there are."""
    if shape and min(shape) < 0:
        raise Misfit(f"{place} has a negative dimension: {list(shape)}")
    if math.prod(max(1, each) for each in shape) > _MOST_ELEMENTS:
        raise Misfit(f"{place} has too many elements: no more than {_MOST_ELEMENTS} are possible")


def _says_nothing(value: object) -> bool:
    """Whether a parameter has a value by which servers understand that it is not there."""
    return value is None or value == "" or (isinstance(value, bool | int | float) and value == 0)


# --- how much a message may say -----------------------------------------------------------------------------

MOST_TENSORS = 1000
"""Inputs, or outputs, of one message: each takes time of its own, in its call and in each caller's answer as well."""

LONGEST_ID = 1024
"""Bytes that the id of a request may have, as written: it is compared and copied by itself, and no template has it."""
