"""Which requests may share a batch, in whatever words they came: the same request gets the same verdict in all.

Asked in one order, so that a request with several reasons against it is counted under the same one everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from carpool_sidecar import errors
from carpool_sidecar.protocols import datatypes

MOST_STRINGS = 100_000
"""Elements of BYTES that one request may have: with more it takes long to look through, and much memory."""

SEQUENCE = ("sequence_id", "sequence_start", "sequence_end", "correlation_id")
"""Parameters of requests that belong to others before and after them."""

_SHARED_MEMORY = "shared_memory_"
_MOST_ELEMENTS = 2**63 - 1  # dimensions are of 64 bits, and Python writes no integer of more than 4300 digits


class Tensor(NamedTuple):
    """An input: `parameters` are its parameters' names, `is_listed` if its elements are not in binary."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Collection[str]
    is_listed: bool

    @property
    def elements(self) -> int:
        """How many it should have."""
        return math.prod(self.shape)


class Wanted(NamedTuple):
    """An output that a request lists, with the names of its parameters."""

    name: str
    parameters: Collection[str]


def check(inputs: Sequence[Tensor], parameters: Mapping[str, object], outputs: Sequence[Wanted]) -> None:
    """Raises `errors.Unbatchable` for a request that has to travel alone, whether its data are right or not.

    `parameters` are the request's that are in `SEQUENCE`, with their values.
    """
    if not all(map(_says_nothing, parameters.values())):
        raise errors.Unbatchable("sequence")
    said = [each.parameters for each in inputs] + [each.parameters for each in outputs]
    if any(name.startswith(_SHARED_MEMORY) for names in said for name in names):
        raise errors.Unbatchable("shared_memory")
    if not all(each.datatype in (datatypes.IN_JSON if each.is_listed else datatypes.KNOWN) for each in inputs):
        raise errors.Unbatchable("datatype")
    rows = {each.shape[0] if each.shape else 0 for each in inputs}
    if len(rows) != 1 or 0 in rows:
        raise errors.Unbatchable("shape")
    if len({each.name for each in inputs}) < len(inputs):
        raise errors.Unbatchable("members")
    if len({each.name for each in outputs}) < len(outputs):
        raise errors.Unbatchable("outputs")
    if sum(each.elements for each in inputs if each.datatype == datatypes.BYTES) > MOST_STRINGS:
        raise errors.Unbatchable("members")


def check_shape(place: str, shape: Sequence[int]) -> None:
    """Raises `errors.BadRequest` for the shape of no tensor."""
    if shape and min(shape) < 0:
        raise errors.BadRequest(f"{place} has a negative dimension: {list(shape)}")
    if math.prod(max(1, each) for each in shape) > _MOST_ELEMENTS:
        raise errors.BadRequest(f"{place} has too many elements: no more than {_MOST_ELEMENTS} are possible")


def _says_nothing(value: object) -> bool:
    """Whether a parameter has a value by which servers understand that it is not there."""
    return value is None or value == "" or (isinstance(value, bool | int | float) and value == 0)
