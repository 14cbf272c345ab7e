"""Which v1 bodies become which tensors."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from tests.protocols.tensors_from_v1.model import Model, Part, Request


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def strings(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [[1, 2], [3, 4.5]]},
        {"inputs": [[1, 2], [3, 4.5]]},
        {"instances": [{"a": [1, 2]}, {"a": [3, 4.5]}]},
        {"inputs": {"a": [[1, 2], [3, 4.5]]}},
        {"signature_name": "serving_default", "instances": [[1, 2], [3, 4.5]]},
        {"signature_name": "serving_default", "inputs": {"a": [[1, 2], [3, 4.5]]}},
        b' { "instances" :\n[ [ 1 ,\t2 ] , [3.0,45e-1] ] } ',
    ],
)
def test_one_inputs_values_may_be_arranged_in_any_of_the_usual_ways(body: Any) -> None:
    (column,) = Model(("a", "FP32", (-1, 2))).parse(body).columns
    assert (column.name, column.datatype, column.shape, column.rows) == ("a", "FP32", (2,), 2)
    assert column.data == floats(1, 2, 3, 4.5)


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [{"a": 1, "b": ["x", "y"]}, {"b": ["", "z"], "a": -1}]},
        {"inputs": {"b": [["x", "y"], ["", "z"]], "a": [1, -1]}},
    ],
)
def test_several_inputs_are_found_by_their_names(body: Any) -> None:
    columns = {
        column.name: column for column in Model(("a", "INT8", (-1,)), ("b", "BYTES", (-1, 2))).parse(body).columns
    }
    assert (columns["a"].shape, columns["a"].data) == ((), b"\x01\xff")
    assert (columns["b"].shape, columns["b"].data) == ((2,), strings(b"x", b"y", b"", b"z"))


@pytest.mark.parametrize("instances", [[1, 2], [[1], [2]]])
def test_a_single_value_may_stand_for_a_list_of_one(instances: Any) -> None:
    (column,) = Model(("a", "UINT8", (-1, 1))).instances(*instances).columns
    assert (column.shape, column.data) == ((1,), b"\x01\x02")


@pytest.mark.parametrize("instances", [["x", "y"], [["x"], ["y"]], [{"b64": "eA=="}, "y"], [{"s": "x"}, {"s": "y"}]])
def test_strings_may_be_text_or_base64_and_stand_alone(instances: Any) -> None:
    (column,) = Model(("s", "BYTES", (-1, 1))).instances(*instances).columns
    assert (column.shape, column.data) == ((1,), strings(b"x", b"y"))


def test_strings_are_utf_8_and_base64_may_be_any_bytes() -> None:
    (column,) = Model(("s", "BYTES", (-1, -1))).instances(['é\n"]', {"b64": "/wA="}]).columns
    assert (column.shape, column.data) == ((2,), strings('é\n"]'.encode(), b"\xff\x00"))


def test_dimensions_that_the_model_leaves_open_are_those_of_the_first_instance() -> None:
    model = Model(("a", "FP32", (-1, -1, 2)))
    assert model.instances([[1, 2]], [[3, 4]]).columns[0].shape == (1, 2)
    assert model.instances([[1, 2], [3, 4], [5, 6]]).columns[0].shape == (3, 2)
    assert Model(("a", "FP32", (-1, -1))).instances([], []).columns[0].shape == (0,)


def test_only_requests_of_equal_shapes_and_inputs_share_a_batch() -> None:
    model = Model(("a", "FP32", (-1, -1)), ("b", "FP32", (-1,), True))
    one, same = model.instances({"a": [1, 2]}), model.instances({"a": [3, 4]}, {"a": [5, 6]})
    longer, more = model.instances({"a": [1, 2, 3]}), model.instances({"a": [1, 2], "b": 1})
    assert one.key == same.key
    assert len({one.key, longer.key, more.key}) == 3


def test_optional_inputs_may_be_left_out_by_all_instances_or_none() -> None:
    model = Model(("a", "FP32", (-1,)), ("b", "FP32", (-1,), True))
    assert [column.name for column in model.instances({"a": 1}, {"a": 2}).columns] == ["a"]
    assert [column.name for column in model.instances({"a": 1, "b": 2}).columns] == ["a", "b"]
    with pytest.raises(errors.BadRequest, match="instance 1 lacks the input 'b', which others have"):
        model.instances({"a": 1, "b": 2}, {"a": 1})
    assert [column.name for column in model.parse({"inputs": {"a": [1]}}).columns] == ["a"]


def test_integers_are_exact_however_they_are_written() -> None:
    model = Model(("a", "INT64", (-1,)))
    body = b'{"instances":[9007199254740993,-9223372036854775808,9007199254740993.0,1e3,-0.0,1.5E1]}'
    (column,) = model.parse(body).columns
    assert np.frombuffer(column.data, "<i8").tolist() == [2**53 + 1, -(2**63), 2**53 + 1, 1000, 0, 15]
    (column,) = Model(("a", "UINT64", (-1,))).instances(2**64 - 1).columns
    assert column.data == b"\xff" * 8


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("9007199254740993.0", 2**53 + 1),
        ("-9007199254740993.0", -(2**53) - 1),
        ("9007199254740993e0", 2**53 + 1),
        ("900719925474099300E-2", 2**53 + 1),
        ("9223372036854775807.000", 2**63 - 1),
        ("-9223372036854775808.0", -(2**63)),
        ("9.223372036854775807e18", 2**63 - 1),
        ("18014398509481985.0", 2**54 + 1),
        ("1e18", 10**18),
        ("-12345678901234E4", -123456789012340000),
    ],
)
def test_an_integer_with_a_fraction_or_an_exponent_is_the_same_integer(written: str, number: int) -> None:
    (column,) = Model(("a", "INT64", (-1,))).parse(b'{"instances":[1.0,%b]}' % written.encode()).columns
    assert np.frombuffer(column.data, "<i8").tolist() == [1, number]


@pytest.mark.parametrize(
    "written",
    [
        "4503599627370496.5", "9007199254740990.6", "0.99999999999999999999", "1.00000000000000000001", "1e-400",
        "-5e-324", "9007199254740993.0000000000000001", "1e400", "1e19", "-1e19", "1e999999999999999999999",
        "1e-999999999999999999999", "9223372036854775808.0",
    ],
)  # fmt: skip
def test_what_only_rounding_would_make_an_integer_is_refused(written: str) -> None:
    with pytest.raises(errors.BadRequest, match=r"instance 1: .* INT64; given: "):
        Model(("a", "INT64", (-1,))).parse(b'{"instances":[1.0,%b]}' % written.encode())


@pytest.mark.parametrize(
    ("value", "bits"), [(1, 0x3F80), (0.1, 0x3DCD), (-2.5, 0xC020), (1.00390625, 0x3F80), (1.01171875, 0x3F82)]
)
def test_bf16_is_rounded_to_the_nearest_and_of_two_to_the_even_one(value: float, bits: int) -> None:
    (column,) = Model(("a", "BF16", (-1,))).instances(value).columns
    assert column.data == struct.pack("<H", bits)


def test_sizes_and_lengths_of_rows_are_those_that_go_to_the_predictor() -> None:
    model = Model(("a", "FP32", (-1, 3)), ("s", "BYTES", (-1,)))
    payload = model.instances({"a": [1, 2, 3], "s": "x"}, {"a": [1, 2, 3], "s": "xyz"}, {"a": [1, 2, 3], "s": ""})
    assert payload.row_sizes(0, 3) == [17, 19, 16]
    assert payload.row_sizes(1, 2) == [19]
    assert payload.row_lengths(0, 2) == [3, 3]
    assert (payload.row_count, payload.response_format) == (3, None)


class TestAModelWithoutABatchDimension:
    def test_gets_one_instance_in_each_call_with_all_of_its_dimensions(self) -> None:
        model = Model(("a", "FP32", (2,)), most=0)
        payload = model.instances([1, 2], [3, 4])
        assert model.codec.max_batch_size == 1
        assert model.call((payload, 1, 2)) == [b"[3.0,4.0]"]
        assert model.transport.calls[-1][0][:3] == ("a", "FP32", (2,))

    def test_takes_whole_tensors_as_columns(self) -> None:
        payload = Model(("a", "FP32", (2,)), ("b", "INT8", (-1, 1)), most=0).parse(
            {"inputs": {"a": [1, 2], "b": [[3]]}}
        )
        assert payload.row_count == 1
        assert [column.shape for column in payload.columns] == [(2,), (1, 1)]

    def test_may_be_one_that_only_its_shapes_tell_of(self) -> None:
        assert Model(("a", "FP32", (1, 4)), most=None).codec.max_batch_size == 1
        assert Model(("a", "FP32", (-1, 4)), most=None).codec.max_batch_size > 1000


class TestRefusingModels:
    @pytest.mark.parametrize(
        ("info", "reason"),
        [
            (models.ModelInfo((models.TensorSpec("a", "FP32", (-1,)),), (), 8, is_stateful=True), "keeps state"),
            (models.ModelInfo((models.TensorSpec("a", "FP32", (-1,)),), (), 8, is_decoupled=True), "in streams"),
            (models.ModelInfo(), "does not tell of the model's inputs"),
            (models.ModelInfo((models.TensorSpec("a", "FP4", (-1,)),), (), 8), "datatype FP4"),
            (models.ModelInfo((models.TensorSpec('a"', "FP32", (-1,)),), (), 8), "in escapes"),
        ],
    )
    def test_that_the_v1_protocol_cannot_ask_says_so(self, info: models.ModelInfo, reason: str) -> None:
        model = Model()
        model.codec.info = info
        with pytest.raises(errors.BadRequest, match=reason):
            model.instances(1)

    def test_ends_when_the_predictor_tells_anew(self) -> None:
        model = Model()
        with pytest.raises(errors.BadRequest):
            model.instances(1)
        model.codec.info = models.ModelInfo((models.TensorSpec("a", "FP32", (-1,)),), (), 8)
        assert model.instances(1).columns[0].data == floats(1)
        assert model.codec.max_batch_size == 8
        model.codec.info = models.ModelInfo((models.TensorSpec("b", "FP64", (-1,)),), (), 4)
        assert model.instances(1).columns[0].name == "b"


def test_large_bodies_are_read_like_small_ones() -> None:
    rows = [[row + column / 7 for column in range(3000)] for row in range(40)]
    model = Model(("a", "FP32", (-1, -1)))
    (column,) = model.instances(*rows).columns
    assert column.data == np.array(rows, np.float32).tobytes()
    text = [[f"{row}.{column}" for column in range(1000)] for row in range(60)]
    (column,) = Model(("s", "BYTES", (-1, 1000))).instances(*text).columns
    assert column.data == strings(*(each.encode() for row in text for each in row))
    assert column.sizes(59, 60) == [sum(4 + len(each) for each in text[59])]


def test_a_single_part_that_is_whole_is_not_copied() -> None:
    model = Model(("a", "FP32", (-1,)))
    payload = model.instances(1, 2)
    model.call((payload, 0, 2))
    assert model.transport.calls[-1][0].data is payload.columns[0].data


def test_a_call_is_written_by_the_transport() -> None:
    model = Model(("a", "FP32", (-1,)))
    payload = model.parse(json.dumps({"instances": [1]}).encode())
    outgoing = model.codec.merge("the-batch", "/v1/models/m:predict", [Part(Request(payload), 0, 1)])
    assert (outgoing.target, outgoing.headers, outgoing.body) == (
        "/v2/models/m/versions/1/infer",
        (("X", "y"),),
        [b"0"],
    )
