"""One caller's request: its tensors' data where they lie in the body, checked against their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from carpool_sidecar import errors
from carpool_sidecar.protocols import datatypes, interface
from carpool_sidecar.protocols.v2_http import conversion, json_lists, rules, splitting, templates

Data = splitting.Data

# A request with more takes seconds to be looked through, and many times its size in memory.
_MOST_OBJECTS = 64 * 1024


class Payload(interface.KeepsBody):
    """A parsed request. `data` are the inputs': JSON lists with their brackets, or binary.

    `ident` is the caller's id as written, if it is not the layout's.
    """

    # Constant but for _cut: the rows of inputs in JSON, or the ends of those in binary, once somebody needed them.
    __slots__ = ("_cut", "body", "data", "json_size", "key", "layout", "response_format", "row_count")

    def __init__(
        self, layout: templates.Layout, body: bytes, json_size: int | None, data: Sequence[Data], ident: bytes | None
    ) -> None:
        self.layout = layout
        self.key = layout.kind.key
        self.row_count = layout.rows
        self.body = body
        self.json_size = json_size
        self.data = data
        self.response_format: templates.Form = layout if ident is None else templates.OwnForm(layout, ident)
        self._cut: Cut | None = None

    def row_sizes(self, start: int, stop: int) -> Sequence[int]:
        """Bytes of the rows `start` to `stop` (exclusive); those of the whole request are shared out evenly."""
        size, left = divmod(len(self.body), self.layout.rows)
        return [size + 1 if row < left else size for row in range(start, stop)]

    def row_lengths(self, start: int, stop: int) -> Sequence[int]:
        """Elements of each of those rows, of all inputs together."""
        return [self.layout.row_elements] * (stop - start)

    def json_rows(self, number: int, start: int, stop: int) -> bytes:
        """Rows of an input in JSON as elements of a flat list."""
        width = self.layout.inputs[number].width
        if not width:
            return b""
        rows = self.cut.rows.get(number)
        if rows is None:
            rows = self.cut.rows[number] = json_lists.rows(self.data[number], self.row_count, width)
        return b",".join(rows[start:stop])

    def binary_rows(self, number: int, start: int, stop: int) -> Data:
        """Rows of any input in binary; raises `errors.NotMergeable` if it is in JSON and has no equal there."""
        what = self.layout.inputs[number]
        data = self.data[number]
        is_whole = stop - start == self.row_count
        if what.size is None:
            text = data if is_whole else b"[%b]" % self.json_rows(number, start, stop)
            return conversion.to_binary(what.name, what.datatype, text)
        if is_whole:
            return data
        if what.datatype != datatypes.BYTES:
            width = what.width * datatypes.SIZES[what.datatype]
            return data[start * width : stop * width]
        ends = self.cut.ends.get(number)
        if ends is None:
            ends = self.cut.ends[number] = row_ends(data, self.row_count, what.width) or ()
        return data[ends[start] : ends[stop]]

    @property
    def cut(self) -> Cut:
        """What was found out for cutting it."""
        if self._cut is None:
            self._cut = Cut({}, {})
        return self._cut


class Cut(NamedTuple):
    """By an input's number: its rows in JSON, or where its rows of BYTES end."""

    rows: dict[int, list[bytes]]
    ends: dict[int, Sequence[int]]


def row_ends(data: Data, rows: int, width: int) -> Sequence[int] | None:
    """Where each of so many rows of BYTES ends, after a 0; None if there are not exactly as many elements."""
    if not width:
        return None if data else [0] * (rows + 1)
    return datatypes.string_ends(data, rows * width, width)


class Reader:
    """Parses requests, of one model or of several alike."""

    def __init__(self) -> None:
        self._cache: splitting.Cache[templates.Layout] = splitting.Cache("inputs", templates.learn, _MOST_OBJECTS)

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """As `codec.Codec.parse`."""
        stop = len(body)
        if json_size is None:
            like_the_last = self._cache.glance(body)
            if like_the_last is not None and like_the_last[0].rows <= max_rows:
                return Payload(like_the_last[0], body, None, (like_the_last[1],), None)
        else:
            if not 0 <= json_size <= stop:
                raise errors.BadRequest(f"Inference-Header-Content-Length is {json_size}, the body has {stop} bytes")
            if json_size == 0:
                raise errors.Unbatchable("members")  # no JSON at all: Triton's raw binary request
            stop = json_size
        layout, ident, data, is_full = self._cache.split(body, stop)
        if layout.rows > max_rows:
            raise errors.PayloadTooLarge(f"more than {max_rows} rows in one request")
        if layout.binary_size is not None or stop != len(body):
            data = _all_data(layout, body, json_size, data)
        elif not is_full:
            for number, text in enumerate(data):
                _check_full(layout.inputs[number], text)
        return Payload(layout, body, json_size, data, ident)


def _check_full(what: templates.Input, text: Data) -> None:
    if len(text) > rules.MOST_STRINGS and json_lists.has_strings(text, rules.MOST_STRINGS):
        raise errors.Unbatchable("members")
    count = json_lists.count(text)
    if count != what.elements:
        told = f"shape {list(what.shape)} has {what.elements} elements, 'data' has {count}"
        raise errors.BadRequest(f"input {what.name!r}: {told}")


def _all_data(layout: templates.Layout, body: bytes, json_size: int | None, in_json: Sequence[Data]) -> list[Data]:
    """The data of a request with something in it that is not JSON."""
    at = len(body) if json_size is None else json_size
    expected = layout.binary_size or 0
    if json_size is None:
        raise errors.BadRequest("binary data need the header Inference-Header-Content-Length")
    if at + expected != len(body):
        told = (
            f"the body has {len(body) - at} bytes after {at} bytes of JSON, the inputs' binary_data_size is {expected}"
        )
        raise errors.BadRequest(told)
    found: list[Data] = []
    lists = iter(in_json)
    view = memoryview(body)
    for what in layout.inputs:
        if what.size is None:
            found.append(next(lists))
            _check_full(what, found[-1])
            continue
        data = view[at : at + what.size]
        at += what.size
        if what.datatype == datatypes.BYTES and row_ends(data, layout.rows, what.width) is None:
            told = f"{what.size} bytes are not the {what.elements} strings of shape {list(what.shape)}"
            raise errors.BadRequest(f"input {what.name!r}: {told}")
        found.append(data)
    return found
