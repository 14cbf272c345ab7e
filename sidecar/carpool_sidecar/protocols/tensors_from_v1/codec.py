"""v1 requests for a model of a predictor that speaks only v2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.tensors_from_v1 import columns, numbers, predictions, requests, strings


class Transport(Protocol):
    """How tensors travel: `wire.v2.binary` or `rpc.messages`."""

    def write_request(
        self, batch_id: str, name: models.ModelName, tensors: Sequence[models.Tensor], /
    ) -> tuple[str, interface.Headers, interface.Pieces]:
        """Target, headers and body of a call with this id and these inputs."""
        ...

    def read_answer(self, reply: interface.UpstreamResponse, /) -> list[models.Tensor]:
        """The outputs in an answer; raises `errors.UpstreamBroken`."""
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
        """Part of `codec.Payload`: which inputs there are, of what datatypes and shapes, and how many go together."""
        return (self.has_rows, self.most, *(column.key for column in self.columns))

    def row_sizes(self, start: int, stop: int) -> list[int]:
        """Part of `codec.Payload`: as they go to the predictor."""
        return [sum(sizes) for sizes in zip(*(column.sizes(start, stop) for column in self.columns), strict=True)]

    def row_lengths(self, start: int, stop: int) -> list[int]:
        """Part of `codec.Payload`: entries of the lists that instances are, the longest input's; 1 for a value."""
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

    @property
    def max_batch_size(self) -> int:
        """Part of `codec.Codec`; an instance for a model without a batch dimension is a call of its own."""
        return self.info.most_rows if self._has_rows and self._uneven is not self.info else 1

    @property
    def _has_rows(self) -> bool:
        return self.info.objection() != "no_batch_dimension"

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """Part of `codec.Codec`: decode a body by the model's metadata. Nothing raises `errors.Unbatchable`."""
        reader = self._reader
        if reader is None or self._read_for is not self.info:
            reader = self._reader = self._make_reader()
            self._read_for = self.info
        found = tuple(map(_read, reader.read(body, max_rows)))
        return Payload(found, found[0].rows, self._has_rows, self.max_batch_size)

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """Part of `codec.Codec`: join the parts' bytes, input by input."""
        rows = sum([stop - start for _, start, stop in _ranges(parts)])
        first: Payload = parts[0].request.payload
        tensors = [_join(place, parts, rows if first.has_rows else None) for place in range(len(first.columns))]
        to, headers, body = self._transport.write_request(batch_id, self._name, tensors)
        read = functools.partial(self._read, rows if first.has_rows else None)
        return interface.UpstreamRequest(to, headers, body, read)

    def _read(self, rows: int | None, reply: interface.UpstreamResponse) -> interface.BatchPredictions:
        try:
            return interface.BatchPredictions(
                b"predictions", predictions.write(self._transport.read_answer(reply), rows)
            )
        except predictions.Uneven:
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
            if spec.datatype != "BYTES" and spec.datatype not in numbers.DATATYPES:
                raise errors.BadRequest(f"input {spec.name!r} has the datatype {spec.datatype}, which JSON cannot say")
        return requests.Reader(self.info.inputs, self._has_rows)


def _read(values: columns.Values) -> columns.Column:
    return strings.read(values) if values.spec.datatype == "BYTES" else numbers.read(values)


def _ranges(parts: Sequence[messages.Part]) -> list[tuple[Payload, int, int]]:
    return [(part.request.payload, part.start, part.stop) for part in parts]


def _join(place: int, parts: Sequence[messages.Part], rows: int | None) -> models.Tensor:
    ranges = _ranges(parts)
    column = ranges[0][0].columns[place]
    pieces = [payload.columns[place].cut(start, stop) for payload, start, stop in ranges]
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    shape = column.shape if rows is None else (rows, *column.shape)
    return models.Tensor(column.name, column.datatype, shape, data)
