"""The same request is batched, passed through or refused alike, in JSON, in binary and over gRPC in both forms."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar import errors
from carpool_sidecar.protocols import models, v2
from carpool_sidecar.protocols.v2_grpc import codec as rpc_codec
from carpool_sidecar.protocols.v2_http import codec
from tests import examples

MAX_ROWS = 100
VALUES = {"BOOL": False, "BYTES": "ab", "FP32": 0.5, "FP64": 0.5}
FORMS = ["json", "binary", "raw", "typed"]


class Input(NamedTuple):
    """`surplus` elements more than its shape has."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any]
    surplus: int = 0

    @property
    def count(self) -> int:
        elements = math.prod(self.shape)
        return max(0, (elements if 0 <= elements <= 1000 else 3) + self.surplus)

    @property
    def raw(self) -> bytes:
        if self.datatype == "BYTES":
            return struct.pack("<I2s", 2, b"ab") * self.count
        kind = v2.DATATYPES.get(self.datatype)
        return bytes((1 if kind is None or kind.size is None else kind.size) * self.count)


class Asked(NamedTuple):
    inputs: list[Input]
    parameters: dict[str, Any]
    outputs: list[tuple[str, dict[str, Any]]]

    def in_json(self, is_binary: bool) -> bytes:
        inputs = []
        for each in self.inputs:
            about: dict[str, Any] = {"name": each.name, "datatype": each.datatype, "shape": each.shape}
            size = {"binary_data_size": len(each.raw)} if is_binary else {}
            if each.parameters or size:
                about["parameters"] = {**each.parameters, **size}
            if not is_binary:
                about["data"] = [VALUES.get(each.datatype, 0)] * each.count
            inputs.append(about)
        request: dict[str, Any] = {"inputs": inputs, "parameters": self.parameters}
        if self.outputs:
            request["outputs"] = [{"name": name, "parameters": said} for name, said in self.outputs]
        return json.dumps(request).encode()

    def in_grpc(self, is_raw: bool) -> bytes:
        request = pb.ModelInferRequest(model_name="m")
        put(request.parameters, self.parameters)
        for each in self.inputs:
            tensor = request.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
            put(tensor.parameters, each.parameters)
            kind = v2.DATATYPES.get(each.datatype, v2.DATATYPES["INT32"])
            if is_raw:
                request.raw_input_contents.append(each.raw)
            elif kind.contents is not None:
                value = b"ab" if each.datatype == "BYTES" else VALUES.get(each.datatype, 0)
                getattr(tensor.contents, kind.contents).extend([value] * each.count)
        for name, said in self.outputs:
            put(request.outputs.add(name=name).parameters, said)
        return request.SerializeToString()

    def verdict(self, form: str) -> str:
        """How it travels, or that it does not."""
        try:
            if form in ("raw", "typed"):
                rpc_codec.Codec(models.ModelInfo(), lambda: None).parse(self.in_grpc(form == "raw"), MAX_ROWS)
            else:
                head = self.in_json(form == "binary")
                tail = b"".join([each.raw for each in self.inputs]) if form == "binary" else b""
                spoken = codec.Codec(models.ModelInfo(), lambda: None)
                spoken.parse(head + tail, MAX_ROWS, len(head) if form == "binary" else None)
        except errors.Unbatchable as verdict:
            return f"passed through: {verdict.reason}"
        except (errors.BadRequest, errors.PayloadTooLarge):
            return "refused"
        return "batched"


def put(parameters: Any, said: dict[str, Any]) -> None:
    for name, value in said.items():
        if value is None:
            parameters[name].SetInParent()
        else:
            kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
            setattr(parameters[name], kinds[type(value)], value)


NAMES = strategies.sampled_from(["x", "x", "z"])
SAID = strategies.dictionaries(
    strategies.sampled_from(["shared_memory_region", "shared_memory_offset", "mine"]), strategies.just(7), max_size=1
)
INPUTS = strategies.builds(
    Input,
    strategies.sampled_from(["a", "b", "c"]),
    strategies.sampled_from([*sorted(v2.DATATYPES), "FP32", "INT32", "FP8", "fp32"]),
    strategies.lists(strategies.sampled_from([1, 2, 2, 2, 0, 3, 101, 2**40, -1]), max_size=3),
    strategies.just({}) | SAID,
    strategies.sampled_from([0, 0, 0, 0, 1, -1]),
)
PARAMETERS = strategies.dictionaries(
    strategies.sampled_from([*v2.SEQUENCE, "priority"]),
    strategies.sampled_from([0, 0.0, False, "", None, 5, 1.5, True, "a", "0"]),
    max_size=2,
)
REQUESTS = strategies.builds(
    Asked,
    strategies.lists(INPUTS, max_size=3),
    strategies.just({}) | PARAMETERS,
    strategies.just([]) | strategies.lists(strategies.tuples(NAMES, SAID), max_size=2),
)


@hypothesis.given(REQUESTS)
@examples.examples(600)
def test_a_request_gets_the_same_verdict_in_every_protocol(asked: Asked) -> None:
    assert asked.verdict("json") == asked.verdict("typed")
    assert asked.verdict("binary") == asked.verdict("raw")
    if all(each.datatype not in ("FP16", "BF16") for each in asked.inputs):  # of these JSON and lists have none
        assert asked.verdict("json") == asked.verdict("raw")


def asking(*inputs: Input, parameters: dict[str, Any] | None = None, outputs: Any = ()) -> Asked:
    return Asked(list(inputs), parameters or {}, list(outputs))


X = Input("x", "FP32", [2, 2], {})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        (asking(X), "batched"),
        (asking(X, parameters={"sequence_id": 0, "sequence_start": False, "correlation_id": ""}), "batched"),
        (asking(X, parameters={"sequence_id": 5}), "passed through: sequence"),
        (asking(X, parameters={"correlation_id": "a"}), "passed through: sequence"),
        (asking(X, X), "passed through: members"),
        (asking(X, outputs=[("y", {}), ("y", {})]), "passed through: outputs"),
        (asking(X, outputs=[("y", {"shared_memory_region": "r"})]), "passed through: shared_memory"),
        (asking(X._replace(parameters={"shared_memory_offset": 1})), "passed through: shared_memory"),
        (asking(X, X._replace(name="z", shape=[3, 2])), "passed through: shape"),
        (asking(X._replace(datatype="FP8")), "passed through: datatype"),
        (asking(X._replace(surplus=1)), "passed through: shape"),
        (asking(X._replace(surplus=-1)), "passed through: shape"),
        (asking(X._replace(shape=[-1])), "passed through: shape"),
        (asking(X._replace(datatype="BYTES", shape=[59])), "batched"),
        (asking(X._replace(datatype="BYTES", shape=[59], surplus=-58)), "passed through: shape"),
        (asking(X._replace(shape=[101, 2])), "refused"),
        (asking(X._replace(surplus=1), parameters={"sequence_id": 5}), "passed through: sequence"),
    ],
)
def test_these_verdicts(asked: Asked, verdict: str, form: str) -> None:
    assert asked.verdict(form) == verdict


class Many(Input):
    """Has as many strings as its shape says, however many."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@pytest.mark.parametrize("form", FORMS)
def test_so_many_strings_are_batched_and_no_more_in_all_inputs_together(form: str) -> None:
    most = v2.MOST_STRINGS
    assert asking(Many("a", "BYTES", [1, most], {})).verdict(form) == "batched"
    assert asking(Many("a", "BYTES", [1, most + 1], {})).verdict(form) == "passed through: members"
    halves = [Many(name, "BYTES", [1, most // 2 + 1], {}) for name in "ab"]
    assert asking(*halves).verdict(form) == "passed through: members"
