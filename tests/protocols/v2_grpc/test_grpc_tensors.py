"""Tensors as lists of numbers and as raw bytes are the same tensors."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar import errors
from carpool_sidecar.protocols import steps, v2
from carpool_sidecar.protocols.v2_grpc import tensors

LISTED = sorted(name for name, datatype in v2.DATATYPES.items() if datatype.contents is not None)


def raw_tensors(datatype: str, count: int):
    size = v2.DATATYPES[datatype].size
    if datatype == "BOOL":
        return strategies.lists(strategies.sampled_from((b"\0", b"\1")), min_size=count, max_size=count).map(b"".join)
    if size is not None:
        return strategies.binary(min_size=count * size, max_size=count * size)
    elements = strategies.lists(strategies.binary(max_size=5), min_size=count, max_size=count)
    return elements.map(lambda each: b"".join(len(one).to_bytes(4, "little") + one for one in each))


def as_list(raw: bytes, datatype: str) -> Any:
    """The `InferTensorContents` of a tensor in raw form."""
    listed = steps.at_once(tensors.listed(raw, datatype))
    return pb.InferTensorContents.FromString(b"".join(tensors.contents(listed, datatype)))


@hypothesis.given(strategies.data(), strategies.sampled_from(LISTED), strategies.integers(0, 6))
def test_raw_tensors_come_back_from_lists_bit_by_bit(data, datatype, count) -> None:
    raw = data.draw(raw_tensors(datatype, count))
    listed = as_list(raw, datatype)
    assert [len(values) for _, values in listed.ListFields()] == [count] * bool(count)
    assert steps.at_once(tensors.to_raw(listed.SerializeToString(), datatype, (count,))) == raw


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        ("INT8", [-128, 127], np.array([-128, 127], "i1")), ("UINT16", [65535], np.array([65535], "<u2")),
        ("UINT64", [2**64 - 1], np.array([2**64 - 1], "<u8")), ("FP32", [0.1, -0.0], np.array([0.1, -0.0], "<f4")),
        ("FP64", [1e300], np.array([1e300], "<f8")), ("BOOL", [True, False], np.array([True, False])),
        ("INT64", [-(2**63)], np.array([-(2**63)], "<i8")),
    ],
)  # fmt: skip
def test_lists_become_what_numpy_makes_of_them(datatype, values, expected) -> None:
    listed = pb.InferTensorContents(**{v2.DATATYPES[datatype].contents: values})
    assert steps.at_once(tensors.to_raw(listed.SerializeToString(), datatype, (len(values),))) == expected.tobytes()


@pytest.mark.parametrize(
    ("datatype", "listed", "words"),
    [
        ("INT8", {"int_contents": [1, 128]}, "128 is out of the range of INT8"),
        ("INT16", {"int_contents": [-32769, 0]}, "-32769 is out of the range of INT16"),
        ("UINT8", {"uint_contents": [256, 0]}, "256 is out of the range of UINT8"),
        ("FP32", {"fp32_contents": [1.0]}, r"2 elements in fp32_contents are needed for shape \[2\].*got 1 in fp32"),
        ("FP32", {"fp64_contents": [1.0, 2.0]}, "got 2 in fp64_contents"),
        ("FP32", {}, "got none"),
        ("FP32", {"fp32_contents": [1.0, 2.0], "int_contents": [1]}, "got 1 in int_contents, 2 in fp32_contents"),
        ("FP16", {"fp32_contents": [1.0, 2.0]}, "send it in raw_input_contents"),
    ],
)
def test_lists_that_do_not_fit_are_refused_with_what_is_expected_and_given(datatype, listed, words) -> None:
    with pytest.raises(errors.BadRequest, match=words):
        steps.at_once(tensors.to_raw(pb.InferTensorContents(**listed).SerializeToString(), datatype, (2,)))


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP32", (2,), b"\0" * 7), ("FP32", (2,), b"\0" * 12), ("BYTES", (2,), b"\1\0\0\0a"),
        ("BYTES", (1,), b"\1\0\0\0ab"), ("BYTES", (1,), b"\xff\xff\xff\xffa"), ("BYTES", (1,), b"\1\0"),
        ("BYTES", (1,), b""),
    ],
)  # fmt: skip
def test_raw_tensors_of_another_size_are_refused(datatype, shape, data) -> None:
    with pytest.raises(errors.BadRequest, match=str(len(data))):
        steps.at_once(tensors.check_raw(data, datatype, shape))


@pytest.mark.parametrize("datatype", ["INT32", "FP32", "BYTES"])
def test_contents_that_are_no_message_are_refused(datatype) -> None:
    with pytest.raises(errors.BadRequest, match="InferTensorContents"):
        steps.at_once(tensors.to_raw(b"\xff\xff", datatype, (2,)))


@pytest.mark.parametrize("length", [5, 2**31, 2**32, 2**40])
def test_a_string_that_is_told_to_be_longer_than_its_message_is_refused(length) -> None:
    told = tensors.start(tensors._NUMBERS["bytes_contents"] << 3 | 2, length) + b"abcd"
    with pytest.raises(errors.BadRequest, match="InferTensorContents"):
        steps.at_once(tensors.to_raw(told, "BYTES", (1,)))
