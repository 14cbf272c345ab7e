"""Array libraries behind one face: numpy, torch, and all that follow the array API standard (2022.12 or newer).

None of them is imported here. They come with the users' arrays: numpy and torch are found among the modules that are
loaded, any other through the array itself. Torch does not follow the standard, numpy does from version 2.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

Box = Sequence[slice]
"""A part of an array: from where to where, along each axis."""

# How far the floating point of eight bits rounds, of which three are for the fraction.
_COARSEST = 1 / 16

_KINDS = {"b": "bool", "i": "integral", "u": "integral", "f": "real floating", "c": "complex floating"}


class Library:
    """What a library does that follows the standard. `module` is what the array says its functions are in."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def flaw(self, array: Any) -> str | None:
        """Why an array cannot be joined with others, or None."""
        if any(not isinstance(size, int) for size in array.shape):
            return f"has shape {tuple(array.shape)}, of which not all is known"
        return None

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        """A new array of all along an axis. Each is copied once, also if there is only one."""
        return self._module.concat(list(arrays), axis=axis)

    def fill(self, arrays: Sequence[Any], boxes: Sequence[Box], shape: Sequence[int], axis: int, number: Any) -> Any:
        """A new array of a shape: each of the arrays in its box, the boxes one after the other along `axis`, and
        `number` everywhere else."""
        made = self._module.full(tuple(shape), number, dtype=arrays[0].dtype, device=arrays[0].device)
        try:
            for array, box in zip(arrays, boxes, strict=True):
                made[tuple(box)] = array
        except TypeError:  # JAX's arrays cannot be written to
            return self._fill_by_blocks(arrays, boxes, shape, axis, number)
        return made

    def _fill_by_blocks(
        self, arrays: Sequence[Any], boxes: Sequence[Box], shape: Sequence[int], axis: int, number: Any
    ) -> Any:
        """As `fill`, with an array made longer by concatenation: two copies, and one more for each further axis."""
        longer = []
        for array, box in zip(arrays, boxes, strict=True):
            for place, (inside, size) in enumerate(zip(box, shape, strict=True)):
                if place != axis and inside.stop - inside.start < size:
                    before = self._block(array, place, inside.start, number)
                    after = self._block(array, place, size - inside.stop, number)
                    array = self.concatenate([before, array, after], place)
            longer.append(array)
        return self.concatenate(longer, axis)

    def _block(self, like: Any, axis: int, size: int, number: Any) -> Any:
        shape = (*like.shape[:axis], size, *like.shape[axis + 1 :])
        return self._module.full(shape, number, dtype=like.dtype, device=like.device)

    def split(self, array: Any, counts: Sequence[int], axis: int) -> Sequence[Any]:
        """Parts of an array, of so many rows each along an axis; views, where the library has views."""
        before = (slice(None),) * axis
        parts = []
        stop = 0
        for count in counts:
            start, stop = stop, stop + count
            parts.append(array[(*before, slice(start, stop), ...)])
        return parts

    def converted(self, number: Any, dtype: Any) -> Any:
        """A number as the type that goes with a dtype; its value changes only as far as floating point rounds.

        Raises ValueError if the dtype cannot hold it.
        """
        kind = self._kind(dtype)
        if kind == "complex floating":
            return complex(number)
        if not isinstance(number, complex):
            is_finite = math.isfinite(number)
            if kind == "real floating" and (not is_finite or abs(number) <= float(self._module.finfo(dtype).max)):
                return float(number)
            if kind == "integral" and is_finite and number == int(number):
                bounds = self._module.iinfo(dtype)
                if bounds.min <= number <= bounds.max:
                    return int(number)
            if kind == "bool" and number in (0, 1):
                return bool(number)
        raise ValueError(f"{dtype} cannot hold {number!r}")

    def _kind(self, dtype: Any) -> str | None:
        """Of what kind the numbers of a dtype are, by the standard's words; None if it has no numbers."""
        return next((kind for kind in _KINDS.values() if self._module.isdtype(dtype, kind)), None)


class Numpy(Library):
    """numpy of any version, with subclasses of its array: masked arrays keep their masks, quantities their units."""

    def flaw(self, array: Any) -> str | None:
        return None

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        # What numpy's own concatenate makes would have the machine's byte order, and structures without gaps.
        first = arrays[0]
        shape = list(first.shape)
        shape[axis] = sum([array.shape[axis] for array in arrays])
        if all(self._is_plain(array) for array in arrays):
            return self._module.concatenate(arrays, axis, out=self._module.empty(shape, first.dtype))
        made = self._module.empty_like(first, shape=shape, order="C")
        before = (slice(None),) * axis
        stop = 0
        for array in arrays:
            start, stop = stop, stop + array.shape[axis]
            made[(*before, slice(start, stop))] = array
        return made

    def fill(self, arrays: Sequence[Any], boxes: Sequence[Box], shape: Sequence[int], axis: int, number: Any) -> Any:
        first = arrays[0]
        if self._is_plain(first):
            made = self._module.full(shape, number, first.dtype)
        else:
            made = self._module.full_like(first, number, shape=shape, order="C")
        for array, box in zip(arrays, boxes, strict=True):
            made[tuple(box)] = array
        return made

    def _is_plain(self, array: Any) -> bool:
        # What is mapped from a file is joined in memory.
        return type(array) is self._module.ndarray or type(array) is self._module.memmap

    def converted(self, number: Any, dtype: Any) -> Any:
        if dtype.kind == "O":
            return number
        if dtype.kind == "V" and dtype.names is None:  # a number of another package, such as bfloat16
            with self._module.errstate(all="ignore"):
                made = float(self._module.full(1, number, dtype)[0])
            if math.isclose(made, number, rel_tol=_COARSEST) or (made != made and number != number):
                return number
        return super().converted(number, dtype)

    def _kind(self, dtype: Any) -> str | None:
        return _KINDS.get(dtype.kind)


class Torch(Library):
    """torch. What takes part in learning is refused: all callers of a batch would share one graph."""

    def flaw(self, array: Any) -> str | None:
        if array.requires_grad:
            return "requires grad, and callers do not share a graph: detach() it, or make it in torch.inference_mode()"
        if array.is_nested or array.layout != self._module.strided:
            return f"is {'nested' if array.is_nested else array.layout}; only dense tensors can be joined"
        return None

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return self._module.cat(list(arrays), axis)

    def fill(self, arrays: Sequence[Any], boxes: Sequence[Box], shape: Sequence[int], axis: int, number: Any) -> Any:
        made = arrays[0].new_full(tuple(shape), number)
        for array, box in zip(arrays, boxes, strict=True):
            made[tuple(box)] = array
        return made

    def split(self, array: Any, counts: Sequence[int], axis: int) -> Sequence[Any]:
        return array.split(list(counts), axis)  # type: ignore[no-any-return]

    def _kind(self, dtype: Any) -> str | None:
        if dtype == self._module.bool:
            return "bool"
        if dtype.is_complex:
            return "complex floating"
        return "real floating" if dtype.is_floating_point else "integral"


def library_of(value: Any) -> Library | None:
    """The library whose array this is, or None if it is none."""
    found = _library_of_type(type(value))  # type: ignore[arg-type] # mypy does not know that types have a hash
    return Library(value.__array_namespace__()) if found is Library else found


@functools.lru_cache(maxsize=256)  # of types, not of modules, as each value of a list may be asked about
def _library_of_type(kind: type) -> Any:
    for module, name, library in (("numpy", "ndarray", Numpy), ("torch", "Tensor", Torch)):
        if issubclass(kind, getattr(sys.modules.get(module), name, ())):
            return library(sys.modules[module])
    return Library if hasattr(kind, "__array_namespace__") else None
