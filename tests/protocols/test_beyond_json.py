"""What Python's json writes and strict parsers refuse, in v1: bare words for what is not finite, half characters."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool_sidecar import errors
from carpool_sidecar.protocols import beyond_json, incremental_scan, interface, json_rows, steps, v1

LONG = "x" * 700_000
NAN, INFINITY = float("nan"), float("inf")
HALF = "\ud83d"


def answered(body: bytes, *kept: str) -> interface.BatchPredictions:
    """What is read of an answer, which is the same if it is small and if it is large."""
    names = v1.KeptMembers(kept) if kept else None
    response = interface.UpstreamResponse(body, {})
    small = steps.at_once(v1.parse_answer(response, names))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interface, "LARGE_ANSWER", 0)
        large = steps.at_once(v1.parse_answer(response, names))
    assert (small.list_name, small.members) == (large.list_name, large.members)
    assert rows_of(small) == rows_of(large)
    return small


def asked(body: bytes, size: int = 4000) -> v1.Payload:
    """What is read of a request, which is the same at once and in steps; as it arrives it is that, or left to these."""
    at_once, in_steps = v1.parse_request(body), steps.at_once(v1.parse_in_steps(body))
    scan = v1.RequestScan()
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    for part in parts:
        scan.feed(part)
    for other in (in_steps, scan.payload(json_rows.PartedText(parts))):
        if other is not None:
            assert (other.key, rows_of(other)) == (at_once.key, rows_of(at_once))
    return at_once


def rows_of(found: Any) -> list[bytes]:
    return [bytes(row) for row in found.rows]


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (b'{"predictions":[NaN]}', [b"NaN"]),
        (b'{"predictions": [1.0, NaN ,-Infinity, Infinity]}', [b"1.0", b"NaN", b"-Infinity", b"Infinity"]),
        (b'{"predictions":[[NaN,1],{"a":[-Infinity]}]}', [b"[NaN,1]", b'{"a":[-Infinity]}']),
        (b'{"predictions":["NaN","a\\"NaN",NaN,"\\\\",NaN]}', [b'"NaN"', b'"a\\"NaN"', b"NaN", b'"\\\\"', b"NaN"]),
        (b'{"debug":NaN,"predictions":[1]}', [b"1"]),
        (b'{"predictions":[1],"predictions":[NaN]}', [b"NaN"]),  # the last counts, as ever
        (b'{"outputs":[NaN],"model":{"predictions":[2]}}', [b"NaN"]),
        (rb'{"predictions":["text \ud83d"]}', [rb'"text \ud83d"']),
        (rb'{"predictions":["\uDE00\ud83d","\ud83d\ude00"]}', [rb'"\uDE00\ud83d"', rb'"\ud83d\ude00"']),
        (rb'{"predictions":["\\ud83d","\\\ud83d"]}', [rb'"\\ud83d"', rb'"\\\ud83d"']),
        (rb'{"a\ud83d":"\ud83d","predictions":[NaN,"\ud83d"]}', [b"NaN", rb'"\ud83d"']),
        ('{"predictions":["\u00fc",NaN]}'.encode(), ['"\u00fc"'.encode(), b"NaN"]),
    ],
)  # fmt: skip
def test_an_answer_is_kept_as_it_was_written(body: bytes, rows: list[bytes]) -> None:
    assert rows_of(answered(body)) == rows


@pytest.mark.parametrize("row", [NAN, [1, INFINITY], {"a": [-INFINITY, "NaN"]}, HALF, [HALF, NAN], "a" + HALF + "b"])
@pytest.mark.parametrize("beside", [{}, {"model": "m"}, {"model": HALF, "x": NAN}])
@pytest.mark.parametrize("filling", [LONG, [0.25] * 60_000, ["short\n", [1, 2]] * 20_000], ids=["long", "flat", "many"])
def test_so_is_a_large_one(row: Any, beside: dict[str, Any], filling: Any) -> None:
    rows = [filling, row, filling]
    found = answered(json.dumps({**beside, "predictions": rows}).encode(), "model")
    assert rows_of(found) == [json.dumps(each).encode() for each in rows]
    assert found.members == (b'"model":%b,' % json.dumps(beside["model"]).encode() if beside else b"")


def test_members_that_each_caller_gets_are_kept_as_they_were_written() -> None:
    found = answered(rb'{"score":1,"score":NaN,"text":"\ud83d","x":0,"predictions":[Infinity]}', "text", "score", "y")
    assert found.members == rb'"text":"\ud83d","score":NaN,'


@pytest.mark.parametrize(
    "body",
    [
        b'{"predictions":NaN}', b'{"predictions":[1NaN]}', b'{"predictions":[NaN1]}', b'{"predictions":[NaNNaN]}',
        b'{"predictions":[--NaN]}', b'{"predictions":[-"x",NaN]}', b'{NaN:1,"predictions":[1]}', b"NaN", b"[NaN]",
        b'{"predictions":[NaN]', b'{"predictions":[NaN,]}', b'{"predictions":[NaN.5]}', b'{"predictions":[+Infinity]}',
        b'{"predictions":[Nan]}', b'{"predictions":["\xff",NaN]}', rb'{"predictions":["\ud83"]}',
        rb'{"predictions":[\ud83d]}', rb'{"predictions":["\ud83d]}', b'{"predictions":[' + b"[" * 100_000 + b"NaN",
        b'{"x":NaN,' + b",".join(b'"%d":0' % number for number in range(2000)) + b',"predictions":[1]}',
    ],
)  # fmt: skip
def test_what_is_no_answer_all_the_same_is_the_predictors_fault(body: bytes) -> None:
    with pytest.raises(errors.UpstreamBroken):
        answered(body)


@pytest.mark.parametrize(
    ("body", "rows", "others"),
    [
        (rb'{"instances":["\ud83d"]}', [rb'"\ud83d"'], b""),
        (rb'{"instances": ["text \ud83d" , 2]}', [rb'"text \ud83d"', b"2"], b""),
        (rb'{"instances":["\ud83d and text","\uDC00"]}', [rb'"\ud83d and text"', rb'"\uDC00"'], b""),
        (rb'{"inputs":[{"\ud83d":["\ud83d"]}]}', [rb'{"\ud83d":["\ud83d"]}'], b""),
        (rb'{"instances":["a"],"p" : {"suffix":"\ud83d"}}', [b'"a"'], rb'"p":{"suffix":"\ud83d"}'),
        (rb'{"\ud83d":1,"\ud83e":2,"instances":["a"]}', [b'"a"'], rb'"\ud83d":1,"\ud83e":2'),
    ],
)
def test_half_characters_of_a_request_are_taken_as_they_are(body: bytes, rows: list[bytes], others: bytes) -> None:
    payload = asked(body)
    assert (rows_of(payload), payload.others, payload.body) == (rows, others, body)
    assert payload.text.startswith(b"[")
    assert json.loads(bytes(payload.text)) == json.loads(body)[payload.list_name.decode()]


@pytest.mark.parametrize("beside", [{}, {"p": HALF}])
def test_so_are_those_of_a_large_one(beside: dict[str, Any]) -> None:
    rows = [LONG, "a" + HALF, [HALF, LONG], *["short", [1, 2]] * 30_000, HALF]
    body = json.dumps({"instances": rows, **beside}).encode()
    payload = asked(body, 50_000)
    assert rows_of(payload) == [json.dumps(each).encode() for each in rows]
    assert payload.others == json.dumps(beside).encode()[1:-1].replace(b": ", b":")
    assert payload.row_lengths(1, 4) == [1, 2, 1]


def test_elements_of_a_row_with_half_characters_are_counted() -> None:
    assert asked(rb'{"instances":[["\ud83d","a,b"]]}').row_lengths(0, 1) == [2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (rb'{"instances":["\ud83d",NaN]}', "malformed"),
        (rb'{"instances":["\ud83d"]', "truncated"),
        (rb'{"instances":["\ud83d"],"instances":[1]}', "duplicate member 'instances'"),
        (rb'{"\ud83d":1,"\uD83D":1,"instances":[1]}', "duplicate member"),
        (rb'{"instances":"\ud83d"}', "must be a list"),
        (b"", "the body is empty"),
        (b" \r\n", "the body is empty"),
        (b'\xef\xbb\xbf{"instances":[1]}', "byte order mark"),
        (b"\xef\xbb\xbf", "byte order mark"),
    ],
)
def test_a_refused_request_is_told_what_is_wrong(body: bytes, words: str) -> None:
    for parse in (v1.parse_request, lambda text: steps.at_once(v1.parse_in_steps(text))):
        with pytest.raises(errors.BadRequest, match=words):
            parse(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"", "is empty"), (b"\n", "is empty"), (b'\xef\xbb\xbf{"predictions":[1]}', "byte order mark")],
)
def test_an_answer_that_is_none_is_told_apart(body: bytes, words: str) -> None:
    with pytest.raises(errors.UpstreamBroken, match=words):
        answered(body)


def test_too_many_rows_are_refused_with_half_characters_as_well() -> None:
    with pytest.raises(errors.PayloadTooLarge):
        v1.parse_request(rb'{"instances":["\ud83d"%b]}' % (b",1" * 10), max_rows=10)


_texts = st.text(st.sampled_from('a"\\,:[]{}Né\n' + HALF + "\ude00")) | st.just("NaN")
_values = st.recursive(
    st.none() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


@given(rows=st.lists(_values), others=st.dictionaries(_texts, _values, max_size=3), indent=st.sampled_from([None, 1]))
def test_whatever_python_writes_is_read_with_each_row_as_it_was_written(
    rows: list[Any], others: dict[str, Any], indent: int | None
) -> None:
    body = json.dumps({**others, "predictions": rows}, indent=indent).encode()
    found = rows_of(answered(body))
    assert all(row in body for row in found)
    assert json.dumps([json.loads(row) for row in found]) == json.dumps(rows)


@given(rows=st.lists(_values), size=st.integers(1, 30))
def test_a_mask_is_json_of_the_same_size_wherever_its_steps_end(rows: list[Any], size: int) -> None:
    text = json.dumps(rows).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beyond_json, "_STEP", size)
        mask = steps.at_once(beyond_json.masked(text)) or text
    assert len(mask) == len(text)
    assert [len(row) for row in json_rows.LIST.decode(mask)] == [len(json.dumps(row)) for row in rows]
    assert steps.at_once(incremental_scan.scan_in_steps(mask, 0, len(mask))) is not None or not rows
