"""BYTES: strings of JSON, or `{"b64": …}` for what is no text (TensorFlow Serving's REST API), and back."""

from __future__ import annotations

import base64
import functools
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.tensors_from_v1 import columns, shapes

_LENGTH = struct.Struct("<I")
_GROUP = 256 * 1024  # bytes of text: decoded strings take several times their text's size
_PLACE = re.compile(r"^(.*) - at `\$\[(\d+)\]")
_GIVEN = re.compile(r"got `(\w+)`")


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    b64: bytes


def read(values: columns.Values) -> columns.Column:
    """An input's strings; raises `errors.BadRequest` for the first instance whose shape or values are wrong."""
    is_short = values.has_single_values()
    rank = 0 if is_short else len(values.shape)
    decoder = _decoder(rank + 1)
    shape: shapes.Shape | None = None
    pieces: list[bytes] = []
    bounds = [0]
    for start, text in _groups(values):
        rows = _decode(values, decoder, text, start)
        for number, row in enumerate(rows, start):
            shape = _check(values, number, (row,) if is_short else row, shape)
            pieces.append(_pack(values, number, _flatten(row, rank)))
            bounds.append(bounds[-1] + len(pieces[-1]))
    return columns.Column(
        values.spec.name, values.spec.datatype, shape or (), len(values.rows), b"".join(pieces), bounds
    )


def is_base64(row: columns.Text) -> bool:
    """Whether an instance is an object with `b64` and nothing else."""
    try:
        return list(msgspec.json.decode(row, type=dict[str, msgspec.Raw])) == ["b64"]
    except msgspec.ValidationError:
        return False


def write(tensor: models.Tensor) -> list[Any]:
    """A tensor's elements as what stands for them in JSON; raises `errors.UpstreamBroken` if they break off."""
    found, at, data = [], 0, bytes(tensor.data)
    while at < len(data):
        start = at + _LENGTH.size
        at = start + int.from_bytes(data[at:start], "little")
        if start > len(data) or at > len(data):
            raise errors.UpstreamBroken(f"the predictor's output {tensor.name!r} breaks off in a string")
        found.append(_as_json(data[start:at]))
    return found


def _as_json(element: bytes) -> Any:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(element).decode()}


# --- reading ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _decoder(depth: int) -> msgspec.json.Decoder[Any]:
    kind: Any = str | _Base64
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _groups(values: columns.Values) -> Iterator[tuple[int, columns.Text]]:
    """Lists of some rows each, with the number of the first of them."""
    if len(values.text) <= _GROUP:
        yield 0, values.text
        return
    start = size = 0
    for row, text in enumerate(values.rows):
        size += len(text)
        if size >= _GROUP or row == len(values.rows) - 1:
            yield start, b"[%b]" % b",".join(values.rows[start : row + 1])
            start, size = row + 1, 0


def _decode(values: columns.Values, decoder: msgspec.json.Decoder[Any], text: columns.Text, start: int) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        match = _PLACE.match(str(error))
        row, reason = (start + int(match[2]), match[1]) if match else (start, str(error))
        given = _GIVEN.search(reason)
        if "array" in reason:
            raise values.misshapen(row, _nested_shape(msgspec.json.decode(values.rows[row]), shapes.DEEPEST)) from None
        raise values.refuse(row, _mistake(given[1] if given else reason)) from None
    except msgspec.DecodeError as error:
        raise values.refuse(start, f"has a string that cannot be read: {error}") from None


def _mistake(given: str) -> str:
    return f'must have strings, or objects {{"b64": …}}, for the datatype BYTES; given: {given}'


def _check(values: columns.Values, number: int, row: Any, shape: shapes.Shape | None) -> shapes.Shape:
    given = _nested_shape(row, len(values.shape))
    expected = values.shape if shape is None else shape
    if given is None or not shapes.fits(given, expected):
        raise values.misshapen(number, given, expected)
    return given


def _nested_shape(value: Any, rank: int) -> shapes.Shape | None:
    """The shape of lists that are nested `rank` times at most; None if they are ragged."""
    if not rank or not isinstance(value, list | tuple):
        return ()
    inner = {_nested_shape(each, rank - 1) for each in value} if rank > 1 and value else {()}
    first = inner.pop()
    return None if inner or first is None else (len(value), *first)


def _flatten(row: Any, rank: int) -> Sequence[str | _Base64]:
    flat: Sequence[Any] = row if rank else [row]
    for _ in range(rank - 1):
        flat = list(itertools.chain.from_iterable(flat))
    return flat


def _pack(values: columns.Values, number: int, strings: Sequence[str | _Base64]) -> bytes:
    try:
        elements = [each.encode() if isinstance(each, str) else each.b64 for each in strings]
    except UnicodeEncodeError:
        raise values.refuse(number, "has a string with half of a surrogate pair, which is no text") from None
    return b"".join([_LENGTH.pack(len(element)) + element for element in elements])
