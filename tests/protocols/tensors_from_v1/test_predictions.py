"""What the predictor's outputs are told as, and which of them cannot be."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from tests.protocols.tensors_from_v1.model import Model

Tensor = models.Tensor


def answered(*tensors: Tensor, rows: int = 1, most: int = 64) -> list[bytes]:
    """The predictions of a model that answers any `rows` instances with these tensors."""
    model = Model(("a", "FP32", (-1,) if most else ()), most=most, answer=lambda _: list(tensors))
    payload = model.instances(*range(rows))
    return model.call((payload, 0, rows))


def tensor(datatype: str, values: Any, dtype: str, name: str = "y") -> Tensor:
    array = np.array(values, dtype)
    return Tensor(name, datatype, array.shape, array.tobytes())


def strings(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


@pytest.mark.parametrize(
    ("given", "predictions"),
    [
        (tensor("FP32", [0.1, 16777216], "<f4"), [b"0.1", b"16777216.0"]),
        (tensor("FP64", [0.1, 1e300], "<f8"), [b"0.1", b"1e300"]),
        (tensor("FP16", [0.1, -2], "<f2"), [b"0.099975586", b"-2.0"]),
        (tensor("BF16", [0x3DCD, 0xC000], "<u2"), [b"0.100097656", b"-2.0"]),
        (tensor("INT64", [2**53 + 1, -(2**63)], "<i8"), [b"9007199254740993", b"-9223372036854775808"]),
        (tensor("UINT64", [2**64 - 1, 0], "<u8"), [b"18446744073709551615", b"0"]),
        (tensor("INT8", [[-1], [1]], "<i1"), [b"[-1]", b"[1]"]),
        (tensor("BOOL", [[True, False], [False, True]], "?"), [b"[true,false]", b"[false,true]"]),
        (Tensor("y", "BOOL", (2,), b"\x02\x00"), [b"true", b"false"]),
        (tensor("FP32", [[[1], [2]], [[3], [4]]], "<f4"), [b"[[1.0],[2.0]]", b"[[3.0],[4.0]]"]),
        (Tensor("y", "FP32", (2, 0), b""), [b"[]", b"[]"]),
        (Tensor("y", "BYTES", (2,), strings(b'a"', b"\xff")), [b'"a\\""', b'{"b64":"/w=="}']),
        (Tensor("y", "BYTES", (2, 1), strings("é".encode(), b"")), ['["é"]'.encode(), b'[""]']),
    ],
)
def test_one_outputs_rows_are_the_predictions(given: Tensor, predictions: list[bytes]) -> None:
    told = answered(given, rows=2)
    assert [row.replace(b"e+", b"e") for row in told] == predictions


def test_several_outputs_are_told_by_their_names() -> None:
    told = answered(tensor("FP32", [[1], [2]], "<f4"), Tensor('n"', "BYTES", (2,), strings(b"a", b"b")), rows=2)
    assert told == [b'{"y":[1.0],"n\\"":"a"}', b'{"y":[2.0],"n\\"":"b"}']


@pytest.mark.parametrize(("datatype", "dtype"), [("FP16", "<u2"), ("BF16", "<u2"), ("FP32", "<u4"), ("FP64", "<u8")])
def test_floats_come_back_the_same_in_their_own_precision(datatype: str, dtype: str) -> None:
    bits = np.random.default_rng(1).integers(0, 2 ** (8 * np.dtype(dtype).itemsize), 5000, np.uint64).astype(dtype)
    model = Model(("a", datatype, (-1, -1)))
    given = [Tensor("a", datatype, (1, bits.size), bits.tobytes())]
    if datatype == "BF16":
        is_finite = np.isfinite((bits.astype("<u4") << 16).view("<f4"))
    else:
        is_finite = np.isfinite(bits.view(dtype.replace("u", "f")))
    given = [Tensor("a", datatype, (1, int(is_finite.sum())), bits[is_finite].tobytes())]
    told = answered(*given)
    assert model.parse(b'{"instances":[%b]}' % told[0]).columns[0].data == given[0].data


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_json_has_no_number_for_is_a_broken_answer_that_names_the_output(datatype: str, value: float) -> None:
    bits = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}.get(datatype)
    data = np.array([1, value], bits or "<f4")
    given = data.tobytes() if bits else (data.view("<u4") >> 16).astype("<u2").tobytes()
    with pytest.raises(errors.UpstreamBroken, match="'y' has NaN or infinities"):
        answered(Tensor("y", datatype, (2,), given), rows=2)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2)])
def test_outputs_that_do_not_have_the_rows_are_a_broken_answer_and_end_batching(shape: tuple[int, ...]) -> None:
    given = tensor("FP32", np.zeros(shape), "<f4")
    model = Model(("a", "FP32", (-1,)), answer=lambda _: [given])
    with pytest.raises(errors.UpstreamBroken, match=r"'y' has the shape .*, which is not 2 rows"):
        model.predict(1, 2)
    assert model.codec.max_batch_size == 1


def test_instances_of_a_model_whose_outputs_were_uneven_travel_alone_until_the_predictor_tells_anew() -> None:
    def total(tensors: Sequence[Tensor]) -> list[Tensor]:
        values = np.frombuffer(tensors[0].data, "<f4")
        return [tensor("FP32", np.array([values.sum()]), "<f4")]

    model = Model(("a", "FP32", (-1,)), answer=total)
    before = model.instances(1, 2)
    with pytest.raises(errors.UpstreamBroken):
        model.call((before, 0, 2))
    assert model.codec.max_batch_size == 1
    after = model.instances(1, 2)
    assert after.key != before.key
    assert [model.call((after, row, row + 1)) for row in range(2)] == [[b"1.0"], [b"2.0"]]
    model.codec.info = model.codec.info._replace()
    assert model.codec.max_batch_size == 64
    assert model.instances(1, 2).key == before.key


@pytest.mark.parametrize(
    "given",
    [
        [],
        [Tensor("y", "FP32", (1,), b"\0\0\0")],
        [Tensor("y", "FP32", (1, 2), bytes(4))],
        [Tensor("y", "FP4", (1,), b"\0")],
        [Tensor("y", "BYTES", (1,), b"\0\0")],
        [Tensor("y", "BYTES", (1,), b"\1\0\0\0")],
        [Tensor("y", "BYTES", (1,), strings(b"a", b"b"))],
        [Tensor("y", "BYTES", (1, 2), strings(b"a"))],
    ],
)
def test_outputs_that_are_not_what_they_say_are_a_broken_answer(given: Sequence[Tensor]) -> None:
    with pytest.raises(errors.UpstreamBroken):
        answered(*given)


def test_values_at_any_place_in_memory_are_read() -> None:
    data = memoryview(b"x" + np.array([1, 2.5], "<f4").tobytes())[1:]
    assert answered(Tensor("y", "FP32", (2,), data), rows=2) == [b"1.0", b"2.5"]


@pytest.mark.parametrize(
    ("given", "prediction"),
    [
        (tensor("FP32", 0.1, "<f4"), 0.1),
        (tensor("BOOL", True, "?"), True),
        (tensor("INT8", [[1, 2]], "<i1"), [[1, 2]]),
        (Tensor("y", "BYTES", (), strings(b"a")), "a"),
    ],
)
def test_a_model_without_a_batch_dimension_answers_one_prediction(given: Tensor, prediction: Any) -> None:
    assert [json.loads(row) for row in answered(given, most=0)] == [prediction]


def test_it_may_answer_several_outputs() -> None:
    told = answered(tensor("FP32", [1, 2], "<f4"), tensor("INT8", 5, "<i1", name="z"), most=0)
    assert told == [b'{"y":[1.0,2.0],"z":5}']
