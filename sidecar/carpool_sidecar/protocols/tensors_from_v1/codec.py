"""One codec for all requests that a predictor which speaks only v2 is asked in tensors.

What a request is, and how its answer is written, is a `Front`'s business: v1's is in `front`, that of OpenAI's
embeddings in `tensors_from_embeddings`. How tensors travel is a `Transport`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
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

    For a model without a batch dimension the one row goes in a tensor whose first dimensions are `before`.
    """

    columns: tuple[columns.Column, ...]
    outputs: tuple[str, ...] = ()
    before: columns.Shape = ()
    response_format: interface.ResponseFormat | None = None


Shares = Sequence[tuple[interface.ResponseFormat | None, int]]
"""How each caller of a batch wants its answer, and how many rows of it are its own."""


class Front(Protocol[M]):
    """The requests and answers of one protocol. `list_name` is that of the list in its answers."""

    list_name: bytes

    def understand(self, info: models.ModelInfo, has_rows: bool, /) -> M:
        """What is to be known of a model; raises `errors.BadRequest` for one that cannot be asked."""
        ...

    def read(self, body: bytes, max_rows: int, model: Callable[[], M], /) -> steps.Steps[Asked]:
        """A request; raises `errors.BadRequest`, and `errors.PayloadTooLarge` for more than `max_rows` rows."""
        ...

    def write(
        self, tensors: Sequence[models.Tensor], outputs: Sequence[str], rows: int | None, shares: Shares, /
    ) -> steps.Steps[messages.Rows]:
        """The rows of an answer; `rows` is how many, None for a model without a batch dimension.

        Raises `errors.Uneven`, and `errors.UpstreamBroken` for what cannot be written.
        """
        ...


@dataclass(slots=True)
class Payload:
    """One request, decoded. `most` is the codec's `max_batch_size` then."""

    model: models.ModelName
    asked: Asked
    has_rows: bool
    most: int

    content: ClassVar[None] = None  # the body is not kept
    row_pattern: ClassVar[None] = None  # the key has the shapes

    @property
    def columns(self) -> tuple[columns.Column, ...]:
        """One for each input that the request has."""
        return self.asked.columns

    @property
    def row_count(self) -> int:
        """Implements `interface.Payload`."""
        return self.asked.columns[0].rows

    @property
    def response_format(self) -> interface.ResponseFormat | None:
        """Implements `interface.Payload`."""
        return self.asked.response_format

    @property
    def key(self) -> Hashable:
        """The model, which the path need not name, its inputs and outputs that are asked for, and how many rows go
        together."""
        asked = self.asked
        return (
            self.model,
            asked.outputs,
            asked.before,
            self.has_rows,
            self.most,
            *[each.key for each in asked.columns],
        )

    def row_sizes(self, start: int, stop: int) -> list[int]:
        """As they go to the predictor."""
        return [sum(sizes) for sizes in zip(*(column.sizes(start, stop) for column in self.columns), strict=True)]

    def row_lengths(self, start: int, stop: int) -> list[int]:
        """Entries of the lists that rows are, the longest input's; 1 for a value."""
        return [max(column.elements for column in self.columns)] * (stop - start)


class Codec(Generic[M]):
    """The codec of one model; `info` may be replaced when the predictor tells anew.

    `on_uneven` is called when an answer's outputs do not have the batch's rows. From then on rows travel alone, until
    the predictor tells anew.
    """

    # State: what is known of the model, and the info that it is from; the info that turned out to be wrong about rows.
    def __init__(
        self,
        name: models.ModelName,
        info: models.ModelInfo,
        transport: Transport,
        front: Front[M],
        on_uneven: Callable[[], None],
    ) -> None:
        self.info = info
        self._name = name
        self._transport = transport
        self._front = front
        self._on_uneven = on_uneven
        self._known: tuple[models.ModelInfo, M] | None = None
        self._uneven: models.ModelInfo | None = None

    large = 64 * 1024

    @property
    def max_batch_size(self) -> int:
        """A row for a model without a batch dimension is a call of its own."""
        return self.info.most_rows if self._has_rows and self._uneven is not self.info else 1

    @property
    def _has_rows(self) -> bool:
        return self.info.objection() != errors.NotBatched.NO_BATCH_DIMENSION

    def _model(self) -> M:
        known = self._known
        if known is None or known[0] is not self.info:
            known = self._known = (self.info, self._front.understand(self.info, self._has_rows))
        return known[1]

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """Decode a body by the model's metadata. Nothing raises `errors.Unbatchable`."""
        return steps.at_once(self.parse_in_steps(body, max_rows))

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        asked = yield from self._front.read(body, max_rows, self._model)
        return Payload(self._name, asked, self._has_rows, self.max_batch_size)

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """Join the parts' bytes, input by input."""
        ranges: list[tuple[Payload, int, int]] = [(part.request.payload, part.start, part.stop) for part in parts]
        first, shares = ranges[0][0], [(payload.response_format, stop - start) for payload, start, stop in ranges]
        outputs, rows = first.asked.outputs, sum([size for _, size in shares]) if first.has_rows else None
        before = first.asked.before if rows is None else (rows,)
        tensors = []
        for place, column in enumerate(first.columns):
            data = b"".join([payload.columns[place].cut(start, stop) for payload, start, stop in ranges])
            tensors.append(models.Tensor(column.name, column.datatype, (*before, *column.shape), data))
        to, headers, body = self._transport.write_request(batch_id, self._name, tensors, outputs)
        in_steps = functools.partial(self._read, outputs, rows, shares)
        at_once = functools.partial(interface.read_at_once, in_steps)
        return interface.UpstreamRequest(to, headers, body, at_once, in_steps)

    def _read(
        self, outputs: Sequence[str], rows: int | None, shares: Shares, reply: interface.UpstreamResponse
    ) -> steps.Steps[interface.BatchPredictions]:
        try:
            tensors = yield from self._transport.read_answer(reply)
            found = yield from self._front.write(tensors, outputs, rows, shares)
        except errors.Uneven:
            self._uneven = self.info
            self._on_uneven()
            raise
        return interface.BatchPredictions(self._front.list_name, found)
