"""One model's requests over gRPC: serialized ModelInferRequests become one, and its answer theirs.

Tensors are joined and cut as bytes. Requests with lists of numbers share batches with requests with raw tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

from carpool.scheduling import messages as scheduling
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps, v2
from carpool_sidecar.protocols.v2_grpc import messages, tensors

_LARGE: Final = 128 * 1024  # bytes of a body that is understood in steps


class Payload(interface.Payload):
    """One parsed request."""

    # State: answered, the outputs that the first of its answers had, if it is cut.
    __slots__ = ("answered", "message")

    def __init__(self, body: bytes, message: messages.Message, response_format: interface.ResponseFormat) -> None:
        self.body = body
        self.message = message
        self.key = message.template.signature.key
        self.row_count = message.template.rows
        self.response_format = response_format
        self.answered: tuple[messages.Column, ...] | None = None

    def row_sizes(self, start: int, stop: int) -> Sequence[int]:
        """Bytes of all inputs."""
        return self.message.row_sizes(start, stop)

    def row_lengths(self, start: int, stop: int) -> Sequence[int]:
        """Elements of the input that has most of them."""
        return [self.message.template.signature.longest] * (stop - start)


Lists = dict[tuple[int, int, int], list[v2.Data]]
"""Pieces of lists (`tensors.listed`) by the output's number and its rows, from the second to the third."""


class Rows:
    """The rows of an answer that is shared, of which this has `start` to `stop` (exclusive).

    `lists` are those that were written beforehand.
    """

    __slots__ = ("lists", "message", "start", "stop")

    def __init__(self, message: messages.Message, start: int, stop: int, lists: Lists) -> None:
        self.message = message
        self.start = start
        self.stop = stop
        self.lists = lists

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, which: slice) -> Rows:
        start, stop, _ = which.indices(self.stop - self.start)
        return Rows(self.message, self.start + start, self.start + stop, self.lists)

    def listed(self, index: int) -> Sequence[v2.Data]:
        """One output as pieces of a list."""
        known = self.lists.get((index, self.start, self.stop))
        if known is not None:
            return known
        data, column = self.message.cut(index, self.start, self.stop), self.message.template.signature.columns[index]
        return steps.at_once(tensors.listed(data, column.datatype))

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

    __slots__ = ("_id", "_is_plain", "wants_lists")

    def __init__(self, identity: bytes, wants_lists: bool) -> None:
        self._id = tensors.start(messages.ID, len(identity)) + identity if identity else b""
        self.wants_lists = wants_lists
        self._is_plain = not identity and not wants_lists

    def render(self, shares: Sequence[scheduling.Piece]) -> interface.RenderedResponse:
        """Implements `interface.ResponseFormat`."""
        return interface.RenderedResponse((), self.pieces(shares))

    def pieces(self, shares: Sequence[scheduling.Piece]) -> list[v2.Data]:
        """A ModelInferResponse."""
        first = shares[0].predictions
        if type(first) is interface.WholeResponse:
            return [first.response.body]
        if self._is_plain and len(shares) == 1 and (plain := first.plain()) is not None:
            found: list[v2.Data] = plain
            return found
        runs: list[Rows] = [share.predictions for share in shares]
        signature, rows = first.message.template.signature, sum(map(len, runs))
        if _is_listed(first.message, self.wants_lists):
            return [*_listed(signature, rows, runs), self._id]
        pieces: list[v2.Data] = [signature.head(rows), self._id]
        for index in range(len(signature.columns)):
            data = [run.message.cut(index, run.start, run.stop) for run in runs]
            pieces.append(tensors.start(messages.RAW_OUTPUT, sum(map(len, data))))
            pieces += data
        return pieces


_PLAIN: Final = ResponseFormat(b"", False)


class Memory:
    """What is remembered of messages; models that share it share its limits, as callers choose models' names."""

    def __init__(self) -> None:
        self.requests = messages.Reader(messages.REQUEST)
        self.responses = messages.Reader(messages.RESPONSE)


class Codec:
    """One model's codec; `info` is what the predictor tells of the model.

    `on_uneven` is called when an answer shows that batches of this model cannot be shared out.
    """

    # State: info, replaced when it is asked for again.
    def __init__(self, info: models.ModelInfo, on_uneven: Callable[[], None], memory: Memory | None = None) -> None:
        memory = memory or Memory()
        self.info = info
        self.large = _LARGE
        self._on_uneven = on_uneven
        self._requests = memory.requests
        self._responses = memory.responses

    @property
    def max_batch_size(self) -> int:
        return self.info.most_rows

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        return steps.at_once(self.understand(body, messages.scan(body), max_rows))

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        return self.understand(body, messages.scan(body), max_rows)

    def understand(self, body: bytes, found: messages.Fields, max_rows: int) -> steps.Steps[Payload]:
        """`parse` for a body that was scanned already."""
        try:
            template = self._template(found, max_rows)
            message = yield from self._requests.read(found, template, is_bounded=True)
        except v2.Misfit as misfit:
            raise errors.Unbatchable(misfit.not_batched) from None
        # Triton, which alone tells of a batch size, answers in raw form whatever it was asked in.
        wants_lists = message.is_listed and self.info.max_batch_size is None
        return Payload(body, message, ResponseFormat(message.id, wants_lists))

    def _template(self, found: messages.Fields, max_rows: int) -> messages.MessageTemplate:
        if len(found.id) > v2.LONGEST_ID:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        template = self._requests.template(found)
        if template.rows > max_rows:
            raise errors.PayloadTooLarge(f"the request has {template.rows} rows; at most {max_rows} are allowed")
        return template

    def payload(self, body: bytes, message: messages.Message) -> Payload:
        """The payload of a request that was recognised: it has raw tensors and no id (see `outlines`)."""
        return Payload(body, message, _PLAIN)

    def merge(self, batch_id: str, target: str, parts: Sequence[scheduling.Part]) -> interface.UpstreamRequest:
        sizes = [part.stop - part.start for part in parts]
        rows = sum(sizes)
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
        forms = [part.request.payload.response_format for part in parts]
        in_steps = functools.partial(self._read, sizes, forms, cut)
        return interface.UpstreamRequest(target, (), pieces, in_steps)

    def _read(
        self,
        sizes: Sequence[int],
        forms: Sequence[ResponseFormat],
        cut: Sequence[Payload],
        response: interface.UpstreamResponse,
    ) -> steps.Steps[interface.BatchPredictions]:
        try:
            found = messages.scan(response.body, messages.RESPONSE)
            message = yield from self._responses.read(found, self._responses.template(found))
        except (errors.Unbatchable, errors.BadRequest) as error:
            raise self._unusable(error) from None
        self._check(sum(sizes), cut, message)
        lists: Lists = {}
        stop = 0
        for size, form in zip(sizes, forms, strict=True):
            start, stop = stop, stop + size
            if _is_listed(message, form.wants_lists):
                for index, column in enumerate(message.template.signature.columns):
                    data = message.cut(index, start, stop)
                    lists[index, start, stop] = yield from tensors.listed(data, column.datatype)
        return interface.BatchPredictions(b"", Rows(message, 0, sum(sizes), lists))

    def _unusable(self, error: errors.Unbatchable | errors.BadRequest) -> errors.UpstreamBroken:
        """What an answer is that cannot be read, for this reason."""
        if isinstance(error, errors.Unbatchable):
            return self._uneven(f"its outputs have no rows that could be shared out ({error.reason})")
        return errors.UpstreamBroken(f"the predictor's answer is broken: {error}")

    def _check(self, rows: int, cut: Sequence[Payload], message: messages.Message) -> None:
        """Whether an answer has the batch's rows, and what the other parts of its requests were answered with."""
        template = message.template
        if template.rows != rows:
            raise self._uneven(f"{rows} rows were answered with {template.rows}")
        for payload in cut:
            if payload.answered not in (None, template.signature.columns):
                raise self._uneven("the parts of one request were answered with different outputs")
            payload.answered = template.signature.columns

    def _uneven(self, words: str) -> errors.UpstreamBroken:
        self._on_uneven()
        return errors.Uneven(f"the predictor's answer cannot be shared out: {words}")


def _is_listed(message: messages.Message, is_wanted: bool) -> bool:
    """Whether an answer has lists, for a caller who wants them or not."""
    if not (is_wanted or message.is_listed):
        return False
    return tensors.has_lists([column.datatype for column in message.template.signature.columns])


def _listed(signature: messages.BatchSignature, rows: int, runs: Sequence[Rows]) -> list[v2.Data]:
    """A ModelInferResponse with lists of numbers, all but its id."""
    message = signature.message(rows)
    heads = [output.SerializeToString() for output in message.outputs]
    message.ClearField("outputs")
    pieces: list[v2.Data] = [message.SerializeToString()]
    for index, (head, column) in enumerate(zip(heads, signature.columns, strict=True)):
        contents = tensors.contents([piece for run in runs for piece in run.listed(index)], column.datatype)
        size = sum(map(len, contents))
        inner = head + tensors.start(messages.CONTENTS, size)
        pieces.append(tensors.start(messages.TENSORS, len(inner) + size) + inner)
        pieces += contents
    return pieces
