"""`carpool.arrays`: merges items that are arrays, or dicts, lists and tuples of arrays, along an axis.

What is joined is alike in structure, library, dtype and device, and in each size but the number of rows and what is
padded. What differs has another key and travels in another batch: nothing is converted.

The function owns its batch, which is never a caller's own array, and may write to it. A result is a view of the output,
where the library has views.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from carpool.functions import array_outputs, errors
from carpool.functions import array_padding as padding
from carpool.functions import array_structures as structures
from carpool.functions.array_libraries import library_of


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
        pad: padding.Number | Mapping[Any, padding.Number] | None = None,
        side: padding.Side | Mapping[Any, padding.Side] = "right",
        cut: bool | str | Collection[Any] | Mapping[Any, Any] = False,
    ) -> None:
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"axis must be a whole number, not {axis!r}")
        self._axis = axis
        self._padding = padding.Padding(axis, pad, side)
        self._cut = _checked_cut(cut)
        if self._cut and not self._padding:
            raise ValueError(f"cut={cut!r} names what is as long as the padded batch, and pad is not given")
        for source in self._cut.values():
            self._padding.check_name("cut", source)
        self._options = f"axis={axis!r}, pad={pad!r}, side={side!r}, cut={cut!r}"

    def __repr__(self) -> str:
        return f"carpool.arrays({self._options})"

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
        self._padding.check(leaves)
        for source in self._cut.values():
            self._padding.lengths(leaves, source)
        return rows

    def _rows(self, leaf: structures.Leaf) -> int:
        shape = leaf.array.shape
        if not -len(shape) <= self._axis < len(shape):
            raise ValueError(f"{structures.shapes([leaf])}, which has no axis {self._axis} for rows")
        return shape[self._axis]  # type: ignore[no-any-return]

    def key(self, item: Any, /) -> Hashable:
        """What items have in common that may be joined: all but their rows and what padding evens out."""
        return self._key(item, None, pads=True)

    def _key(self, value: Any, name: structures.Name, *, pads: bool) -> Hashable:
        if library_of(value) is not None:
            shape = value.shape
            axis = self._axis % len(shape)
            is_padded = pads and self._padding.number(name) is not None
            sizes = len(shape) if is_padded else (*shape[:axis], None, *shape[axis + 1 :])
            return type(value), value.dtype, getattr(value, "device", None), sizes
        if not structures.is_structure(value):
            return (type(value),)
        places = structures.places(value, name)
        return type(value), frozenset([(place, self._key(value[place], child, pads=pads)) for place, child in places])

    def keep(self, item: Any, /) -> Any:
        """The same arrays in dicts, lists and tuples of their own: to change those changes no batch."""
        return structures.copied(item)

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

    def _join(self, parts: Sequence[Any], name: structures.Name, *, pads: bool) -> Any:
        first = parts[0]
        library = library_of(first)
        if library is not None:
            if pads and len(parts) > 1 and self._padding.number(name) is not None:
                return self._padding.join(library, parts, name)
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

    def split(self, output: Any, counts: Sequence[int], /) -> Sequence[Any]:
        """Shares of so many rows each, with the structure of the output, which may be an item as well.

        Raises `WrongLength` with the shape of what has another number of rows, and `WrongResult` for what has none.
        """
        return array_outputs.Splitter(self._axis, counts, {}).shares(output)

    def split_for(self, output: Any, counts: Sequence[int], items: Sequence[Any], /) -> Sequence[Any]:
        """As `split`, but that outputs named by `cut` are as long as each item was before padding.

        Raises `WrongResult` as well if one of them is not as long as the padded batch, or if there is none.
        """
        if not self._cut:
            return self.split(output, counts)
        leaves = [structures.leaves(item) for item in items]
        cuts = {
            name: array_outputs.Cut([self._padding.lengths(own, source) for own in leaves])
            for name, source in self._cut.items()
        }
        splitter = array_outputs.Splitter(self._axis, counts, cuts)
        shares = splitter.shares(output)
        if not splitter.has_cut:
            raise errors.WrongResult(
                f"the batched function returned {structures.described(output)}, and nothing that cut names: "
                f"{padding.listed(self._cut) or 'all arrays'}"
            )
        return shares


def _checked_cut(cut: Any) -> dict[Any, Any]:
    """By the name of an output the name of the array that it is as long as."""
    if isinstance(cut, bool):
        return {padding.ALL: padding.ALL} if cut else {}
    if isinstance(cut, str):
        return {cut: padding.ALL}
    if isinstance(cut, Mapping):
        return dict(cut)
    if isinstance(cut, Collection) and not isinstance(cut, bytes | bytearray):
        return dict.fromkeys(cut, padding.ALL)
    raise TypeError(f"cut must be True or False, names of outputs, or a dict of array names by output, not {cut!r}")
