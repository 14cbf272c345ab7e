"""One model's requests over gRPC: serialized ModelInferRequests become one, and its answer theirs.

Tensors are joined and cut as bytes. Requests with lists of numbers share batches with requests with raw tensors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

from carpool.scheduling import messages as scheduling
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps, v2
from carpool_sidecar.protocols.v2_grpc import messages, tensors


class Payload(interface.KeepsBody):
    """One parsed request."""

    # State: answered, the outputs that the first of its answers had, if it is cut.
    __slots__ = ("answered", "key", "message", "response_format", "row_count")

    def __init__(self, body: bytes, message: messages.Message, response_format: interface.ResponseFormat) -> None:
        self.body = body
        self.message = message
        self.key = message.template.signature.key
        self.row_count = message.template.rows
        self.response_format: interface.ResponseFormat | None = response_format
        self.answered: tuple[messages.Column, ...] | None = None

    def row_sizes(self, start: int, stop: int) -> Sequence[int]:
        """Bytes of all inputs."""
        return self.message.row_sizes(start, stop)

    def row_lengths(self, start: int, stop: int) -> Sequence[int]:
        """Elements of the input that has most of them."""
        return [self.message.template.signature.longest] * (stop - start)


class Rows:
    """The rows of an answer that is shared, of which this has `start` to `stop` (exclusive)."""

    __slots__ = ("message", "start", "stop")

    def __init__(self, message: messages.Message, start: int, stop: int) -> None:
        self.message = message
        self.start = start
        self.stop = stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, which: slice) -> Rows:
        start, stop, _ = which.indices(self.stop - self.start)
        return Rows(self.message, self.start + start, self.start + stop)

    def plain(self) -> list[v2.Data] | None:
        """An answer without an id that has these rows; None if they are not of one tensor in raw form of one size."""
        message = self.message
        signature = message.template.signature
        if message.is_listed or len(signature.columns) != 1 or signature.has_bytes:
            return None
        size, start = signature.row_size, self.start
        return [signature.plain_head(self.stop - start), message.raw[0][start * size : self.stop * size]]


class ResponseFormat:
    """One caller's id; `wants_lists` if its answer has lists of numbers although the predictor gave raw tensors."""

    __slots__ = ("_id", "_is_plain", "_wants_lists")

    def __init__(self, identity: bytes, wants_lists: bool) -> None:
        self._id = tensors.start(messages.ID, len(identity)) + identity if identity else b""
        self._wants_lists = wants_lists
        self._is_plain = not identity and not wants_lists

    def render(self, shares: Sequence[scheduling.Piece]) -> interface.RenderedResponse:
        """A ModelInferResponse."""
        first = shares[0].predictions
        if type(first) is interface.WholeResponse:
            return interface.RenderedResponse((), [first.response.body])
        if self._is_plain and len(shares) == 1 and (pieces := first.plain()) is not None:
            return interface.RenderedResponse((), pieces)
        runs: list[Rows] = [share.predictions for share in shares]
        signature, rows = first.message.template.signature, sum(map(len, runs))
        outputs = [
            [run.message.cut(index, run.start, run.stop) for run in runs] for index in range(len(signature.columns))
        ]
        is_listed = first.message.is_listed or self._wants_lists
        if is_listed and tensors.has_lists([column.datatype for column in signature.columns]):
            return interface.RenderedResponse((), [_listed(signature, rows, outputs), self._id])
        pieces = [signature.head(rows), self._id]
        for data in outputs:
            pieces.append(tensors.start(messages.RAW_OUTPUT, sum(map(len, data))))
            pieces += data
        return interface.RenderedResponse((), pieces)


_PLAIN = ResponseFormat(b"", False)


class Codec:
    """One model's codec; `info` is what the predictor tells of the model.

    `on_uneven` is called when an answer shows that batches of this model cannot be shared out.
    """

    # State: info, replaced when it is asked for again; what the readers remember.
    def __init__(self, info: models.ModelInfo, on_uneven: Callable[[], None]) -> None:
        self.info = info
        self._on_uneven = on_uneven
        self._requests = messages.Reader(messages.REQUEST)
        self._responses = messages.Reader(messages.RESPONSE)

    large = 128 * 1024

    @property
    def max_batch_size(self) -> int:
        return self.info.most_rows

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        return self.understand(body, messages.scan(body), max_rows)

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        return (yield from self.understand_in_steps(body, messages.scan(body), max_rows))

    def understand(self, body: bytes, found: messages.Fields, max_rows: int) -> Payload:
        """`parse` for a body that was scanned already."""
        template = self._template(found, max_rows)
        return self._read_payload(body, self._requests.read(found, template, is_bounded=True))

    def understand_in_steps(self, body: bytes, found: messages.Fields, max_rows: int) -> steps.Steps[Payload]:
        """The same for a large body."""
        template = self._template(found, max_rows)
        return self._read_payload(body, (yield from self._requests.read_in_steps(found, template, is_bounded=True)))

    def _template(self, found: messages.Fields, max_rows: int) -> messages.MessageTemplate:
        template = self._requests.template(found)
        if template.rows > max_rows:
            raise errors.PayloadTooLarge(f"the request has {template.rows} rows; at most {max_rows} are allowed")
        return template

    def _read_payload(self, body: bytes, message: messages.Message) -> Payload:
        # Triton, which alone tells of a batch size, answers in raw form whatever it was asked in.
        wants_lists = message.is_listed and self.info.max_batch_size is None
        return Payload(body, message, ResponseFormat(message.id, wants_lists))

    def payload(self, body: bytes, message: messages.Message) -> Payload:
        """The payload of a request that was recognised: it has raw tensors and no id (see `outlines`)."""
        return Payload(body, message, _PLAIN)

    def merge(self, batch_id: str, target: str, parts: Sequence[scheduling.Part]) -> interface.UpstreamRequest:
        rows = sum([part.stop - part.start for part in parts])
        first: Payload = parts[0].request.payload
        if len(parts) == 1 and rows == first.row_count:
            read = functools.partial(interface.read_whole, b"", rows)
            return interface.UpstreamRequest(target, (), [first.body], read)
        name = batch_id.encode()
        pieces: list[v2.Data] = [
            first.message.template.signature.head(rows),
            tensors.start(messages.ID, len(name)) + name,
        ]
        cut = [part.request.payload for part in parts if part.stop - part.start < part.request.payload.row_count]
        for index in range(len(first.message.raw)):
            if cut:
                data = [part.request.payload.message.cut(index, part.start, part.stop) for part in parts]
            else:
                data = [part.request.payload.message.raw[index] for part in parts]
            pieces.append(tensors.start(messages.RAW_INPUT, sum(map(len, data))))
            pieces += data
        read = functools.partial(self._read, rows, cut)
        return interface.UpstreamRequest(target, (), pieces, read, functools.partial(self._read_in_steps, rows, cut))

    def _read(
        self, rows: int, cut: Sequence[Payload], response: interface.UpstreamResponse
    ) -> interface.BatchPredictions:
        with self._saying_what_is_wrong():
            found = messages.scan(response.body, messages.RESPONSE)
            message = self._responses.read(found, self._responses.template(found))
        return self._shared_out(rows, cut, message)

    def _read_in_steps(
        self, rows: int, cut: Sequence[Payload], response: interface.UpstreamResponse
    ) -> steps.Steps[interface.BatchPredictions]:
        with self._saying_what_is_wrong():
            found = messages.scan(response.body, messages.RESPONSE)
            message = yield from self._responses.read_in_steps(found, self._responses.template(found))
        return self._shared_out(rows, cut, message)

    @contextlib.contextmanager
    def _saying_what_is_wrong(self) -> Iterator[None]:
        try:
            yield
        except errors.Unbatchable as verdict:
            raise self._uneven(f"its outputs have no rows that could be shared out ({verdict.reason})") from None
        except errors.BadRequest as error:
            raise errors.UpstreamBroken(f"the predictor's answer is broken: {error}") from None

    def _shared_out(self, rows: int, cut: Sequence[Payload], message: messages.Message) -> interface.BatchPredictions:
        template = message.template
        if template.rows != rows:
            raise self._uneven(f"{rows} rows were answered with {template.rows}")
        for payload in cut:
            if payload.answered not in (None, template.signature.columns):
                raise self._uneven("the parts of one request were answered with different outputs")
            payload.answered = template.signature.columns
        return interface.BatchPredictions(b"", Rows(message, 0, rows))

    def _uneven(self, words: str) -> errors.UpstreamBroken:
        self._on_uneven()
        return errors.Uneven(f"the predictor's answer cannot be shared out: {words}")


def _listed(signature: messages.BatchSignature, rows: int, outputs: Sequence[Sequence[v2.Data]]) -> bytes:
    """A ModelInferResponse with lists of numbers."""
    message = signature.message(rows)
    for output, column, data in zip(message.outputs, signature.columns, outputs, strict=True):
        output.contents.CopyFrom(tensors.to_contents(b"".join(data), column.datatype))
    listed: bytes = message.SerializeToString()
    return listed
