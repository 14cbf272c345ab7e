"""One model's requests over gRPC: serialized ModelInferRequests become one, and its answer theirs.

Tensors are joined and cut as bytes. Who sent lists of numbers shares batches with who sent raw tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_grpc import message_scan, templates, tensor_contents
from carpool_sidecar.protocols.v2_http import rules


class Payload(interface.KeepsBody):
    """One parsed request; `raw` are its inputs."""

    # State: what the first of its answers had, if it is cut.
    __slots__ = ("answered", "body", "ends", "key", "raw", "response_format", "row_count", "schema")

    def __init__(self, body: bytes, read: templates.Read, form: interface.ResponseFormat) -> None:
        self.body = body
        self.schema = read.layout.schema
        self.key = self.schema.key
        self.row_count = read.layout.rows
        self.raw = read.raw
        self.ends = read.ends
        self.response_format: interface.ResponseFormat | None = form
        self.answered: tuple[templates.Column, ...] | None = None

    def row_sizes(self, start: int, stop: int) -> Sequence[int]:
        """Part of `codec.Payload`: bytes of all inputs."""
        if not self.schema.has_bytes:
            return [self.schema.row_size] * (stop - start)
        columns = enumerate(self.schema.columns)
        sizes = [column.sizes(self.ends.get(index), start, stop) for index, column in columns]
        return [sum(row) for row in zip(*sizes, strict=True)]

    def row_lengths(self, start: int, stop: int) -> Sequence[int]:
        """Part of `codec.Payload`: elements of the input that has most of them."""
        return [self.schema.longest] * (stop - start)

    def cut(self, index: int, start: int, stop: int) -> bytes | memoryview:
        """Rows of one input."""
        if stop - start == self.row_count:
            return self.raw[index]
        return self.schema.columns[index].cut(self.raw[index], self.ends.get(index), start, stop)


class Verbatim:
    """The rows of an answer to one whole request: the message itself."""

    __slots__ = ("_rows", "body")

    def __init__(self, body: bytes, rows: int) -> None:
        self.body = body
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, which: slice) -> Verbatim:
        return self


class Rows:
    """The rows of an answer that is shared, of which this has `start` to `stop` (exclusive)."""

    __slots__ = ("_read", "is_listed", "schema", "start", "stop")

    def __init__(self, read: templates.Read, start: int, stop: int) -> None:
        self.schema = read.layout.schema
        self.is_listed = read.is_listed
        self.start = start
        self.stop = stop
        self._read = read

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, which: slice) -> Rows:
        start, stop, _ = which.indices(len(self))
        return Rows(self._read, self.start + start, self.start + stop)

    def cut(self, index: int) -> bytes | memoryview:
        """These rows of one output."""
        read = self._read
        return self.schema.columns[index].cut(read.raw[index], read.ends.get(index), self.start, self.stop)


class Form:
    """One caller's id; `wants_lists` if its answer has lists of numbers although the predictor gave raw tensors."""

    __slots__ = ("_id", "_wants_lists")

    def __init__(self, identity: bytes, wants_lists: bool) -> None:
        self._id = message_scan.start(message_scan.ID, len(identity)) + identity if identity else b""
        self._wants_lists = wants_lists

    def render(self, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
        """Part of `codec.Form`: a ModelInferResponse."""
        first = shares[0].predictions
        if type(first) is Verbatim:
            return interface.RenderedResponse((), [first.body])
        runs: list[Rows] = [share.predictions for share in shares]
        schema, rows = first.schema, sum(map(len, runs))
        columns = schema.columns
        tensors = [[run.cut(index) for run in runs] for index in range(len(columns))]
        if (first.is_listed or self._wants_lists) and tensor_contents.has_lists(
            [column.datatype for column in columns]
        ):
            return interface.RenderedResponse((), [_listed(schema, rows, tensors), self._id])
        pieces = [schema.head(rows), self._id]
        for data in tensors:
            pieces.append(message_scan.start(message_scan.RAW_OUTPUT, sum(map(len, data))))
            pieces += data
        return interface.RenderedResponse((), pieces)


class Codec:
    """Part of `codec.Codec`, for one model, of which `info` tells.

    `on_uneven` is called when an answer shows that batches of this model cannot be shared out.
    """

    # State: info, replaced when it is asked for again; what the readers remember.
    def __init__(self, info: models.ModelInfo, on_uneven: Callable[[], None]) -> None:
        self.info = info
        self._on_uneven = on_uneven
        self._requests = templates.Reader(templates.REQUEST, _check_request)
        self._answers = templates.Reader(templates.ANSWER)

    @property
    def max_batch_size(self) -> int:
        """Part of `codec.Codec`."""
        return self.info.most_rows

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """Part of `codec.Codec`."""
        return self.understand(body, scan(body), max_rows)

    def understand(self, body: bytes, found: message_scan.Fields, max_rows: int) -> Payload:
        """`parse` for a body that was scanned already."""
        try:
            layout = self._requests.layout(found)
            if layout.rows > max_rows:
                raise errors.PayloadTooLarge(f"the request has {layout.rows} rows; at most {max_rows} are allowed")
            read = self._requests.read(found, layout, is_bounded=True)
        except templates.Unfit as error:
            raise errors.Unbatchable(error.reason) from None
        except tensor_contents.Misfit as error:
            raise errors.BadRequest(str(error)) from None
        # Triton, which alone tells of a batch size, answers in raw form whatever it was asked in.
        return Payload(body, read, Form(read.id, read.is_listed and self.info.max_batch_size is None))

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """Part of `codec.Codec`."""
        rows = sum([part.stop - part.start for part in parts])
        first: Payload = parts[0].request.payload
        if len(parts) == 1 and rows == first.row_count:
            return interface.UpstreamRequest(target, (), [first.body], functools.partial(_read_whole, rows))
        name = batch_id.encode()
        pieces: list[bytes | memoryview] = [
            first.schema.head(rows),
            message_scan.start(message_scan.ID, len(name)) + name,
        ]
        for index in range(len(first.raw)):
            tensors = [part.request.payload.cut(index, part.start, part.stop) for part in parts]
            pieces.append(message_scan.start(message_scan.RAW_INPUT, sum(map(len, tensors))))
            pieces += tensors
        cut = [part.request.payload for part in parts if part.stop - part.start < part.request.payload.row_count]
        return interface.UpstreamRequest(target, (), pieces, functools.partial(self._read, rows, cut))

    def _read(self, rows: int, cut: Sequence[Payload], reply: interface.UpstreamResponse) -> interface.BatchPredictions:
        try:
            found = templates.ANSWER.scan(reply.body)
            read = self._answers.read(found, self._answers.layout(found))
        except templates.Unfit as error:
            raise self._uneven(f"its outputs have no rows that could be shared out ({error.reason})") from None
        except tensor_contents.Misfit as error:
            raise errors.UpstreamBroken(f"the predictor's answer is broken: {error}") from None
        schema = read.layout.schema
        if read.layout.rows != rows:
            raise self._uneven(f"{rows} rows were answered with {read.layout.rows}")
        for payload in cut:
            if payload.answered not in (None, schema.columns):
                raise self._uneven("the parts of one request were answered with different outputs")
            payload.answered = schema.columns
        return interface.BatchPredictions(b"", Rows(read, 0, rows))

    def _uneven(self, message: str) -> errors.UpstreamBroken:
        self._on_uneven()
        return errors.Uneven(f"the predictor's answer cannot be shared out: {message}")


def scan(body: bytes) -> message_scan.Fields:
    """Take a request apart; raises `errors.BadRequest` and `errors.Unbatchable`."""
    try:
        return templates.REQUEST.scan(body)
    except templates.Unfit as error:
        raise errors.Unbatchable(error.reason) from None
    except tensor_contents.Misfit as error:
        raise errors.BadRequest(str(error)) from None


def _read_whole(rows: int, reply: interface.UpstreamResponse) -> interface.BatchPredictions:
    return interface.BatchPredictions(b"", Verbatim(reply.body, rows))


def _check_request(request: Any, is_listed: bool) -> None:
    """Raises `layouts.Unfit` as `rules.check` says, and `contents.Misfit` for the shape of no tensor."""
    inputs = [
        rules.Tensor(each.name, each.datatype, tuple(each.shape), tuple(each.parameters), is_listed)
        for each in request.inputs
    ]
    sequence = {name: _value(request.parameters[name]) for name in rules.SEQUENCE if name in request.parameters}
    outputs = [rules.Wanted(each.name, tuple(each.parameters)) for each in request.outputs]
    try:
        for each in inputs:
            rules.check_shape(f"input {each.name[:200]!r}: the shape", each.shape)
        rules.check(inputs, sequence, outputs)
    except errors.Unbatchable as verdict:
        raise templates.Unfit(verdict.reason) from None
    except errors.BadRequest as error:
        raise tensor_contents.Misfit(str(error)) from None


def _value(parameter: Any) -> object:
    """What an InferParameter says; None if it says nothing."""
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _listed(schema: templates.Schema, rows: int, tensors: Sequence[Sequence[bytes | memoryview]]) -> bytes:
    """A ModelInferResponse with lists of numbers."""
    message = schema.message(rows)
    for output, column, data in zip(message.outputs, schema.columns, tensors, strict=True):
        output.contents.CopyFrom(tensor_contents.to_contents(b"".join(data), column.datatype))
    listed: bytes = message.SerializeToString()
    return listed
