"""A model of texts and token ids, whose embeddings tell what it was given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from carpool.scheduling import messages
from carpool_sidecar.protocols import interface as codecs
from carpool_sidecar.protocols import models, v2
from carpool_sidecar.protocols.tensors_from_embeddings import front
from carpool_sidecar.protocols.tensors_from_v1 import codec
from tests.protocols.tensors_from_v1.model import Answer, Part, Request, Transport

TEXT = ("text", "BYTES", (-1, 1))
TOKENS = ("ids", "INT64", (-1, -1))
VECTORS = ("vectors", "FP32", (-1, 2))
HIDDEN = ("hidden", "FP32", (-1, -1, 2))


def vectors_of(tensors: Sequence[models.Tensor]) -> list[models.Tensor]:
    """The length of each text and its first byte; of token ids, how many they are and their sum."""
    (tensor,) = tensors
    if tensor.datatype == v2.BYTES:
        texts = list(v2.elements(tensor.data))
        rows = [[len(text), text[0] if text else 0] for text in texts]
    else:
        ids = np.frombuffer(tensor.data, "<i8").reshape(-1, tensor.shape[-1])
        rows = [[len(row), int(row.sum())] for row in ids]
    return [floats(rows)]


def floats(rows: Any, datatype: str = "FP32", name: str = "vectors") -> models.Tensor:
    """An output with these rows; BF16 are given as their bits."""
    dtype = {"FP16": "<f2", "BF16": "<u2", "FP32": "<f4", "FP64": "<f8", "INT32": "<i4"}[datatype]
    array = np.array(rows, dtype)
    return models.Tensor(name, datatype, array.shape, array.tobytes())


class Embedder:
    """A codec with its transport. Tensors are names, datatypes, shapes, and whether they are optional."""

    def __init__(
        self,
        *inputs: tuple[Any, ...],
        outputs: Sequence[tuple[Any, ...]] = (VECTORS,),
        most: int | None = 64,
        answer: Answer = vectors_of,
        output: str = "",
        name: str = "m",
    ) -> None:
        ins, outs = ([models.TensorSpec(*each) for each in specs] for specs in (inputs or (TEXT,), outputs))
        self.transport = Transport(answer)
        info = models.ModelInfo(tuple(ins), tuple(outs), most)
        self.codec = front.Codec(models.ModelName(name), info, self.transport, output)

    def ask(self, what: Any, max_rows: int = 1000, **members: Any) -> codec.Payload:
        return self.parse({"model": "m", "input": what, **members}, max_rows)

    def parse(self, body: Any, max_rows: int = 1000) -> codec.Payload:
        return self.codec.parse(body if isinstance(body, bytes) else json.dumps(body).encode(), max_rows)

    def call(self, *parts: tuple[codec.Payload, int, int]) -> list[messages.Piece]:
        """Each part's share of one call."""
        joined: Any = [Part(Request(payload), start, stop) for payload, start, stop in parts]  # type: ignore[arg-type]
        outgoing = self.codec.merge("the-batch", "/v1", joined)
        answer = outgoing.read(codecs.UpstreamResponse(b"".join(outgoing.body), {}))
        shares, at = [], 0
        for _, start, stop in parts:
            shares.append(messages.Piece(start, "the-batch", answer.rows[at : at + stop - start]))
            at += stop - start
        assert len(answer.rows) == at
        return shares

    def answers(self, *payloads: codec.Payload) -> list[Any]:
        """What the callers of these requests are told, which travel whole in one call."""
        shares = self.call(*((payload, 0, payload.row_count) for payload in payloads))
        return [tell(payload, share) for payload, share in zip(payloads, shares, strict=True)]

    def embed(self, what: Any, **members: Any) -> Any:
        """The embeddings that a caller gets who is alone."""
        (answer,) = self.answers(self.ask(what, **members))
        return [each["embedding"] for each in answer["data"]]


def tell(payload: codec.Payload, *shares: messages.Piece) -> Any:
    """The body of an answer."""
    headers, body = payload.response_format.render(shares)
    assert headers == (("Content-Type", "application/json"),)
    return json.loads(b"".join(body))
