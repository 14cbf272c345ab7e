"""v1 requests for a model of a predictor that speaks only v2: joined as tensors, answered with its outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps, v2
from carpool_sidecar.protocols.tensors_from_v1 import columns, outputs, requests, values


class Transport(Protocol):
    """How tensors travel: `v2_http.tensors` or `v2_grpc.tensors`."""

    def write_request(
        self, batch_id: str, name: models.ModelName, tensors: Sequence[models.Tensor], outputs: Sequence[str] = (), /
    ) -> tuple[str, interface.Headers, interface.Pieces]:
        """Target, headers and body of a call with this id and these inputs, for these outputs; all if none is named."""
        ...

    def read_answer(self, reply: interface.UpstreamResponse, /) -> list[models.Tensor]:
        """The outputs in an answer; raises `errors.UpstreamBroken`."""
        ...

    def read_answer_in_steps(self, reply: interface.UpstreamResponse, /) -> steps.Steps[list[models.Tensor]]:
        """The same for a large answer."""
        ...


@dataclass(slots=True)
class Payload:
    """One request, decoded: a column for each input that it has. `most` is the codec's `max_batch_size` then."""

    columns: tuple[columns.Column, ...]
    row_count: int
    has_rows: bool
    most: int

    response_format: ClassVar[None] = None
    content: ClassVar[None] = None  # the body is not kept
    row_pattern: ClassVar[None] = None  # the key has the shapes

    @property
    def key(self) -> Hashable:
        """Which inputs there are, of what datatypes and shapes, and how many go together."""
        return (self.has_rows, self.most, *(column.key for column in self.columns))

    def row_sizes(self, start: int, stop: int) -> list[int]:
        """As they go to the predictor."""
        return [sum(sizes) for sizes in zip(*(column.sizes(start, stop) for column in self.columns), strict=True)]

    def row_lengths(self, start: int, stop: int) -> list[int]:
        """Entries of the lists that instances are, the longest input's; 1 for a value."""
        return [max(column.elements for column in self.columns)] * (stop - start)


class Codec:
    """The codec of one model; `info` may be replaced when the predictor tells anew.

    `on_uneven` is called when an answer's outputs do not have the batch's rows. From then on instances travel alone,
    until the predictor tells anew.
    """

    # State: the reader, and the info that it is for; the info that turned out to be wrong about rows.
    def __init__(
        self,
        name: models.ModelName,
        info: models.ModelInfo,
        transport: Transport,
        on_uneven: Callable[[], None] = lambda: None,
    ) -> None:
        self.info = info
        self._name = name
        self._transport = transport
        self._on_uneven = on_uneven
        self._reader: requests.Reader | None = None
        self._read_for: models.ModelInfo | None = None
        self._uneven: models.ModelInfo | None = None

    large = 64 * 1024

    @property
    def max_batch_size(self) -> int:
        """An instance for a model without a batch dimension is a call of its own."""
        return self.info.most_rows if self._has_rows and self._uneven is not self.info else 1

    @property
    def _has_rows(self) -> bool:
        return self.info.objection() != errors.NotBatched.NO_BATCH_DIMENSION

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """Decode a body by the model's metadata. Nothing raises `errors.Unbatchable`."""
        return steps.at_once(self.parse_in_steps(body, max_rows))

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        reader = self._reader
        if reader is None or self._read_for is not self.info:
            reader = self._reader = self._make_reader()
            self._read_for = self.info
        given = yield from reader.read(body, max_rows)
        found: tuple[columns.Column, ...] = ()
        for each in given:
            found += ((yield from values.read(each)),)
        return Payload(found, found[0].rows, self._has_rows, self.max_batch_size)

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """Join the parts' bytes, input by input."""
        ranges: list[tuple[Payload, int, int]] = [(part.request.payload, part.start, part.stop) for part in parts]
        first = ranges[0][0]
        rows = sum([stop - start for _, start, stop in ranges]) if first.has_rows else None
        tensors = []
        for place, column in enumerate(first.columns):
            data = b"".join([payload.columns[place].cut(start, stop) for payload, start, stop in ranges])
            shape = column.shape if rows is None else (rows, *column.shape)
            tensors.append(models.Tensor(column.name, column.datatype, shape, data))
        to, headers, body = self._transport.write_request(batch_id, self._name, tensors)
        read = functools.partial(self._read, rows)
        return interface.UpstreamRequest(to, headers, body, lambda reply: steps.at_once(read(reply)), read)

    def _read(self, rows: int | None, reply: interface.UpstreamResponse) -> steps.Steps[interface.BatchPredictions]:
        try:
            tensors = yield from self._transport.read_answer_in_steps(reply)
            found = yield from outputs.predictions(tensors, rows)
            return interface.BatchPredictions(b"predictions", found)
        except errors.Uneven:
            self._uneven = self.info
            self._on_uneven()
            raise

    def _make_reader(self) -> requests.Reader:
        """Raises `errors.BadRequest` if v1 requests cannot be made into calls of this model."""
        if self.info.is_stateful or self.info.is_decoupled:
            what = "keeps state between requests" if self.info.is_stateful else "answers in streams"
            raise errors.BadRequest(f"the model {what}, which the v1 protocol cannot ask for; use the v2 protocol")
        if not self.info.inputs:
            raise errors.BadRequest("the predictor does not tell of the model's inputs; use the v2 protocol")
        for spec in self.info.inputs:
            if spec.datatype not in v2.DATATYPES:
                raise errors.BadRequest(f"input {spec.name!r} has the datatype {spec.datatype}, which JSON cannot say")
        return requests.Reader(self.info.inputs, self._has_rows)
