"""Shapes of nested JSON lists, read off their brackets and commas.

Without its values, text of a list of lists is its shape: `[[1,2],[3,4]]` becomes `[[,],[,]]`, and so does every other
list of shape (2, 2). Comparing that to what is expected costs less than any walk through decoded lists. It needs text
without strings, as those may have brackets in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from carpool_sidecar.protocols import models

Shape = tuple[int, ...]

DEEPEST = 16
"""Lists in lists in lists: no model has tensors of so many dimensions."""

_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
_SPACE = b" \t\r\n"


def skeleton(text: bytes) -> bytes:
    """Brackets and commas of a JSON text; objects and strings are not known here."""
    return text.translate(None, _ALL_BUT_STRUCTURE)


def has_shape(text: bytes, shape: Shape) -> bool:
    """Whether a text is nested lists of this shape, as far as brackets tell: a list of none looks like one of one."""
    return _is_possible(shape, text) and skeleton(text) == _expected(shape)


def shape_of(text: bytes) -> Shape | None:
    """The shape of nested lists, () for a value; None if they are ragged or nested more than `DEEPEST` times."""
    bones = skeleton(text)
    depth = len(bones) - len(bones.lstrip(b"["))
    if depth > DEEPEST:
        return None
    left, found = bones, []
    for level in reversed(range(depth)):
        innermost = left[level : left.find(b"]") + 1]
        is_empty = innermost == b"[]" and level == depth - 1 and _begins_empty(text, depth)
        found.append(0 if is_empty else innermost.count(b",") + 1)
        left = left.replace(innermost, b"") if innermost else left
    shape = tuple(reversed(found))
    return shape if _is_possible(shape, text) and _expected(shape) == bones else None


def fits(shape: Shape, expected: Shape) -> bool:
    """Whether a shape is as expected, where `models.ANY` is any size."""
    return len(shape) == len(expected) and all(
        size in (given, models.ANY) for given, size in zip(shape, expected, strict=True)
    )


def describe(shape: Sequence[int] | None) -> str:
    """A shape in words, None as `shape_of` has it."""
    if shape is None:
        return "lists that are ragged or nested too deeply"
    return f"[{','.join(map(str, shape))}]" if shape else "[] (a single value)"


def _is_possible(shape: Shape, text: bytes) -> bool:
    """Whether so many values fit into a text: none takes less than a byte, and what is expected must not be larger."""
    return math.prod(max(1, size) for size in shape) <= len(text)


def _expected(shape: Shape) -> bytes:
    bones = b""
    for size in reversed(shape):
        bones = b"[%b]" % b",".join([bones] * size)
    return bones


def _begins_empty(text: bytes, depth: int) -> bool:
    return text.translate(None, _SPACE).startswith(b"[" * depth + b"]")
