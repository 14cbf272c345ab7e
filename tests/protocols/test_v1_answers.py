"""Reading the predictor's answer and building each caller's own."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, steps, v1


def parsed(body):
    return steps.at_once(v1.parse_answer(interface.UpstreamResponse(body, {})))


def rows_of(answer):
    return [bytes(row) for row in answer.rows]


@pytest.mark.parametrize(
    ("body", "member", "rows"),
    [
        (b'{"predictions":[1.0,{"a":-0.0}]}', b"predictions", [b"1.0", b'{"a":-0.0}']),
        (b'{"predictions":[]}', b"predictions", []),
        (b'{"model_version":"3","predictions":[1]}\n', b"predictions", [b"1"]),
        (b'{"outputs":[[1],[2]]}', b"outputs", [b"[1]", b"[2]"]),
        (b'{"outputs":[9],"predictions":[1]}', b"predictions", [b"1"]),
        (b'{"x":1,"x":2,"x":2,"predictions":[1]}', b"predictions", [b"1"]),
        (b'{"debug":"' + b"x" * 100_000 + b'","predictions":[1]}', b"predictions", [b"1"]),
        (b'{"predictions":[1],"instances":[' + b"0," * 100_000 + b"0]}", b"predictions", [b"1"]),
        (b'{"predictions":[1],"predictions":[2]}', b"predictions", [b"2"]),  # as most JSON parsers have it
    ],
)
def test_predictions_are_found_and_other_members_skipped(body, member, rows):
    answer = parsed(body)
    assert (answer.list_name, rows_of(answer)) == (member, rows)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[1]", b"{}", b'{"predictions":{"a":[1]}}', b'{"predictions":null}', b'{"predictions":[1]',
     b'{"predictions":[nan]}', b'{"predictions":["\xff"]}', b'{"predictions":' + b"[" * 100_000,
     b'{"debug":nan,"predictions":[1]}', b'{"predictions":[1]]', b'{"predictions":[1]}}'],
)  # fmt: skip
def test_an_unusable_answer_is_the_predictors_fault(body):
    with pytest.raises(errors.UpstreamBroken) as caught:
        parsed(body)
    assert errors.status_of(caught.value) == 502


def test_an_answer_has_kserves_members_in_kserves_order():
    answer = parsed(b'{"predictions":[1.0,"\\u003c"]}')
    body = v1.render("2f1b", answer.list_name, [answer.rows])
    assert body == b'{"message":"","batchId":"2f1b","predictions":[1.0,"\\u003c"]}'


def test_several_pieces_become_one_list():
    one, two = parsed(b'{"predictions":[1,2]}'), parsed(b'{"predictions":[3]}')
    assert v1.render("id", b"predictions", [one.rows, two.rows]).endswith(b'"predictions":[1,2,3]}')


def test_errors_have_the_protocols_shape():
    assert json.loads(v1.render_error('a "quoted" reason\n')) == {"error": 'a "quoted" reason\n'}


@given(
    groups=st.lists(
        st.lists(st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False), min_size=1), min_size=1
    )
)
def test_what_was_merged_can_be_taken_apart_again(groups):
    """An echoing predictor's answer, cut by the members' sizes, gives each member its own rows."""
    payloads = [v1.parse_request(json.dumps({"instances": group}).encode()) for group in groups]
    parts = [
        messages.Part(messages.Request("key", len(payload.rows), payload=payload), 0, len(payload.rows))
        for payload in payloads
    ]
    merged = b"".join(v1.merge("the-batch", "/t", parts).body)
    answer = parsed(merged.replace(b'"instances"', b'"predictions"', 1))
    start = 0
    for payload in payloads:
        stop = start + len(payload.rows)
        assert rows_of(answer)[start:stop] == [bytes(row) for row in payload.rows]
        start = stop
    assert start == len(answer.rows)
