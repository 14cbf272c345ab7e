"""OpenAI's embeddings requests for one model of a predictor that speaks only v2, joined as tensors.

Whether a caller wants numbers or base64 is no part of the batch key: both forms are written from the same rows.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps
from carpool_sidecar.protocols.tensors_from_embeddings import answers, requests, signatures
from carpool_sidecar.protocols.tensors_from_v1 import Transport, columns, values


@dataclass(slots=True)
class Payload:
    """One request, decoded: `column` has its texts or token ids. `most` is the codec's `max_batch_size` then.

    Without `has_rows` the one row goes in a tensor whose first dimensions are `before`.
    """

    model: models.ModelName
    column: columns.Column
    before: columns.Shape
    has_rows: bool
    most: int
    output: str | None
    response_format: answers.Form

    content: ClassVar[None] = None  # the body is not kept
    row_pattern: ClassVar[None] = None  # the key has the shape

    @property
    def row_count(self) -> int:
        """Implements `interface.Payload`."""
        return self.column.rows

    @property
    def key(self) -> Hashable:
        """The model, which the path does not name, what its tensor is, and how many rows go together."""
        return (self.model, self.output, self.before, self.has_rows, self.most, self.column.key)

    def row_sizes(self, start: int, stop: int) -> list[int]:
        """As they go to the predictor."""
        return self.column.sizes(start, stop)

    def row_lengths(self, start: int, stop: int) -> list[int]:
        """Token ids of each row; 1 for a text."""
        return [self.column.elements] * (stop - start)


class Codec:
    """The codec of one model; `info` may be replaced when the predictor tells anew.

    `output` is the name of the output to take, of models that have one of that name. An answer whose output does not
    have the batch's rows makes texts travel alone until the predictor tells anew.
    """

    # State: the signature, and the info that it is of; the info that turned out to be wrong about rows.
    def __init__(self, name: models.ModelName, info: models.ModelInfo, transport: Transport, output: str = "") -> None:
        self.info = info
        self._name = name
        self._transport = transport
        self._wanted = output
        self._signature: signatures.Signature | None = None
        self._read_for: models.ModelInfo | None = None
        self._uneven: models.ModelInfo | None = None

    large = 64 * 1024

    @property
    def max_batch_size(self) -> int:
        """A text for a model without a batch dimension is a call of its own."""
        return self.info.most_rows if self._has_rows and self._uneven is not self.info else 1

    @property
    def _has_rows(self) -> bool:
        return self.info.objection() != errors.NotBatched.NO_BATCH_DIMENSION

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """Decode a body by the model's metadata. Nothing raises `errors.Unbatchable`."""
        return steps.at_once(self.parse_in_steps(body, max_rows))

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        asked = yield from requests.read(body, max_rows)
        signature = self._signature
        if signature is None or self._read_for is not self.info:
            signature = self._signature = signatures.read(self.info, self._has_rows, self._wanted)
            self._read_for = self.info
        found = signature.tokens if asked.are_tokens else signature.texts
        if isinstance(found, str):
            raise errors.BadMember(found, "input")
        column = yield from values.read(requests.Items(found.spec, found.shape, asked.rows, asked.text))
        form = answers.Form(msgspec.json.encode(asked.model), asked.is_base64)
        return Payload(self._name, column, found.before, self._has_rows, self.max_batch_size, signature.output, form)

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """Join the parts' bytes."""
        first: Payload = parts[0].request.payload
        column = first.column
        data = b"".join([part.request.payload.column.cut(part.start, part.stop) for part in parts])
        sizes = [part.stop - part.start for part in parts]
        rows = sum(sizes) if first.has_rows else None
        before = first.before if rows is None else (rows,)
        tensor = models.Tensor(column.name, column.datatype, (*before, *column.shape), data)
        outputs = () if first.output is None else (first.output,)
        to, headers, body = self._transport.write_request(batch_id, self._name, [tensor], outputs)
        forms = [part.request.payload.response_format for part in parts]
        read = functools.partial(self._read, first.output, rows)
        in_steps = functools.partial(self._read_in_steps, first.output, rows, sizes, forms)
        return interface.UpstreamRequest(to, headers, body, read, in_steps)

    def _read(
        self, output: str | None, rows: int | None, reply: interface.UpstreamResponse
    ) -> interface.BatchPredictions:
        return interface.BatchPredictions(b"data", self._rows(self._transport.read_answer(reply), output, rows))

    def _read_in_steps(
        self,
        output: str | None,
        rows: int | None,
        sizes: Sequence[int],
        forms: Sequence[answers.Form],
        reply: interface.UpstreamResponse,
    ) -> steps.Steps[interface.BatchPredictions]:
        tensors = yield from self._transport.read_answer_in_steps(reply)
        found = self._rows(tensors, output, rows)
        yield from answers.write_in_steps(found, sizes, forms)
        return interface.BatchPredictions(b"data", found)

    def _rows(self, tensors: Sequence[models.Tensor], output: str | None, rows: int | None) -> answers.Rows:
        try:
            return answers.Rows(answers.read(tensors, output, rows), 0, {})
        except errors.Uneven:
            self._uneven = self.info
            raise
