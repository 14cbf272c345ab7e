"""What messages say of their tensors, understood once for all that say the same.

Messages to one model, and its answers, mostly differ in their ids and raw tensors only. The rest of them is decoded
when it is first seen; for the same bytes seen again that costs one look-up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from google.protobuf import message as protobuf
from tritonclient.grpc import service_pb2

from carpool_sidecar.protocols.v2_grpc import message_scan, tensor_contents
from carpool_sidecar.protocols.v2_http import splitting

# What is remembered: rests of messages and what is made of them up to this many bytes, and this many of each sort.
_LONGEST = 4 * 1024
_MOST = 128

Ends = Sequence[int] | None
"""Where each row of a tensor of BYTES ends, after a 0; None for tensors with rows of one size."""

_Known = TypeVar("_Known")


class Unfit(Exception):
    """A message whose tensors have no rows to share or cut; `reason` is one of `errors.UNBATCHABLE`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Column(NamedTuple):
    """One tensor's part in each row: so many elements, and so many bytes or None for BYTES."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int
    size: int | None

    def sizes(self, ends: Ends, start: int, stop: int) -> list[int]:
        """Bytes of the rows `start` to `stop` (exclusive) of such a tensor; `ends` as in `Read`."""
        if ends is None:
            return [self.size or 0] * (stop - start)
        return [end - begin for begin, end in itertools.pairwise(ends[start : stop + 1])]

    def cut(self, data: bytes | memoryview, ends: Ends, start: int, stop: int) -> bytes | memoryview:
        """Rows `start` to `stop` (exclusive) of such a tensor; `ends` as in `Read`."""
        if ends is None:
            size = self.size or 0
            return data[start * size : stop * size]
        return data[ends[start] : ends[stop]]


class Schema:
    """All that a message says but its id, its raw tensors, and how many rows it has.

    Two with equal `key`s say the same. `columns` are its tensors.
    """

    # State: the message, whose shapes get their rows when it is written; heads by rows.
    def __init__(self, key: bytes, message: Any, tensors: Sequence[Any], columns: tuple[Column, ...]) -> None:
        self.key = key
        self.columns = columns
        self.row_size = sum([column.size or 0 for column in columns])
        self.has_bytes = any(column.size is None for column in columns)
        self.longest = max([column.elements for column in columns], default=1)
        self._message = message
        self._tensors = tensors
        self._heads: dict[int, bytes] = {}

    def head(self, rows: int) -> bytes:
        """The message for so many rows, without an id; the raw tensors are to follow."""
        head = self._heads.get(rows)
        if head is None:
            head = self.message(rows).SerializeToString(deterministic=True)
            if len(head) <= _LONGEST:
                _remember(self._heads, rows, head)
        return head

    def message(self, rows: int) -> Any:
        """The same, not yet written: a copy."""
        for tensor in self._tensors:
            tensor.shape[0] = rows
        copy = type(self._message)()
        copy.CopyFrom(self._message)
        return copy


class Layout(NamedTuple):
    """A schema, and the rows of one message: `sizes` are those its raw tensors must have, None for BYTES."""

    schema: Schema
    rows: int
    sizes: tuple[int | None, ...]


class Read(NamedTuple):
    """A message that was read. `raw` are its tensors, `ends` are by the places of those of BYTES.

    `is_listed` if the tensors had come as lists.
    """

    layout: Layout
    id: bytes
    raw: Sequence[bytes | memoryview]
    ends: Mapping[int, Ends]
    is_listed: bool


class Kind(NamedTuple):
    """A message with tensors: its class, the field they are in, and what one of them is called."""

    message: Any
    field: str
    raw_tag: int
    noun: str

    def scan(self, body: bytes) -> message_scan.Fields:
        """Take a message apart; raises `contents.Misfit` for what is none, and `Unfit` for unknown fields."""
        try:
            return message_scan.scan(body, self.raw_tag)
        except message_scan.CutOff:
            raise self._not_valid() from None
        except message_scan.Unreadable:
            if len(body) <= splitting.MAX_REST:
                self.decode(body)
            raise Unfit("members") from None
        except message_scan.TooMuch:
            raise Unfit("members") from None

    def decode(self, body: bytes) -> Any:
        """The message; raises `contents.Misfit`."""
        try:
            return self.message.FromString(body)
        except protobuf.DecodeError:
            raise self._not_valid() from None

    def _not_valid(self) -> tensor_contents.Misfit:
        return tensor_contents.Misfit(f"this is not a valid {self.message.DESCRIPTOR.name}")


REQUEST = Kind(service_pb2.ModelInferRequest, "inputs", message_scan.RAW_INPUT, "input")
ANSWER = Kind(service_pb2.ModelInferResponse, "outputs", message_scan.RAW_OUTPUT, "output")


class Reader:
    """Reads messages of one kind. `check` is for what else can be wrong with one, of which it knows also whether its
    tensors are lists; it raises `Unfit` and `contents.Misfit`."""

    # State: layouts by the rests of messages, for those with raw tensors and those with lists; schemas by their keys.
    def __init__(self, kind: Kind, check: Callable[[Any, bool], None] = lambda message, is_listed: None) -> None:
        self._kind = kind
        self._check = check
        self._layouts: dict[bytes, Layout] = {}
        self._listed: dict[bytes, Layout] = {}
        self._schemas: dict[bytes, Schema] = {}

    def layout(self, found: message_scan.Fields) -> Layout:
        """What a message says of its tensors; raises `contents.Misfit` for what contradicts itself, and `Unfit`."""
        raw = found.raw
        known = self._layouts if raw else self._listed
        layout = known.get(found.rest)
        if layout is None or (raw and len(raw) != len(layout.sizes)):
            layout = self._understand(found)
            if len(found.rest) <= _LONGEST:
                _remember(known, found.rest, layout)
        return layout

    def read(self, found: message_scan.Fields, layout: Layout, is_bounded: bool = False) -> Read:
        """The message's tensors.

        Raises `contents.Misfit` for data that are not what the layout says and, if the time for that `is_bounded`,
        `Unfit`.
        """
        is_listed = not found.raw
        raw = self._unlisted(found, layout, is_bounded) if is_listed else found.raw
        ends: dict[int, Ends] = {}
        for index, (data, size) in enumerate(zip(raw, layout.sizes, strict=True)):
            if len(data) != size:  # as always with BYTES
                column = layout.schema.columns[index]
                with tensor_contents.naming(self._kind.noun, column.name):
                    ends[index] = tensor_contents.check_raw(data, column.datatype, (layout.rows, *column.shape))
        if not found.id.isascii():
            _check_text(found.id)
        return Read(layout, found.id, raw, ends, is_listed)

    def _unlisted(self, found: message_scan.Fields, layout: Layout, is_bounded: bool) -> list[bytes | memoryview]:
        raw: list[bytes | memoryview] = []
        for written, column in zip(found.contents, layout.schema.columns, strict=True):
            with tensor_contents.naming(self._kind.noun, column.name):
                try:
                    raw.append(
                        tensor_contents.to_raw(written, column.datatype, (layout.rows, *column.shape), is_bounded)
                    )
                except tensor_contents.TooMany:
                    raise Unfit("members") from None
        return raw

    def _understand(self, found: message_scan.Fields) -> Layout:
        message = self._kind.decode(found.rest)
        if _has_unknown_fields(message):
            raise Unfit("members")
        tensors, noun = getattr(message, self._kind.field), self._kind.noun
        for tensor in tensors:
            if min(tensor.shape, default=0) < 0:
                shape = list(tensor.shape)
                raise tensor_contents.Misfit(
                    f"{noun} {tensor.name[:200]!r}: the shape {shape} has a negative dimension"
                )
        self._check(message, not found.raw)
        rows = _rows(tensors)
        if found.raw:
            _check_raw_only(tensors, len(found.raw), noun)
        return self._layout(message, tensors, rows)

    def _layout(self, message: Any, tensors: Any, rows: int) -> Layout:
        columns = tuple([_column(tensor) for tensor in tensors])
        for tensor in tensors:
            tensor.shape[0] = 0
        key = message.SerializeToString(deterministic=True)
        schema = self._schemas.get(key)
        if schema is None:
            schema = Schema(key, message, tensors, columns)
            if len(key) <= _LONGEST:
                _remember(self._schemas, key, schema)
        return Layout(schema, rows, tuple([None if each.size is None else rows * each.size for each in columns]))


def _rows(tensors: Any) -> int:
    """Rows that all tensors have; raises `Unfit`."""
    rows = set()
    for tensor in tensors:
        if tensor.datatype not in tensor_contents.DATATYPES:
            raise Unfit("datatype")
        rows.add(tensor.shape[0] if tensor.shape else 0)
    if len(rows) != 1 or 0 in rows:
        raise Unfit("shape")
    return int(rows.pop())


def _column(tensor: Any) -> Column:
    shape = tuple(tensor.shape)[1:]
    elements, size = math.prod(shape), tensor_contents.DATATYPES[tensor.datatype].size
    return Column(tensor.name, tensor.datatype, shape, elements, None if size is None else elements * size)


def _check_raw_only(tensors: Any, count: int, noun: str) -> None:
    if len(tensors) != count:
        raise tensor_contents.Misfit(f"{len(tensors)} {noun}s need {len(tensors)} raw contents; got {count}")
    for tensor in tensors:
        if tensor.contents.ListFields():
            name = tensor.name[:200]
            raise tensor_contents.Misfit(
                f"{noun} {name!r}: there must be no typed contents where there are raw contents"
            )
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
        raise tensor_contents.Misfit("the id is not valid UTF-8") from None


def _remember(known: dict[Any, _Known], key: Any, value: _Known) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = value
