"""Requests of one query and many documents: cut into parts, and answered as if they had gone in one call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import codec, rules

JSON = {b"content-type": b"application/json"}


def spoken(rule: str = "rerank") -> codec.Codec:
    return codec.Codec([rules.built_in()[rule]], clock=lambda: 0.0)


def served(body: bytes, scores: dict[str, Any]) -> bytes:
    """What a server answers that knows the score of each document: the best first, and only so many."""
    given = json.loads(body)
    documents = given["documents"]
    order = sorted(range(len(documents)), key=lambda place: -scores[documents[place]])
    results = [
        {"index": place, "relevance_score": scores[documents[place]]}
        | ({"document": {"text": documents[place]}} if given.get("return_documents") else {})
        for place in order
    ]
    answer = {"id": "x", "results": results[: given.get("top_n") or None], "usage": {"total_tokens": len(documents)}}
    return json.dumps(answer).encode()


def in_parts(body: bytes, cuts: Sequence[int], answer: Any, by: codec.Codec | None = None) -> bytes:
    """The answer to a request whose rows went in calls that end at these places."""
    by = by or spoken()
    payload = by.parse(body, 1000)
    request = messages.Request(payload.key, payload.row_count, payload=payload)
    pieces = []
    for start, stop in zip([0, *cuts], [*cuts, payload.row_count], strict=True):
        call = by.merge("b", "/rerank", [messages.Part(request, start, stop)])
        rows = call.read(interface.UpstreamResponse(answer(b"".join(call.body)), JSON)).rows
        pieces.append(messages.Piece(start, "b", rows[0 : stop - start]))
    assert payload.response_format is not None
    return b"".join(payload.response_format.render(pieces).body)


@given(data=st.data())
def test_parts_are_answered_as_one_call_would_be(data: st.DataObject) -> None:
    scores = data.draw(
        st.dictionaries(st.text(min_size=1), st.floats(-1e3, 1e3), min_size=2, max_size=8), label="scores"
    )
    documents = data.draw(st.lists(st.sampled_from(sorted(scores)), min_size=2, max_size=20), label="documents")
    cuts = sorted(data.draw(st.sets(st.integers(1, len(documents) - 1), min_size=1), label="cuts"))
    top = data.draw(st.none() | st.integers(1, 25), label="top_n")
    members = data.draw(st.sampled_from([{}, {"return_documents": True}]), label="members")
    body = json.dumps({"query": "q", "documents": documents, **members, **({} if top is None else {"top_n": top})})
    whole = json.loads(served(body.encode(), scores))
    parts = json.loads(in_parts(body.encode(), cuts, lambda call: served(call, scores)))
    assert parts == whole


def test_a_request_that_goes_whole_is_sent_and_answered_as_it_came() -> None:
    body = b'{"query": "q", "documents": ["a", "b"], "top_n": 1}'
    by = spoken()
    payload = by.parse(body, 1000)
    request = messages.Request(payload.key, 2, payload=payload)
    assert b"".join(by.merge("b", "/rerank", [messages.Part(request, 0, 2)]).body) == body
    assert in_parts(body, [], lambda call: b"as it came") == b"as it came"


def test_other_queries_share_no_call_and_other_numbers_of_results_do() -> None:
    by = spoken()
    keys = [
        by.parse(json.dumps({"query": query, "documents": ["a"], "top_n": top}).encode(), 10).key
        for query, top in (("q", 1), ("q", 2), ("r", 1))
    ]
    assert keys[0] == keys[1] != keys[2]


def test_numbers_of_scores_stay_as_they_were_written() -> None:
    answer = in_parts(
        b'{"query":"q","documents":["a","b"]}', [1],
        lambda call: b'{"results":[{"index":0,"relevance_score":%b}]}' % (b"1e-1" if b'"a"' in call else b"0.50"),
    )  # fmt: skip
    assert answer == (b'{"results":[{"index":1,"relevance_score":0.50},{"index":0,"relevance_score":1e-1}]}')


@pytest.mark.parametrize("odd", [b"NaN", b"null", b"-Infinity", b"-1" + b"0" * 400, b"-1" + b"0" * 400 + b',"x":NaN'])
def test_what_is_no_number_comes_last_and_stays(odd: bytes) -> None:
    answer = in_parts(
        b'{"query":"q","documents":["a","b"]}', [1],
        lambda call: b'{"results":[{"index":0,"relevance_score":%b}]}' % (odd if b'"a"' in call else b"-9"),
    )  # fmt: skip
    assert answer == b'{"results":[{"index":1,"relevance_score":-9},{"index":0,"relevance_score":%b}]}' % odd


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b'{"relevance_score":1}', "rows have no 'index'"),
        (b'{"index":0,"score":1}', "a row has no relevance_score"),
    ],
)
def test_rows_that_do_not_say_their_document_or_score_are_an_error_that_names_rule_and_member(
    row: bytes, words: str
) -> None:
    with pytest.raises(errors.UpstreamBroken) as caught:
        in_parts(b'{"query":"q","documents":["a","b"]}', [1], lambda call: b'{"results":[%b]}' % row)
    assert "rule 'rerank'" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "results",
    [
        b'{"index":0,"relevance_score":"0.9"},{"index":1,"relevance_score":"0.1"}',
        b'{"index":0,"relevance_score":0.9},{"index":1,"relevance_score":"0.1"}',
        b'{"index":0,"relevance_score":true},{"index":1,"relevance_score":0.1}',
        b'{"index":0,"relevance_score":true,"x":NaN},{"index":1,"relevance_score":0.1}',
        b'{"index":0,"relevance_score":[1]},{"index":1,"relevance_score":0.1}',
        b'{"index":0,"relevance_score":null},{"index":1,"relevance_score":null}',
        b'{"index":0,"score":1},{"index":1,"score":2}',
        b'{"relevance_score":0.9},{"relevance_score":0.1}',
    ],
)
def test_rows_that_nothing_puts_into_an_order_end_batching_for_a_while(results: bytes) -> None:
    by = spoken()
    body = b'{"query":"q","documents":["a","b","c","d"],"top_n":1}'
    with pytest.raises(errors.Uneven):
        in_parts(body, [2], lambda call: b'{"results":[%b]}' % results, by)
    with pytest.raises(errors.Unbatchable):
        by.parse(body, 10)


def test_an_answer_with_fewer_rows_ends_batching_for_a_while() -> None:
    by = spoken()
    body = b'{"query":"q","documents":["a","b","c"]}'
    with pytest.raises(errors.Uneven):
        in_parts(body, [2], lambda call: b'{"results":[{"index":0,"relevance_score":1}]}', by)
    with pytest.raises(errors.Unbatchable):
        by.parse(body, 10)


@pytest.mark.parametrize(
    "body",
    [
        b'{"query":"q","documents":["a"],"top_n":-1}',
        b'{"query":"q","documents":["a"],"top_n":1.5}',
        b'{"query":"q","documents":["a"],"top_n":true}',
        b'{"query":"q","documents":["a"],"top_n":1,"top_k":1}',
        b'{"query":"q","documents":["a"],"top_n":10000000000}',
    ],
)
def test_a_number_of_results_that_servers_may_read_in_several_ways_is_theirs_to_judge(body: bytes) -> None:
    with pytest.raises(errors.Unbatchable) as caught:
        spoken().parse(body, 10)
    assert caught.value.reason == errors.NotBatched.TOP


def test_a_path_with_one_query_needs_a_rule_for_it() -> None:
    built_in = rules.built_in()
    with pytest.raises(errors.Unbatchable):
        codec.rules_for("/rerank", [built_in["tei-embed"]])
    assert codec.rules_for("/rerank", [built_in["tei-embed"], built_in["tei-rerank"]]) == (built_in["tei-rerank"],)
    assert codec.rules_for("/score", [built_in["openai-embeddings"], built_in["vllm-score"]]) == (
        built_in["vllm-score"],
    )
