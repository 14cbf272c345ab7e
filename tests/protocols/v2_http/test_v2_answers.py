"""What each caller gets of a batch's answer, and which answers are nobody's."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc

import pytest

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface as wire
from carpool_sidecar.protocols import models, steps
from carpool_sidecar.protocols.v2_http import answers, codec, json_bodies
from tests.protocols.v2_http.callers import BINARY_ASKED, TARGET, in_json, output, parts_of, reply_of, share_out, sized


def test_each_gets_its_own_rows_and_id_and_the_predictors_words(spoken):
    parts = parts_of(spoken, in_json("[1,2]", ident='"a"'), in_json("[3,4,5,6]", "[2,2]"))
    reply = reply_of(output('"data":[1.0,2.50,3.0]', "[3]"), output('"data":[[1],[2],[3]]', "[3,1]", name="z"))
    answer = spoken.merge("the-batch", TARGET, parts).read(reply)
    assert answer.list_name == b"outputs"
    (first, _), (second, _) = share_out(parts, answer.rows)
    assert (first["id"], first["model_name"], first["model_version"]) == ("a", "m", "1")
    assert "id" not in second
    assert [each["data"] for each in first["outputs"]] == [[1.0], [[1]]]
    assert [each["shape"] for each in second["outputs"]] == [[2], [2, 1]]
    content = parts[1].request.payload.response_format.render([messages.Piece(0, "b", answer.rows[1:3])])
    assert b'"data":[2.50,3.0]' in content.body[0]


def test_a_row_of_one_output_in_json_is_written_in_one_go_and_nothing_else(spoken):
    parts = parts_of(spoken, in_json("[1,2]", ident='"a"'), in_json("[3,4,5,6]", "[2,2]"))
    first, second = (part.request.payload.response_format for part in parts)
    rows = spoken.merge("the-batch", TARGET, parts).read(reply_of(output('"data":[[1],[2],[3]]', "[3,1]"))).rows
    assert first.text(rows[0:1]) == b"".join(first.render([messages.Piece(0, "b", rows[0:1])]).body)
    assert b'"id":"a"' in first.text(rows[0:1])
    assert second.text(rows[1:3]) is None
    two = reply_of(output('"data":[1,2,3]', "[3]"), output('"data":[1,2,3]', "[3]", name="z"))
    rows = spoken.merge("the-batch", TARGET, parts).read(two).rows
    assert first.text(rows[0:1]) is None


@pytest.mark.parametrize("shape", ["[]", "[1]", "[3,1]", "[1,2]"])
def test_outputs_without_the_batchs_rows_are_nobodys_and_told_of(spoken, uneven, shape):
    count = math.prod(json.loads(shape))
    reply = reply_of(output(f'"data":{[0] * count}', shape))
    call = spoken.merge("the-batch", TARGET, parts_of(spoken, in_json("[1,2]"), in_json("[3,4]")))
    with pytest.raises(errors.UpstreamBroken, match=r"output 'y' has shape .* should be 2"):
        call.read(reply)
    assert uneven == ["uneven"]


@pytest.mark.parametrize(
    ("outputs", "data"),
    [
        (output('"data":[1]'), b""),
        (output('"data":[1,2,3]'), b""),
        (output('"data":[1,nan]'), b""),
        (output('"data":["a",NAN]'), b""),
        (output('"more":[1,2]'), b""),
        (output('"data":5'), b""),
        (output(sized(8)), b"1234567"),
        (output(sized(8)), b"123456789"),
        (output(sized(9)), b"123456789"),
        (output(sized(6), datatype="BYTES"), b"\1\0\0\0a\0"),
        (output(sized(8), datatype="NEW"), b"12345678"),
        ("5", b""),
        ("[", b""),
        ("", b""),
    ],
)
def test_answer_that_is_none_is_nobodys(spoken, uneven, outputs, data):
    call = spoken.merge("the-batch", TARGET, parts_of(spoken, in_json("[1,2]"), in_json("[3,4]")))
    with pytest.raises(errors.UpstreamBroken):
        call.read(reply_of(outputs, data=data))
    assert uneven == []


@pytest.mark.parametrize("size", [b"-1", b"x", b"1" * 30, b"9999"])
def test_answer_whose_json_is_of_no_possible_size_is_nobodys(spoken, size):
    call = spoken.merge("the-batch", TARGET, parts_of(spoken, in_json("[1,2]"), in_json("[3,4]")))
    with pytest.raises(errors.UpstreamBroken, match="Inference-Header-Content-Length"):
        call.read(wire.UpstreamResponse(b"{}", {b"inference-header-content-length": size}))


def test_floats_in_json_are_the_doubles_they_equal(spoken):
    parts = parts_of(spoken, in_json("[1,2]"), in_json("[3,4]", rest=BINARY_ASKED))
    data = struct.pack("<2f", 0.1, 0.2)
    reply = reply_of(output(sized(8)), data=data)
    (first, _), (second, rest) = share_out(parts, spoken.merge("the-batch", TARGET, parts).read(reply).rows)
    assert first["outputs"][0]["data"] == [0.10000000149011612]
    assert second["outputs"][0]["parameters"] == {"binary_data_size": 4}
    assert rest == data[4:]


def test_not_a_number_and_infinity_are_spliced_as_triton_takes_and_writes_them(spoken):
    parts = parts_of(spoken, in_json("[NaN,1]", ident='"NaN"'), in_json("[ -Infinity , 2 ]"))
    call = spoken.merge("the-batch", TARGET, parts)
    assert b'"data":[NaN,1, -Infinity , 2 ]' in b"".join(call.body)
    rows = call.read(reply_of(output('"data":[Infinity,NaN]'))).rows
    (first, _), (second, _) = share_out(parts, rows)
    assert (first["id"], first["outputs"][0]["data"]) == ("NaN", [math.inf])
    assert math.isnan(second["outputs"][0]["data"][0])
    nested = share_out(parts, call.read(reply_of(output('"data":[[-Infinity],[NaN]]'))).rows)
    assert nested[0][0]["outputs"][0]["data"] == [[-math.inf]]


def test_not_a_number_stays_beside_texts_and_objects_as_in_v1_and_in_lists(spoken):
    parts = parts_of(spoken, in_json('["NaN",NaN]'), in_json('[{"a":-Infinity}, 2 ]'))
    call = spoken.merge("the-batch", TARGET, parts)
    assert b'"data":["NaN",NaN,{"a":-Infinity}, 2 ]' in b"".join(call.body)
    rows = call.read(reply_of(output('"data":["NaN",NaN]'))).rows
    (first, _), (second, _) = share_out(parts, rows)
    assert first["outputs"][0]["data"] == ["NaN"]
    assert math.isnan(second["outputs"][0]["data"][0])


@pytest.mark.parametrize("word", ["NaN", "-NaN", "Infinity", "-Infinity", "Inf", "-Inf", "nan"])
@pytest.mark.parametrize("rest", [',"parameters":{"x":%s}', ',"more":[%s]', ',"outputs":[%s]'])
def test_what_is_not_finite_is_refused_beside_data(spoken, word, rest):
    body = in_json("[NaN,1]", rest=rest % word)
    for _ in range(2):
        with pytest.raises(errors.BadRequest):
            spoken.parse(body, 100)


def test_not_a_number_is_found_beside_names_that_look_like_one(spoken):
    body = in_json("[NaN,-Infinity]", rest=',"parameters":{"NaN":"Inf,NaN,"}').replace(b'"x"', b'"Infinity"')
    parts = parts_of(spoken, body, body)
    request = b"".join(spoken.merge("the-batch", TARGET, parts).body)
    assert b'"name":"Infinity"' in request
    assert b'"parameters":{"NaN":"Inf,NaN,"}' in request
    assert b'"data":[NaN,-Infinity,NaN,-Infinity]' in request


@pytest.mark.parametrize("data", ["[1NaN,2]", "[NaN1,2]", "[1-Infinity,2]", "[--NaN,2]", "[NaNNaN,2]", "[1,2]NaN"])
def test_what_is_neither_a_number_nor_none_is_refused(spoken, data):
    with pytest.raises(errors.BadRequest):
        spoken.parse(in_json(data), 100)


def test_many_that_are_no_numbers_take_little_more_memory_than_the_body(spoken):
    body = in_json(f"[{','.join(['NaN'] * 100_000)}]", shape="[1,100000]")
    tracemalloc.start()
    spoken.parse(body, 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * len(body)


def test_what_is_remembered_of_messages_can_be_shared_by_models(spoken):
    memory = codec.Memory()
    one, other = (codec.Codec(models.ModelInfo(), lambda: None, memory) for _ in range(2))
    body = in_json("[1,2]")
    assert one.parse(body, 100).template is other.parse(body, 100).template


def test_members_that_are_null_say_nothing(spoken):
    nothing = '"id":null,"parameters":null,"outputs":null'
    body = in_json("[1,2]", rest=f",{nothing}").replace(b'"name"', b'"parameters":null,"name"')
    parts = parts_of(spoken, body, body)
    call = spoken.merge("the-batch", TARGET, parts)
    request = json.loads(b"".join(call.body))
    assert request["inputs"][0] == {"name": "x", "datatype": "FP32", "parameters": None, "shape": [2, 2]} | {
        "data": [1, 2, 1, 2]
    }
    reply = reply_of(output('"parameters":null,"data":[1,2]'))
    (first, _), _ = share_out(parts, call.read(reply).rows)
    assert "id" not in first
    assert first["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [1]}]


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("FP32", struct.pack("<2f", float("nan"), 1)),
        ("FP64", struct.pack("<2d", float("-inf"), 1)),
        ("FP16", b"1234"),
        ("BF16", b"1234"),
        ("BYTES", b"\1\0\0\0\xff\1\0\0\0a"),
    ],
)
def test_data_that_json_cannot_carry_send_members_on_alone(spoken, datatype, data):
    parts = parts_of(spoken, in_json("[1,2]"), in_json("[3,4]", rest=BINARY_ASKED))
    reply = reply_of(output(sized(len(data)), datatype=datatype), data=data)
    with pytest.raises(errors.NotMergeable, match="tensor 'y'"):
        spoken.merge("the-batch", TARGET, parts).read(reply)


def test_data_that_json_cannot_carry_are_no_trouble_for_those_who_want_binary(spoken):
    parts = parts_of(spoken, in_json("[1,2]"), in_json("[3,4]", rest=BINARY_ASKED))
    data = struct.pack("<2f", 1, float("nan"))
    reply = reply_of(output(sized(8)), data=data)
    (first, _), (_, rest) = share_out(parts, spoken.merge("the-batch", TARGET, parts).read(reply).rows)
    assert first["outputs"][0]["data"] == [1.0]
    assert rest == data[4:]


def test_predictor_that_knows_no_binary_serves_those_who_want_it(spoken):
    parts = parts_of(spoken, in_json("[1,2]", rest=BINARY_ASKED), in_json("[3,4]", rest=BINARY_ASKED))
    rows = spoken.merge("the-batch", TARGET, parts).read(reply_of(output('"data":[1,2.5]'))).rows
    assert [rest for _, rest in share_out(parts, rows)] == [struct.pack("<f", 1), struct.pack("<f", 2.5)]


def test_shares_of_answers_that_differ_are_never_joined(spoken):
    part = parts_of(spoken, in_json("[1,2,3,4]", "[2,2]"))[0]
    calls = [spoken.merge("the-batch", TARGET, [messages.Part(part.request, at, at + 1)]) for at in range(2)]
    rows = [
        calls[0].read(reply_of(output('"data":[1]', "[1,1]"))).rows,
        calls[1].read(reply_of(output('"data":[1,2]', "[1,2]"))).rows,
    ]
    with pytest.raises(errors.UpstreamBroken, match="do not go together"):
        part.request.payload.response_format.render([messages.Piece(at, "b", rows[at][0:1]) for at in range(2)])


@pytest.mark.parametrize("width", [1, 3, 40, 3000])
def test_large_requests_are_cut_between_rows(spoken, width):
    values = [number % 89 / 4 for number in range(5 * width)]
    for data in (values, [values[at : at + width] for at in range(0, len(values), width)]):
        part = parts_of(spoken, in_json(json.dumps(data), f"[5,{width}]"))[0]
        for start, stop in [(0, 2), (2, 3), (3, 5)]:
            request = json.loads(
                b"".join(spoken.merge("the-batch", TARGET, [messages.Part(part.request, start, stop)]).body)
            )
            assert request["inputs"][0]["shape"] == [stop - start, width]
            assert request["inputs"][0]["data"] == values[start * width : stop * width]


@pytest.mark.parametrize(
    "names",
    ['"model_name":"m","model_version":null,"id":"%s"', '"model_name": "m", "id": "%s"', '"id":"%s","model_name":"m"'],
    ids=["as KServe writes it", "without a version", "as Triton writes it"],
)
def test_an_answer_is_understood_once_wherever_it_names_its_batch(spoken, names):
    learned = []
    cache = json_bodies.BodySplitter("outputs", lambda rest: learned.append(rest) or answers.learn(rest))
    reader = answers.Reader(lambda: None, cache)
    form = parts_of(spoken, in_json("[1,2]"))[0].request.payload.response_format
    for number in range(3):
        members = names % f"batch-{number}"
        for extra, data, tail in [("", '"data":[1]', b""), (',"x":0', '"parameters":{"binary_data_size":4}', b"1234")]:
            text = f'{{{members}{extra},"outputs":[{{"name":"y","shape":[1,1],"datatype":"FP32",{data}}}]}}'.encode()
            headers = {b"inference-header-content-length": b"%d" % len(text)} if tail else {}
            answer = steps.at_once(reader.read([(form, 0, 1)], wire.UpstreamResponse(text + tail, headers)))
            body = b"".join(form.render([messages.Piece(0, "b", answer.rows[0:1])]).body)
            assert b"batch-" not in body
            assert body.startswith(b'{"model_name":')
    assert len(learned) == 2
