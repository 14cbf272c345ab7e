"""Numbers and booleans: JSON to v2's binary form, all at once, and so exact as the datatype is.

The text is flattened and decoded in pieces, as a list of Python numbers takes up to 16 times the memory of its text.
All in all it takes less than twice as long as decoding the text does.
"""

from __future__ import annotations

import contextlib
import decimal
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from carpool_sidecar import errors
from carpool_sidecar.protocols.tensors_from_v1 import columns, shapes

Array = npt.NDArray[Any]

_PIECE = 64 * 1024  # bytes of text

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


DATATYPES: dict[str, tuple[Callable[[bytes, str], Array], str]] = {
    "BOOL": (_bools, "?"),
    "INT8": (_integers, "<i1"), "INT16": (_integers, "<i2"), "INT32": (_integers, "<i4"), "INT64": (_integers, "<i8"),
    "UINT8": (_integers, "<u1"), "UINT16": (_integers, "<u2"), "UINT32": (_integers, "<u4"),
    "UINT64": (_integers, "<u8"),
    "FP16": (_floats, "<f2"), "FP32": (_floats, "<f4"), "FP64": (_floats, "<f8"), "BF16": (_bfloats, "<u2"),
}  # fmt: skip
"""How a piece of each datatype is read, and the numpy type of its bytes."""


# --- all instances ----------------------------------------------------------------------------------------------


def read(values: columns.Values) -> columns.Column:
    """An input's numbers; raises `errors.BadRequest` for the first instance whose shape or values are wrong."""
    text = bytes(values.text)
    if b'"' in text or b"{" in text:
        raise _not_numbers(values)
    shape = _shape(values)
    written = () if values.has_single_values() else shape
    if not shapes.has_shape(text, (len(values.rows), *written)):
        raise _misshapen(values, written)
    flat = text.replace(b"[", b"").replace(b"]", b"")
    if math.prod(shape):
        data = _read_flat(values, shape, flat)
    elif flat.strip(_SPACE_AND_COMMAS):
        raise _misshapen(values, shape)
    else:
        data = b""
    return columns.Column(values.spec.name, values.spec.datatype, shape, len(values.rows), data)


def _not_numbers(values: columns.Values) -> errors.BadRequest:
    """For strings and objects: what follows cannot tell their commas and brackets from those of lists."""
    for row, text in enumerate(values.rows):
        if match := _NO_NUMBER.search(text):
            given = "an object" if match[0] == b"{" else match[0].decode(errors="replace")
            return values.mistyped(row, given)
    raise AssertionError("what is in the list is in one of its rows")


def _shape(values: columns.Values) -> shapes.Shape:
    """The shape of all instances: the model's, and the first one's where the model leaves it open."""
    if min(values.shape, default=0) >= 0:
        return values.shape
    given = shapes.shape_of(bytes(values.rows[0]))
    if given is None or not shapes.fits(given, values.shape):
        raise values.misshapen(0, given)
    return given


def _read_flat(values: columns.Values, shape: shapes.Shape, flat: bytes) -> bytes:
    read_piece, dtype = DATATYPES[values.spec.datatype]
    arrays, count = [], 0
    for piece in _pieces(flat):
        try:
            arrays.append(read_piece(b"[%b]" % piece, dtype))
        except _Wrong as wrong:
            given = piece.split(b",")[wrong.place].strip().decode(errors="replace")
            raise values.mistyped(columns.row_of(count + wrong.place, shape), given) from None
        except msgspec.DecodeError:  # two commas with nothing between: an empty list is among the others
            raise _misshapen(values, shape) from None
        count += len(arrays[-1])
    return b"".join(array.tobytes() for array in arrays)


def _pieces(flat: bytes) -> Iterator[bytes]:
    at = 0
    while at <= len(flat):
        cut = flat.find(b",", at + _PIECE)
        cut = len(flat) if cut < 0 else cut
        yield flat[at:cut]
        at = cut + 1


def _misshapen(values: columns.Values, expected: shapes.Shape) -> errors.BadRequest:
    for row, text in enumerate(values.rows):
        given = shapes.shape_of(bytes(text))
        if given != expected:
            return values.misshapen(row, given, values.shape if row == 0 else expected)
    return values.misshapen(0, None)
