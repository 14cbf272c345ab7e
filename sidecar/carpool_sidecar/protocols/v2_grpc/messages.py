"""ModelInferRequest and ModelInferResponse: tensors are found as bytes, and the rest is understood once.

Tensors are most of a message and travel as they are, so they are cut out of it. But for the id, the rest is the same
for most requests to a model. protobuf decodes it when it comes first; when it comes again, it costs one look-up.
Encoding: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf import message as protobuf
from tritonclient.grpc import service_pb2

from carpool_sidecar import caches, errors
from carpool_sidecar.protocols import interface, steps, v2
from carpool_sidecar.protocols.v2_grpc import tensors

# Tags: the field's number and wire type 2, which is a length and so many bytes. ModelInferRequest and
# ModelInferResponse have the first five in common.
NAME: Final = 1 << 3 | 2
VERSION: Final = 2 << 3 | 2
ID: Final = 3 << 3 | 2
PARAMETERS: Final = 4 << 3 | 2
TENSORS: Final = 5 << 3 | 2
REQUESTED: Final = 6 << 3 | 2
RAW_INPUT: Final = 7 << 3 | 2
RAW_OUTPUT: Final = 6 << 3 | 2

_REST: Final = frozenset((PARAMETERS, TENSORS, REQUESTED))
# And of a tensor: its shape may be written in two ways.
CONTENTS: Final = 5 << 3 | 2
_SHAPE_ONE_BY_ONE: Final = 3 << 3
_OF_A_TENSOR: Final = frozenset(number << 3 | 2 for number in range(1, 6))

_MOST_FIELDS: Final = 4096  # a message of more takes long to look through
_MOST_KNOWN: Final = 512 * 1024  # bytes of templates, and of signatures
_LARGEST_KNOWN: Final = 4 * 1024
_MOST_HEADS: Final = 32 * 1024  # bytes, of one signature

# From here on a view costs less than a copy.
_WORTH_A_VIEW: Final = 16 * 1024


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


class MessageType(NamedTuple):
    """A message with tensors: its class, the field they are in, the tag of raw ones, and what one of them is called."""

    message: Any
    field: str
    raw_tag: int
    noun: str

    def decode(self, body: bytes) -> Any:
        """The message; raises `errors.BadRequest`."""
        try:
            return self.message.FromString(body)
        except protobuf.DecodeError:
            raise self.invalid() from None

    def invalid(self) -> errors.BadRequest:
        """The error for what is no such message."""
        return errors.BadRequest(f"this is not a valid {self.message.DESCRIPTOR.name}")


REQUEST = MessageType(service_pb2.ModelInferRequest, "inputs", RAW_INPUT, "input")
RESPONSE = MessageType(service_pb2.ModelInferResponse, "outputs", RAW_OUTPUT, "output")


def scan(body: bytes, kind: MessageType = REQUEST) -> Fields:
    """Take a message apart, without decoding it.

    Raises `errors.BadRequest` for what is no such message, and `errors.Unbatchable` for unknown fields and for what
    takes long to look through. As in protobuf the last one counts of a field that may be there once.
    """
    try:
        return _scan(body, kind.raw_tag)
    except IndexError:  # a field ends behind the end of what it is in
        raise kind.invalid() from None
    except ValueError:
        if len(body) <= interface.MOST_TEXT:
            kind.decode(body)
        raise errors.Unbatchable(errors.NotBatched.MEMBERS) from None


def _scan(body: bytes, raw_tag: int) -> Fields:
    name = version = identity = b""
    rest: list[bytes | memoryview] = []
    places: list[int] = []
    raw: list[bytes | memoryview] = []
    at, end = 0, len(body)
    for _ in range(_MOST_FIELDS):
        if at >= end:
            break
        tag, length, start = body[at], body[at + 1], at + 2
        if length > 0x7F:
            length, start = tensors.varint(body, at + 1)
        stop = start + length
        if tag == raw_tag:
            raw.append(body[start:stop] if length < _WORTH_A_VIEW else memoryview(body)[start:stop])
        elif tag == ID:
            if identity:
                identity.decode()  # protobuf refuses what is no text even where a later one counts
            identity = body[start:stop]
        else:
            if tag == TENSORS:
                places.append(len(rest))
            elif tag == NAME:
                name = body[start:stop]
            elif tag == VERSION:
                version = body[start:stop]
            elif tag not in _REST:
                raise ValueError(f"unknown field {tag}")
            rest.append(body[at:stop] if length < _WORTH_A_VIEW else memoryview(body)[at:stop])
        at = stop
    if at < end:
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    if at > end:
        raise IndexError
    if len(places) > v2.MOST_TENSORS:
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    contents: list[bytes | memoryview] = []
    if not raw:
        left = _MOST_FIELDS
        for index in places:
            rest[index], data, left = _without_contents(rest[index], left)
            contents.append(data)
    if end > interface.MOST_TEXT and sum(map(len, rest)) > interface.MOST_TEXT:
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    return Fields(name, version, identity, b"".join(rest), raw, contents)


def _without_contents(field: bytes | memoryview, left: int) -> tuple[bytes, bytes | memoryview, int]:
    """A field with a tensor in it but for the tensor's contents, those, and how many more fields may be looked at."""
    rest: list[bytes | memoryview] = []
    contents: list[bytes | memoryview] = []
    end = len(field)
    _, at = tensors.varint(field, 1)
    while at < end:
        if not left:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        left -= 1
        tag = field[at]
        length, begin = tensors.varint(field, at + 1)
        if tag == _SHAPE_ONE_BY_ONE:
            length = 0  # what was read is the value
        elif tag not in _OF_A_TENSOR:
            raise ValueError(f"unknown field {tag}")
        stop = begin + length
        if tag == CONTENTS:
            contents.append(field[begin:stop])
        else:
            rest.append(field[at:stop])
        at = stop
    if at != end:
        raise IndexError
    inner = b"".join(rest)
    # Several are merged, as they would be if one stood behind the other.
    return (
        b"".join((tensors.start(TENSORS, len(inner)), inner)),
        contents[0] if len(contents) == 1 else b"".join(contents),
        left,
    )


# --- templates --------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One tensor's part in each row: so many elements, and so many bytes or None for BYTES."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int
    size: int | None


class BatchSignature:
    """What messages that may share a batch say: all but their id, their tensors' data and how many rows they have.

    Two with equal `key`s say the same. `columns` are the tensors.
    """

    # State: the message, whose shapes get their rows when it is written; heads by rows.
    def __init__(self, key: bytes, message: Any, listed: Sequence[Any]) -> None:
        self.key = key
        self.columns = tuple([_column(tensor) for tensor in listed])
        self.row_size = sum([column.size or 0 for column in self.columns])
        self.has_bytes = any(column.size is None for column in self.columns)
        self.longest = max([column.elements for column in self.columns], default=1)
        self._message = message
        self._tensors = listed
        self._heads: caches.Cache[int, bytes] = caches.Cache("v2_grpc_heads", _MOST_HEADS)
        self._plain_heads: caches.Cache[int, bytes] = caches.Cache("v2_grpc_heads", _MOST_HEADS)

    def head(self, rows: int) -> bytes:
        """The message for so many rows, without an id; the raw tensors are to follow."""
        head = self._heads.get(rows)
        if head is None:
            head = self.message(rows).SerializeToString(deterministic=True)
            self._heads.put(rows, head, len(head))
        return head

    def plain_head(self, rows: int) -> bytes:
        """What an answer of so many rows has in front of its only tensor, whose rows are of one size."""
        head = self._plain_heads.get(rows)
        if head is None:
            head = self.head(rows) + tensors.start(RAW_OUTPUT, rows * self.row_size)
            self._plain_heads.put(rows, head, len(head))
        return head

    def message(self, rows: int) -> Any:
        """The same, not yet written: a copy."""
        for tensor in self._tensors:
            tensor.shape[0] = rows
        copy = type(self._message)()
        copy.CopyFrom(self._message)
        return copy


class MessageTemplate(NamedTuple):
    """What one message says beside its id and data. `sizes` are what its raw tensors must have, None for BYTES."""

    signature: BatchSignature
    rows: int
    sizes: tuple[int | None, ...]


class Message(NamedTuple):
    """A message that was read. `raw` are its tensors, `ends` tells by place where rows of BYTES end (`v2.row_ends`).

    `is_listed` if the tensors came as lists.
    """

    template: MessageTemplate
    id: bytes
    raw: Sequence[v2.Data]
    ends: Mapping[int, Sequence[int]]
    is_listed: bool

    def cut(self, index: int, start: int, stop: int) -> v2.Data:
        """The rows `start` to `stop` (exclusive) of one tensor."""
        size = self.template.signature.columns[index].size or 0
        return v2.cut(self.raw[index], size, self.ends.get(index), start, stop)

    def row_sizes(self, start: int, stop: int) -> Sequence[int]:
        """Bytes of each of those rows, of all tensors together."""
        signature = self.template.signature
        sizes = [signature.row_size] * (stop - start)
        for ends in self.ends.values():
            own = [after - before for before, after in itertools.pairwise(ends[start : stop + 1])]
            sizes = list(map(operator.add, sizes, own))
        return sizes


class Reader:
    """Reads messages of one type."""

    # State: templates by what the messages say, for those with raw tensors and those with lists; signatures by keys.
    def __init__(self, kind: MessageType) -> None:
        self._kind = kind
        self._raw: caches.Cache[bytes, MessageTemplate] = _cache()
        self._listed: caches.Cache[bytes, MessageTemplate] = _cache()
        self._signatures: caches.Cache[bytes, BatchSignature] = _cache()

    def template(self, found: Fields) -> MessageTemplate:
        """What a message says of its tensors.

        Raises `errors.BadRequest` for what contradicts itself, and `errors.Unbatchable`.
        """
        raw = found.raw
        known = self._raw if raw else self._listed
        template = known.get(found.rest)
        if template is None or (raw and len(raw) != len(template.sizes)):
            template = self._understand(found)
            known.put(found.rest, template, len(found.rest))
        return template

    def read(self, found: Fields, template: MessageTemplate, is_bounded: bool = False) -> steps.Steps[Message]:
        """The message's tensors.

        Raises `errors.BadRequest` for data that are not what the template says and, if the time for that
        `is_bounded`, `errors.Unbatchable`.
        """
        noun, columns, rows = self._kind.noun, template.signature.columns, template.rows
        raw: list[v2.Data] = found.raw
        if not raw:
            raw = []
            for written, column in zip(found.contents, columns, strict=True):
                with tensors.naming(noun, column.name):
                    shape = (rows, *column.shape)
                    raw.append((yield from tensors.to_raw(written, column.datatype, shape, is_bounded)))
        ends: dict[int, Sequence[int]] = {}
        for index, (data, size) in enumerate(zip(raw, template.sizes, strict=True)):
            if len(data) != size:  # as always with BYTES
                column = columns[index]
                with tensors.naming(noun, column.name):
                    told = yield from tensors.check_raw(data, column.datatype, (rows, *column.shape))
                if told is not None:
                    ends[index] = told
        if not found.id.isascii():
            _check_text(found.id)
        return Message(template, found.id, raw, ends, not found.raw)

    def _understand(self, found: Fields) -> MessageTemplate:
        kind = self._kind
        message = kind.decode(found.rest)
        if _has_unknown_fields(message):
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        listed = getattr(message, kind.field)
        for tensor in listed:
            v2.check_shape(f"{kind.noun} {tensor.name[:200]!r}: the shape", tensor.shape)
        if kind is REQUEST:
            rows = _check_request(message, not found.raw)
        elif any(tensor.datatype not in v2.DATATYPES for tensor in listed):
            raise errors.Unbatchable(errors.NotBatched.DATATYPE)
        else:
            rows = v2.shared_rows([tensor.shape for tensor in listed])
        if found.raw:
            _check_raw_only(listed, len(found.raw), kind.noun)
        for tensor in listed:
            tensor.shape[0] = 0
        key = message.SerializeToString(deterministic=True)
        signature = self._signatures.get(key)
        if signature is None:
            signature = BatchSignature(key, message, listed)
            self._signatures.put(key, signature, len(key))
        sizes = [None if each.size is None else rows * each.size for each in signature.columns]
        return MessageTemplate(signature, int(rows), tuple(sizes))


def _cache() -> Any:
    return caches.Cache("v2_grpc_messages", _MOST_KNOWN, _LARGEST_KNOWN)


def _column(tensor: Any) -> Column:
    shape = tuple(tensor.shape)[1:]
    elements, size = math.prod(shape), v2.DATATYPES[tensor.datatype].size
    return Column(tensor.name, tensor.datatype, shape, elements, None if size is None else elements * size)


def _check_request(request: Any, is_listed: bool) -> int:
    inputs = [
        v2.Input(each.name, each.datatype, tuple(each.shape), tuple(each.parameters), is_listed)
        for each in request.inputs
    ]
    sequence = {name: _value(request.parameters[name]) for name in v2.SEQUENCE if name in request.parameters}
    outputs = [v2.RequestedOutput(each.name, tuple(each.parameters)) for each in request.outputs]
    return v2.check_batchable(inputs, sequence, outputs)


def _value(parameter: Any) -> object:
    """What an InferParameter says; None if it says nothing."""
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _check_raw_only(listed: Any, count: int, noun: str) -> None:
    if len(listed) != count:
        raise errors.BadRequest(f"{len(listed)} {noun}s need {len(listed)} raw contents; got {count}")
    for tensor in listed:
        if tensor.contents.ListFields():
            name = tensor.name[:200]
            raise errors.BadRequest(f"{noun} {name!r}: there must be no typed contents where there are raw contents")
        tensor.ClearField("contents")


def _has_unknown_fields(message: Any) -> bool:
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.ByteSize() != message.ByteSize())


def _check_text(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise errors.BadRequest("the id is not valid UTF-8") from None
