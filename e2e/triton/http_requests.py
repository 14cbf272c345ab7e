"""Valid and invalid requests to a v2 server over HTTP: the same for Triton, the fake of it, and the sidecar."""

from __future__ import annotations

import json
import struct
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

JSON_SIZE = "Inference-Header-Content-Length"


class InferRequest(NamedTuple):
    """A POST to a model's `infer`, with a name that says what is special about it."""

    name: str
    model: str
    body: bytes
    headers: Mapping[str, str] = types.MappingProxyType({})

    def __str__(self) -> str:
        return self.name


def floats(*values: float) -> bytes:
    """FP32 in binary."""
    return struct.pack(f"<{len(values)}f", *values)


def strings(*values: bytes) -> bytes:
    """BYTES in binary."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def tensor(name: str, shape: Sequence[Any], datatype: str, data: Any = None, **parameters: Any) -> dict[str, Any]:
    """An input; without data it has only parameters."""
    made: dict[str, Any] = {"name": name, "shape": list(shape), "datatype": datatype}
    if parameters:
        made["parameters"] = parameters
    return made if data is None else made | {"data": data}


def rows(data: Any = (1, 2), shape: Sequence[Any] = (1, 2), **parameters: Any) -> dict[str, Any]:
    """The input of most models."""
    return tensor("rows", shape, "FP32", data, **parameters)


def ask(name: str, model: str, *inputs: dict[str, Any], **members: Any) -> InferRequest:
    """All in JSON; `members` are the request's others."""
    return InferRequest(name, model, _compact({**members, "inputs": list(inputs)}))


def binary(
    name: str, model: str, tail: bytes, *inputs: dict[str, Any], size: int | None = None, **members: Any
) -> InferRequest:
    """With binary data behind the JSON, whose `size` is told as it is unless given."""
    head = _compact({**members, "inputs": list(inputs)})
    return InferRequest(name, model, head + tail, {JSON_SIZE: str(len(head) if size is None else size)})


def _literal(datatype: str, text: str) -> InferRequest:
    """One element, as it stands in the JSON."""
    start = f'{{"inputs":[{{"name":"{datatype.lower()}","shape":[1,1],"datatype":"{datatype}","data":['
    return InferRequest(
        f"{datatype} {text}", "anything", start.encode() + text.encode(errors="surrogateescape") + b"]}]}"
    )


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


_A, _B = tensor("a", (1, 2), "FP32", [1, 2]), tensor("b", (1, 2), "FP32", [10, 20])
_B_BINARY = tensor("b", (1, 2), "FP32", binary_data_size=8)
_ROWS_BINARY = rows(None, binary_data_size=8)

RIGHT = (
    ask("one row", "identity", rows([1.5, 0.1])),
    ask("two rows", "identity", rows([1, 2, 3, 4], (2, 2))),
    ask("an id", "identity", rows(), id="abc"),
    ask("an id with escapes", "identity", rows(), id='é\n"/\\\x01'),
    ask("an empty id", "identity", rows(), id=""),
    ask("nested data", "identity", rows([[1, 2], [3, 4]], (2, 2))),
    ask("data nested another way", "identity", rows([[1], [2, 3, 4]], (2, 2))),
    ask("no columns", "identity", rows([], (2, 0))),
    ask("32 rows", "identity", rows(list(range(32)), (32, 1))),
    ask("two inputs, two outputs", "add_sub", _A, _B),
    ask("inputs in another order", "add_sub", _B, _A),
    ask("outputs in another order", "add_sub", _A, _B, outputs=[{"name": "difference"}, {"name": "sum"}]),
    ask("one output", "add_sub", _A, _B, outputs=[{"name": "difference"}]),
    ask("an output twice", "add_sub", _A, _B, outputs=[{"name": "sum"}, {"name": "sum"}]),
    ask("an empty list of outputs", "add_sub", _A, _B, outputs=[]),
    ask("members that nobody knows", "identity", rows() | {"spam": 1}, eggs={"spam": 1}),
    ask("a parameter", "scaled", rows(), parameters={"factor": 3}),
    ask("a parameter that is a fraction", "scaled", rows(), parameters={"factor": 0.5}),
    ask("a parameter that nobody knows", "identity", rows(spam=1), parameters={"eggs": "x"}),
    ask("a matrix", "anything", tensor("matrix", (1, 2, 2), "FP32", [[[1, 2], [3, 4]]])),
    ask("strings", "anything", tensor("bytes", (1, 5), "BYTES", ["a", "é😀", '"\\/', "\x00\n\t\x1f", ""])),
    ask("strings, nested", "anything", tensor("bytes", (2, 1), "BYTES", [["a"], ["b"]])),
    ask("upper case", "strings", tensor("text", (2, 1), "BYTES", ["spam", "eggs"])),
    ask("no batch dimension", "unbatched", rows([1, 2], (2,))),
    ask("one row for all", "total", rows([1, 2, 3, 4], (2, 2))),
    ask("FP32 of all sizes", "identity", rows([0.1, 1e10, 1e-10, 16777217, -0.0, 1e16, 1e-7], (1, 7))),
    ask("FP64 of all sizes", "anything", tensor("fp64", (1, 6), "FP64", [0.1, 1e300, 5e-324, 2**53 + 1, 1e-5, 1e20])),
    ask("booleans", "anything", tensor("bool", (1, 2), "BOOL", [True, False])),
    *(_literal(datatype, "1") for datatype in ("UINT8", "UINT16", "UINT32", "INT8", "INT16", "INT32", "INT64")),
    *(_literal("FP32", text) for text in ("NaN", "Infinity", "-Infinity", "1e2", "1e39")),
    *(_literal("UINT8", text) for text in ("256", "300")),
    *(_literal("INT8", text) for text in ("128", "-129")),
    _literal("INT32", "2147483648"),
    _literal("INT32", "-0"),
    _literal("UINT64", "18446744073709551615"),
    _literal("INT64", "-9223372036854775808"),
    _literal("BYTES", '["a"]'),
    _literal("BYTES", '"\udcff"'),
    InferRequest("data first, spaces", "identity", b' { "inputs" : [ {"data":[ 1 , 2 ],"datatype":"FP32",\n'
                 b'"shape":[1, 2],"name":"rows"} ], "id": "x" }\n'),
    InferRequest("inputs twice", "identity", b'{"inputs":[{"name":"rows","shape":[1,1],"datatype":"FP32","data":[1]}],'
             b'"inputs":[{"name":"rows","shape":[1,1],"datatype":"FP32","data":[2]}]}'),
    InferRequest("a byte order mark", "identity", b"\xef\xbb\xbf" + _compact({"inputs": [rows()]})),
    binary("binary in, JSON out", "identity", floats(1, 2), _ROWS_BINARY),
    binary("binary in and out", "identity", floats(1, 2), _ROWS_BINARY,
            parameters={"binary_data_output": True}, id="x"),
    binary("binary for one output", "identity", floats(1, 2), _ROWS_BINARY,
            outputs=[{"name": "rows_out", "parameters": {"binary_data": True}}]),
    ask("JSON in, binary out", "identity", rows(), parameters={"binary_data_output": True}),
    binary("all binary, but outputs named", "identity", floats(1, 2), _ROWS_BINARY,
            parameters={"binary_data_output": True}, outputs=[{"name": "rows_out"}]),
    binary("JSON and binary in", "add_sub", floats(1, 2), _A, _B_BINARY),
    binary("JSON and binary out", "add_sub", floats(1, 2), _A, _B_BINARY,
            outputs=[{"name": "sum"}, {"name": "difference", "parameters": {"binary_data": True}}]),
    binary("binary and JSON out", "add_sub", floats(1, 2), _A, _B_BINARY,
            outputs=[{"name": "sum", "parameters": {"binary_data": True}}, {"name": "difference"}]),
    binary("no number in binary in, JSON out", "identity", floats(float("nan"), float("inf")), _ROWS_BINARY),
    binary("all JSON, with the header", "identity", b"", rows()),
    binary("FP16 in binary", "anything", b"\x00\x3c", tensor("fp16", (1, 1), "FP16", binary_data_size=2),
            parameters={"binary_data_output": True}),
    binary("BF16 in binary", "anything", b"\x80\x3f", tensor("bf16", (1, 1), "BF16", binary_data_size=2),
            parameters={"binary_data_output": True}),
    binary("strings in binary", "strings", strings(b"ab", b"\xff\xfe"),
            tensor("text", (2, 1), "BYTES", binary_data_size=12), parameters={"binary_data_output": True}),
    binary("strings that are no text, JSON out", "anything", strings(b"ab", b"\xff\xfe"),
            tensor("bytes", (2, 1), "BYTES", binary_data_size=12)),
)  # fmt: skip

# RapidJSON does not always find the fewest digits, so answers to these may differ in the last digit of many.
ROUNDED = (ask("FP32 of many digits", "identity", rows([3.4e38, 1e21, 99999999999999999999999, 1 / 3], (1, 4))),)

WRONG = (
    ask("unknown model", "nobody", rows()),
    ask("unknown input", "identity", tensor("other", (1, 1), "FP32", [1])),
    ask("one input too many", "identity", rows(), tensor("other", (1, 1), "FP32", [1])),
    ask("a missing input", "add_sub", _A),
    ask("an input twice", "identity", rows(), rows()),
    ask("no inputs", "identity"),
    ask("wrong datatype", "identity", tensor("rows", (1, 1), "INT32", [1])),
    ask("unknown datatype", "identity", tensor("rows", (1, 1), "FLOAT", [1])),
    ask("datatype in lower case", "identity", tensor("rows", (1, 1), "fp32", [1])),
    ask("too few numbers", "identity", rows([1])),
    ask("too many numbers", "identity", rows([1, 2, 3])),
    ask("ragged rows", "identity", rows([[1, 2], [3]], (2, 2))),
    ask("too few dimensions", "identity", rows([1, 2], (2,))),
    ask("too many dimensions", "identity", rows([1, 2], (1, 1, 2))),
    ask("a negative dimension", "identity", rows([1, 2], (-1, 2))),
    ask("a fraction for a dimension", "identity", rows([1, 2], (1.0, 2))),
    ask("text for a dimension", "identity", rows([1, 2], ("1", 2))),
    ask("no rows", "identity", rows([], (0, 2))),
    ask("33 rows", "identity", rows([1] * 33, (33, 1))),
    ask("inputs with different rows", "add_sub", _A, tensor("b", (2, 2), "FP32", [1, 2, 3, 4])),
    ask("inputs that do not go together", "add_sub", _A, tensor("b", (1, 3), "FP32", [1, 2, 3])),
    ask("no data", "identity", rows(None)),
    ask("data that is a number", "identity", rows(1)),
    ask("data that is text", "identity", rows("x")),
    ask("an id that is a number", "identity", rows(), id=7),
    ask("an id that is null", "identity", rows(), id=None),
    ask("outputs that are null", "identity", rows(), outputs=None),
    ask("outputs that are an object", "identity", rows(), outputs={}),
    ask("an output without a name", "identity", rows(), outputs=[{}]),
    ask("an unknown output", "identity", rows(), outputs=[{"name": "nobody"}]),
    ask("parameters that are a list", "identity", rows(), parameters=[1]),
    ask("a parameter that is an object", "scaled", rows(), parameters={"factor": {"a": 1}}),
    ask("a parameter that is null", "scaled", rows(), parameters={"factor": None}),
    ask("a reserved parameter", "identity", rows(), parameters={"triton_spam": True}),
    ask("a shared memory region that nobody registered", "identity",
         rows(None, shared_memory_region="nobody", shared_memory_byte_size=8)),
    ask("a model that fails", "marked", rows([666], (1, 1))),
    ask("a model that refuses", "marked", rows([400], (1, 1))),
    *(_literal("FP32", text) for text in ("null", "true", '"1"', '{"a":1}', "01", "1.", "1e400")),
    *(_literal("INT32", text) for text in ("1.5", "1.0", "1e2", "true", "null", '"1"')),
    *(_literal("BOOL", text) for text in ("1", "0.5", '"true"')),
    *(_literal("BYTES", text) for text in ("1", "1.5", "true", "null", '{"a":1}', '"\\ud800"')),
    _literal("UINT8", "-1"),
    _literal("UINT64", "18446744073709551616"),
    _literal("INT64", "9223372036854775808"),
    _literal("FP16", "1"),
    _literal("BF16", "1"),
    *(InferRequest(f"the body {body!r}", "identity", body) for body in (b"{", b"[]", b"null", b'"x"', b'{"inputs":[}')),
    InferRequest("inputs that are an object", "identity", b'{"inputs":{}}'),
    InferRequest("something after the JSON", "identity", _compact({"inputs": [rows()]}) + b" more"),
    InferRequest("no shape", "identity", b'{"inputs":[{"name":"rows","datatype":"FP32","data":[1]}]}'),
    InferRequest("no datatype", "identity", b'{"inputs":[{"name":"rows","shape":[1,1],"data":[1]}]}'),
    InferRequest("no name", "identity", b'{"inputs":[{"datatype":"FP32","shape":[1,1],"data":[1]}]}'),
    binary("binary data too short", "identity", floats(1), rows(None, binary_data_size=4)),
    binary("less binary data than announced", "identity", floats(1), _ROWS_BINARY),
    binary("more binary data than announced", "identity", floats(1, 2, 3), _ROWS_BINARY),
    binary("JSON shorter than announced", "identity", b"", rows(), size=10_000),
    binary("JSON longer than announced", "identity", b"", rows(), size=20),
    binary("a negative length of the JSON", "identity", b"", rows(), size=-1),
    binary("data in both", "identity", floats(1, 2), rows([9, 9], binary_data_size=8)),
    ask("binary data without the header", "identity", _ROWS_BINARY),
    binary("a size that is text", "identity", floats(1, 2), rows(None, binary_data_size="8")),
    binary("too few strings", "strings", strings(b"ab"), tensor("text", (2, 1), "BYTES", binary_data_size=6)),
    binary("too many strings", "strings", strings(b"a", b"b"), tensor("text", (1, 1), "BYTES", binary_data_size=10)),
    binary("a string beyond the end", "strings", b"\x32\0\0\0ab", tensor("text", (1, 1), "BYTES", binary_data_size=6)),
    binary("half a length", "strings", b"ab", tensor("text", (1, 1), "BYTES", binary_data_size=2)),
    binary("FP16 in binary, JSON out", "anything", b"\x00\x3c", tensor("fp16", (1, 1), "FP16", binary_data_size=2)),
)  # fmt: skip
