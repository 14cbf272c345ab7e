"""One input's values for all instances of a request: as JSON, in v2's binary form, and their shapes.

Shapes of nested lists are read off their brackets and commas. Without its values, text of a list of lists is its shape:
`[[1,2],[3,4]]` becomes `[[,],[,]]`, and so does every other list of shape (2, 2). Comparing that to what is expected
costs less than any walk through decoded lists. It needs text without strings, as those may have brackets in them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from carpool_sidecar import errors
from carpool_sidecar.protocols import models, steps, v2

Shape = tuple[int, ...]

DEEPEST = 16
"""Lists in lists in lists: no model has tensors of so many dimensions."""

_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
_SPACE = b" \t\r\n"
_LARGE = 512 * 1024  # bytes of text that are looked at in one step


@dataclass(slots=True)
class Column:
    """`data` is v2's binary form of the values, instance after instance, each of shape `shape`.

    Where instances differ in size (BYTES), `bounds` has where each begins, and the end of the last.
    """

    name: str
    datatype: str
    shape: Shape
    rows: int
    data: bytes
    bounds: Sequence[int] | None = None

    @property
    def key(self) -> Hashable:
        """Columns with equal keys can be joined."""
        return self.name, self.datatype, self.shape

    @property
    def elements(self) -> int:
        """Entries of the list that an instance is; 1 if it is a single value."""
        return self.shape[0] if self.shape else 1

    def sizes(self, start: int, stop: int) -> list[int]:
        """Bytes of each of the instances `start` to `stop` (exclusive)."""
        if self.bounds is None:
            return [len(self.data) // self.rows] * (stop - start)
        return [self.bounds[row + 1] - self.bounds[row] for row in range(start, stop)]

    def cut(self, start: int, stop: int) -> v2.Data:
        """The bytes of the instances `start` to `stop` (exclusive)."""
        if (start, stop) == (0, self.rows):
            return self.data
        return v2.cut(memoryview(self.data), len(self.data) // self.rows, self.bounds, start, stop)


@dataclass(slots=True)
class Values:
    """An input's values as JSON: one text for each instance, and `text`, the list of them.

    `shape` is what an instance must have by the model's metadata, `models.ANY` being any size.
    """

    spec: models.TensorSpec
    shape: Shape
    rows: Sequence[v2.Data]
    text: v2.Data

    def refuse(self, row: int, what: str) -> errors.BadRequest:
        """The error that tells what is wrong with an instance's values."""
        return errors.BadRequest(f"instance {row}: input {self.spec.name!r} {what}")

    def misshapen(self, row: int, given: Shape | None, expected: Shape | None = None) -> errors.BadRequest:
        """The error for an instance of another shape than `expected`, or than the model's."""
        of_first = "" if expected is None or expected == self.shape else ", as in the first instance"
        wanted = self.shape if expected is None else expected
        return self.refuse(row, f"must have the shape {describe(wanted)}{of_first}; given: {describe(given)}")

    def mistyped(self, row: int, given: str) -> errors.BadRequest:
        """The error for a value that is none of the datatype."""
        return self.refuse(row, f"must have values of datatype {self.spec.datatype}; given: {shorten(given)}")

    def has_single_values(self) -> bool:
        """Whether the instances of a model that wants lists of one are single values; the first one decides."""
        return self.shape == (1,) and not begins(self.rows[0], b"[")


def begins(text: v2.Data, with_: bytes) -> bool:
    """Whether a JSON value's text begins with this byte."""
    return bytes(memoryview(text)[:64]).lstrip()[:1] == with_


def shorten(value: str) -> str:
    """A value as it is quoted in a message."""
    return value if len(value) <= 40 else value[:37] + "..."


def row_of(position: int, shape: Shape) -> int:
    """The instance that has the value at this position of all, if each has this shape."""
    return position // max(1, math.prod(shape))


# --- shapes -----------------------------------------------------------------------------------------------------


def _skeleton(text: bytes) -> bytes:
    """Brackets and commas of a JSON text; objects and strings are not known here."""
    return text.translate(None, _ALL_BUT_STRUCTURE)


def has_shape(text: bytes, shape: Shape) -> steps.Steps[bool]:
    """Whether a text is nested lists of this shape, as far as brackets tell: a list of none looks like one of one."""
    if not _is_possible(shape, len(text)):
        return False
    expected, at = _expected(shape), 0
    if len(text) < _LARGE:
        return _skeleton(text) == expected
    for start in range(0, len(text), _LARGE):
        yield
        bones = _skeleton(text[start : start + _LARGE])
        if not expected.startswith(bones, at):
            return False
        at += len(bones)
    return at == len(expected)


def shape_of(text: v2.Data) -> steps.Steps[Shape | None]:
    """The shape of nested lists, () for a value; None if they are ragged or nested more than `DEEPEST` times."""
    if len(text) < _LARGE:
        return _shape(_skeleton(bytes(text)), bytes(text), len(text))
    pieces, view = [], memoryview(text)
    for at in range(0, len(view), _LARGE):
        yield
        pieces.append(_skeleton(bytes(view[at : at + _LARGE])))
    return _shape(b"".join(pieces), bytes(view[:_LARGE]), len(view))


def _shape(bones: bytes, text: bytes, size: int) -> Shape | None:
    """The same by the skeleton of a text, its beginning and its size."""
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
    return shape if _is_possible(shape, size) and _expected(shape) == bones else None


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


def _is_possible(shape: Shape, size: int) -> bool:
    """Whether so many values fit into so many bytes of text: none takes less than one, and nor may what is expected."""
    return math.prod(max(1, each) for each in shape) <= size


def _expected(shape: Shape) -> bytes:
    bones = b""
    for size in reversed(shape):
        bones = b"[%b]" % ((bones + b",") * size)[:-1]
    return bones


def _begins_empty(text: bytes, depth: int) -> bool:
    return text.translate(None, _SPACE).startswith(b"[" * depth + b"]")
