"""How a v2 model takes pairs of texts, and which of its outputs are scores, by its metadata.

Pairs go to the only BYTES input if it has room for two strings in each row, and else to two BYTES inputs with a string
in each row, of which the one that has `query` or `question` in its name is the query's, and else the first. The scores
are the only output of floating point numbers with one in each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from carpool_sidecar import errors
from carpool_sidecar.protocols import models, v2
from carpool_sidecar.protocols.tensors_from_embeddings import signatures

_PAIR = 2
_QUERY = ("query", "question")
_NEEDED = "one BYTES input of shape [-1,2], or two of shape [-1] or [-1,1]"


class Signature(NamedTuple):
    """`inputs` are one for both texts, or that of the query and that of the document.

    `before` are the dimensions of a call before those of a row, for a model that has no batch dimension. `output` is
    the name of the scores; None if the predictor does not tell of outputs.
    """

    inputs: tuple[models.TensorSpec, ...]
    before: tuple[int, ...]
    shape: tuple[int, ...]
    output: str | None


def read(info: models.ModelInfo, has_rows: bool) -> Signature:
    """The signature of a model; raises `errors.BadMember` if it cannot be asked for scores of pairs."""
    if info.is_stateful or info.is_decoupled:
        what = "keeps state between requests" if info.is_stateful else "answers in streams"
        raise errors.BadMember(f"the model {what}, so it cannot be asked for scores", "model")
    if not info.inputs:
        raise errors.BadMember("the predictor does not tell of the model's inputs", "model")
    needed = [spec for spec in info.inputs if not spec.is_optional]
    output = _output(info.outputs, has_rows)
    if all(spec.datatype == v2.BYTES for spec in needed):
        found = _one(needed, has_rows, output) or _two(needed, has_rows, output)
        if found is not None:
            return found
    told = signatures.describe(info.inputs)
    raise errors.BadMember(f"the model takes no pairs: that needs exactly {_NEEDED}; its inputs: {told}", "model")


def _one(needed: Sequence[models.TensorSpec], has_rows: bool, output: str | None) -> Signature | None:
    if len(needed) != 1:
        return None
    dimensions = needed[0].shape[1:] if has_rows else needed[0].shape
    if not dimensions or dimensions[-1] != _PAIR or any(size not in (1, models.ANY) for size in dimensions[:-1]):
        return None
    ones = (1,) * (len(dimensions) - 1)
    if has_rows:
        return Signature(tuple(needed), (), (*ones, _PAIR), output)
    return Signature(tuple(needed), ones, (_PAIR,), output)


def _two(needed: Sequence[models.TensorSpec], has_rows: bool, output: str | None) -> Signature | None:
    fit = [found for spec in needed if (found := signatures.fit_text(spec, has_rows)) is not None]
    if len(needed) != _PAIR or len({(each.shape, each.before) for each in fit}) != 1 or len(fit) != _PAIR:
        return None
    named = [spec for spec in needed if any(word in spec.name.lower() for word in _QUERY)]
    query = named[0] if len(named) == 1 else needed[0]
    document = next(spec for spec in needed if spec is not query)
    return Signature((query, document), fit[0].before, fit[0].shape, output)


def _output(outputs: Sequence[models.TensorSpec], has_rows: bool) -> str | None:
    if not outputs:
        return None
    ones = (1, models.ANY)
    found = [
        spec
        for spec in outputs
        if spec.datatype in signatures.FLOATS
        and all(size in ones for size in (spec.shape[1:] if has_rows else spec.shape))
    ]
    if len(found) == 1:
        return found[0].name
    told = signatures.describe(outputs)
    raise errors.BadMember(
        f"the model has {len(found)} outputs that may be scores: that needs exactly one of "
        f"{', '.join(signatures.FLOATS)} of shape [-1] or [-1,1]; its outputs: {told}",
        "model",
    )
