"""Padding: which arrays of an item may differ in size, what evens them out, and how long each was before."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from carpool.functions import array_structures as structures
from carpool.functions.array_libraries import Library

Number = complex  # to type checkers an int, a float or a bool is one as well
Side = Literal["right", "left"]


class _All:
    """In place of a name: all arrays."""


ALL = _All()


class Length(NamedTuple):
    """What an array has along an axis before it is padded on that side."""

    size: int
    side: Side

    def inside(self, longest: int) -> slice:
        """Where the array lies in one that is longer."""
        return slice(0, self.size) if self.side == "right" else slice(longest - self.size, longest)


Lengths = dict[int, Length]
"""By axis. Axes count from the same end as that of the rows."""


class Padding:
    """The options `pad` and `side`: numbers and sides, for all arrays or by name.

    Raises TypeError or ValueError that names the option, its value and what is allowed.
    """

    def __init__(self, axis: int, pad: Any, side: Any) -> None:
        self._axis = axis
        self._numbers: dict[Any, Number] = (
            {} if pad is None else _by_name("pad", pad, "a number", _checked_number, TypeError)
        )
        self._sides: dict[Any, Side] = _by_name("side", side, "'right' or 'left'", _checked_side, ValueError)
        # By dtype and name: numbers that are equal need not be the same (0.0 and -0.0, 1 and True). Two threads that
        # write the same at once do no harm.
        self._converted: dict[tuple[Any, structures.Name], Any] = {}
        if not self._numbers and self._sides != {ALL: "right"}:
            raise ValueError(f"side={side!r} says where padding goes, and pad is not given")
        for name in self._sides:
            self.check_name("side", name)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def check_name(self, option: str, name: structures.Name) -> None:
        """Raises ValueError if an option names an array that is never padded."""
        if name is not ALL and name not in self._numbers and ALL not in self._numbers:
            raise ValueError(
                f"{option} names {name!r}, which pad does not; it names {listed(self._numbers) or 'nothing'}"
            )

    def check(self, leaves: Sequence[structures.Leaf]) -> None:
        """Raises ValueError if an array cannot hold the number, or if none of the arrays has a name that is padded."""
        padded = [leaf for leaf in leaves if self.number(leaf.name) is not None]
        for leaf in padded:
            try:
                self._for_dtype(leaf.library, leaf.name, leaf.array.dtype)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(
                    f"{structures.shapes([leaf])} and dtype {leaf.array.dtype}, which cannot hold "
                    f"pad={self.number(leaf.name)!r}"
                ) from None
        if self and not padded:
            raise ValueError(f"pad names {listed(self._numbers)}, none of which is there: {structures.shapes(leaves)}")

    def number(self, name: structures.Name) -> Number | None:
        """What an array is padded with, or None if it is not."""
        return self._numbers.get(name, self._numbers.get(ALL))

    def _side(self, name: structures.Name) -> Side:
        return self._sides.get(name) or self._sides.get(ALL, "right")

    def _for_dtype(self, library: Library, name: structures.Name, dtype: Any) -> Any:
        named = name if name in self._numbers else ALL
        found = self._converted.get((dtype, named))
        if found is None:
            found = self._converted[dtype, named] = library.converted(self._numbers[named], dtype)
        return found

    def join(self, library: Library, parts: Sequence[Any], name: structures.Name) -> Any:
        """A new array of the rows of all parts, padded. Each is copied once."""
        shapes = [part.shape for part in parts]
        rows = self._axis % len(shapes[0])
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        if all(own[axis] == size for own in shapes for axis, size in enumerate(longest) if axis != rows):
            return library.concatenate(parts, rows)
        side = self._side(name)
        boxes = []
        stop = 0
        for own in shapes:
            box = [Length(size, side).inside(whole) for size, whole in zip(own, longest, strict=True)]
            start, stop = stop, stop + own[rows]
            box[rows] = slice(start, stop)
            boxes.append(box)
        longest[rows] = stop
        return library.fill(parts, boxes, longest, rows, self._for_dtype(library, name, parts[0].dtype))

    def lengths(self, leaves: Sequence[structures.Leaf], source: structures.Name) -> Lengths:
        """How long an item's arrays named `source`, or all that are padded, are along each axis but that of the rows.

        Raises ValueError if there is none, or if they differ.
        """
        lengths: Lengths = {}
        followed = [leaf for leaf in leaves if self.number(leaf.name) is not None and source in (ALL, leaf.name)]
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


def listed(names: Mapping[Any, Any]) -> str:
    """Names, for a message."""
    return ", ".join(repr(name) for name in names if name is not ALL)


def _by_name(
    option: str, value: Any, allowed: str, checked: Callable[[Any], Any], error: type[Exception]
) -> dict[Any, Any]:
    """An option's values by the names of arrays; `checked` gives None for what is not allowed: an `error`."""
    if not isinstance(value, Mapping):
        found = checked(value)
        if found is None:
            raise error(f"{option} must be {allowed}, or a dict of such by the names of arrays, not {value!r}")
        return {ALL: found}
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


def _checked_side(value: Any) -> str | None:
    return value if value in ("right", "left") else None
