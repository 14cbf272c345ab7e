"""Output tensors as v1 predictions.

A prediction is the one output's row, or an object of rows by the outputs' names. Floats are written with as many
digits as they need to come back the same in their own precision; NaN and infinities are refused, as JSON has none.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from carpool_sidecar import errors
from carpool_sidecar.protocols import json_rows, models, steps, v2
from carpool_sidecar.protocols.tensors_from_v1 import values

_PIECE = 64 * 1024  # bytes of a tensor that are written in one step
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def predictions(tensors: Sequence[models.Tensor], rows: int | None) -> steps.Steps[Sequence[bytes | msgspec.Raw]]:
    """The predictions for `rows` instances; for one whose outputs have no batch dimension, if that is None.

    Raises `errors.Uneven`, and `errors.UpstreamBroken` for anything else that cannot be written.
    """
    if not tensors:
        raise errors.UpstreamBroken("the predictor's answer has no outputs")
    written: list[Sequence[bytes | msgspec.Raw]] = []
    for tensor in tensors:
        written += ((yield from _rows(tensor, rows)),)
    if len(written) == 1:
        return written[0]
    heads = [b"%b:" % msgspec.json.encode(tensor.name) for tensor in tensors]
    return [b"{%b}" % b",".join(map(b"".join, zip(heads, row, strict=True))) for row in zip(*written, strict=True)]


def _rows(tensor: models.Tensor, rows: int | None) -> steps.Steps[Sequence[bytes | msgspec.Raw]]:
    if rows is None:
        return [_text(tensor, tensor.shape)]
    if not tensor.shape or tensor.shape[0] != rows:
        raise errors.Uneven(
            f"the predictor's output {tensor.name!r} has the shape {list(tensor.shape)}, which is not {rows} rows"
        )
    size = len(tensor.data)
    if size <= _PIECE or not rows:
        return json_rows.LIST.decode(_text(tensor, tensor.shape))
    ends: Sequence[int] | None = None
    if tensor.datatype == v2.BYTES:
        ends = yield from v2.row_ends(tensor.data, rows, math.prod(tensor.shape[1:]))
        if ends is None:
            return json_rows.LIST.decode(_text(tensor, tensor.shape))  # which raises
    else:
        _check_size(tensor)
    found: list[msgspec.Raw] = []
    count = max(1, rows * _PIECE // size)
    for start in range(0, rows, count):
        stop = min(rows, start + count)
        data = v2.cut(memoryview(tensor.data), size // rows, ends, start, stop)
        shape = (stop - start, *tensor.shape[1:])
        found += json_rows.LIST.decode(_text(tensor._replace(shape=shape, data=data), shape))
        yield
    return found


def _text(tensor: models.Tensor, shape: tuple[int, ...]) -> bytes:
    if tensor.datatype == v2.BYTES:
        return _text_of_strings(tensor, shape)
    array = array_of(tensor)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise errors.UpstreamBroken(f"the predictor's output {tensor.name!r} has NaN or infinities, which JSON has not")
    if not shape:
        return (
            msgspec.json.encode(array.item()) if array.dtype.kind != "f" else orjson.dumps(array, option=_NUMPY)[1:-1]
        )
    return orjson.dumps(array.reshape(shape), option=_NUMPY)


def array_of(tensor: models.Tensor) -> npt.NDArray[Any]:
    """A tensor's numbers or booleans in one dimension, of a type that numpy and orjson know.

    Raises `errors.UpstreamBroken` if they do not fill its shape.
    """
    dtype = _check_size(tensor)
    array: npt.NDArray[Any] = np.frombuffer(tensor.data, dtype)
    if tensor.datatype == "BF16":
        return (array.astype("<u4") << 16).view("<f4")
    return array.view(np.uint8) != 0 if tensor.datatype == "BOOL" else np.require(array, requirements="A")


def _check_size(tensor: models.Tensor) -> np.dtype[Any]:
    """numpy's type of the tensor's elements, of which it has just enough."""
    if tensor.datatype not in v2.DATATYPES:
        raise errors.UpstreamBroken(f"the predictor's output {tensor.name!r} is of datatype {tensor.datatype!r}")
    dtype = np.dtype(values.dtype_of(tensor.datatype))
    if len(tensor.data) != math.prod(tensor.shape) * dtype.itemsize:
        raise _wrong_size(tensor, len(tensor.data) / dtype.itemsize)
    return dtype


def _text_of_strings(tensor: models.Tensor, shape: tuple[int, ...]) -> bytes:
    count = math.prod(shape)
    if steps.at_once(v2.row_ends(tensor.data, count, 1)) is None:
        raise errors.UpstreamBroken(
            f"the predictor's output {tensor.name!r} does not have the {count} strings of its shape"
        )
    elements = list(map(_string, v2.elements(tensor.data)))
    nested = np.empty(len(elements), object)
    nested[:] = elements
    return msgspec.json.encode(nested.reshape(shape).tolist())


def _wrong_size(tensor: models.Tensor, given: float) -> errors.UpstreamBroken:
    shape = list(tensor.shape)
    return errors.UpstreamBroken(f"the predictor's output {tensor.name!r} of shape {shape} has {given:g} values")


def _string(element: bytes) -> Any:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(element).decode()}
