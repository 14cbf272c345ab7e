"""The models of the fake v2 server, and what Triton checks before it runs one.

The referee for the sidecar's own reading of the protocol, so it shares none of its code: arrays are numpy's, and each
refusal is what Triton 2.51 answers to the same (`e2e/triton` holds the two against each other).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.protocols.pairs import stand_ins

# BYTES are objects in numpy; BF16, which numpy has not, is told by its bits.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"), "UINT8": np.dtype("<u1"), "UINT16": np.dtype("<u2"), "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"), "INT8": np.dtype("<i1"), "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"), "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"), "BYTES": np.dtype(object),
}  # fmt: skip

Arrays = Mapping[str, np.ndarray]


class Refused(Exception):
    """An answer that is an error: `str()` are its words, `status` is HTTP's, `code` the name of gRPC's."""

    def __init__(self, words: str, status: int = 400, code: str = "INVALID_ARGUMENT") -> None:
        super().__init__(words)
        self.status = status
        self.code = code


class Spec(NamedTuple):
    """A tensor of a model, without its batch dimension; -1 is any size."""

    name: str
    datatype: str
    dims: tuple[int, ...] = (-1,)


class Tensor(NamedTuple):
    """A tensor of a request or an answer."""

    name: str
    datatype: str
    array: np.ndarray


class Question(NamedTuple):
    """One inference as it reaches the server, over either protocol. `outputs` is empty for all."""

    model: str
    version: str
    id: str
    inputs: Sequence[Tensor]
    outputs: Sequence[str] = ()
    parameters: Mapping[str, Any] = {}

    @property
    def rows(self) -> int:
        """Dimension 0 of the first input."""
        return int(self.inputs[0].array.shape[0]) if self.inputs and self.inputs[0].array.ndim else 0


class Model(NamedTuple):
    """`run` gets the arrays by input names, and the request's parameters."""

    name: str
    max_batch_size: int
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    run: Callable[[Arrays, Mapping[str, Any]], Arrays]
    is_optional: bool = False  # all inputs

    def shape(self, spec: Spec) -> list[int]:
        """The shape in the model's metadata."""
        return [-1, *spec.dims] if self.max_batch_size else list(spec.dims)

    def answer(self, question: Question) -> list[Tensor]:
        """The outputs, in the model's order. Raises `Refused`."""
        self._check(question)
        found = self.run({each.name: each.array for each in question.inputs}, question.parameters)
        wanted = set(question.outputs) or {spec.name for spec in self.outputs}
        return [
            Tensor(spec.name, spec.datatype, np.asarray(found[spec.name], DTYPES[spec.datatype]))
            for spec in self.outputs
            if spec.name in wanted and spec.name in found
        ]

    def _check(self, question: Question) -> None:
        who = f"[request id: {question.id or '<id_unknown>'}] "
        for name in question.outputs:
            if name not in {spec.name for spec in self.outputs}:
                raise Refused(f"unexpected inference output '{name}' for model '{self.name}'")
        for name in question.parameters:
            if name.startswith("triton_"):
                raise Refused("parameter keys starting with 'triton_' are reserved for Triton usage")
        self._check_names(who, [each.name for each in question.inputs])
        specs = {spec.name: spec for spec in self.inputs}
        for tensor in question.inputs:
            self._check_tensor(who, tensor, specs[tensor.name])
        self._check_batch(who, question)

    def _check_names(self, who: str, given: Sequence[str]) -> None:
        expected = [spec.name for spec in self.inputs]
        if len(set(given)) < len(given):
            raise Refused(f"{who}input '{max(given, key=given.count)}' already exists in request")
        missing = [] if self.is_optional else [name for name in expected if name not in given]
        if missing or len(given) > len(expected):
            unexpected = [name for name in given if name not in expected]
            if unexpected and len(given) == len(expected):
                raise Refused(f"unexpected inference input '{unexpected[0]}' for model '{self.name}'")
            counts = f"expected {len(expected)} inputs but got {len(given)} inputs for model '{self.name}'"
            raise Refused(f"{who}{counts}. Got input(s) {sorted(given)}, but missing required input(s) {missing}.")
        for name in given:
            if name not in expected:
                raise Refused(f"unexpected inference input '{name}' for model '{self.name}'")

    def _check_tensor(self, who: str, tensor: Tensor, spec: Spec) -> None:
        if tensor.datatype != spec.datatype:
            kinds = f"data-type is '{tensor.datatype}', but model '{self.name}' expects '{spec.datatype}'"
            raise Refused(f"{who}inference input '{spec.name}' {kinds}")
        expected, given = self.shape(spec), list(tensor.array.shape)
        fits = len(expected) == len(given) and all(
            want in (-1, have) for want, have in zip(expected, given, strict=True)
        )
        if not fits:
            shapes = f"Expected {_brackets(expected)}, got {_brackets(given)}"
            raise Refused(f"{who}unexpected shape for input '{spec.name}' for model '{self.name}'. {shapes}. ")

    def _check_batch(self, who: str, question: Question) -> None:
        if not self.max_batch_size or not question.inputs:
            return
        first = question.inputs[0]
        if any(len(each.array) != len(first.array) for each in question.inputs):
            raise Refused(f"{who}input '{first.name}' batch size does not match other inputs for '{self.name}'")
        if question.rows > self.max_batch_size:
            raise Refused(f"{who}inference request batch-size must be <= {self.max_batch_size} for '{self.name}'")
        if not question.rows:  # a batch of none counts as one of one
            expected = math.prod(first.array.shape[1:]) * DTYPES[first.datatype].itemsize
            wrong = f"input byte size mismatch for input '{first.name}' for model '{self.name}'"
            raise Refused(f"{who}{wrong}. Expected {expected}, got 0")


def _identity(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    return {f"{name}_out": array for name, array in inputs.items()}


def _add_sub(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    try:
        return {"sum": inputs["a"] + inputs["b"], "difference": inputs["a"] - inputs["b"]}
    except ValueError as error:
        raise _failed("add_sub", error) from None


def _strings(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    text = inputs["text"]
    upper = np.array([each.upper() for each in text.flat], object).reshape(text.shape)
    return {"upper": upper, "length": np.array([len(each) for each in text.flat]).reshape(text.shape)}


def _marked(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    if (inputs["rows"] == 666).any():
        raise _failed("marked", ValueError("a row is marked"))
    if (inputs["rows"] == 400).any():
        raise Refused("a row is refused")
    return {"rows_out": inputs["rows"]}


def _total(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    return {"total": inputs["rows"].sum(axis=0, keepdims=True)}


def _sizes(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    rows = inputs["rows"]
    return {"rows_out": rows, "together": np.full((len(rows), 1), len(rows))}


def _scaled(inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
    return {"rows_out": inputs["rows"] * parameters.get("factor", 1)}


def _embedder(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    """The length of each text and its first byte; NaN for "nan". Fails on "poison"."""
    texts = inputs["text"].flatten().tolist()
    if b"poison" in texts:
        raise _failed("embedder", ValueError("a text is poison"))
    rows = [[math.nan if text == b"nan" else len(text), text[0] if text else 0] for text in texts]
    vectors = np.array(rows, np.float32)
    return {"hidden": vectors[:, None, :], "vectors": vectors, "halves": vectors / 2}


def _negative_embedder(inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
    return {"vectors": -_embedder(inputs, parameters)["vectors"]}


def _token_embedder(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    ids = inputs["ids"]
    return {"vectors": np.stack([np.full(len(ids), ids.shape[1]), ids.sum(axis=1)], axis=1) / 10}


def _lone_embedder(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    return {"vectors": np.array([len(inputs["text"][0]), 1], np.float32)}


def _pair_ranker(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    """The score of each pair; fails if a document is poison, and has no number for "nan"."""
    pairs = inputs["pair"].reshape(-1, 2).tolist()
    return {"score": np.array([_score(*pair) for pair in pairs], np.float32).reshape(-1, 1)}


def _two_ranker(inputs: Arrays, _: Mapping[str, Any]) -> Arrays:
    pairs = zip(inputs["query"].flatten(), inputs["document"].flatten(), strict=True)
    logits = np.array([_score(*pair) for pair in pairs], np.float32).reshape(-1, 1)
    return {"logit": logits, "tokens": np.ones(logits.shape, np.int32)}


def _lone_ranker(inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
    return {"score": _pair_ranker(inputs, parameters)["score"][0]}


def _score(query: bytes, document: bytes) -> float:
    if document == b"poison":
        raise _failed("ranker", ValueError("a document is poison"))
    return math.nan if document == b"nan" else stand_ins.score(query.decode(), document.decode())


def _failed(model: str, error: Exception) -> Refused:
    words = f"Failed to process the request(s) for model '{model}_0_0', message: ValueError: {error}"
    return Refused(words, 500, "INTERNAL")


_ROWS, _ROWS_OUT = (Spec("rows", "FP32"),), (Spec("rows_out", "FP32"),)
_TEXT, _VECTORS = (Spec("text", "BYTES", (1,)),), Spec("vectors", "FP32", (2,))
_PAIR, _SCORE = Spec("pair", "BYTES", (2,)), Spec("score", "FP32", (1,))
_ANYTHING = (*(Spec(datatype.lower(), datatype) for datatype in DTYPES), Spec("matrix", "FP32", (-1, -1)))

MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("identity", 32, _ROWS, _ROWS_OUT, _identity),
        Model(
            "anything", 32, _ANYTHING, tuple(each._replace(name=f"{each.name}_out") for each in _ANYTHING), _identity,
            is_optional=True,
        ),
        Model(
            "add_sub", 32, (Spec("a", "FP32"), Spec("b", "FP32")), (Spec("sum", "FP32"), Spec("difference", "FP32")),
            _add_sub,
        ),
        Model(
            "strings", 32, (Spec("text", "BYTES", (1,)),),
            (Spec("upper", "BYTES", (1,)), Spec("length", "INT32", (1,))), _strings,
        ),
        Model("marked", 32, _ROWS, _ROWS_OUT, _marked),
        Model("total", 32, _ROWS, (Spec("total", "FP32"),), _total),
        Model("unbatched", 0, _ROWS, _ROWS_OUT, _identity),
        Model("small", 4, _ROWS, (*_ROWS_OUT, Spec("together", "INT32", (1,))), _sizes),
        Model("scaled", 32, _ROWS, _ROWS_OUT, _scaled),
        Model("embedder", 8, _TEXT, (Spec("hidden", "FP32", (-1, 2)), _VECTORS), _embedder),
        Model("negative_embedder", 8, _TEXT, (_VECTORS,), _negative_embedder),
        Model("two_embeddings", 8, _TEXT, (_VECTORS, Spec("halves", "FP16", (2,))), _embedder),
        Model("token_embedder", 8, (Spec("ids", "INT64"),), (Spec("vectors", "FP64", (2,)),), _token_embedder),
        Model("lone_embedder", 0, _TEXT, (_VECTORS,), _lone_embedder),
        Model("pair_ranker", 8, (_PAIR,), (_SCORE,), _pair_ranker),
        Model(
            "two_ranker", 8, (Spec("document", "BYTES", (1,)), Spec("query", "BYTES", (1,))),
            (Spec("tokens", "INT32", (1,)), Spec("logit", "FP32", (1,))), _two_ranker,
        ),
        Model("lone_ranker", 0, (_PAIR,), (_SCORE,), _lone_ranker),
    )
}  # fmt: skip


def find(name: str, version: str = "") -> Model:
    """The model. Raises `Refused` if there is none, or not that version; all have version 1 alone."""
    if name not in MODELS:
        raise Refused(f"Request for unknown model: '{name}' is not found", 404, "NOT_FOUND")
    if version and not version.isdigit():
        words = f"failed to get model version from specified version string '{version}'"
        raise Refused(f"{words} (details: stol), version should be an integral value > 0")
    if version not in ("", "1"):
        raise Refused(f"Request for unknown model: '{name}' version {version} is not found", 404, "NOT_FOUND")
    return MODELS[name]


def _brackets(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
