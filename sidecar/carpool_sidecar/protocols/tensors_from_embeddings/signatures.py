"""How a v2 model takes texts and token ids, and which of its outputs are embeddings, by its metadata.

Texts go to the only BYTES input, one string for each row; token ids to the only input of integers with a list of them
for each row. The embeddings are the only output of floating point numbers with a list of them for each row, or the one
that the operator named. A model without a batch dimension is asked for one text at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from carpool_sidecar import errors
from carpool_sidecar.protocols import models, v2
from carpool_sidecar.protocols.tensors_from_v1 import columns

FLOATS = ("FP16", "BF16", "FP32", "FP64")
"""Datatypes of embeddings."""

_INTEGERS = tuple(name for name in v2.DATATYPES if "INT" in name)
_ONE = (1, models.ANY)  # what the metadata say of a dimension in which there is room for one


class Input(NamedTuple):
    """An input. `shape` is what one text, or one list of token ids, has in it.

    `before` are the dimensions before that in a call for a model that has no batch dimension.
    """

    spec: models.TensorSpec
    shape: columns.Shape
    before: columns.Shape = ()


class Signature(NamedTuple):
    """`texts` and `tokens` are the inputs for them, or why there is none. `output` is the name of the output that has
    the embeddings; None if the predictor does not tell of outputs."""

    texts: Input | str
    tokens: Input | str
    output: str | None


def read(info: models.ModelInfo, has_rows: bool, wanted: str = "") -> Signature:
    """The signature of a model; `wanted` is the name of the output to take from models that have one of that name.

    Raises `errors.BadMember` if the model cannot make embeddings.
    """
    if info.is_stateful or info.is_decoupled:
        what = "keeps state between requests" if info.is_stateful else "answers in streams"
        raise errors.BadMember(f"the model {what}, so it cannot be asked for embeddings", "model")
    if not info.inputs:
        raise errors.BadMember("the predictor does not tell of the model's inputs", "model")
    texts = _choose(info.inputs, "texts", ("BYTES",), "one BYTES input of shape [-1] or [-1,1]", has_rows)
    tokens = _choose(info.inputs, "token ids", _INTEGERS, "one integer input of shape [-1,-1]", has_rows)
    return Signature(texts, tokens, _choose_output(info.outputs, has_rows, wanted))


def _choose(
    inputs: Sequence[models.TensorSpec], what: str, datatypes: Sequence[str], needed: str, has_rows: bool
) -> Input | str:
    """The only input of these datatypes and of a shape that fits, or why there is none."""
    fit = fit_text if what == "texts" else _fit_tokens
    found = [made for spec in inputs if spec.datatype in datatypes and (made := fit(spec, has_rows)) is not None]
    if len(found) != 1:
        return f"the model takes no {what}: that needs exactly {needed}; its inputs: {describe(inputs)}"
    others = [spec for spec in inputs if spec is not found[0].spec and not spec.is_optional]
    if others:
        return f"the model takes no {what} alone: it needs other inputs as well: {describe(others)}"
    return found[0]


def fit_text(spec: models.TensorSpec, has_rows: bool) -> Input | None:
    """An input with one string for each row; None if this one has room for others."""
    dimensions = spec.shape[1:] if has_rows else spec.shape
    if any(size not in _ONE for size in dimensions) or len(dimensions) > (1 if has_rows else 2):
        return None
    ones = (1,) * len(dimensions)
    return Input(spec, ones) if has_rows else Input(spec, (), ones)


def _fit_tokens(spec: models.TensorSpec, has_rows: bool) -> Input | None:
    dimensions = spec.shape[1:] if has_rows else spec.shape
    if not has_rows and len(dimensions) == 2 and dimensions[0] in _ONE:
        return Input(spec, dimensions[1:], (1,))
    return Input(spec, dimensions) if len(dimensions) == 1 else None


def _choose_output(outputs: Sequence[models.TensorSpec], has_rows: bool, wanted: str) -> str | None:
    fitting = [spec for spec in outputs if spec.datatype in FLOATS and _has_vectors(spec.shape, has_rows)]
    named = [spec for spec in outputs if spec.name == wanted]
    found = named or fitting
    if len(found) == 1 and found[0] in fitting:
        return found[0].name
    if not outputs:
        return wanted or None
    told = describe(outputs)
    if named:
        raise errors.BadMember(f"the model's output {wanted!r} has no embeddings; its outputs: {told}", "model")
    if fitting:
        told = describe(fitting)
        raise errors.BadMember(
            f"the model has several outputs that may be embeddings: {told}; --embeddings-output must name one", "model"
        )
    raise errors.BadMember(
        f"the model has no embeddings: that needs an output of {', '.join(FLOATS)} of shape [-1,-1]; "
        f"its outputs: {told}",
        "model",
    )


def _has_vectors(shape: columns.Shape, has_rows: bool) -> bool:
    if has_rows:
        return len(shape) == 2
    return len(shape) == 1 or (len(shape) == 2 and shape[0] in _ONE)


def describe(specs: Sequence[models.TensorSpec]) -> str:
    """Tensors in words."""
    return ", ".join(f"{spec.name} ({spec.datatype} [{','.join(map(str, spec.shape))}])" for spec in specs)
