"""Requests that can be made up: two for each kind, of different lengths where they are texts, so that padding shows.

They are harmless: short texts, or tensors of small numbers by a model's metadata. Of v1 nothing tells what an instance
is, so none is made up.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from carpool_sidecar.protocols import models

_SHORT = "Is it open?"
_LONG = "The library on the square is open from nine to six, and on the first Saturday of each month until noon."
_MOST_ELEMENTS = 1_000_000


def texts(member: str, model: str | None) -> list[bytes]:
    """Bodies with one text in `member`, for a model if it has to be named."""
    named = {} if model is None else {"model": model}
    return [msgspec.json.encode({**named, member: text}) for text in (_SHORT, _LONG)]


def pairs(member: str) -> list[bytes]:
    """Rerank bodies with one text in `member`."""
    return [msgspec.json.encode({"query": _SHORT, member: [text]}) for text in (_SHORT, _LONG)]


def tensors(model: models.ModelInfo) -> list[bytes]:
    """v2 bodies with one row for a model, none if it tells of no inputs, or of such as are too large or unknown.

    Dimensions of any size are 1.
    """
    bodies = []
    for number in (1, 2):
        inputs = []
        for spec in model.inputs:
            shape = [1 if size == models.ANY else size for size in spec.shape]
            count = math.prod(shape)
            value = _value(spec.datatype, number)
            if value is None or not 0 < count <= _MOST_ELEMENTS:
                return []
            inputs.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": [value] * count})
        if inputs:
            bodies.append(msgspec.json.encode({"inputs": inputs}))
    return bodies


def _value(datatype: str, number: int) -> Any:
    """One element; None for a type that JSON does not carry."""
    if datatype == "BYTES":
        return (_SHORT, _LONG)[number - 1]
    if datatype == "BOOL":
        return True
    if datatype.startswith(("INT", "UINT")):
        return number
    return number / 4 if datatype in ("FP32", "FP64") else None
