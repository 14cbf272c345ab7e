"""One codec for all requests that a predictor which speaks only v2 is asked in tensors.

What a request is, and how its answer is written, is said by those that are derived from it: v1's is in `front`, that of
OpenAI's embeddings in `tensors_from_embeddings`. How tensors travel is a `Transport`'s business.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps
from carpool_sidecar.protocols.tensors_from_v1 import columns

M = TypeVar("M")


class Transport(Protocol):
    """How tensors travel: `v2_http.tensors` or `v2_grpc.tensors`."""

    def write_request(
        self, batch_id: str, name: models.ModelName, tensors: Sequence[models.Tensor], outputs: Sequence[str] = (), /
    ) -> tuple[str, interface.Headers, interface.Pieces]:
        """Target, headers and body of a call with this id and these inputs, for these outputs; all if none is named."""
        ...

    def read_answer(self, reply: interface.UpstreamResponse, /) -> steps.Steps[list[models.Tensor]]:
        """The outputs in an answer; raises `errors.UpstreamBroken`."""
        ...


class Asked(NamedTuple):
    """What a request asks for: its rows by input, and the `outputs` that are its answer, all if none is named.

    For a model without a batch dimension the one row goes in a tensor whose first dimensions are `before`. `rule` is
    the name of the rule by which it was found, empty for v1's, and `room` how much of a call each row takes up by the
    limits of that, empty if it has none. `added` are the bytes of rows beyond the body (see `interface.Payload`).
    """

    columns: tuple[columns.Column, ...]
    outputs: tuple[str, ...] = ()
    before: columns.Shape = ()
    response_format: interface.ResponseFormat | None = None
    rule: str = ""
    room: Sequence[int] = ()
    added: int = 0


Shares = Sequence[tuple[interface.ResponseFormat | None, int]]
"""How each caller of a batch wants its answer, and how many rows of it are its own."""


class Payload(interface.Payload):
    """One request, decoded: a column for each input that it has. `most` is the codec's `max_batch_size` then."""

    __slots__ = ("_added", "before", "columns", "has_rows", "outputs", "room", "rule")

    def __init__(self, model: models.ModelName, asked: Asked, has_rows: bool, most: int) -> None:
        self.columns, self.outputs, self.before, self.response_format, self.rule, self.room, self._added = asked
        self.row_count = self.columns[0].rows
        self.has_rows = has_rows
        # The model, which a path need not name, and how many rows go together.
        self.key = (model, self.outputs, self.before, has_rows, most, *[each.key for each in self.columns])

    @property
    def content(self) -> None:
        """Implements `interface.Payload`: the body is not kept."""
        return None

    @property
    def added(self) -> int:
        """See `interface.Payload`."""
        return self._added

    def row_sizes(self, start: int, stop: int) -> list[int]:
        """As they go to the predictor."""
        return [sum(sizes) for sizes in zip(*(column.sizes(start, stop) for column in self.columns), strict=True)]

    def row_room(self, start: int, stop: int) -> Sequence[int]:
        """See `interface.Payload`."""
        return self.room[start:stop] if self.room else super().row_room(start, stop)

    def row_lengths(self, start: int, stop: int) -> list[int]:
        """Entries of the lists that rows are, the longest input's; 1 for a value."""
        return [max(column.elements for column in self.columns)] * (stop - start)


class Codec(Generic[M]):
    """The codec of one model and one protocol, whose answers have a list of `list_name`.

    `info` may be replaced when the predictor tells anew.
    From an answer on whose outputs do not have the batch's rows, rows travel alone, until the predictor tells anew.
    `on_part` is told the rule of each part of a request by rule that goes in a call without the rest.
    """

    # State: info, with what follows from it; what is known of the model, once it was asked for.
    def __init__(
        self,
        name: models.ModelName,
        info: models.ModelInfo,
        transport: Transport,
        on_part: Callable[[str], None] | None = None,
    ) -> None:
        self._on_part = on_part
        self._name = name
        self._transport = transport
        self.info = info

    large = 64 * 1024
    most_rows = sys.maxsize
    """Rows of a call, whatever the model takes."""
    list_name: ClassVar[bytes]

    def understand(self, info: models.ModelInfo, has_rows: bool) -> M:
        """What is to be known of a model; raises `errors.BadRequest` for one that cannot be asked."""
        raise NotImplementedError

    def read(self, body: bytes, max_rows: int) -> steps.Steps[Asked]:
        """A request; raises `errors.BadRequest`, and `errors.PayloadTooLarge` for more than `max_rows` rows."""
        raise NotImplementedError

    def write(
        self, tensors: Sequence[models.Tensor], asked: Sequence[str], rows: int | None, shares: Shares
    ) -> steps.Steps[messages.Rows]:
        """The rows of an answer with the outputs that were `asked` for; `rows` is how many, None for a model without a
        batch dimension. Raises `errors.Uneven`, and `errors.UpstreamBroken` for what cannot be written."""
        raise NotImplementedError

    @property
    def info(self) -> models.ModelInfo:
        """See the class."""
        return self._info

    @info.setter
    def info(self, told: models.ModelInfo) -> None:
        self._info = told
        self._known: M | None = None
        self._has_rows = told.objection() != errors.NotBatched.NO_BATCH_DIMENSION
        # A row for a model without a batch dimension is a call of its own.
        self.max_batch_size = min(told.most_rows, self.most_rows) if self._has_rows else 1

    @property
    def model(self) -> M:
        """What is known of the model; raises as `understand` does."""
        if self._known is None:
            self._known = self.understand(self._info, self._has_rows)
        return self._known

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """Decode a body by the model's metadata. Nothing raises `errors.Unbatchable`."""
        return steps.at_once(self.parse_in_steps(body, max_rows))

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        asked = yield from self.read(body, max_rows)
        return Payload(self._name, asked, self._has_rows, self.max_batch_size)

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """Join the parts' bytes, input by input."""
        ranges: list[tuple[Payload, int, int]] = [(part.request.payload, part.start, part.stop) for part in parts]
        first, shares = ranges[0][0], [(payload.response_format, stop - start) for payload, start, stop in ranges]
        if first.rule and self._on_part is not None:
            interface.count_parts(first.rule, parts, self._on_part)
        outputs, rows = first.outputs, sum([size for _, size in shares]) if first.has_rows else None
        before = first.before if rows is None else (rows,)
        tensors = []
        for place, column in enumerate(first.columns):
            data = b"".join([payload.columns[place].cut(start, stop) for payload, start, stop in ranges])
            tensors.append(models.Tensor(column.name, column.datatype, (*before, *column.shape), data))
        to, headers, body = self._transport.write_request(batch_id, self._name, tensors, outputs)
        return interface.UpstreamRequest(to, headers, body, functools.partial(self._read, outputs, rows, shares))

    def _read(
        self, outputs: Sequence[str], rows: int | None, shares: Shares, reply: interface.UpstreamResponse
    ) -> steps.Steps[interface.BatchPredictions]:
        try:
            tensors = yield from self._transport.read_answer(reply)
            found = yield from self.write(tensors, outputs, rows, shares)
        except errors.Uneven:
            self.max_batch_size = 1
            raise
        return interface.BatchPredictions(self.list_name, found)
