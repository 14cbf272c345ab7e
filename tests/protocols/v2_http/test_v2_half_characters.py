"""Half of a surrogate pair, as Python's json writes a text that was cut within an emoji, is taken as any other text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_http import codec, json_lists
from tests.protocols.v2_http.callers import BINARY_ASKED, in_binary, in_json, merged, output, parts_of, reply_of

HALVES = [r'"\ud83d"', r'"\uDE00"', r'"cut \uD83D,\"]"', r'"\ude00\ud83d"', r'"\\\ud83d[\u0041"']


def sent(data: str, shape: str = "[1,2]", rest: str = "", ident: str = "") -> bytes:
    return in_json(data, shape, "BYTES", rest, ident)


def seen(payload: Any) -> Any:
    return payload.key, payload.row_count, [bytes(data) for data in payload.data]


def answers(spoken: codec.Codec, parts: list[messages.Part], reply: interface.UpstreamResponse) -> list[bytes]:
    """What each caller is written, the same the first time and the second."""
    call = spoken.merge("the-batch", "/t", parts)
    found = []
    for answer in (call.read(reply), call.read(reply)):
        at, texts = 0, []
        for part in parts:
            stop = at + part.stop - part.start
            share = [messages.Piece(0, "b", answer.rows[at:stop])]
            texts.append(b"".join(part.request.payload.response_format.render(share).body))
            at = stop
        found.append(texts)
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("half", HALVES)
def test_data_with_half_characters_are_joined_as_they_were_written(spoken, half):
    bodies = [sent(f'[{half},"a"]', ident='"1"'), sent(f'[["b",{half}],["c","d"]]', "[2,2]"), sent('["e","f"]')]
    parts = parts_of(spoken, *bodies)
    assert len({part.request.key for part in parts}) == 1
    assert f'"data":[{half},"a",'.encode() in b"".join(spoken.merge("b", "/t", [parts[0], parts[2]]).body)
    request, _ = merged(spoken, *bodies)
    assert request["inputs"][0]["data"] == [json.loads(half), "a", "b", json.loads(half), "c", "d", "e", "f"]


@pytest.mark.parametrize("half", HALVES)
def test_a_request_with_half_characters_is_cut_between_its_rows(spoken, half):
    part = parts_of(spoken, sent(f'["a", {half} ,{half},"b"]', "[2,2]"))[0]
    for at, wanted in ((0, ["a", json.loads(half)]), (1, [json.loads(half), "b"])):
        call = spoken.merge("b", "/t", [messages.Part(part.request, at, at + 1)])
        assert json.loads(b"".join(call.body))["inputs"][0]["data"] == wanted


def test_half_characters_may_stand_anywhere_else_in_a_request(spoken):
    half = r'"\ud83d"'
    rest = rf',"parameters":{{"p":{half},"\ude00":1}},"more":[{half}],"outputs":[{{"name":{half},"z":{half}}}]'
    body = sent('["a","b"]', rest=rest, ident=half).replace(b'"x"', half.encode())
    parts = parts_of(spoken, body, body)
    assert parts[0].request.payload.response_format.opening == rb'{"id":"\ud83d",'
    request = json.loads(b"".join(spoken.merge("b", "/t", parts).body))
    value = "\ud83d"
    assert request == {
        "id": "b",
        "inputs": [{"name": value, "datatype": "BYTES", "shape": [2, 2], "data": ["a", "b", "a", "b"]}],
        "parameters": {"p": value, "\ude00": 1},
        "more": [value],
        "outputs": [{"name": value, "z": value}],
    }
    others = [
        sent('["a","b"]', rest=rest.replace(r"\ud83d", other), ident=half).replace(b'"x"', half.encode())
        for other in (r"\ud83e", r"\ue03d")
    ]
    assert len({part.request.key for part in parts_of(spoken, body, *others)}) == 3


def test_half_characters_and_no_numbers_may_come_together(spoken):
    body = (
        rb'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[NaN,1]},'
        rb'{"name":"y","shape":[1,1],"datatype":"BYTES","data":["\ud83d"]}]}'
    )
    for _ in range(2):
        assert [bytes(data) for data in spoken.parse(body, 10).data] == [b"[NaN,1]", rb'["\ud83d"]']


@pytest.mark.parametrize(
    "data",
    [r'["\ud83d",NAN]', r'["\ud83","a"]', r'["\ud83d" "a"]', r'["\ud83d",]', r'["\ud83d","a"]]', r'["\udxyz","a"]'],
)
def test_what_is_malformed_beside_half_characters_is_refused_still(spoken, data):
    for _ in range(2):
        with pytest.raises(errors.BadRequest):
            spoken.parse(sent(data), 10)
        spoken.parse(sent(r'["\ud83d","a"]'), 10)


@pytest.mark.parametrize("half", HALVES)
def test_answers_with_half_characters_reach_their_callers_as_they_were_written(spoken, half):
    parts = parts_of(spoken, sent('["a","b"]', ident='"1"'), sent('["c","d","e","f"]', "[2,2]"))
    for data in (f'[{half},"b" , {half}]', f'[[{half}],["b"],[{half}]]'):
        shape = "[3,1]" if data.startswith("[[") else "[3]"
        reply = reply_of(output(f'"data":{data}', shape, "BYTES"))
        for _ in range(2):
            first, second = answers(spoken, parts, reply)
            assert half.encode() in first
            assert second.count(half.encode()) == 1
            found = json.loads(first)["outputs"][0]["data"] + json.loads(second)["outputs"][0]["data"]
            value = json.loads(half)
            assert found == ([[value], ["b"], [value]] if shape == "[3,1]" else [value, "b", value])


def test_half_characters_may_stand_anywhere_else_in_an_answer(spoken):
    parts = parts_of(spoken, sent('["a","b"]'), sent('["c","d"]'))
    text = (
        rb'{"model_name":"\ud83d","parameters":{"warning":"cut \ude00"},'
        rb'"outputs":[{"name":"\ud83d","shape":[2,1],"datatype":"FP32","parameters":{"p":"\ud83d"},"data":[1,2]}]}'
    )
    first, second = answers(spoken, parts, interface.UpstreamResponse(text, {}))
    for found, value in ((json.loads(first), 1), (json.loads(second), 2)):
        told = json.loads(text)
        told["outputs"][0] |= {"shape": [1, 1], "data": [value]}
        assert found == told


def test_half_characters_have_no_form_in_binary(spoken):
    parts = parts_of(spoken, sent(r'["\ud83d","a"]'), in_binary(b"\1\0\0\0a\1\0\0\0b", datatype="BYTES"))
    assert parts[0].request.key == parts[1].request.key
    with pytest.raises(errors.NotMergeable) as alone:
        spoken.merge("b", "/t", parts)
    assert alone.value.member == 0
    wants = parts_of(spoken, sent('["a","b"]', rest=BINARY_ASKED), sent('["c","d"]'))
    with pytest.raises(errors.NotMergeable):
        spoken.merge("b", "/t", wants).read(reply_of(output(r'"data":["\ud83d","a"]', datatype="BYTES")))


def test_a_large_request_with_half_characters_is_looked_at_in_steps(monkeypatch):
    spoken = codec.Codec(models.ModelInfo(), lambda: None)
    rows = 6000
    text = json.dumps(["word " * 20 + ("\ud83d" if at % 7 == 0 else "") for at in range(rows)])
    body = sent(text, f"[{rows},1]")
    assert len(body) > spoken.large
    spoken.parse(sent(json.dumps(["a"] * rows), f"[{rows},1]"), rows)
    at_once = seen(spoken.parse(body, rows))
    monkeypatch.setattr(json_lists, "is_list", None)  # which would hold up everybody for a list of megabytes
    work, count = spoken.parse_in_steps(body, rows), 0
    try:
        while True:
            next(work)
            count += 1
    except StopIteration as end:
        in_steps = seen(end.value)
    assert in_steps == at_once
    assert count > 5
