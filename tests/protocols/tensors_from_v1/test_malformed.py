"""What is wrong with a request is told to its caller: the instance, the input, what was expected and what came."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_sidecar import errors
from tests.protocols.tensors_from_v1.model import Model


def refusal(model: Model, body: Any) -> str:
    with pytest.raises(errors.BadRequest) as caught:
        model.parse(body)
    assert errors.status_of(caught.value) == 400
    return str(caught.value)


@pytest.mark.parametrize(
    ("instances", "reason"),
    [
        ([[1, 2], [3]], "instance 1: input 'a' must have the shape [2]; given: [1]"),
        ([[1, 2], []], "instance 1: input 'a' must have the shape [2]; given: [0]"),
        ([[1, 2], 3], "instance 1: input 'a' must have the shape [2]; given: [] (a single value)"),
        ([[1, 2], None], "instance 1: input 'a' must have the shape [2]; given: [] (a single value)"),
        ([[[1, 2]]], "instance 0: input 'a' must have the shape [2]; given: [1,2]"),
        ([[[1], [2, 3]]], "instance 0: input 'a' must have the shape [2]; given: lists that are ragged"),
    ],
)
def test_another_shape_than_the_models(instances: Any, reason: str) -> None:
    assert reason in refusal(Model(("a", "FP32", (-1, 2))), {"instances": instances})


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL", "BF16", "BYTES"])
def test_an_empty_list_for_one_value(datatype: str) -> None:
    wanted = "instance 0: input 'a' must have the shape [1]; given: [0]"
    assert wanted in refusal(Model(("a", datatype, (-1, 1))), {"instances": [[]]})


@pytest.mark.parametrize(
    ("instances", "reason"),
    [
        ([[1], [2, 3]], "instance 1: input 'a' must have the shape [1], as in the first instance; given: [2]"),
        ([[], [2]], "instance 1: input 'a' must have the shape [0], as in the first instance; given: [1]"),
        ([[1], []], "instance 1: input 'a' must have the shape [1], as in the first instance; given: [0]"),
        ([1], "instance 0: input 'a' must have the shape [-1]; given: [] (a single value)"),
        ([[[]]], "instance 0: input 'a' must have the shape [-1]; given: [1,0]"),
    ],
)
def test_another_shape_than_the_first_instance(instances: Any, reason: str) -> None:
    assert reason in refusal(Model(("a", "FP32", (-1, -1))), {"instances": instances})
    texts = [[str(each) for each in row] if isinstance(row, list) and row != [[]] else row for row in instances]
    told = refusal(Model(("a", "BYTES", (-1, -1))), {"instances": texts})
    assert reason in told or "must have strings" in told


@pytest.mark.parametrize(
    ("datatype", "value", "given"),
    [
        ("FP32", '"x"', '"x"'),
        ("FP32", '"]}"', '"]}"'),
        ("FP32", '"' + "x" * 500 + '"', "..."),
        ("FP32", '{"x":1}', "an object"),
        ("FP32", "null", "null"),
        ("FP32", "true", "true"),
        ("FP32", "1e39", "1e39"),
        ("FP32", "-1e400", "-1e400"),
        ("FP32", "9" * 5000, "999"),
        ("FP64", "1e309", "1e309"),
        ("FP16", "65520", "65520"),
        ("FP16", "1e9", "1e9"),
        ("BF16", "3.4e38", "3.4e38"),
        ("BOOL", "1", "1"),
        ("BOOL", "null", "null"),
        ("INT8", "300", "300"),
        ("INT8", "-129", "-129"),
        ("INT8", "1e3", "1e3"),
        ("UINT8", "-1", "-1"),
        ("UINT16", "65536", "65536"),
        ("UINT64", "-1", "-1"),
        ("UINT64", "18446744073709551616", "18446744073709551616"),
        ("INT64", "9223372036854775808", "9223372036854775808"),
        ("INT64", "9007199254740993.5", "9007199254740993.5"),
        ("INT64", "1e999999999", "1e999999999"),
        ("INT32", "1.5", "1.5"),
        ("INT32", "false", "false"),
        ("INT32", '"1"', '"1"'),
        ("BYTES", "1", "int"),
        ("BYTES", "null", "null"),
        ("BYTES", '{"b64":"!"}', "base64"),
        ("BYTES", '{"b64":1}', "int"),
        ("BYTES", '{"b65":""}', "b65"),
    ],
)
def test_a_value_that_is_none_of_the_datatype(datatype: str, value: str, given: str) -> None:
    fine = {"BOOL": "true", "BYTES": '"x"'}.get(datatype, "1")
    body = f'{{"instances":[[{fine},{fine}],[{fine},{value}]]}}'
    told = refusal(Model(("a", datatype, (-1, 2))), body.encode())
    assert told.startswith("instance 1: input 'a' must have")
    assert datatype in told
    assert given in told.partition("given: ")[2]
    assert len(told) < 200


@pytest.mark.parametrize("instances", [[1, [2]], [[1], 2]])
def test_single_values_among_lists_of_one(instances: Any) -> None:
    assert "instance 1: input 'a' must have the shape" in refusal(
        Model(("a", "FP32", (-1, 1))), {"instances": instances}
    )


@pytest.mark.parametrize(
    ("instances", "reason"),
    [
        ([{"a": 1, "b": 2}, {"a": 1}], "instance 1 lacks the input 'b'; the model's inputs: a, b"),
        ([{"a": 1, "b": 2, "c": 3}], "instance 0 has 'c', which is no input of the model; the model's inputs: a, b"),
        ([1, 2], "instance 0 must be an object of values by the inputs' names; given: int; the model's inputs: a, b"),
        ([{"a": 1, "b": 2}, [1, 2]], "instance 1 must be an object"),
        ([{"a": 1, "b": None}], "instance 0: input 'b' must have values of datatype FP32; given: null"),
        ([{"a": 1, "b": {"a": 1}}], "instance 0: input 'b' must have values of datatype FP32; given: an object"),
        ([{}], "instance 0 lacks the input"),
    ],
)
def test_wrong_inputs_of_a_model_with_several(instances: Any, reason: str) -> None:
    assert reason in refusal(Model(("a", "FP32", (-1,)), ("b", "FP32", (-1,))), {"instances": instances})


def test_none_of_a_models_inputs_although_all_may_be_left_out() -> None:
    model = Model(("a", "FP32", (-1,), True), ("b", "FP32", (-1,), True))
    assert "none of the model's inputs a, b" in refusal(model, {"instances": [{}]})
    assert "lacks" in refusal(model, {"inputs": {}})


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": [1]}, "'inputs' lacks 'b'"),
        ({"a": [1], "b": [1], "c": [1]}, "'inputs' has 'c'; the model's inputs: a, b"),
        ({"a": [1, 2], "b": [1]}, "'inputs' has 1 values of 'b', but 2 of others"),
        ({"a": 1, "b": [1]}, "'inputs' must have a list for 'a'"),
        ({"a": [1, "x"], "b": [1, 1]}, "instance 1: input 'a' must have values of datatype FP32"),
        ({"a": [], "b": []}, "no instances"),
    ],
)
def test_wrong_columns(columns: Any, reason: str) -> None:
    assert reason in refusal(Model(("a", "FP32", (-1,)), ("b", "FP32", (-1,))), {"inputs": columns})


@pytest.mark.parametrize("member", ["parameters", "id", "outputs"])
@pytest.mark.parametrize("values", [{"instances": [1]}, {"inputs": {"a": [1]}}])
def test_a_member_that_the_predictor_could_not_be_told_of(member: str, values: Any) -> None:
    told = refusal(Model(("a", "FP32", (-1,))), {member: {}, **values})
    assert f"the member {member!r} cannot be passed on" in told


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"instances":1}', b'{"instances":[]}', b'{"instances":[NaN]}', b'{"instances":[1]'],
)
def test_what_is_no_v1_request_at_all(body: bytes) -> None:
    refusal(Model(("a", "FP32", (-1,))), body)


@pytest.mark.parametrize("text", [rb'"\ud800"', rb'"\udc00"', b'"\xff"'])
def test_strings_that_are_no_text(text: bytes) -> None:
    refusal(Model(("s", "BYTES", (-1,))), b'{"instances":[' + text + b"]}")


@pytest.mark.parametrize("depth", [30, 900, 100_000])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_nesting_without_end(depth: int, datatype: str) -> None:
    refusal(Model(("a", datatype, (-1, -1))), b'{"instances":[' + b"[" * depth + b"]" * depth + b"]}")


def test_ragged_lists_that_begin_like_a_giant() -> None:
    wide = b"[" + b",".join([b"0"] * 1000) + b"]"
    body = b'{"instances":[[' + b",".join([b"[" + wide + b",1]"] + [b"1"] * 100_000) + b"]]}"
    assert "ragged" in refusal(Model(("a", "FP32", (-1, -1, -1, -1, -1))), body)


@pytest.mark.parametrize("body", [{"instances": [1, 2, 3]}, {"inputs": {"a": [1, 2, 3]}}])
def test_more_instances_than_allowed_are_too_many(body: Any) -> None:
    with pytest.raises(errors.PayloadTooLarge):
        Model(("a", "FP32", (-1,))).parse(body, max_rows=2)


@pytest.mark.parametrize(
    "body",
    [
        rb'{"instances":[{"a":"\ud83d"}]}',
        rb'{"instances":[{"b64":"\ud83d"}]}',
        rb'{"instances":["\ud83d"]}',
        rb'{"instances":[{"\ud83d":1}]}',
        rb'{"instances":["x"],"\ud83d":1}',
        rb'{"inputs":{"a":["\ud83d"]}}',
    ],
)
def test_half_characters_which_are_no_text_are_refused(body: bytes) -> None:
    for model in (Model(("a", "BYTES", (-1,))), Model(("a", "BYTES", (-1,)), ("b", "BYTES", (-1,), True))):
        with pytest.raises(errors.BadRequest):
            model.parse(body)
