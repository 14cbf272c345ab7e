"""The v2 protocol's datatypes: how many bytes an element takes in binary, and where the elements of BYTES end.

Source: Open Inference Protocol, "Tensor Data Types", and Triton's binary tensor data extension: little-endian,
row-major, a BOOL in one byte, each element of BYTES after its length in four.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

BYTES = "BYTES"

SIZES = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
}  # fmt: skip
"""Bytes of one element, for all datatypes but BYTES."""

CODES = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i",
    "INT64": "q", "FP32": "f", "FP64": "d",
}  # fmt: skip
"""Their letters in `struct`, for those that JSON can carry."""

IN_JSON = frozenset(CODES) | {BYTES}
"""FP16 and BF16 have no form in JSON."""

KNOWN = frozenset(SIZES) | {BYTES}

LENGTH = struct.Struct("<I")
"""What stands before each element of BYTES."""


def string_ends(data: bytes | memoryview, elements: int, step: int = 1) -> Sequence[int] | None:
    """Where every `step`-th of so many BYTES elements ends, after a 0 for the beginning of the first.

    None if there are not exactly as many elements in the data. `elements` is a multiple of `step`.
    """
    if len(data) < LENGTH.size * elements:
        return None
    ends, at, size, read = [0], 0, len(data), LENGTH.unpack_from
    try:
        for _ in range(elements // step):
            for _ in range(step):
                at += 4 + read(data, at)[0]
            ends.append(at)
    except struct.error:  # a length would begin behind the end
        return None
    return ends if at == size else None
