"""The outputs of an answer, each with its data, which can be had by rows, in JSON or in binary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import datatypes
from carpool_sidecar.protocols.v2_http import conversion, json_lists, requests

_ROWS = msgspec.json.Decoder(list[msgspec.Raw])
_BLANK_OR_LIST = b"[ \t\r\n"


class Output(NamedTuple):
    """An output as the predictor tells of it. `head` is its JSON up to the number of rows, `said` its parameters."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    width: int
    size: int | None
    head: bytes
    tail: bytes
    said: bytes

    def opening(self, rows: int) -> bytes:
        """The output as JSON up to its data in JSON."""
        said = b',"parameters":{%b}' % self.said if self.said else b""
        return b'%b%d%b%b,"data":[' % (self.head, rows, self.tail, said)

    def binary(self, rows: int, size: int) -> bytes:
        """The output as JSON with so many bytes of data in binary."""
        said = self.said + b"," if self.said else b""
        return b'%b%d%b,"parameters":{%b"binary_data_size":%d}}' % (self.head, rows, self.tail, said, size)


class Column:
    """One output of a batch of so many `rows`: `data` is a JSON list with its brackets, or binary."""

    # State: _converted, by start and stop. _texts are the rows of data in JSON (nested ones with their brackets), _ends
    # is where rows of BYTES end.
    __slots__ = ("_converted", "_ends", "_is_nested", "_texts", "data", "is_binary", "rows", "what")

    def __init__(self, what: Output, data: requests.Data, rows: int, ends: Sequence[int] | None = None) -> None:
        self.what = what
        self.data = data
        self.rows = rows
        self.is_binary = what.size is not None
        self._ends = ends
        self._converted: dict[tuple[int, int], requests.Data] = {}
        nested = None if self.is_binary else _nested_rows(data, rows, what.width)
        self._is_nested = nested is not None
        self._texts: list[bytes] = nested or ([] if self.is_binary else json_lists.rows(data, rows, what.width))

    def convert(self, start: int, stop: int) -> None:
        """Have the rows ready in the form that they are not in; raises `errors.NotMergeable` if they have none."""
        if self.is_binary:
            self.flat(start, stop)
        else:
            self.binary(start, stop)

    def text(self, start: int, stop: int) -> bytes:
        """Rows as a JSON list, nested as the predictor nests it, without the outermost brackets.

        Raises `errors.NotMergeable` if they are not in JSON already, nor have a form in it.
        """
        if self.is_binary:
            return self.flat(start, stop)
        if stop - start == 1:
            return self._texts[start]
        return b",".join(self._texts[start:stop]) if self.what.width or self._is_nested else b""

    def flat(self, start: int, stop: int) -> bytes:
        """The same as elements of a flat JSON list."""
        if not self.is_binary:
            text = self.text(start, stop)
            return b",".join(json_lists.leaves(b"[%b]" % text)) if self._is_nested else text
        found = self._converted.get((start, stop))
        if found is None:
            found = conversion.to_json(self.what.name, self.what.datatype, self.binary(start, stop))
            self._converted[start, stop] = found
        return bytes(found)

    def binary(self, start: int, stop: int) -> requests.Data:
        """Rows in binary; raises `errors.NotMergeable` if they are not in binary already, nor have an equal there."""
        if not self.is_binary:
            found = self._converted.get((start, stop))
            if found is None:
                text = b"[%b]" % self.flat(start, stop)
                found = self._converted[start, stop] = conversion.to_binary(self.what.name, self.what.datatype, text)
            return found
        if self._ends is not None:
            return self.data[self._ends[start] : self._ends[stop]]
        size = len(self.data) // self.rows
        return self.data[start * size : stop * size]


def _nested_rows(data: requests.Data, rows: int, width: int) -> list[bytes] | None:
    """Each row as it was written, if the items of the list are the rows."""
    if data[1] not in _BLANK_OR_LIST:
        return None
    try:
        found = [bytes(each) for each in _ROWS.decode(data)]
    except msgspec.MsgspecError:  # NaN or infinity is in it
        return None
    return found if len(found) == rows and all(_is_row(each, width) for each in found) else None


def _is_row(text: bytes, width: int) -> bool:
    return text.startswith(b"[") and json_lists.count(text) == width


def read(outputs: Sequence[Output], body: bytes, at: int, in_json: Sequence[requests.Data], rows: int) -> list[Column]:
    """The outputs with their data, each checked to fill its shape; those in binary begin at a place in the body.

    Raises `errors.BadRequest` for data that do not, and `errors.Unbatchable` for data that are nested too deeply.
    """
    found = []
    lists = iter(in_json)
    view = memoryview(body)
    for what in outputs:
        elements = rows * what.width
        if what.size is None:
            data, ends = next(lists), None
            is_full = json_lists.count(data) == elements
        else:
            data = view[at : at + what.size]
            at += what.size
            ends = requests.row_ends(data, rows, what.width) if what.datatype == datatypes.BYTES else None
            is_full = ends is not None or len(data) == datatypes.SIZES.get(what.datatype, -1) * elements
        if not is_full:
            raise errors.BadRequest(f"output {what.name!r} has data that do not fill its shape {list(what.shape)}")
        found.append(Column(what, data, rows, ends))
    if at != len(body):
        raise errors.BadRequest(f"{len(body) - at} bytes are left over after the outputs' data")
    return found
