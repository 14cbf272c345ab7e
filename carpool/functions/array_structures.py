"""Dicts, lists and tuples that hold arrays: how to go through one, make another like it, and tell a place in it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from carpool.functions.array_libraries import Library, library_of

Name = Hashable
"""Of an array: the innermost key of a dict, or field of a named tuple, on the way to it; where there is none, its
position in the outermost list or tuple; None for an array that is in nothing."""

Path = tuple[Hashable, ...]
"""The keys and positions on the way to a member."""

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
    found: list[Leaf] = []
    _collect(item, (), None, found)
    if not found:
        raise TypeError(f"item is {named(item)} without arrays; an item may be {ALLOWED}")
    return found


def _collect(value: Any, path: Path, name: Name, found: list[Leaf]) -> None:
    library = library_of(value)
    if library is not None:
        found.append(Leaf(path, name, value, library))
    elif isinstance(value, Mapping | list | tuple):
        inside = places(value, name)
        if not (inside and is_structure(value)):
            raise TypeError(f"{place_of('item', path)} is {named(value)} without arrays; an item may be {ALLOWED}")
        if type(value) is not dict:
            like(value, {place: value[place] for place, _ in inside})
        for place, child in inside:
            if value[place] is not None:
                _collect(value[place], (*path, place), child, found)
    else:
        raise TypeError(f"{place_of('item', path)} is {named(value)}; an item may be {ALLOWED}")


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


def named(value: object) -> str:
    """A value by its type."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def shapes(found: Sequence[Leaf]) -> str:
    """The arrays of an item with their shapes."""
    return ", ".join(f"{place_of('item', leaf.path)} has shape {tuple(leaf.array.shape)}" for leaf in found)


def described(value: Any) -> str:
    """A value by its type, with the shapes of the arrays in it."""
    if library_of(value) is not None:
        return f"{named(value)} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping | list | tuple) and is_structure(value):
        inside = ", ".join(f"{place!r}: {described(value[place])}" for place, _ in places(value, None))
        return f"{named(value)} of {inside}"
    return named(value)
