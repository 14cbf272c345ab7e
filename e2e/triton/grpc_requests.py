"""Valid and invalid requests to a v2 server over gRPC."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tritonclient.grpc import service_pb2 as pb

from e2e.triton.http_requests import floats, strings


class InferRequest(NamedTuple):
    """A `ModelInferRequest` with a name that says what is special about it."""

    name: str
    message: Any

    def __str__(self) -> str:
        return self.name


class _Input(NamedTuple):
    name: str
    shape: Sequence[int]
    datatype: str = "FP32"
    contents: Mapping[str, list[Any]] = types.MappingProxyType({})


def _ask(
    name: str, model: str, inputs: Sequence[_Input], raw: Sequence[bytes] = (), outputs: Sequence[str] = (), **more: Any
) -> InferRequest:
    parameters = more.pop("parameters", {})
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=raw, **more)
    for each in inputs:
        made = message.inputs.add(name=each.name, shape=each.shape, datatype=each.datatype)
        for field, values in each.contents.items():
            getattr(made.contents, field).extend(values)
    for output in outputs:
        message.outputs.add(name=output)
    for key, value in parameters.items():
        setattr(message.parameters[key], {int: "int64_param", float: "double_param"}[type(value)], value)
    return InferRequest(name, message)


def _typed(datatype: str, field: str, *values: Any) -> InferRequest:
    given = _Input(datatype.lower(), (1, len(values)), datatype, {field: list(values)})
    return _ask(f"typed {datatype} {values}", "anything", [given])


_ROWS, _A, _B = _Input("rows", (1, 2)), _Input("a", (1, 2)), _Input("b", (1, 2))
_DATA = [floats(1, 2)]
_TYPED_ROWS = _Input("rows", (1, 2), "FP32", {"fp32_contents": [1, 2]})

RIGHT = (
    _ask("raw", "identity", [_ROWS], _DATA),
    _ask("an id", "identity", [_ROWS], _DATA, id="é"),
    _ask("typed", "identity", [_TYPED_ROWS]),
    _ask("two inputs", "add_sub", [_A, _B], _DATA * 2),
    _ask("inputs in another order", "add_sub", [_B, _A], _DATA * 2),
    _ask("outputs in another order", "add_sub", [_A, _B], _DATA * 2, ["difference", "sum"]),
    _ask("one output", "add_sub", [_A, _B], _DATA * 2, ["difference"]),
    _ask("more raw contents than inputs", "identity", [_ROWS], _DATA * 2),
    _ask("a version", "identity", [_ROWS], _DATA, model_version="1"),
    _ask("a parameter", "scaled", [_ROWS], _DATA, parameters={"factor": 3}),
    _ask("a fraction for a parameter", "scaled", [_ROWS], _DATA, parameters={"factor": 0.5}),
    _ask("raw strings", "strings", [_Input("text", (2, 1), "BYTES")], [strings(b"ab", b"\xff")]),
    _ask("raw FP16", "anything", [_Input("fp16", (1, 1), "FP16")], [b"\x00\x3c"]),
    _ask("raw BF16", "anything", [_Input("bf16", (1, 1), "BF16")], [b"\x80\x3f"]),
    _ask("no batch dimension", "unbatched", [_Input("rows", (2,))], _DATA),
    _ask("one row for all", "total", [_Input("rows", (2, 2))], [floats(1, 2, 3, 4)]),
    _typed("BOOL", "bool_contents", True, False),
    _typed("INT8", "int_contents", -5, 300),
    _typed("UINT8", "uint_contents", 5, 256),
    _typed("INT16", "int_contents", -5),
    _typed("INT32", "int_contents", -5),
    _typed("UINT32", "uint_contents", 5),
    _typed("INT64", "int64_contents", -(2**63)),
    _typed("UINT64", "uint64_contents", 2**64 - 1),
    _typed("FP64", "fp64_contents", 0.1),
    _typed("BYTES", "bytes_contents", b"a", b"\xff\x00", b""),
)

WRONG = (
    _ask("unknown model", "nobody", [_ROWS], _DATA),
    _ask("unknown version", "identity", [_ROWS], _DATA, model_version="9"),
    _ask("text for a version", "identity", [_ROWS], _DATA, model_version="x"),
    _ask("unknown input", "identity", [_Input("other", (1, 2))], _DATA),
    _ask("an input twice", "identity", [_ROWS, _ROWS], _DATA * 2),
    _ask("a missing input", "add_sub", [_A], _DATA),
    _ask("no inputs", "identity", []),
    _ask("wrong datatype", "identity", [_Input("rows", (1, 2), "INT32")], _DATA),
    _ask("unknown datatype", "identity", [_Input("rows", (1, 2), "SPAM")], _DATA),
    _ask("too few dimensions", "identity", [_Input("rows", (2,))], _DATA),
    _ask("a negative dimension", "identity", [_Input("rows", (-1, 2))], _DATA),
    _ask("no rows", "identity", [_Input("rows", (0, 2))], [b""]),
    _ask("33 rows", "identity", [_Input("rows", (33, 1))], [floats(*range(33))]),
    _ask("inputs with different rows", "add_sub", [_A, _Input("b", (2, 2))], [floats(1, 2), floats(1, 2, 3, 4)]),
    _ask("an unknown output", "identity", [_ROWS], _DATA, ["nobody"]),
    _ask("no contents", "identity", [_ROWS]),
    _ask("raw and typed", "identity", [_TYPED_ROWS], _DATA),
    _ask("one raw, one typed", "add_sub", [_TYPED_ROWS._replace(name="a"), _B], _DATA),
    _ask("one raw too few", "add_sub", [_A, _B], _DATA),
    _ask("raw too short", "identity", [_ROWS], [floats(1)]),
    _ask("raw too long", "identity", [_ROWS], [floats(1, 2, 3)]),
    _ask("typed too few", "identity", [_Input("rows", (1, 2), "FP32", {"fp32_contents": [1]})]),
    _ask("typed in another field", "identity", [_Input("rows", (1, 2), "FP32", {"int_contents": [1, 2]})]),
    _ask("a string beyond the end", "anything", [_Input("bytes", (1, 1), "BYTES")], [b"\x32\0\0\0ab"]),
    _ask("a reserved parameter", "identity", [_ROWS], _DATA, parameters={"triton_spam": 1}),
    _ask("a model that fails", "marked", [_Input("rows", (1, 1))], [floats(666)]),
    _ask("a model that refuses", "marked", [_Input("rows", (1, 1))], [floats(400)]),
    _typed("FP16", "fp32_contents", 1.0),
)
