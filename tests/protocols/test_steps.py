"""In steps the same comes of a message as at once, wherever it is cut, and whatever is wrong with it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import incremental_scan, interface, models, steps, tensors_from_v1, v2
from carpool_sidecar.protocols.lists import codec as lists
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.tensors_from_embeddings import answers as embeddings
from carpool_sidecar.protocols.tensors_from_v1 import columns, outputs, values
from carpool_sidecar.protocols.v2_grpc import codec as grpc_codec
from carpool_sidecar.protocols.v2_grpc import tensors as grpc_tensors
from carpool_sidecar.protocols.v2_http import answers as http_answers
from carpool_sidecar.protocols.v2_http import codec as http_codec
from carpool_sidecar.protocols.v2_http import json_lists
from carpool_sidecar.protocols.v2_http import tensors as http_tensors

NUMBERS = {"INT8": (-128, 127), "UINT32": (0, 2**32 - 1), "INT64": (-(2**63), 2**63 - 1), "BOOL": (0, 1)}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in (
        (v2, "ELEMENTS_A_STEP", 3), (grpc_tensors, "_NUMBERS_A_STEP", 5), (values, "_LARGE", 7), (values, "_GROUP", 20),
        (columns, "_LARGE", 5), (outputs, "_PIECE", 12), (json_lists, "STEP", 6),
        (incremental_scan, "_PIECE", 6), (incremental_scan, "STEP", 40), (incremental_scan, "LARGE", 20),
        (json_lists, "_PIECE", 7), (json_lists, "_ROWS_A_STEP", 2), (http_answers, "_GROUP", 9),
        (grpc_tensors, "_LISTED_A_STEP", 3), (embeddings, "_GROUP", 16),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, size)


def told(how: Callable[[], Any]) -> Any:
    """What comes of it, or the kind and the words of the error."""
    try:
        return how()
    except (errors.CarpoolError, errors.Unbatchable) as error:
        return type(error), str(error)


def asked(payload: Any) -> messages.Request:
    """The core's request of a payload."""
    return messages.Request(payload.key, payload.row_count, payload=payload)


@given(st.lists(st.binary(max_size=5), max_size=12), st.integers(0, 4), st.integers(0, 5), st.binary(max_size=3))
def test_rows_of_strings_end_where_they_end(strings: list[bytes], rows: int, width: int, more: bytes) -> None:
    ends = steps.at_once(v2.row_ends(v2.pack(strings) + more, rows, width))
    if len(strings) == rows * width and not more:
        assert ends == [len(v2.pack(strings[: row * width])) for row in range(rows + 1)]
    elif len(strings) >= rows * width:
        assert ends is None


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_long_list_of_narrow_rows_is_parted_in_many_steps(width: int) -> None:
    row, count = b",".join([b"7"] * width), 100_000  # compiled modules go by their own sizes of steps
    text, found = b"[" + b",".join([row] * count) + b"]", list[bytes]()

    def part() -> steps.Steps[None]:
        found.extend((yield from json_lists.rows(memoryview(text), count, width)))

    assert len(list(part())) > len(text) // 100_000
    assert found == [row] * count


@st.composite
def rpc_requests(draw: st.DrawFn) -> bytes:
    """Whole ones, with lists or raw, and some that are cut off or have an odd count."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    count = rows * width + draw(st.sampled_from([0, 0, 0, -1, 1]))
    datatype = draw(st.sampled_from([*NUMBERS, "BYTES"]))
    message = service_pb2.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[rows, width])
    field = v2.DATATYPES[datatype].contents
    if datatype == "BYTES":
        found = draw(st.lists(st.binary(max_size=200), min_size=count, max_size=count))
        if draw(st.booleans()):
            tensor.contents.bytes_contents.extend(found)
        else:
            message.raw_input_contents.append(v2.pack(found))
    else:
        low, high = NUMBERS[datatype]
        wide = draw(st.booleans()) and datatype == "INT8"
        limits = st.integers(low * (2 if wide else 1), high)
        getattr(tensor.contents, field).extend(draw(st.lists(limits, min_size=count, max_size=count)))
    text: bytes = message.SerializeToString()
    return text[: draw(st.sampled_from([len(text)] * 4 + [len(text) - 1, len(text) - 3]))]


def seen_rpc(payload: Any) -> Any:
    if not isinstance(payload, grpc_codec.Payload):
        return payload
    message = payload.message
    return payload.key, payload.row_count, [bytes(raw) for raw in message.raw], dict(message.ends), message.is_listed


@given(rpc_requests())
def test_a_request_over_grpc(body: bytes) -> None:
    made = grpc_codec.Codec(models.ModelInfo(max_batch_size=8), lambda: None)
    in_steps = told(lambda: steps.at_once(made.parse_in_steps(body, 100)))
    assert seen_rpc(in_steps) == seen_rpc(told(lambda: made.parse(body, 100)))


@given(st.lists(st.lists(st.binary(max_size=9), min_size=2, max_size=2), min_size=2, max_size=9), st.booleans())
def test_an_answer_over_grpc(rows: list[list[bytes]], is_cut: bool) -> None:
    made = grpc_codec.Codec(models.ModelInfo(max_batch_size=8), lambda: None)
    message = service_pb2.ModelInferResponse(model_name="m")
    message.outputs.add(name="y", datatype="BYTES", shape=[len(rows), 2])
    message.raw_output_contents.append(v2.pack([each for row in rows for each in row])[: -1 if is_cut else None])
    request = service_pb2.ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="INT8", shape=[len(rows), 1])
    request.raw_input_contents.append(bytes(len(rows)))
    whole = asked(made.parse(request.SerializeToString(), 100))
    halves: Any = [messages.Part(whole, 0, 1), messages.Part(whole, 1, len(rows))]
    call = made.merge("b", "t", halves)
    reply = interface.UpstreamResponse(message.SerializeToString(), {})
    answers = [told(lambda: call.read(reply)), told(lambda: call.read(reply))]
    found = [each if isinstance(each[0], type) else bytes(each.rows.message.cut(0, 0, len(rows))) for each in answers]
    assert found[0] == found[1]


@given(st.data())
def test_v1_instances_as_tensors_are_the_same_in_steps_of_any_size(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 5))
    datatype = data.draw(st.sampled_from(["FP32", "INT64", "BYTES"]))
    value: Any = {"FP32": st.integers(-9, 9).map(float), "INT64": st.integers(-99, 99), "BYTES": st.text(max_size=9)}
    given_rows = data.draw(
        st.lists(st.lists(value[datatype], min_size=width, max_size=width), min_size=rows, max_size=rows)
    )
    spec = models.TensorSpec("x", datatype, (-1, -1))
    info = models.ModelInfo((spec,), (models.TensorSpec("y", datatype, (-1, -1)),), 100)
    made = tensors_from_v1.Codec(models.ModelName("m", ""), info, http_tensors)
    payload = made.parse(json.dumps({"instances": given_rows}).encode(), 100)
    flat = [each for row in given_rows for each in row]
    if datatype == "BYTES":
        expected = v2.pack([each.encode() for each in flat])
    else:
        expected = struct.pack(f"<{len(flat)}{v2.DATATYPES[datatype].code}", *flat)
    assert bytes(payload.columns[0].data) == expected
    tensor = models.Tensor("y", datatype, (rows, width), expected)
    written = steps.at_once(outputs.predictions([tensor], rows))
    assert [json.loads(bytes(row)) for row in written] == given_rows


@pytest.mark.parametrize("end", ["", "1,", ",1,1", '"x"', "true", "[1]"])
def test_tensors_of_a_body_that_is_wrong_at_its_end_are_refused(end: str) -> None:
    info = models.ModelInfo((models.TensorSpec("x", "FP32", (-1, -1)),), (models.TensorSpec("y", "FP32", (-1, 1)),), 9)
    made = tensors_from_v1.Codec(models.ModelName("m", ""), info, http_tensors)
    body = b'{"instances":[[1,2,3],[4,5,6],[7,8%b]]}' % end.encode()
    with pytest.raises(errors.BadRequest):
        made.parse(body, 100)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=30), st.sampled_from(["", "", ",", "1", " ", "x", ",,", "]"]))
def test_a_request_in_v2_json(numbers: list[float], odd: str) -> None:
    made = http_codec.Reader()
    body = '{"inputs":[{"name":"x","shape":[1,%d],"datatype":"FP32","data":%s}]}'
    made.parse((body % (len(numbers), numbers)).encode(), 100)  # so that it is known
    made.parse((body % (len(numbers), numbers)).encode(), 100)
    text = json.dumps(numbers)
    sent = (body % (len(numbers), text[:-1] + odd + "]")).encode()
    one = told(lambda: made.parse(sent, 100))
    other = told(lambda: steps.at_once(made.parse_in_steps(sent, 100)))
    seen = [
        each if isinstance(each, tuple) else (each.key, each.row_count, [bytes(d) for d in each.data])
        for each in (one, other)
    ]
    assert seen[0] == seen[1]


@given(st.lists(st.text(max_size=9) | st.integers() | st.lists(st.integers(), max_size=3), max_size=9), st.data())
def test_a_request_with_a_list(rows: list[Any], data: st.DataObject) -> None:
    chosen = rules.load(["openai-embeddings"])
    made = lists.Codec(chosen, lambda: 0.0)
    told(lambda: made.parse(b'{"model":"m","input":["known"]}', 100))
    body = json.dumps({"model": "m", "input": rows}, separators=(",", ":")).encode()
    at = data.draw(st.sampled_from([len(body)] * 4 + [len(body) - 2, 16]))
    body = body[:at] + data.draw(st.sampled_from([b"", b"", b",", b'"', b"\xff"])) + body[at:]
    in_steps = told(lambda: steps.at_once(made.parse_in_steps(body, 100)))
    at_once = told(lambda: made.parse(body, 100))
    seen = [
        each if isinstance(each, tuple) else (each.key, [bytes(r) for r in each.main.rows], bytes(each.main.text))
        for each in (in_steps, at_once)
    ]
    assert seen[0] == seen[1]


def test_a_request_whose_values_are_nested_too_deeply_to_be_looked_at() -> None:
    made = lists.Codec(rules.load(["mlflow"]), lambda: 0.0)
    made.parse(b'{"dataframe_records":[{"a":1}]}', 100)
    body = b'{"dataframe_records":[{"a":%b1%b}]}' % (b"[" * 20_000, b"]" * 20_000)
    in_steps = told(lambda: steps.at_once(made.parse_in_steps(body, 100)))
    assert in_steps == told(lambda: made.parse(body, 100))
    assert in_steps[0] is errors.Unbatchable


LEAVES = st.sampled_from(["1", "-2.5", "1e3", "true", "null", '"a"', '"a,b]"', '"\\\\\\""', "{}"])


@st.composite
def data_of_v2(draw: st.DrawFn, rows: int, width: int) -> str:
    """The data of a tensor in JSON, flat or with a list for each row, seldom with a flaw."""
    some = draw(st.sampled_from(["1", "12.5"])) if draw(st.booleans()) else None
    found = [[some or draw(LEAVES) for _ in range(width)] for _ in range(rows)]
    if draw(st.integers(0, 5)) == 0 and found and found[-1]:
        found[-1].pop()
    comma = draw(st.sampled_from([",", ", "]))
    if draw(st.booleans()):
        text = comma.join("[" + comma.join(row) + "]" for row in found)
    else:
        text = comma.join(each for row in found for each in row)
    at = draw(st.sampled_from([0, len(text) // 2, len(text)]))
    return (
        "["
        + text[:at]
        + draw(st.sampled_from(["", "", "", "", ",", "[]", "]", "x", "NaN", "\u00fc"]))
        + text[at:]
        + "]"
    )


@given(st.data(), st.integers(1, 6), st.integers(0, 20), st.sampled_from(["FP32", "BYTES"]), st.booleans())
def test_a_request_in_v2_json_of_any_form(
    data: st.DataObject, rows: int, width: int, datatype: str, has_id: bool
) -> None:
    body = '{%s"inputs":[{"name":"x","shape":[%d,%d],"datatype":"%s","data":%s}]}'
    made = http_codec.Reader()
    told(lambda: made.parse((body % ("", rows, width, datatype, [1] * (rows * width))).encode(), 100))  # it is known
    sent = (body % ('"id":"me",' if has_id else "", rows, width, datatype, data.draw(data_of_v2(rows, width)))).encode()
    found = [told(lambda: steps.at_once(made.parse_in_steps(sent, 100))), told(lambda: made.parse(sent, 100))]
    seen = [
        each
        if isinstance(each, tuple)
        else (each.key, each.row_count, [bytes(d) for d in each.data], each.response_format)
        for each in found
    ]
    assert seen[0] == seen[1]


@given(
    st.data(), st.integers(2, 6), st.sampled_from([0, 1, 3, 20]), st.booleans(), st.sampled_from([b"", b'"id":"b",'])
)
def test_an_answer_in_v2_json(data: st.DataObject, rows: int, width: int, wants_binary: bool, ident: bytes) -> None:
    made = http_codec.Codec(models.ModelInfo(), lambda: None)
    wish = b',"parameters":{"binary_data_output":true}' if wants_binary else b""
    request = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]%b}'
    payloads = [made.parse(request % (wish if at else b""), 100) for at in range(rows)]
    parts: Any = [messages.Part(asked(each), 0, 1) for each in payloads]
    body = b'{"model_name":"m",%b"outputs":[{"name":"y","datatype":"FP32","shape":[%d,%d],"data":%b}]}'
    call = made.merge("b", "t", parts)
    told(lambda: call.read(interface.UpstreamResponse(body % (ident, rows, width, b"%a" % ([1] * (rows * width))), {})))
    reply = interface.UpstreamResponse(body % (ident, rows, width, data.draw(data_of_v2(rows, width)).encode()), {})
    found = [told(lambda: call.read(reply)), told(lambda: call.read(reply))]
    seen = [each if isinstance(each[0], type) else _rendered(payloads, each) for each in found]
    assert seen[0] == seen[1]


def test_an_answer_in_v2_json_with_an_output_that_lacks_its_data() -> None:
    made = http_codec.Codec(models.ModelInfo(), lambda: None)
    payload = made.parse(b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}', 100)
    call = made.merge("b", "t", [messages.Part(asked(payload), 0, 1)] * 2)
    reply = interface.UpstreamResponse(
        b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]},'
        b'{"name":"z","datatype":"FP32","shape":[2,1],"parameters":{"binary_data_size":8}}]}',
        {},
    )
    found = [told(lambda: call.read(reply)), told(lambda: call.read(reply))]  # it is known by then
    assert found[0] == found[1]
    assert found[0][0] is errors.UpstreamBroken


def _rendered(payloads: list[Any], answer: interface.BatchPredictions) -> list[bytes]:
    """What each of these callers with one row gets."""
    return [
        b"".join(payload.response_format.render([messages.Piece(0, "b", answer.rows[at : at + 1])]).body)
        for at, payload in enumerate(payloads)
    ]


@given(st.data(), st.sampled_from([*NUMBERS, "BYTES", "FP32"]), st.booleans(), st.booleans())
def test_lists_over_grpc_are_written_the_same(
    data: st.DataObject, datatype: str, is_listed: bool, is_one_caller_of_lists: bool
) -> None:
    made = grpc_codec.Codec(models.ModelInfo(), lambda: None)
    field = v2.DATATYPES[datatype].contents
    low, high = NUMBERS.get(datatype, (0, 1))
    element: Any = (
        st.integers(low, high) if datatype in NUMBERS else st.just(0.5) if datatype == "FP32" else st.binary()
    )
    rows = data.draw(st.lists(st.lists(element, min_size=2, max_size=2), min_size=3, max_size=3))
    payloads = []
    for at in range(3):
        request = service_pb2.ModelInferRequest(model_name="m")
        request.inputs.add(name="x", datatype="INT8", shape=[1, 1])
        if is_one_caller_of_lists and at == 1:
            request.inputs[0].contents.int_contents.append(1)
        else:
            request.raw_input_contents.append(b"1")
        payloads.append(made.parse(request.SerializeToString(), 100))
    answer = service_pb2.ModelInferResponse(model_name="m")
    answer.outputs.add(name="y", datatype=datatype, shape=[3, 2])
    flat = [each for row in rows for each in row]
    if is_listed:
        getattr(answer.outputs[0].contents, field).extend(flat)
    else:
        kind = v2.DATATYPES[datatype]
        answer.raw_output_contents.append(v2.pack(flat) if kind.size is None else struct.pack(f"<6{kind.code}", *flat))
    parts: Any = [messages.Part(asked(each), 0, 1) for each in payloads]
    call = made.merge("b", "t", parts)
    reply = interface.UpstreamResponse(answer.SerializeToString(), {})
    for row, payload, written in zip(rows, payloads, _rendered(payloads, call.read(reply)), strict=True):
        (output,) = service_pb2.ModelInferResponse.FromString(written).outputs
        has_lists = is_listed or payload.response_format.wants_lists
        assert list(getattr(output.contents, field)) == (row if has_lists else [])


NUMBER_OF_A_VECTOR = st.sampled_from([0.5, -2.0, 1e-7, 1e39, float("nan")])


@given(st.lists(st.lists(NUMBER_OF_A_VECTOR, min_size=3, max_size=3), min_size=1, max_size=5), st.data())
def test_embeddings_are_written_the_same(vectors: list[list[float]], data: st.DataObject) -> None:
    with np.errstate(over="ignore"):
        found = np.array(vectors).astype(data.draw(st.sampled_from(["<f8", "<f4"])))
    cut = data.draw(st.integers(0, len(found)))
    forms = [embeddings.Form(b'"m"', data.draw(st.booleans())) for _ in range(2)]
    ready, plain = embeddings.Rows(found, 0, {}), embeddings.Rows(found, 0, {})
    steps.at_once(embeddings.write(ready, [(forms[0], cut), (forms[1], len(found) - cut)]))

    def rendered(rows: embeddings.Rows, form: embeddings.Form, start: int, stop: int) -> Any:
        return told(lambda: b"".join(form.render([messages.Piece(0, "b", rows[start:stop])]).body))

    for share in ((forms[0], 0, cut), (forms[1], cut, len(found)), (forms[1], 0, len(found))):
        assert rendered(ready, *share) == rendered(plain, *share)


@given(st.lists(st.floats(-9, 9, width=32) | st.just(1e39), min_size=1, max_size=30), st.integers(1, 4), st.booleans())
def test_an_answer_in_json_becomes_the_same_tensor(numbers: list[float], width: int, is_nested: bool) -> None:
    rows = [numbers[at : at + width] for at in range(0, len(numbers), width)]
    shape = [len(rows), width] if is_nested else [len(numbers)]
    text = json.dumps(
        {"outputs": [{"name": "y", "shape": shape, "datatype": "FP32", "data": rows if is_nested else numbers}]}
    )
    seen = told(lambda: steps.at_once(http_tensors.read_answer(interface.UpstreamResponse(text.encode(), {}))))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_lists, "_PIECE", 2**30)  # all of it is read at once
        assert seen == told(
            lambda: steps.at_once(http_tensors.read_answer(interface.UpstreamResponse(text.encode(), {})))
        )
