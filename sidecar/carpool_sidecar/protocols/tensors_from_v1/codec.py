"""v1 requests for a model of a predictor that speaks only v2, and output tensors as v1 predictions.

A prediction is the one output's row, or an object of rows by the outputs' names. Floats are written with as many
digits as they need to come back the same in their own precision; NaN and infinities are refused, as JSON has none.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, json_rows, models, v2
from carpool_sidecar.protocols.tensors_from_v1 import columns, requests, values


class Transport(Protocol):
    """How tensors travel: `v2_http.tensors` or `v2_grpc.tensors`."""

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

    @property
    def max_batch_size(self) -> int:
        """An instance for a model without a batch dimension is a call of its own."""
        return self.info.most_rows if self._has_rows and self._uneven is not self.info else 1

    @property
    def _has_rows(self) -> bool:
        return self.info.objection() != errors.NotBatched.NO_BATCH_DIMENSION

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """Decode a body by the model's metadata. Nothing raises `errors.Unbatchable`."""
        reader = self._reader
        if reader is None or self._read_for is not self.info:
            reader = self._reader = self._make_reader()
            self._read_for = self.info
        found = tuple(map(values.read, reader.read(body, max_rows)))
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
        return interface.UpstreamRequest(to, headers, body, functools.partial(self._read, rows))

    def _read(self, rows: int | None, reply: interface.UpstreamResponse) -> interface.BatchPredictions:
        try:
            return interface.BatchPredictions(b"predictions", _predictions(self._transport.read_answer(reply), rows))
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


# --- predictions ------------------------------------------------------------------------------------------------


def _predictions(tensors: Sequence[models.Tensor], rows: int | None) -> Sequence[bytes | msgspec.Raw]:
    """The predictions for `rows` instances; for one whose outputs have no batch dimension, if that is None.

    Raises `errors.Uneven`, and `errors.UpstreamBroken` for anything else that cannot be written.
    """
    if not tensors:
        raise errors.UpstreamBroken("the predictor's answer has no outputs")
    written = [_rows(tensor, rows) for tensor in tensors]
    if len(written) == 1:
        return written[0]
    heads = [b"%b:" % msgspec.json.encode(tensor.name) for tensor in tensors]
    return [b"{%b}" % b",".join(map(b"".join, zip(heads, row, strict=True))) for row in zip(*written, strict=True)]


def _rows(tensor: models.Tensor, rows: int | None) -> Sequence[bytes | msgspec.Raw]:
    if rows is None:
        return [_text(tensor, tensor.shape)]
    if not tensor.shape or tensor.shape[0] != rows:
        raise errors.Uneven(
            f"the predictor's output {tensor.name!r} has the shape {list(tensor.shape)}, which is not {rows} rows"
        )
    return json_rows.LIST.decode(_text(tensor, tensor.shape))


def _text(tensor: models.Tensor, shape: tuple[int, ...]) -> bytes:
    if tensor.datatype == v2.BYTES:
        return _text_of_strings(tensor, shape)
    if tensor.datatype not in v2.DATATYPES:
        raise errors.UpstreamBroken(f"the predictor's output {tensor.name!r} is of datatype {tensor.datatype!r}")
    array = _array(tensor)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise errors.UpstreamBroken(f"the predictor's output {tensor.name!r} has NaN or infinities, which JSON has not")
    if not shape:
        return (
            msgspec.json.encode(array.item()) if array.dtype.kind != "f" else orjson.dumps(array, option=_NUMPY)[1:-1]
        )
    return orjson.dumps(array.reshape(shape), option=_NUMPY)


_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def _array(tensor: models.Tensor) -> npt.NDArray[Any]:
    """The values in one dimension, of a type that numpy and orjson know."""
    dtype = np.dtype(values.dtype_of(tensor.datatype))
    if len(tensor.data) != math.prod(tensor.shape) * dtype.itemsize:
        raise _wrong_size(tensor, len(tensor.data) / dtype.itemsize)
    array: npt.NDArray[Any] = np.frombuffer(tensor.data, dtype)
    if tensor.datatype == "BF16":
        return (array.astype("<u4") << 16).view("<f4")
    return array.view(np.uint8) != 0 if tensor.datatype == "BOOL" else np.require(array, requirements="A")


def _text_of_strings(tensor: models.Tensor, shape: tuple[int, ...]) -> bytes:
    count = math.prod(shape)
    if v2.row_ends(tensor.data, count, 1) is None:
        raise errors.UpstreamBroken(
            f"the predictor's output {tensor.name!r} does not have the {count} strings of its shape"
        )
    elements = list(map(_string, v2.elements(tensor.data)))
    nested = np.empty(len(elements), object)
    nested[:] = elements
    return msgspec.json.encode(nested.reshape(shape).tolist())


def _wrong_size(tensor: models.Tensor, given: float) -> errors.UpstreamBroken:
    shape = list(tensor.shape)
    return errors.UpstreamBroken(f"the predictor's output {tensor.name!r} of shape {shape} has {given:g} values")


def _string(element: bytes) -> Any:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(element).decode()}
