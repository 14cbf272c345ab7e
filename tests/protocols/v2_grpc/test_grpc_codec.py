"""Which requests share a batch, which travel alone, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface as wire
from carpool_sidecar.protocols import models, steps
from carpool_sidecar.protocols.v2_grpc import codec, tensors
from tests.protocols.v2_grpc import echo_model


def request(shape=(1, 2), datatype="FP32", data=b"\0" * 8, name="x", **words: Any) -> Any:
    made = pb.ModelInferRequest(**{"model_name": "m", **words})
    made.inputs.add(name=name, datatype=datatype, shape=shape)
    if data is not None:
        made.raw_input_contents.append(data)
    return made


class Uneven:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def uneven() -> Uneven:
    return Uneven()


@pytest.fixture
def talk(uneven: Uneven) -> codec.Codec:
    return codec.Codec(models.ModelInfo(), uneven)


def parsed(talk: codec.Codec, made: Any, max_rows: int = 100) -> codec.Payload:
    return talk.parse(made.SerializeToString(), max_rows)


def with_parameter(name: str) -> Any:
    made = request()
    made.parameters[name].int64_param = 1
    return made


def with_output(name: str, parameter: str = "") -> Any:
    made = request()
    output = made.outputs.add(name=name)
    if parameter:
        output.parameters[parameter].string_param = "1"
    return made


def in_shared_memory() -> Any:
    made = request(data=None)
    made.inputs[0].parameters["shared_memory_region"].string_param = "r"
    return made


def test_ids_and_rows_do_not_keep_requests_apart(talk) -> None:
    keys = {parsed(talk, each).key for each in (request(), request(id="a"), request(shape=(3, 2), data=b"\0" * 24))}
    assert len(keys) == 1


def signature(talk: codec.Codec, made: Any) -> Any:
    return parsed(talk, made).message.template.signature


def test_what_is_long_is_not_remembered(talk) -> None:
    made = request()
    assert signature(talk, made) is signature(talk, made)
    made.parameters["prompt"].string_param = "x" * 10_000
    first, second = signature(talk, made), signature(talk, made)
    assert first.key == second.key
    assert first is not second
    assert first.head(1) is not first.head(1)


@pytest.mark.parametrize(
    "other",
    [
        request(model_name="other"), request(model_version="2"), request(name="y"), request(datatype="INT32"),
        request(shape=(1, 2, 1)), with_parameter("priority"), with_output("y"), with_output("y", "classification"),
    ],
)  # fmt: skip
def test_whatever_else_differs_keeps_requests_apart(talk, other) -> None:
    assert parsed(talk, other).key != parsed(talk, request()).key


def test_the_order_of_inputs_and_the_values_of_parameters_keep_requests_apart(talk) -> None:
    both = [pb.ModelInferRequest(model_name="m") for _ in range(2)]
    for made, names in zip(both, ("ab", "ba"), strict=True):
        for name in names:
            made.inputs.add(name=name, datatype="INT8", shape=(1,))
            made.raw_input_contents.append(b"\0")
    assert parsed(talk, both[0]).key != parsed(talk, both[1]).key
    first, second = with_parameter("p"), with_parameter("p")
    second.parameters["p"].int64_param = 2
    assert parsed(talk, first).key != parsed(talk, second).key


def test_the_order_in_which_parameters_were_written_does_not_keep_requests_apart(talk) -> None:
    made = [request(), request()]
    for each, names in zip(made, ("abcdefgh", "hgfedcba"), strict=True):
        for name in names:
            each.parameters[name].string_param = name
    assert parsed(talk, made[0]).key == parsed(talk, made[1]).key


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (with_parameter("sequence_id"), "sequence"), (with_parameter("sequence_start"), "sequence"),
        (with_parameter("sequence_end"), "sequence"), (in_shared_memory(), "shared_memory"),
        (with_output("y", "shared_memory_region"), "shared_memory"), (request(datatype="FP8"), "datatype"),
        (request(shape=()), "shape"), (request(shape=(0, 2), data=b""), "shape"),
        (pb.ModelInferRequest(model_name="m"), "shape"),
    ],
)  # fmt: skip
def test_what_has_to_travel_alone_is_told_by_its_reason(talk, made, reason) -> None:
    with pytest.raises(errors.Unbatchable) as verdict:
        parsed(talk, made)
    assert verdict.value.reason == reason
    assert reason in set(errors.NotBatched)


def test_inputs_with_different_rows_travel_alone(talk) -> None:
    made = request()
    made.inputs.add(name="y", datatype="INT8", shape=(2,))
    made.raw_input_contents.append(b"\0\0")
    with pytest.raises(errors.Unbatchable, match="shape"):
        parsed(talk, made)


@pytest.mark.parametrize(
    "body",
    [
        request().SerializeToString() + b"\x42\x01a",  # field 8
        request().SerializeToString() + b"\x2a\x06\x0a\x01y\x4a\x01z",  # an input with a field 9
        request().SerializeToString() + b"\x0a\x00"[:0] + b"\x48\x01",  # field 9, a number
    ],
)
def test_fields_that_are_not_known_travel_alone(talk, body) -> None:
    with pytest.raises(errors.Unbatchable, match="members"):
        talk.parse(body, 100)


@pytest.mark.parametrize(
    "made",
    [
        request(data=b"\0" * 7),
        request(datatype="BYTES", shape=(2,), data=b"\1\0\0\0a"),
        request(shape=(2, -1)),
        request(shape=(-1,)),
        request(data=None),
    ],
)
def test_tensors_that_are_not_what_they_say_travel_alone(talk, made) -> None:
    for _ in range(2):  # the same when it is known
        with pytest.raises(errors.Unbatchable, match="shape"):
            parsed(talk, made)
        with pytest.raises(errors.Unbatchable, match="shape"):
            steps.at_once(talk.parse_in_steps(made.SerializeToString(), 100))


def test_typed_numbers_that_their_datatype_cannot_hold_travel_alone(talk) -> None:
    made = request(datatype="INT8", data=None)
    made.inputs[0].contents.int_contents.extend([1, 128])
    with pytest.raises(errors.Unbatchable, match="members"):
        parsed(talk, made)


def test_too_many_raw_contents_are_refused_also_of_a_known_request(talk) -> None:
    parsed(talk, request())
    made = request()
    made.raw_input_contents.append(b"")
    with pytest.raises(errors.BadRequest, match="1 inputs need 1 raw contents; got 2"):
        parsed(talk, made)


def test_typed_beside_raw_contents_are_refused(talk) -> None:
    made = request()
    made.inputs[0].contents.fp32_contents.extend([1, 2])
    with pytest.raises(errors.BadRequest, match="no typed contents"):
        parsed(talk, made)


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x02\xff\xff", request().SerializeToString()[:-1]])
def test_what_is_no_request_is_refused(talk, body) -> None:
    with pytest.raises(errors.BadRequest, match="not a valid ModelInferRequest"):
        talk.parse(body, 100)


def test_an_id_that_is_no_text_is_refused(talk) -> None:
    with pytest.raises(errors.BadRequest, match="UTF-8"):
        talk.parse(request().SerializeToString() + b"\x1a\x01\xff", 100)


def test_more_rows_than_allowed_are_refused(talk) -> None:
    assert parsed(talk, request(shape=(3, 2), data=b"\0" * 24), 3).row_count == 3
    with pytest.raises(errors.PayloadTooLarge, match="3 rows; at most 2"):
        parsed(talk, request(shape=(3, 2), data=b"\0" * 24), 2)


def test_the_batch_size_is_what_the_model_takes_now(talk) -> None:
    assert talk.max_batch_size > 10**9
    talk.info = models.ModelInfo(max_batch_size=8)
    assert talk.max_batch_size == 8


def test_a_request_that_travels_whole_and_alone_goes_and_comes_verbatim(talk) -> None:
    body = request(id="me").SerializeToString()
    payload = talk.parse(body, 100)
    outgoing = talk.merge("the-batch", "/t", [echo_model.part(payload)])
    assert (outgoing.target, outgoing.headers, b"".join(outgoing.body)) == ("/t", (), body)
    told = outgoing.read(wire.UpstreamResponse(b"whatever it is", {}))
    assert len(told.rows) == 1
    content = payload.response_format.render(
        echo_model.exchange(talk, [echo_model.part(payload)], lambda _: b"whatever")
    )
    assert b"".join(content.body) == b"whatever"


def response(rows: int, **words: Any) -> Any:
    made = pb.ModelInferResponse(model_name="m")
    made.outputs.add(**{"name": "y", "datatype": "INT8", "shape": (rows,), **words})
    made.raw_output_contents.append(b"\0" * rows)
    return made


def scalar() -> Any:
    made = response(2)
    del made.outputs[0].shape[:]
    return made


@pytest.mark.parametrize(
    "made", [response(1), response(3), scalar(), response(2, datatype="FP8"), pb.ModelInferResponse(model_name="m")]
)
def test_an_answer_without_the_batchs_rows_is_told_and_nobodys(talk, uneven, made) -> None:
    parts = [echo_model.part(parsed(talk, request(id=each))) for each in "ab"]
    with pytest.raises(errors.UpstreamBroken, match="cannot be shared out"):
        echo_model.exchange(talk, parts, lambda _: made.SerializeToString())
    assert uneven.times == 1


def test_an_answer_whose_tensors_are_not_what_they_say_is_nobodys(talk, uneven) -> None:
    made = response(2)
    made.raw_output_contents[0] = b"\0"
    parts = [echo_model.part(parsed(talk, request())) for _ in "ab"]
    for body in (made.SerializeToString(), b"\xff"):
        with pytest.raises(errors.UpstreamBroken, match="broken"):
            echo_model.exchange(talk, parts, lambda _, body=body: body)
    assert uneven.times == 0


def test_the_parts_of_one_request_must_be_answered_alike(talk, uneven) -> None:
    payload = parsed(talk, request(shape=(2, 2), data=b"\0" * 16))
    echo_model.exchange(talk, [echo_model.part(payload, 0, 1)], lambda _: response(1).SerializeToString())
    changed = response(1, name="z").SerializeToString()
    with pytest.raises(errors.UpstreamBroken, match="different outputs"):
        echo_model.exchange(talk, [echo_model.part(payload, 1, 2)], lambda _: changed)
    assert uneven.times == 1


def test_large_tensors_are_not_copied_to_be_merged(talk) -> None:
    data = bytes(64 * 1024)
    parts = [echo_model.part(parsed(talk, request(shape=(1, len(data) // 4), data=data))) for _ in "ab"]
    pieces = talk.merge("the-batch", "/t", parts).body
    assert [type(piece) for piece in pieces if len(piece) == len(data)] == [memoryview, memoryview]


def test_tensors_are_written_and_read_for_those_who_have_no_message() -> None:
    tensor = models.Tensor("x", "FP32", (1, 2), b"\0" * 8)
    target, headers, body = tensors.write_request("the-batch", models.ModelName("m", "1"), [tensor])
    assert (target, headers) == ("/inference.GRPCInferenceService/ModelInfer", ())
    assert pb.ModelInferRequest.FromString(b"".join(body)) == request(model_version="1", id="the-batch")
    for is_raw in (True, False):
        answer = echo_model.answer(b"".join(body), is_always_raw=is_raw)
        assert steps.at_once(tensors.read_answer(wire.UpstreamResponse(answer, {}))) == [tensor]
    for made in (response(2, datatype="FP8"), response(2, shape=(3,)), response(2, shape=(-2, -1))):
        with pytest.raises(errors.UpstreamBroken):
            steps.at_once(tensors.read_answer(wire.UpstreamResponse(made.SerializeToString(), {})))


def many_fields() -> bytes:
    return request().SerializeToString() + b"\x3a\x00" * 5000


def typed(datatype: str, field: str, values: list[Any]) -> bytes:
    made = pb.ModelInferRequest(model_name="m")
    made.inputs.add(name="x", datatype=datatype, shape=(1, len(values)))
    getattr(made.inputs[0].contents, field).extend(values)
    return made.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        request(datatype="BYTES", shape=(1, 1_000_000), data=b"\xff" * 4_000_000).SerializeToString(),
        typed("BYTES", "bytes_contents", [b"a"] * 700_000),
        typed("INT64", "int64_contents", [1] * 1_100_000),
        typed("FP32", "int_contents", [1] * 2_000_000),
        many_fields(),
        request(model_name="m" * 70_000).SerializeToString(),
        request().SerializeToString() + b"\xaa\x06" + b"\x80\x89\x7a" + bytes(2_000_000),
    ],
    ids=["strings", "typed strings", "typed integers", "other contents", "fields", "words", "an unknown field"],
)
def test_what_would_take_long_to_look_through_travels_alone_unread(talk, body) -> None:
    with pytest.raises(errors.Unbatchable) as caught:
        talk.parse(body, 100)
    assert caught.value.reason == "members"


def test_floating_point_numbers_in_lists_are_batched_however_many_as_they_are_not_looked_at(talk) -> None:
    payload = talk.parse(typed("FP32", "fp32_contents", [0.5] * 2_000_000), 100)
    assert bytes(payload.message.raw[0]) == np.full(2_000_000, 0.5, "<f4").tobytes()
