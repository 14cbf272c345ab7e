"""Requests become one call by joining bytes, and the answer to it becomes theirs again, or nobody's."""

from __future__ import annotations

import json
import struct

import pytest

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface as wire
from tests.protocols.v2_http.callers import (
    BINARY_ASKED,
    TARGET,
    in_binary,
    in_json,
    merged,
    output,
    parts_of,
    reply_of,
    sized,
)


def test_max_batch_size_is_the_models_own(spoken):
    assert spoken.max_batch_size == 8


def test_lone_request_goes_as_it_came_and_gets_the_predictors_answer_as_it_is(spoken):
    body, size = in_binary(b"12345678", rest=',"id":"1" ')
    parts = parts_of(spoken, (body, size))
    call = spoken.merge("the-batch", TARGET, parts)
    assert (call.target, list(call.body)) == (TARGET, [body])
    assert call.headers == (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(size)),
    )
    rows = call.read(wire.UpstreamResponse(b"anything", {b"content-type": b"x/y", b"server": b"z"})).rows
    assert len(rows) == 1
    content = parts[0].request.payload.response_format.render([messages.Piece(0, "b", rows[0:1])])
    assert content == ((("Content-Type", "x/y"),), (b"anything",))


def test_lone_answer_in_binary_keeps_its_header(spoken):
    parts = parts_of(spoken, in_json("[1,2]"))
    reply = reply_of(output(sized(4)), data=b"1234")
    rows = spoken.merge("the-batch", TARGET, parts).read(reply).rows
    headers = parts[0].request.payload.response_format.render([messages.Piece(0, "b", rows[0:1])]).headers
    assert headers == (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(len(reply.body) - 4)),
    )


def test_numbers_are_spliced_as_they_were_written(spoken):
    request, _ = merged(spoken, in_json("[1.10,2e0]"), in_json("[ 3 , 0.1000000000000000055]"))
    assert request["inputs"][0]["shape"] == [2, 2]
    parts = parts_of(spoken, in_json("[1.10,2e0]"), in_json("[3,1E-7]"))
    assert b'"data":[1.10,2e0,3,1E-7]' in b"".join(spoken.merge("the-batch", TARGET, parts).body)


def test_lists_nested_alike_stay_nested_and_others_are_flattened(spoken):
    alike, _ = merged(spoken, in_json("[[1,2]]"), in_json("[ [3,4],[5,6]]", "[2,2]"))
    assert alike["inputs"][0]["data"] == [[1, 2], [3, 4], [5, 6]]
    mixed, _ = merged(spoken, in_json("[[1,2]]"), in_json("[3,4,5,6]", "[2,2]"))
    assert mixed["inputs"][0]["data"] == [1, 2, 3, 4, 5, 6]


def test_strings_may_look_like_anything(spoken):
    request, _ = merged(spoken, in_json('["],[","\\",\\""]', datatype="BYTES"), in_json('[["{",""]]', datatype="BYTES"))
    assert request["inputs"][0]["data"] == ["],[", '","', "{", ""]


def test_binary_data_are_joined_without_a_copy(spoken):
    bodies = [in_binary(bytes([number]) * 80_000, "[1,20000]") for number in range(3)]
    call = spoken.merge("the-batch", TARGET, parts_of(spoken, *bodies))
    assert [bytes(piece) for piece in call.body[1:]] == [bytes([number]) * 80_000 for number in range(3)]
    assert [piece.obj for piece in call.body[1:]] == [body for body, _ in bodies]


def test_json_beside_binary_becomes_binary(spoken):
    request, data = merged(spoken, in_json("[1.5,2]"), in_binary(struct.pack("<2f", 3, 4)))
    assert request["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}}
    ]
    assert data == struct.pack("<4f", 1.5, 2, 3, 4)


@pytest.mark.parametrize(
    ("datatype", "data", "size"),
    [
        ("INT8", "[1,128]", 2), ("INT8", "[1,-129]", 2), ("UINT8", "[-1,1]", 2),
        ("UINT64", "[1,18446744073709551616]", 16),
        ("INT32", "[1.0,2]", 8), ("INT32", "[true,2]", 8), ("INT32", '["1",2]', 8), ("INT32", "[null,2]", 8),
        ("FP32", "[1e39,2]", 8), ("FP64", "[1e400,2]", 16), ("FP32", "[true,2]", 8), ("FP32", '[{"a":1},2]', 8),
        ("BOOL", "[1,0]", 2), ("BYTES", "[1,2]", 8),
    ],
)  # fmt: skip
def test_json_that_has_no_equal_in_binary_travels_alone(spoken, datatype, data, size):
    parts = parts_of(spoken, in_json(data, datatype=datatype), in_binary(bytes(size), datatype=datatype))
    assert parts[0].request.key == parts[1].request.key
    for members in (parts, parts[::-1]):
        with pytest.raises(errors.NotMergeable, match="tensor 'x'") as caught:
            spoken.merge("the-batch", TARGET, members)
        assert members[caught.value.member] is parts[0]
    for part in parts:
        assert b"".join(spoken.merge("the-batch", TARGET, [part]).body) == part.request.payload.body


def test_what_requests_say_beside_their_data_is_said_once(spoken):
    rest = ',"parameters":{"priority":1,"binary_data_output":false},"more":{"a":[1.50]},"outputs":[{"name":"y","z":1}]'
    request, _ = merged(spoken, in_json("[1,2]", rest=rest, ident='"1"'), in_json("[3,4]", rest=rest, ident='"2"'))
    assert request == {
        "id": "the-batch",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}],
        "parameters": {"priority": 1},
        "more": {"a": [1.5]},
        "outputs": [{"name": "y", "z": 1}],
    }


def test_requests_that_list_no_outputs_are_merged_with_their_like_and_the_empty_list_is_passed_on(spoken):
    """What a predictor makes of it is its own business: it may be all of its outputs, or an error."""
    empty, asked, silent = in_json("[1,2]", rest=',"outputs":[]'), f',"outputs":[]{BINARY_ASKED}', in_json("[1,2]")
    request, _ = merged(spoken, empty, empty, in_json("[5,6]", rest=',"outputs" : [ ]'))
    assert request["outputs"] == []
    assert request["inputs"][0]["data"] == [1, 2, 1, 2, 5, 6]
    request, _ = merged(spoken, empty, in_json("[3,4]", rest=asked))
    assert (request["outputs"], request["parameters"]) == ([], {"binary_data_output": True})
    keys = [part.request.key for part in parts_of(spoken, empty, silent, in_json("[1,2]", rest=asked))]
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]


def test_binary_is_asked_for_where_somebody_wants_it(spoken):
    request, _ = merged(spoken, in_json("[1,2]"), in_json("[1,2]", rest=BINARY_ASKED))
    assert request["parameters"] == {"binary_data_output": True}
    yes, no = ({"name": "y", "parameters": {"binary_data": want}} for want in (True, False))
    bodies = [in_json("[1,2]", rest=f',"outputs":{json.dumps([each, no | {"name": "z"}])}') for each in (yes, no)]
    request, _ = merged(spoken, *bodies)
    assert request["outputs"] == [yes, {"name": "z"}]


def test_question_that_servers_understand_differently_is_passed_on_as_it_was_asked(spoken):
    outputs = '[{"name":"y"},{"name":"z","parameters":{"binary_data":false}}]'
    body = in_json("[1,2]", rest=f'{BINARY_ASKED},"outputs":{outputs}')
    request, _ = merged(spoken, body, body)
    assert request["parameters"] == {"binary_data_output": True}
    assert request["outputs"] == json.loads(outputs)
