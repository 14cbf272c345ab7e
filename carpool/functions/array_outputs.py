"""Splitting what a function returned for a batch: a share of the rows for each item, cut back to the item's size."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from carpool.functions import array_structures as structures
from carpool.functions import errors
from carpool.functions.array_libraries import Library, library_of
from carpool.functions.array_padding import ALL, Lengths


class Cut:
    """Makes shares of an output as long as their items, where padding made the batch longer.

    `lengths` are those of the items, before padding.
    """

    def __init__(self, lengths: Sequence[Lengths]) -> None:
        self._lengths = lengths
        self._longest = {axis: max(own[axis].size for own in lengths) for axis in lengths[0]}
        self._padded = [axis for axis, size in self._longest.items() if any(own[axis].size != size for own in lengths)]

    def shortened(self, output: Any, path: structures.Path, shares: Sequence[Any]) -> Sequence[Any]:
        """The shares of an output. Raises `WrongResult` if that is not as long as the padded batch."""
        shape = tuple(output.shape)
        for axis in self._padded:
            if not -len(shape) <= axis < len(shape) or shape[axis] != self._longest[axis]:
                raise errors.WrongResult(
                    f"the batched function returned {structures.place_of('output', path)} of shape {shape}; cut names "
                    f"it, so it should have the padded batch's {self._longest[axis]} along axis {axis}"
                )
        if not self._padded:
            return shares
        boxes = []
        for own in self._lengths:
            box = [slice(None)] * len(shape)
            for axis in self._padded:
                box[axis] = own[axis].inside(self._longest[axis])
            boxes.append(tuple(box))
        return [share[box] for share, box in zip(shares, boxes, strict=True)]


class Splitter:
    """Splits one output into shares of so many rows; `cuts` are for the arrays of these names, or for all.

    `has_cut` says whether there was one of them.
    """

    def __init__(self, axis: int, counts: Sequence[int], cuts: dict[Any, Cut]) -> None:
        self._axis = axis
        self._counts = counts
        self._rows = sum(counts)
        self._cuts = cuts
        self.has_cut = False

    def shares(self, output: Any, path: structures.Path = (), name: structures.Name = None) -> Sequence[Any]:
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
            f"the batched function returned {where}{structures.named(output)}; with carpool.arrays it returns "
            f"{structures.ALLOWED}, or lists with a member for each row"
        )

    def _of_array(self, library: Library, output: Any, path: structures.Path, name: structures.Name) -> Sequence[Any]:
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
        cut = self._cuts.get(name) or self._cuts.get(ALL)
        if cut is None:
            return shares
        self.has_cut = True
        return cut.shortened(output, path, shares)

    def _of_structure(self, output: Any, path: structures.Path, name: structures.Name) -> Sequence[Any]:
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
            raise errors.WrongResult(f"the batched function returned {structures.named(output)}: {error}") from error

    def _of_list(self, output: Sequence[Any], path: structures.Path) -> Sequence[Any]:
        if len(output) != self._rows:
            raise errors.WrongLength(
                f"the batched function returned {structures.place_of('output', path)} with {len(output)} members, "
                f"for a batch of {self._rows} rows"
            )
        bounds = itertools.accumulate(self._counts, initial=0)
        try:
            return [output[start:stop] for start, stop in itertools.pairwise(bounds)]
        except TypeError as error:
            raise errors.WrongResult(f"the batched function returned {structures.named(output)}: {error}") from error
