"""A model whose outputs are its inputs, and the way to it: what is sent is kept, what comes back can be chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from carpool_sidecar.protocols import interface as codecs
from carpool_sidecar.protocols import models, steps, tensors_from_v1
from carpool_sidecar.protocols.tensors_from_v1 import codec

NAME = models.ModelName("m", "1")
Answer = Callable[[Sequence[models.Tensor]], list[models.Tensor]]


def identity(tensors: Sequence[models.Tensor]) -> list[models.Tensor]:
    return list(tensors)


class Transport:
    """Carries tensors in memory: a call's body is its number."""

    def __init__(self, answer: Answer = identity) -> None:
        self.answer = answer
        self.calls: list[Sequence[models.Tensor]] = []
        self.asked: list[Sequence[str]] = []

    def write_request(
        self, batch_id: str, name: models.ModelName, tensors: Sequence[models.Tensor], outputs: Sequence[str] = ()
    ) -> tuple[str, codecs.Headers, codecs.Pieces]:
        self.calls.append(tensors)
        self.asked.append(outputs)
        return f"{name.path}/infer", (("X", "y"),), [b"%d" % (len(self.calls) - 1)]

    def read_answer(self, reply: codecs.UpstreamResponse) -> steps.Steps[list[models.Tensor]]:
        yield
        return self.answer(self.calls[int(reply.body)])


class Request(NamedTuple):
    payload: codec.Payload


class Part(NamedTuple):
    """What the core makes of a request's rows."""

    request: Any
    start: int
    stop: int


class Model:
    """A codec with its transport. `inputs` are names, datatypes, shapes, and whether they are optional."""

    def __init__(self, *inputs: tuple[Any, ...], most: int | None = 64, answer: Answer = identity) -> None:
        specs = tuple(models.TensorSpec(*each) for each in inputs)
        self.transport = Transport(answer)
        self.codec = tensors_from_v1.Codec(NAME, models.ModelInfo(specs, (), most), self.transport)

    def parse(self, body: Any, max_rows: int = 1000) -> codec.Payload:
        return self.codec.parse(body if isinstance(body, bytes) else json.dumps(body).encode(), max_rows)

    def instances(self, *instances: Any) -> codec.Payload:
        return self.parse({"instances": instances})

    def call(self, *parts: tuple[codec.Payload, int, int]) -> list[bytes]:
        """Predictions for the parts, sent together."""
        outgoing = self.codec.merge("the-batch", "/v1", [Part(Request(payload), *rows) for payload, *rows in parts])
        answer = outgoing.read(codecs.UpstreamResponse(b"".join(outgoing.body), {}))
        assert answer.list_name == b"predictions"
        return [bytes(row) for row in answer.rows[:]]

    def predict(self, *instances: Any) -> Any:
        """What is sent for these instances alone comes back as predictions."""
        payload = self.instances(*instances)
        return json.loads(b"[%b]" % b",".join(self.call((payload, 0, payload.row_count))))
