"""Values of JSON to v2's binary form: numbers and booleans, all at once and so exact as the datatype is, and strings.

The text of numbers is flattened and decoded in pieces, as a list of Python numbers takes up to 16 times the memory of
its text. All in all it takes less than twice as long as decoding the text does. BYTES are strings of JSON, or
`{"b64": …}` for what is no text (TensorFlow Serving's REST API).
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from carpool_sidecar import errors
from carpool_sidecar.protocols import steps, v2
from carpool_sidecar.protocols.tensors_from_v1 import columns
from carpool_sidecar.protocols.v2_http import json_lists

Array = npt.NDArray[Any]

_LARGE = 512 * 1024  # of it, for what is done with all of it at little cost

_BOOLS = msgspec.json.Decoder(list[bool])
_FLOATS = msgspec.json.Decoder(list[float])
_INTEGERS = msgspec.json.Decoder(list[int])
_WHOLE_FLOATS = msgspec.json.Decoder(list[int], strict=False)  # 1.0 and 1e3 as well
_DECIMALS = msgspec.json.Decoder(list[decimal.Decimal])

# A float tells numbers of 15 digits apart, unless they are too small for it: if it is whole, so was what is written.
_EXACT = 2**53
_MAYBE_ROUNDED = re.compile(rb"[0-9][0-9.]{15}|[eE]-[0-9]{3}")

_PLACE = re.compile(r"\$\[(\d+)\]")
_NO_NUMBER = re.compile(rb'"[^"]{0,80}"?|\{')
_SPACE_AND_COMMAS = b" \t\r\n,"


_GROUP = 32 * 1024  # bytes of text: decoded strings take several times their text's size
_ROW_AND_PLACE = re.compile(r"^(.*) - at `\$\[(\d+)\]")
_GIVEN = re.compile(r"got `(\w+)`")


class _Wrong(Exception):
    """A value that is none of the datatype, at this place of a piece."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


# --- one piece: a JSON list of values to an array ---------------------------------------------------------------


def _decode(decoder: msgspec.json.Decoder[list[Any]], text: bytes) -> list[Any]:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _wrong(error) from None


def _wrong(error: Exception) -> _Wrong:
    match = _PLACE.search(str(error))
    return _Wrong(int(match[1]) if match else 0)


def _first(is_wrong: Array) -> _Wrong:
    return _Wrong(int(np.argmax(is_wrong)))


def _integers(text: bytes, dtype: str) -> Array:
    try:
        values = _INTEGERS.decode(text)
    except msgspec.ValidationError:
        values = _whole_numbers(text)
    try:
        return np.array(values, dtype)
    except OverflowError:
        limits = np.iinfo(dtype)
        raise _Wrong(next(at for at, value in enumerate(values) if not limits.min <= value <= limits.max)) from None


def _whole_numbers(text: bytes) -> list[int]:
    """Integers of which some are written with a fraction of zero or an exponent."""
    if not _MAYBE_ROUNDED.search(text):
        with contextlib.suppress(msgspec.ValidationError):
            values = _WHOLE_FLOATS.decode(text)
            if max(values) < _EXACT and min(values) > -_EXACT:
                return values
    return [_whole(place, value) for place, value in enumerate(_decode(_DECIMALS, text))]


def _whole(place: int, value: decimal.Decimal) -> int:
    if value.copy_abs() > 2**64 or value != value.to_integral_value():
        raise _Wrong(place)
    return int(value)


def _floats(text: bytes, dtype: str) -> Array:
    values = np.array(_decode(_FLOATS, text), np.float64)
    with np.errstate(over="ignore", under="ignore"):
        array = values.astype(dtype)
    if not np.isfinite(array).all():
        raise _first(~np.isfinite(array))
    return array


def _bfloats(text: bytes, _: str) -> Array:
    """The upper half of FP32, rounded to the nearest, and of two to the even one."""
    bits = _floats(text, "<f4").view("<u4")
    upper: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    is_infinite = (upper & 0x7FFF) == 0x7F80
    if is_infinite.any():
        raise _first(is_infinite)
    return upper


def _bools(text: bytes, dtype: str) -> Array:
    return np.array(_decode(_BOOLS, text), dtype)


_SPECIAL: dict[str, Callable[[bytes, str], Array]] = {"BOOL": _bools, "BF16": _bfloats}
_SPECIAL |= dict.fromkeys(("FP16", "FP32", "FP64"), _floats)


def dtype_of(datatype: str) -> str:
    """numpy's type for a datatype's bytes; BF16 are whole numbers to it."""
    return "<" + v2.DATATYPES[datatype].code


# --- numbers of all instances -----------------------------------------------------------------------------------


def read(values: columns.Values) -> steps.Steps[columns.Column]:
    """An input's values; raises `errors.BadRequest` for the first instance whose shape or values are wrong."""
    return _read_strings(values) if values.spec.datatype == v2.BYTES else _read_numbers(values)


def _read_numbers(values: columns.Values) -> steps.Steps[columns.Column]:
    text = bytes(values.text)
    if b'"' in text or b"{" in text:
        raise _not_numbers(values)
    shape = yield from _shape(values)
    written = () if values.has_single_values() else shape
    if not (yield from columns.has_shape(text, (len(values.rows), *written))):
        raise _misshapen(values, written)
    flat = yield from _without_brackets(text)
    if bool(math.prod(shape)) != bool(flat.strip(_SPACE_AND_COMMAS)):  # `[]` has as many commas as `[1]`
        raise _misshapen(values, shape)
    data = (yield from _read_flat(values, shape, flat)) if math.prod(shape) else b""
    return columns.Column(values.spec.name, values.spec.datatype, shape, len(values.rows), data)


def _without_brackets(text: bytes) -> steps.Steps[bytes]:
    if len(text) < _LARGE:
        return text.translate(None, b"[]")
    pieces = []
    for at in range(0, len(text), _LARGE):
        yield
        pieces.append(text[at : at + _LARGE].translate(None, b"[]"))
    return b"".join(pieces)


def _not_numbers(values: columns.Values) -> errors.BadRequest:
    """For strings and objects: what follows cannot tell their commas and brackets from those of lists."""
    for row, text in enumerate(values.rows):
        if match := _NO_NUMBER.search(text):
            given = "an object" if match[0] == b"{" else match[0].decode(errors="replace")
            return values.mistyped(row, given)
    raise AssertionError("what is in the list is in one of its rows")


def _shape(values: columns.Values) -> steps.Steps[columns.Shape]:
    """The shape of all instances: the model's, and the first one's where the model leaves it open."""
    if min(values.shape, default=0) >= 0:
        return values.shape
    given = yield from columns.shape_of(values.rows[0])
    if given is None or not columns.fits(given, values.shape):
        raise values.misshapen(0, given)
    return given


def _read_flat(values: columns.Values, shape: columns.Shape, flat: bytes) -> steps.Steps[bytes]:
    read_piece, dtype = _SPECIAL.get(values.spec.datatype, _integers), dtype_of(values.spec.datatype)
    arrays, count = [], 0
    for piece in json_lists.pieces(flat, 0, len(flat)):
        try:
            arrays.append(read_piece(b"[%b]" % piece, dtype))
        except _Wrong as wrong:
            given = piece.split(b",")[wrong.place].strip().decode(errors="replace")
            raise values.mistyped(columns.row_of(count + wrong.place, shape), given) from None
        except msgspec.DecodeError:  # two commas with nothing between: an empty list is among the others
            raise _misshapen(values, shape) from None
        count += len(arrays[-1])
        yield
    return b"".join(array.tobytes() for array in arrays)


def _misshapen(values: columns.Values, expected: columns.Shape) -> errors.BadRequest:
    for row, text in enumerate(values.rows):
        given = steps.at_once(columns.shape_of(text))
        if given != expected:
            return values.misshapen(row, given, values.shape if row == 0 else expected)
    return values.misshapen(0, None)


# --- strings ----------------------------------------------------------------------------------------------------


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    b64: bytes


def _read_strings(values: columns.Values) -> steps.Steps[columns.Column]:
    is_short = values.has_single_values()
    rank = 0 if is_short else len(values.shape)
    decoder = _decoder(rank + 1)
    shape: columns.Shape | None = None
    pieces: list[bytes] = []
    bounds = [0]
    for start, text in _groups(values):
        rows = _decode_strings(values, decoder, text, start)
        for number, row in enumerate(rows, start):
            shape = _check(values, number, (row,) if is_short else row, shape)
            pieces.append(_pack(values, number, _flatten(row, rank)))
            bounds.append(bounds[-1] + len(pieces[-1]))
        yield
    return columns.Column(
        values.spec.name, values.spec.datatype, shape or (), len(values.rows), b"".join(pieces), bounds
    )


def is_base64(row: v2.Data) -> bool:
    """Whether an instance is an object with `b64` and nothing else."""
    try:
        return list(msgspec.json.decode(row, type=dict[str, msgspec.Raw])) == ["b64"]
    except msgspec.DecodeError:
        return False


@functools.lru_cache(maxsize=16)
def _decoder(depth: int) -> msgspec.json.Decoder[Any]:
    kind: Any = str | _Base64
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _groups(values: columns.Values) -> Iterator[tuple[int, v2.Data]]:
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


def _decode_strings(values: columns.Values, decoder: msgspec.json.Decoder[Any], text: v2.Data, start: int) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        match = _ROW_AND_PLACE.match(str(error))
        row, reason = (start + int(match[2]), match[1]) if match else (start, str(error))
        given = _GIVEN.search(reason)
        if "array" in reason:
            raise values.misshapen(row, _given_shape(values.rows[row])) from None
        raise values.refuse(row, _mistake(given[1] if given else reason)) from None
    except msgspec.DecodeError as error:
        raise values.refuse(start, f"has a string that cannot be read: {error}") from None


def _mistake(given: str) -> str:
    return f'must have strings, or objects {{"b64": …}}, for the datatype BYTES; given: {given}'


def _check(values: columns.Values, number: int, row: Any, shape: columns.Shape | None) -> columns.Shape:
    given = _nested_shape(row, len(values.shape))
    expected = values.shape if shape is None else shape
    if given is None or not columns.fits(given, expected):
        raise values.misshapen(number, given, expected)
    return given


def _given_shape(row: v2.Data) -> columns.Shape | None:
    """That of a row of lists; None if they are ragged, or nested too deeply to be read.

    From Python 3.14 on the depth of what is read is bounded by the stack, and skipping a list takes less of it.
    """
    try:
        return _nested_shape(msgspec.json.decode(row), columns.DEEPEST)
    except RecursionError:
        return None


def _nested_shape(value: Any, rank: int) -> columns.Shape | None:
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
    return v2.pack(elements)
