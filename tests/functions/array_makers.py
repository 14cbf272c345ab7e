"""Array libraries to try things with: numpy, a strict one of the array API standard, one that is immutable, and torch
where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_strict
import numpy as np

DTYPES = ("bool", "uint8", "int8", "int64", "float32", "float64", "complex64")


class Maker(NamedTuple):
    """Makes arrays of a library from those of numpy, and the other way round."""

    made: Callable[[Any], Any]
    plain: Callable[[Any], Any]


class Immutable:
    """An array of a library of the standard whose arrays cannot be written to, as JAX's cannot."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.shape, self.dtype, self.device = values.shape, values.dtype, "cpu"

    def __getitem__(self, which: Any) -> Immutable:
        return Immutable(self.values[which])

    def __array_namespace__(self, api_version: str | None = None) -> type[Functions]:
        return Functions


class Functions:
    """The functions of that library, as far as they are needed."""

    isdtype, iinfo, finfo = np.isdtype, np.iinfo, np.finfo

    @staticmethod
    def concat(arrays: list[Immutable], *, axis: int) -> Immutable:
        return Immutable(np.concatenate([array.values for array in arrays], axis=axis))

    @staticmethod
    def full(shape: tuple[int, ...], fill_value: Any, *, dtype: Any, device: str) -> Immutable:
        return Immutable(np.full(shape, fill_value, dtype=dtype))


def _torch() -> dict[str, Maker]:
    if importlib.util.find_spec("torch") is None:
        return {}
    torch = importlib.import_module("torch")
    return {"torch": Maker(lambda values: torch.tensor(values), lambda array: array.numpy())}


MAKERS = {
    "numpy": Maker(lambda values: values.copy(), lambda array: array),
    "strict": Maker(array_api_strict.asarray, np.from_dlpack),
    "immutable": Maker(lambda values: Immutable(values.copy()), lambda array: array.values),
    **_torch(),
}


def equal_bits(one: Any, other: Any) -> bool:
    """Whether two arrays of numpy are the same in dtype, shape and every bit."""
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
