"""Tensor data from JSON to binary and back, for batches in which some callers speak one and some the other.

The meaning is that of a server which reads a number as a double, or as an integer of 64 bits, and casts it. Where
servers differ or a cast would lose something - out of range, a number for a string, NaN - nothing is converted:
`errors.NotMergeable` sends the caller on alone, and the predictor says what it thinks.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import datatypes
from carpool_sidecar.protocols.v2_http import json_lists

_FLOATS = ("FP32", "FP64")
_LISTS: dict[str, type[list[Any]]] = {"BOOL": list[bool], "BYTES": list[str], "FP32": list[float], "FP64": list[float]}
_FLAT = {name: msgspec.json.Decoder(_LISTS.get(name, list[int])) for name in datatypes.IN_JSON}


def to_binary(name: str, datatype: str, text: bytes | memoryview) -> bytes:
    """The elements of a JSON list, flat or nested, in binary; `name` is the tensor's.

    Raises `errors.NotMergeable` for what is no element of the datatype.
    """
    if datatype not in datatypes.IN_JSON:
        raise _not_convertible(name, f"{datatype} has no form in JSON")
    try:
        values = _values(datatype, text)
        if datatype == datatypes.BYTES:
            return b"".join([datatypes.LENGTH.pack(len(each)) + each for each in map(str.encode, values)])
        return struct.pack(f"<{len(values)}{datatypes.CODES[datatype]}", *values)
    except (struct.error, OverflowError, UnicodeError, msgspec.MsgspecError) as error:
        raise _not_convertible(name, str(error)) from None


def to_json(name: str, datatype: str, data: bytes | memoryview) -> bytes:
    """Binary elements as those of a flat JSON list, without its brackets; an FP32 is written as the double it equals.

    Raises `errors.NotMergeable` for NaN and infinity, for BYTES that are not UTF-8, and for datatypes without a form
    in JSON. BYTES have to be whole (`datatypes.string_ends`).
    """
    if datatype not in datatypes.IN_JSON:
        raise _not_convertible(name, f"{datatype} has no form in JSON")
    if datatype == datatypes.BYTES:
        return _strings_to_json(name, data)
    count = len(data) // datatypes.SIZES[datatype]
    text = msgspec.json.encode(_struct(f"<{count}{datatypes.CODES[datatype]}").unpack(data))
    if datatype in _FLOATS and b"null" in text:
        raise _not_convertible(name, "NaN and infinity have no form in JSON")
    return text[1:-1]


def _strings_to_json(name: str, data: bytes | memoryview) -> bytes:
    strings, at = [], 0
    try:
        while at < len(data):
            end = at + 4 + datatypes.LENGTH.unpack_from(data, at)[0]
            strings.append(str(data[at + 4 : end], "utf-8"))
            at = end
    except UnicodeDecodeError as error:
        raise _not_convertible(name, str(error)) from None
    return msgspec.json.encode(strings)[1:-1]


@functools.lru_cache(maxsize=256)
def _struct(layout: str) -> struct.Struct:
    return struct.Struct(layout)


def _values(datatype: str, text: bytes | memoryview) -> list[Any]:
    decode: Callable[[bytes | memoryview], list[Any]] = _FLAT[datatype].decode
    try:
        return decode(text)
    except msgspec.ValidationError:  # nested, if it is right at all
        return decode(b"[%b]" % b",".join(json_lists.leaves(bytes(text))))


def _not_convertible(name: str, why: str) -> errors.NotMergeable:
    return errors.NotMergeable(f"tensor {name!r} does not go with others in one call: {why}")
