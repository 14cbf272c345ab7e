"""One input's values for all instances of a request."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.tensors_from_v1 import shapes

Text = bytes | memoryview


@dataclass(slots=True)
class Column:
    """`data` is v2's binary form of the values, instance after instance, each of shape `shape`.

    Where instances differ in size (BYTES), `bounds` has where each begins, and the end of the last.
    """

    name: str
    datatype: str
    shape: shapes.Shape
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

    def cut(self, start: int, stop: int) -> bytes | memoryview:
        """The bytes of the instances `start` to `stop` (exclusive)."""
        if (start, stop) == (0, self.rows):
            return self.data
        size = len(self.data) // self.rows
        begin, end = (self.bounds[start], self.bounds[stop]) if self.bounds else (start * size, stop * size)
        return memoryview(self.data)[begin:end]


@dataclass(slots=True)
class Values:
    """An input's values as JSON: one text for each instance, and `text`, the list of them.

    `shape` is what an instance must have by the model's metadata, `models.ANY` being any size.
    """

    spec: models.TensorSpec
    shape: shapes.Shape
    rows: Sequence[Text]
    text: Text

    def refuse(self, row: int, what: str) -> errors.BadRequest:
        """The error that tells what is wrong with an instance's values."""
        return errors.BadRequest(f"instance {row}: input {self.spec.name!r} {what}")

    def misshapen(
        self, row: int, given: shapes.Shape | None, expected: shapes.Shape | None = None
    ) -> errors.BadRequest:
        """The error for an instance of another shape than `expected`, or than the model's."""
        of_first = "" if expected is None or expected == self.shape else ", as in the first instance"
        wanted = self.shape if expected is None else expected
        return self.refuse(
            row, f"must have the shape {shapes.describe(wanted)}{of_first}; given: {shapes.describe(given)}"
        )

    def mistyped(self, row: int, given: str) -> errors.BadRequest:
        """The error for a value that is none of the datatype."""
        return self.refuse(row, f"must have values of datatype {self.spec.datatype}; given: {shorten(given)}")

    def has_single_values(self) -> bool:
        """Whether the instances of a model that wants lists of one are single values; the first one decides."""
        return self.shape == (1,) and not begins(self.rows[0], b"[")


def begins(text: Text, with_: bytes) -> bool:
    """Whether a JSON value's text begins with this byte."""
    return bytes(memoryview(text)[:64]).lstrip()[:1] == with_


def shorten(value: str) -> str:
    """A value as it is quoted in a message."""
    return value if len(value) <= 40 else value[:37] + "..."


def row_of(position: int, shape: shapes.Shape) -> int:
    """The instance that has the value at this position of all, if each has this shape."""
    return position // max(1, math.prod(shape))
