"""Embeddings of a batch, and each caller's share of them as OpenAI's clients read it.

Numbers have as many digits as they need to come back the same in their own precision. In base64 they are FP32,
little-endian. NaN and infinities are an error of the caller whose text they belong to, whichever form it wants: JSON
has none, and no distance to such a vector means anything. How many tokens the texts had is not known, so the usage
says 0.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import orjson

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps
from carpool_sidecar.protocols.tensors_from_embeddings import signatures
from carpool_sidecar.protocols.tensors_from_v1 import codec, outputs

Vectors = npt.NDArray[Any]
"""One embedding in each row."""

_HEADERS: interface.Headers = (("Content-Type", "application/json"),)
_ROW = b'%b{"object":"embedding","index":%d,"embedding":'
_END = b'],"model":%b,"usage":{"prompt_tokens":0,"total_tokens":0}}'
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


_GROUP = 64 * 1024  # bytes of embeddings that are written in one step


class Rows:
    """Embeddings of a batch from row `start` on. `written` are those that callers get as they are: by what they want,
    base64 or not, and by the row in the batch."""

    __slots__ = ("start", "vectors", "written")

    def __init__(self, vectors: Vectors, start: int, written: dict[tuple[bool, int], bytes]) -> None:
        self.vectors = vectors
        self.start = start
        self.written = written

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, which: slice) -> Rows:
        start, stop, _ = which.indices(len(self.vectors))
        return Rows(self.vectors[start:stop], self.start + start, self.written)


def write(rows: Rows, shares: codec.Shares) -> steps.Steps[None]:
    """Write the embeddings of callers, so that nothing is left to do but to join them."""
    vectors, written = rows.vectors, rows.written
    group, stop = max(1, len(vectors) * _GROUP // max(1, vectors.nbytes)), 0
    for each, size in shares:
        form, start, stop = cast(Form, each), stop, stop + size
        for first in range(start, stop, group):
            some = form.precise(vectors[first : min(stop, first + group)])
            if np.isfinite(some).all():  # else `render` finds out whose that is
                for row, vector in enumerate(some, first):
                    written[form.is_base64, row] = form.write(vector)
            yield


class Form(NamedTuple):
    """How one caller wants its embeddings; `model` is the name that it gave, as JSON."""

    model: bytes
    is_base64: bool

    def render(self, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
        """Raises `errors.UpstreamBroken` for embeddings that cannot be written or do not go together."""
        mine: list[Rows] = [share.predictions for share in shares]
        if len({(each.vectors.dtype, each.vectors.shape[1]) for each in mine}) > 1:
            raise errors.UpstreamBroken("the predictor's answers to parts of the request do not go together")
        body: list[bytes] = []
        place, before = 0, b'{"object":"list","data":['
        for rows in mine:
            for text in self._texts(rows, place):
                body += (_ROW % (before, place), text)
                place, before = place + 1, b"},"
        return interface.RenderedResponse(_HEADERS, (*body, b"}" if place else before, _END % self.model))

    def _texts(self, rows: Rows, place: int) -> Sequence[bytes]:
        """The rows as JSON; the first of them is at this place in the answer."""
        start, written = rows.start, rows.written
        texts = [written.get((self.is_base64, row)) for row in range(start, start + len(rows))] if written else [None]
        if None not in texts:
            return cast(list[bytes], texts)
        found = self.precise(rows.vectors)
        is_finite = np.isfinite(found).all(axis=1)
        if not is_finite.all():
            place += int(np.argmin(is_finite))
            raise errors.UpstreamBroken(f"the embedding of item {place} of 'input' has NaN or infinities")
        return [self.write(vector) for vector in found]

    def precise(self, vectors: Vectors) -> Vectors:
        """Embeddings in the precision that the caller gets."""
        if not self.is_base64:
            return vectors
        with np.errstate(over="ignore"):
            return vectors.astype("<f4", copy=False)

    def write(self, vector: Vectors) -> bytes:
        """One of these as JSON."""
        return _base64(vector) if self.is_base64 else _numbers(vector)


def _numbers(row: Vectors) -> bytes:
    return orjson.dumps(row, option=_NUMPY)


def _base64(row: Vectors) -> bytes:
    return b'"%b"' % base64.b64encode(row.tobytes())


def read(tensors: Sequence[models.Tensor], output: str | None, rows: int | None) -> Vectors:
    """The embeddings in an answer: of `rows` texts, or of one if the model has no batch dimension (None).

    `output` is the name of the output that has them; None: there has to be only one that may. Raises `errors.Uneven`,
    and `errors.UpstreamBroken` for anything else that is wrong.
    """
    tensor = _find(tensors, output)
    if tensor.datatype not in signatures.FLOATS:
        raise errors.UpstreamBroken(f"the predictor's output {tensor.name!r} is of datatype {tensor.datatype!r}")
    shape = tensor.shape
    if rows is None and len(shape) == 1:
        shape = (1, *shape)
    if len(shape) != 2:
        raise errors.UpstreamBroken(
            f"the predictor's output {tensor.name!r} has the shape {list(tensor.shape)}, which has no embeddings"
        )
    if shape[0] != (1 if rows is None else rows):
        raise errors.Uneven(
            f"the predictor's output {tensor.name!r} has the shape {list(tensor.shape)}, which is not {rows or 1} rows"
        )
    return outputs.array_of(tensor).reshape(shape)


def _find(tensors: Sequence[models.Tensor], output: str | None) -> models.Tensor:
    found = [tensor for tensor in tensors if tensor.name == output]
    if output is None:
        found = [tensor for tensor in tensors if tensor.datatype in signatures.FLOATS]
    if len(found) != 1:
        named = "with floating point numbers" if output is None else repr(output)
        given = ", ".join(tensor.name for tensor in tensors) or "none"
        raise errors.UpstreamBroken(f"the predictor's answer has {len(found)} outputs {named}; its outputs: {given}")
    return found[0]
