"""Arrays of any library, and dicts, lists and tuples that hold them.

The libraries, behind one face, are numpy, torch, and all that follow the array API standard (2022.12 or newer). None of
them is imported here. They come with the users' arrays: numpy and torch are found among the modules that are loaded,
any other through the array itself. Torch does not follow the standard, numpy does from version 2.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from carpool.functions import errors

Name = Hashable
"""Of an array: the innermost key of a dict, or field of a named tuple, on the way to it; where there is none, its
position in the outermost list or tuple; None for an array that is in nothing."""

Path = tuple[Hashable, ...]
"""The keys and positions on the way to a member."""

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
        made = self._full(arrays[0], tuple(shape), number)
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
        return self._full(like, (*like.shape[:axis], size, *like.shape[axis + 1 :]), number)

    def _full(self, like: Any, shape: tuple[int, ...], number: Any) -> Any:
        return self._module.full(shape, number, dtype=like.dtype, device=like.device)

    def split(self, array: Any, counts: Sequence[int], axis: int) -> Sequence[Any]:
        """Parts of an array, of so many rows each along an axis; views, where the library has views."""
        before = (slice(None),) * axis
        return [array[(*before, span, ...)] for span in spans(counts)]

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

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        # What numpy's own concatenate makes would have the machine's byte order, and structures without gaps.
        first = arrays[0]
        sizes = [array.shape[axis] for array in arrays]
        shape = (*first.shape[:axis], sum(sizes), *first.shape[axis + 1 :])
        if all(self._is_plain(array) for array in arrays):
            return self._module.concatenate(arrays, axis, out=self._module.empty(shape, first.dtype))
        made = self._module.empty_like(first, shape=shape, order="C")
        for array, span in zip(arrays, spans(sizes), strict=True):
            made[(*(slice(None),) * axis, span)] = array
        return made

    def _full(self, like: Any, shape: tuple[int, ...], number: Any) -> Any:
        if self._is_plain(like):
            return self._module.full(shape, number, like.dtype)
        return self._module.full_like(like, number, shape=shape, order="C")

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

    def _full(self, like: Any, shape: tuple[int, ...], number: Any) -> Any:
        return like.new_full(shape, number)

    def split(self, array: Any, counts: Sequence[int], axis: int) -> Sequence[Any]:
        return array.split(list(counts), axis)  # type: ignore[no-any-return]

    def _kind(self, dtype: Any) -> str | None:
        if dtype == self._module.bool:
            return "bool"
        if dtype.is_complex:
            return "complex floating"
        return "real floating" if dtype.is_floating_point else "integral"


def spans(counts: Iterable[int]) -> Iterator[slice]:
    """Where so many rows each lie that follow each other."""
    return itertools.starmap(slice, itertools.pairwise(itertools.accumulate(counts, initial=0)))


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


# --- dicts, lists and tuples ------------------------------------------------------------------------------------------

ALLOWED = "arrays of numpy, torch or the array API standard, and dicts, lists and tuples of them"


class Leaf(NamedTuple):
    """An array of a structure."""

    path: Path
    name: Name
    array: Any
    library: Library


def is_structure(value: object) -> bool:
    """Whether it is a dict, or a list or tuple of arrays: one whose first member, but for None, is or holds one.

    The first decides, because to look at all numbers of a list of lists takes long.
    """
    return isinstance(value, Mapping) or (isinstance(value, list | tuple) and _holds_arrays(value))


def _holds_arrays(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_arrays(member) for member in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_arrays(member) for member in [member for member in value if member is not None][:1])
    return library_of(value) is not None and len(value.shape) > 0  # type: ignore[attr-defined]


def places(structure: Any, name: Name) -> list[tuple[Any, Name]]:
    """The keys or positions of a structure that is itself called `name`, each with the name of what is there."""
    if isinstance(structure, Mapping):
        return [(key, key) for key in structure]
    fields = getattr(structure, "_fields", None)
    if fields is not None:
        return list(enumerate(fields))
    return [(place, place if name is None else name) for place in range(len(structure))]


def leaves(item: Any) -> list[Leaf]:
    """The arrays of an item, at least one. Raises TypeError if it holds anything else, but None."""
    found = list(_leaves(item, (), None))
    if not found:
        raise TypeError(f"item is {errors.named(item)} without arrays; an item may be {ALLOWED}")
    return found


def _leaves(value: Any, path: Path, name: Name) -> Iterator[Leaf]:
    library = library_of(value)
    if library is not None:
        yield Leaf(path, name, value, library)
    elif isinstance(value, Mapping | list | tuple):
        inside = places(value, name)
        if not (inside and is_structure(value)):
            raise TypeError(
                f"{place_of('item', path)} is {errors.named(value)} without arrays; an item may be {ALLOWED}"
            )
        if type(value) is not dict:
            like(value, {place: value[place] for place, _ in inside})
        for place, child in inside:
            if value[place] is not None:
                yield from _leaves(value[place], (*path, place), child)
    else:
        raise TypeError(f"{place_of('item', path)} is {errors.named(value)}; an item may be {ALLOWED}")


def like(structure: Any, members: dict[Any, Any]) -> Any:
    """A structure of the same type with other members, which are in the order of their places.

    Raises TypeError if the type does not make one of its members alone.
    """
    kind = type(structure)
    if kind is dict:
        return members
    given: Any = members if isinstance(structure, Mapping) else list(members.values())
    if kind is list:
        return given
    try:
        made = getattr(kind, "_make", kind)(given)
        if len(made) == len(members):
            return made
    except Exception as error:
        raise TypeError(f"{kind.__name__} cannot be made of its members alone: {error}") from error
    raise TypeError(f"{kind.__name__} cannot be made of its members alone")


def copied(value: Any) -> Any:
    """A structure of the same members."""
    if not isinstance(value, Mapping | list | tuple):
        return value
    return like(value, {place: copied(value[place]) for place, _ in places(value, None)})


# --- for messages -----------------------------------------------------------------------------------------------


def place_of(what: str, path: Path) -> str:
    """A member as one writes it: item['input_ids'], output[0]."""
    return what + "".join(f"[{place!r}]" for place in path)


def shapes(found: Sequence[Leaf]) -> str:
    """The arrays of an item with their shapes."""
    return ", ".join(f"{place_of('item', leaf.path)} has shape {tuple(leaf.array.shape)}" for leaf in found)


def described(value: Any) -> str:
    """A value by its type, with the shapes of the arrays in it."""
    if library_of(value) is not None:
        return f"{errors.named(value)} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping | list | tuple) and is_structure(value):
        inside = ", ".join(f"{place!r}: {described(value[place])}" for place, _ in places(value, None))
        return f"{errors.named(value)} of {inside}"
    return errors.named(value)
