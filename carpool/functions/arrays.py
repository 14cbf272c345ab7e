"""`carpool.arrays`: merges items that are arrays, or dicts, lists and tuples of arrays, along an axis.

What is joined is alike in structure, library, dtype and device, and in each size but the number of rows and what is
padded. What differs has another key and travels in another batch: nothing is converted.

The function owns its batch, which is never a caller's own array, and may write to it. A result is a view of the output,
where the library has views. What was padded is cut back to each item's size.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from carpool.functions import array_structures as structures
from carpool.functions import errors
from carpool.functions.array_structures import Leaf, Library, Name, Path, library_of

Number = complex  # to type checkers an int, a float or a bool is one as well
Side = Literal["right", "left"]


_ALL: Any = object()
"""In place of a name: all arrays."""


class Length(NamedTuple):
    """What an array has along an axis before it is padded on that side."""

    size: int
    side: Side

    def inside(self, longest: int) -> slice:
        """Where the array lies in one that is longer."""
        return slice(0, self.size) if self.side == "right" else slice(longest - self.size, longest)


_Lengths = dict[int, Length]
"""By axis. Axes count from the same end as that of the rows."""


class arrays:  # noqa: N801 # it reads as the value of an option
    """Merges arrays of numpy, torch or the array API standard, and dicts, lists and tuples of them: a `carpool.Merge`.

    All arrays of an item have the same number of rows along `axis`, at least one, and so have all arrays that the
    function returns. It may also return lists with a member for each row, alone or among arrays: a list or tuple is
    taken for that if its first member neither is nor holds an array. To return one array for each row, stack them.

    `pad` is the number that evens out arrays of unlike sizes, for all of them or by name; those without a number share
    a batch only with arrays of the same size. `side` is where padding goes, for all or by name. `cut` names outputs
    that are as long as the padded batch: each caller gets them as long as its own padded arrays are, axis by axis. If
    these are not all alike, `{"output": "input"}` says which one; True means everything that is returned.

    An array's name is its key in a dict or its field in a named tuple, the innermost; where there is none, its position
    in the list or tuple that is the item.

    Raises TypeError or ValueError that names the option, its value and what is allowed.
    """

    def __init__(
        self,
        axis: int = 0,
        *,
        pad: Number | Mapping[Any, Number] | None = None,
        side: Side | Mapping[Any, Side] = "right",
        cut: bool | str | Collection[Any] | Mapping[Any, Any] = False,
    ) -> None:
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"axis must be a whole number, not {axis!r}")
        self._axis = axis
        self._numbers: dict[Any, Number] = (
            {} if pad is None else _by_name("pad", pad, "a number", _checked_number, TypeError)
        )
        self._sides: dict[Any, Side] = _by_name(
            "side", side, "'right' or 'left'", lambda each: each if each in ("right", "left") else None, ValueError
        )
        # By dtype and name: numbers that are equal need not be the same (0.0 and -0.0, 1 and True). Two threads that
        # write the same at once do no harm.
        self._converted: dict[tuple[Any, Name], Any] = {}
        if not self._numbers and self._sides != {_ALL: "right"}:
            raise ValueError(f"side={side!r} says where padding goes, and pad is not given")
        self._check_names("side", self._sides)
        self._cut = _checked_cut(cut)
        if self._cut and not self._numbers:
            raise ValueError(f"cut={cut!r} names what is as long as the padded batch, and pad is not given")
        self._check_names("cut", self._cut.values())
        self._options = f"axis={axis!r}, pad={pad!r}, side={side!r}, cut={cut!r}"

    def _check_names(self, option: str, names: Collection[Name]) -> None:
        """Raises ValueError if an option names an array that is never padded."""
        for name in names:
            if name is not _ALL and name not in self._numbers and _ALL not in self._numbers:
                raise ValueError(
                    f"{option} names {name!r}, which pad does not; it names {_listed(self._numbers) or 'nothing'}"
                )

    def __repr__(self) -> str:
        return f"carpool.arrays({self._options})"

    # --- what an item is ---------------------------------------------------------------------------------------

    def rows(self, item: Any, /) -> int:
        """How many rows an item has.

        Raises TypeError for what is no array, and ValueError, with places and shapes, for arrays that do not go
        together, have no rows, or cannot be joined with others.
        """
        leaves = structures.leaves(item)
        rows = self._rows(leaves[0])
        for leaf in leaves:
            flaw = leaf.library.flaw(leaf.array)
            if flaw is not None:
                raise ValueError(f"{structures.place_of('item', leaf.path)} {flaw}")
            if self._rows(leaf) != rows:
                raise ValueError(
                    f"the arrays of an item must have the same number of rows along axis {self._axis}: "
                    f"{structures.shapes(leaves)}"
                )
        if not rows:
            raise ValueError(f"an item must have at least one row along axis {self._axis}: {structures.shapes(leaves)}")
        self._check_numbers(leaves)
        for source in self._cut.values():
            self._lengths(leaves, source)
        return rows

    def _rows(self, leaf: Leaf) -> int:
        shape = leaf.array.shape
        if not -len(shape) <= self._axis < len(shape):
            raise ValueError(f"{structures.shapes([leaf])}, which has no axis {self._axis} for rows")
        return shape[self._axis]  # type: ignore[no-any-return]

    def _check_numbers(self, leaves: Sequence[Leaf]) -> None:
        """Raises ValueError if an array cannot hold the number, or if none of the arrays has a name that is padded."""
        padded = [leaf for leaf in leaves if self._number(leaf.name) is not None]
        for leaf in padded:
            try:
                self._number_for(leaf.library, leaf.name, leaf.array.dtype)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(
                    f"{structures.shapes([leaf])} and dtype {leaf.array.dtype}, which cannot hold "
                    f"pad={self._number(leaf.name)!r}"
                ) from None
        if self._numbers and not padded:
            raise ValueError(f"pad names {_listed(self._numbers)}, none of which is there: {structures.shapes(leaves)}")

    def _number(self, name: Name) -> Number | None:
        """What an array is padded with, or None if it is not."""
        return self._numbers.get(name, self._numbers.get(_ALL))

    def _number_for(self, library: Library, name: Name, dtype: Any) -> Any:
        """The same as this dtype has it."""
        named = name if name in self._numbers else _ALL
        found = self._converted.get((dtype, named))
        if found is None:
            found = self._converted[dtype, named] = library.converted(self._numbers[named], dtype)
        return found

    def _side(self, name: Name) -> Side:
        return self._sides.get(name) or self._sides.get(_ALL, "right")

    def _lengths(self, leaves: Sequence[Leaf], source: Name) -> _Lengths:
        """How long an item's arrays named `source`, or all that are padded, are along each axis but that of the rows.

        Raises ValueError if there is none, or if they differ.
        """
        lengths: _Lengths = {}
        followed = [leaf for leaf in leaves if self._number(leaf.name) is not None and source in (_ALL, leaf.name)]
        for leaf in followed:
            shape = leaf.array.shape
            side = self._side(leaf.name)
            for axis, size in enumerate(shape, 0 if self._axis >= 0 else -len(shape)):
                if axis != self._axis and lengths.setdefault(axis, Length(size, side)) != (size, side):
                    raise ValueError(
                        f"padded arrays differ along axis {axis}, so cut must say which one an output is as long as, "
                        f"as in cut={{'output': {leaf.name!r}}}: {structures.shapes(followed)}"
                    )
        if not followed:
            raise ValueError(f"cut names {source!r}, which is not there: {structures.shapes(leaves)}")
        return lengths

    def key(self, item: Any, /) -> Hashable:
        """What items have in common that may be joined: all but their rows and what padding evens out."""
        return self._key(item, None, pads=True)

    def _key(self, value: Any, name: Name, *, pads: bool) -> Hashable:
        if library_of(value) is not None:
            shape = value.shape
            axis = self._axis % len(shape)
            is_padded = pads and self._number(name) is not None
            sizes = len(shape) if is_padded else (*shape[:axis], None, *shape[axis + 1 :])
            return type(value), value.dtype, getattr(value, "device", None), sizes
        if not structures.is_structure(value):
            return (type(value),)
        places = structures.places(value, name)
        return type(value), frozenset([(place, self._key(value[place], child, pads=pads)) for place, child in places])

    def keep(self, item: Any, /) -> Any:
        """The same arrays in dicts, lists and tuples of their own: to change those changes no batch."""
        return structures.copied(item)

    # --- joining -----------------------------------------------------------------------------------------------

    def join(self, items: Sequence[Any], /) -> Any:
        """One batch of items with equal keys, of their structure. Each array is copied once, a single one too."""
        return self._join(items, None, pads=True)

    def rejoin(self, results: Sequence[Any], /) -> Any:
        """The result of an item that was larger than a batch. Nothing is padded.

        Raises `WrongResult` if the parts differ in more than their rows.
        """
        keys = [self._key(result, None, pads=False) for result in results]
        for result, key in zip(results, keys, strict=True):
            if key != keys[0]:
                raise errors.WrongResult(
                    "the batched function returned what cannot be joined, for parts of an item that is larger than a "
                    f"batch: {structures.described(results[0])}, and {structures.described(result)}. Outputs as long "
                    "as the padded batch must be named by cut"
                )
        return self._join(results, None, pads=False)

    def _join(self, parts: Sequence[Any], name: Name, *, pads: bool) -> Any:
        first = parts[0]
        library = library_of(first)
        if library is not None:
            if pads and len(parts) > 1 and self._number(name) is not None:
                return self._join_padded(library, parts, name)
            return library.concatenate(parts, self._axis % len(first.shape))
        if structures.is_structure(first):
            members = {
                place: self._join([part[place] for part in parts], child, pads=pads)
                for place, child in structures.places(first, name)
            }
            return structures.like(first, members)
        if first is None:
            return None
        rows = list(itertools.chain.from_iterable(parts))
        return tuple(rows) if isinstance(first, tuple) else rows

    def _join_padded(self, library: Library, parts: Sequence[Any], name: Name) -> Any:
        """A new array of the rows of all parts, padded. Each is copied once."""
        shapes = [part.shape for part in parts]
        rows = self._axis % len(shapes[0])
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        if all(own[axis] == size for own in shapes for axis, size in enumerate(longest) if axis != rows):
            return library.concatenate(parts, rows)
        side = self._side(name)
        boxes = []
        counts = [own[rows] for own in shapes]
        for own, span in zip(shapes, structures.spans(counts), strict=True):
            box = [Length(size, side).inside(whole) for size, whole in zip(own, longest, strict=True)]
            box[rows] = span
            boxes.append(box)
        longest[rows] = sum(counts)
        return library.fill(parts, boxes, longest, rows, self._number_for(library, name, parts[0].dtype))

    # --- splitting ---------------------------------------------------------------------------------------------

    def split(self, output: Any, counts: Sequence[int], /) -> Sequence[Any]:
        """Shares of so many rows each, with the structure of the output, which may be an item as well.

        Raises `WrongLength` with the shape of what has another number of rows, and `WrongResult` for what has none.
        """
        return _Splitter(self._axis, counts, {}).shares(output)

    def split_for(self, output: Any, counts: Sequence[int], items: Sequence[Any], /) -> Sequence[Any]:
        """As `split`, but that outputs named by `cut` are as long as each item was before padding.

        Raises `WrongResult` as well if one of them is not as long as the padded batch, or if there is none.
        """
        if not self._cut:
            return self.split(output, counts)
        leaves = [structures.leaves(item) for item in items]
        cuts = {name: [self._lengths(own, source) for own in leaves] for name, source in self._cut.items()}
        splitter = _Splitter(self._axis, counts, cuts)
        shares = splitter.shares(output)
        if not splitter.has_cut:
            raise errors.WrongResult(
                f"the batched function returned {structures.described(output)}, and nothing that cut names: "
                f"{_listed(self._cut) or 'all arrays'}"
            )
        return shares


class _Splitter:
    """Splits an output into shares of so many rows; `cuts` are the items' lengths before padding, by names of outputs.

    `has_cut` says whether one of these was there.
    """

    def __init__(self, axis: int, counts: Sequence[int], cuts: Mapping[Any, Sequence[_Lengths]]) -> None:
        self._axis = axis
        self._counts = counts
        self._rows = sum(counts)
        self._cuts = cuts
        self.has_cut = False

    def shares(self, output: Any, path: Path = (), name: Name = None) -> Sequence[Any]:
        """Raises `WrongLength` for what has another number of rows, and `WrongResult` for what has none."""
        library = library_of(output)
        if library is not None:
            return self._of_array(library, output, path, name)
        if path and (output is None or (isinstance(output, tuple) and not output)):  # what a model was not asked for
            return [output] * len(self._counts)
        if structures.is_structure(output):
            return self._of_structure(output, path, name)
        if isinstance(output, Sequence) and not isinstance(output, str | bytes | bytearray | memoryview):
            return self._of_list(output, path)
        where = f"{structures.place_of('output', path)}, which is " if path else ""
        raise errors.WrongResult(
            f"the batched function returned {where}{errors.named(output)}; with carpool.arrays it returns "
            f"{structures.ALLOWED}, or lists with a member for each row"
        )

    def _of_array(self, library: Library, output: Any, path: Path, name: Name) -> Sequence[Any]:
        shape = tuple(output.shape)
        told = f"the batched function returned {structures.place_of('output', path)} of shape {shape}"
        if not -len(shape) <= self._axis < len(shape):
            raise errors.WrongResult(f"{told}, which has no axis {self._axis} for rows")
        if shape[self._axis] != self._rows:
            hint = "; to return one array for each row, stack them" if path and isinstance(path[-1], int) else ""
            raise errors.WrongLength(
                f"{told}, with {shape[self._axis]} rows along axis {self._axis}, for a batch of {self._rows} rows{hint}"
            )
        shares = library.split(output, self._counts, self._axis % len(shape))
        lengths = self._cuts.get(name) or self._cuts.get(_ALL)
        if lengths is None:
            return shares
        self.has_cut = True
        longest = {axis: max(own[axis].size for own in lengths) for axis in lengths[0]}
        unlike = [axis for axis, size in longest.items() if any(own[axis].size != size for own in lengths)]
        boxes = [[slice(None)] * len(shape) for _ in shares]
        for axis in unlike:
            if not -len(shape) <= axis < len(shape) or shape[axis] != longest[axis]:
                raise errors.WrongResult(
                    f"{told}; cut names it, so it should have the padded batch's {longest[axis]} along axis {axis}"
                )
            for box, own in zip(boxes, lengths, strict=True):
                box[axis] = own[axis].inside(longest[axis])
        return [share[tuple(box)] for share, box in zip(shares, boxes, strict=True)] if unlike else shares

    def _of_structure(self, output: Any, path: Path, name: Name) -> Sequence[Any]:
        places = structures.places(output, name)
        if not places:
            raise errors.WrongResult(f"the batched function returned an empty {type(output).__name__}")
        columns = [self.shares(output[place], (*path, place), child) for place, child in places]
        try:
            return [
                structures.like(output, {place: share for (place, _), share in zip(places, row, strict=True)})
                for row in zip(*columns, strict=True)
            ]
        except TypeError as error:
            raise errors.WrongResult(f"the batched function returned {errors.named(output)}: {error}") from error

    def _of_list(self, output: Sequence[Any], path: Path) -> Sequence[Any]:
        if len(output) != self._rows:
            raise errors.WrongLength(
                f"the batched function returned {structures.place_of('output', path)} with {len(output)} members, "
                f"for a batch of {self._rows} rows"
            )
        try:
            return [output[span] for span in structures.spans(self._counts)]
        except TypeError as error:
            raise errors.WrongResult(f"the batched function returned {errors.named(output)}: {error}") from error


# --- options ----------------------------------------------------------------------------------------------------


def _listed(names: Mapping[Any, Any]) -> str:
    """Names, for a message."""
    return ", ".join(repr(name) for name in names if name is not _ALL)


def _by_name(
    option: str, value: Any, allowed: str, checked: Callable[[Any], Any], error: type[Exception]
) -> dict[Any, Any]:
    """An option's values by the names of arrays; `checked` gives None for what is not allowed: an `error`."""
    if not isinstance(value, Mapping):
        found = checked(value)
        if found is None:
            raise error(f"{option} must be {allowed}, or a dict of such by the names of arrays, not {value!r}")
        return {_ALL: found}
    if not value:
        raise ValueError(f"{option} must name at least one array, not {value!r}")
    by_name = {name: checked(member) for name, member in value.items()}
    for name, found in by_name.items():
        if found is None:
            raise error(f"{option}[{name!r}] must be {allowed}, not {value[name]!r}")
    return by_name


def _checked_number(value: Any) -> Number | None:
    """The number as one of Python: those of numpy overflow, and its bool is none."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return complex(value) if isinstance(value, numbers.Complex) else None


def _checked_cut(cut: Any) -> dict[Any, Any]:
    """By the name of an output the name of the array that it is as long as."""
    if isinstance(cut, bool):
        return {_ALL: _ALL} if cut else {}
    if isinstance(cut, str):
        return {cut: _ALL}
    if isinstance(cut, Mapping):
        return dict(cut)
    if isinstance(cut, Collection) and not isinstance(cut, bytes | bytearray):
        return dict.fromkeys(cut, _ALL)
    raise TypeError(f"cut must be True or False, names of outputs, or a dict of array names by output, not {cut!r}")
