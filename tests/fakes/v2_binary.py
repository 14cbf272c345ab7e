"""Tensors in v2's binary form: row-major, little-endian, each element of BYTES after its length in four bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from tests.fakes import v2_models


def read(datatype: str, shape: Sequence[int], data: bytes, name: str, model: str, who: str = "") -> np.ndarray:
    """The array. Raises `v2_models.Refused` unless the bytes are exactly its elements."""
    if datatype == "BYTES":
        return _strings(shape, data, name, model, who)
    dtype = v2_models.DTYPES[datatype]
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        wrong = f"input byte size mismatch for input '{name}' for model '{model}'"
        raise v2_models.Refused(f"{who}{wrong}. Expected {expected}, got {len(data)}")
    if datatype == "BOOL":
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def write(tensor: v2_models.Tensor) -> bytes:
    """The bytes of an array."""
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(each)) + each for each in tensor.array.flat)
    return np.ascontiguousarray(tensor.array).tobytes()


def _strings(shape: Sequence[int], data: bytes, name: str, model: str, who: str) -> np.ndarray:
    elements, rest = [], data
    while rest:
        if len(rest) < 4:
            missing = f"expecting 4 bytes but only {len(rest)} bytes available"
            where = f"for inference input '{name}' for model '{model}'"
            raise v2_models.Refused(f"{who}incomplete string length indicator {where}, {missing}.")
        (length,) = struct.unpack_from("<I", rest)
        if length > len(rest) - 4:
            missing = f"expecting string of length {length} but only {len(rest) - 4} bytes available"
            raise v2_models.Refused(f"incomplete string data for inference input '{name}', {missing}")
        elements.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    expected = math.prod(shape)
    if len(elements) != expected:
        where = f"for inference input '{name}' for model '{model}'"
        raise v2_models.Refused(f"{who}expected {expected} string elements {where}, got {len(elements)}")
    return np.array([*elements, None], object)[:-1].reshape(shape)
