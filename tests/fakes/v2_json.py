"""Tensors in JSON as Triton reads and writes them, with its liberties: any nesting, wrapping integers, NaN.

Raises `v2_models.Refused` with status 500, as Triton does, for what is not the JSON it wants.
"""

from __future__ import annotations

import decimal
import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.fakes import v2_models

_NOT_IN_JSON = ("FP16", "BF16")
_ESCAPES = {
    **{number: f"\\u{number:04X}" for number in range(32)},
    8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", ord('"'): '\\"', ord("\\"): "\\\\",
}  # fmt: skip


def load(text: bytes) -> Any:
    """A document's value; of members of the same name the first counts, bytes that are no UTF-8 pass."""
    try:
        return json.loads(
            text.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape"),
            object_pairs_hook=lambda pairs: dict(reversed(pairs)),
            parse_float=_finite,
        )
    except ValueError as error:
        raise broken(f"failed to parse the request JSON buffer: {error}") from None


def read(datatype: str, shape: Sequence[int], data: Any, name: str) -> np.ndarray:
    """The array of an input's `data`, nested in any way."""
    if datatype in _NOT_IN_JSON:
        wanted = f"Please use the binary data format for input {name}"
        raise v2_models.Refused(f"receiving {datatype} data via JSON is not supported. {wanted}")
    if not isinstance(data, list):
        raise broken("Unable to parse 'data': attempt to access JSON non-array as array")
    elements = [_element(datatype, each) for each in _leaves(data)]
    if len(elements) != math.prod(shape):
        raise broken("Unable to parse 'data': Shape does not match true shape of 'data' field")
    if datatype == "BYTES":
        return np.array([*elements, None], object)[:-1].reshape(shape)  # never numpy's own strings
    if np.issubdtype(v2_models.DTYPES[datatype], np.integer):
        wide = np.uint64 if datatype.startswith("U") else np.int64
        return np.array(elements, wide).astype(v2_models.DTYPES[datatype]).reshape(shape)
    with np.errstate(over="ignore"):
        return np.array(elements, np.float64).astype(v2_models.DTYPES[datatype]).reshape(shape)


def write(tensor: v2_models.Tensor) -> bytes:
    """The `data` of an output: flat."""
    if tensor.datatype in _NOT_IN_JSON:
        wanted = "Please use the binary data format for output"
        raise v2_models.Refused(f"sending {tensor.datatype} data via JSON is not supported. {wanted}")
    return b"[" + b",".join(_texts(tensor)) + b"]"


def string(value: bytes) -> bytes:
    """A JSON string of these bytes, whatever they are."""
    return b'"' + value.decode(errors="surrogateescape").translate(_ESCAPES).encode(errors="surrogateescape") + b'"'


def number(value: float) -> str:
    """A number as RapidJSON writes it: the fewest digits that tell it, an exponent only beyond 21 of them."""
    return _as_rapidjson(repr(value))


@functools.lru_cache(maxsize=1024)  # by the text, not the number: 0.0 equals -0.0
def _as_rapidjson(shortest: str) -> str:
    value = decimal.Decimal(shortest)
    if not value.is_finite():
        return "NaN" if value.is_nan() else ("Infinity" if value > 0 else "-Infinity")
    sign, figures, exponent = value.normalize().as_tuple()
    digits, power = "".join(map(str, figures)), int(exponent)
    point = len(digits) + power
    if not any(figures):
        text = "0.0"
    elif power >= 0 and point <= 21:
        text = f"{digits}{'0' * power}.0"
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{digits[0]}{'.' + digits[1:] if digits[1:] else ''}e{point - 1}"
    return f"{'-' if sign else ''}{text}"


def member(owner: Any, name: str, kind: type | tuple[type, ...], what: str) -> Any:
    """A member that has to be there. Raises `v2_models.Refused`."""
    if not isinstance(owner, Mapping) or name not in owner:
        raise broken(f"Unable to parse '{name}': attempt to access non-existing object member '{name}'")
    if not isinstance(owner[name], kind):
        raise broken(f"Unable to parse '{name}': attempt to access JSON non-{what} as {what}")
    return owner[name]


def broken(words: str) -> v2_models.Refused:
    """Triton's answer to what it cannot parse: 500."""
    return v2_models.Refused(words, 500, "INTERNAL")


def _texts(tensor: v2_models.Tensor) -> Iterable[bytes]:
    if tensor.datatype == "BYTES":
        return map(string, tensor.array.flat)
    values = tensor.array.astype(np.float64) if tensor.array.dtype.kind == "f" else tensor.array
    if tensor.array.dtype.kind == "f":
        return (number(value).encode() for value in values.ravel().tolist())
    return (json.dumps(value).encode() for value in values.ravel().tolist())


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number too big to be stored in double.")
    return value


def _leaves(data: Any) -> Iterator[Any]:
    for each in data:
        if isinstance(each, list):
            yield from _leaves(each)
        else:
            yield each


def _element(datatype: str, value: Any) -> Any:
    if datatype == "BYTES":
        return _bytes(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if datatype == "BOOL":
        fits, what = isinstance(value, bool), "boolean"
    elif datatype.startswith("FP"):
        fits, what = is_number, "number"
    elif datatype.startswith("U"):
        fits, what = is_number and isinstance(value, int) and 0 <= value < 2**64, "unsigned-integer"
    else:
        fits, what = is_number and isinstance(value, int) and -(2**63) <= value < 2**63, "signed-integer"
    if not fits:
        raise broken(f"Unable to parse 'data': attempt to access JSON non-{what} as {what.replace('number', 'double')}")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise broken("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
    try:
        return value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise broken("failed to parse the request JSON buffer: The surrogate pair in string is invalid.") from None
