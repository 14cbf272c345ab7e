"""Parts of decoded objects whose shape nobody has checked: what is not of the kind that is asked for is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carpool_injector.core import model


def find(thing: Any, path: Sequence[str]) -> Any:
    """What lies at the end of a path; None where there is nothing."""
    for key in path:
        thing = thing.get(key) if isinstance(thing, dict) else None
    return thing


def part(thing: Any, *path: str) -> model.Object:
    """An object within another; {} where there is none."""
    found = find(thing, path)
    return found if isinstance(found, dict) else {}


def parts(thing: Any, *path: str) -> list[model.Object]:
    """The objects in a list."""
    found = find(thing, path)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def texts(thing: Any, *path: str) -> dict[str, str]:
    """Labels or annotations; whatever is no text is left out."""
    return {name: value for name, value in part(thing, *path).items() if isinstance(value, str)}


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def replaced(thing: model.Object, path: Sequence[str], value: Any) -> model.Object:
    """A copy along `path` with another value at its end; None takes away what is there."""
    key, rest = path[0], path[1:]
    if not rest and value is None:
        return {name: held for name, held in thing.items() if name != key}
    return {**thing, key: replaced(part(thing, key), rest, value) if rest else value}
