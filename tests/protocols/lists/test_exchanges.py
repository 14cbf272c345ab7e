"""Each built-in rule does what its server's own exchanges ask for."""

from __future__ import annotations

import json

import pytest

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import answers, codec, rules
from tests.protocols.lists import exchanges

JSON = {b"content-type": b"application/json"}


def spoken(rule: str) -> codec.Codec:
    return codec.Codec([rules.built_in()[rule]], clock=lambda: 0.0)


def parts_of(by: codec.Codec, bodies: tuple[bytes, ...]) -> list[messages.Part]:
    found = []
    for body in bodies:
        payload = by.parse(body, 1000)
        request = messages.Request(payload.key, payload.row_count, payload=payload)
        found.append(messages.Part(request, 0, payload.row_count))
    return found


def rendered(part: messages.Part, start: int, rows: messages.Rows) -> interface.RenderedResponse:
    stop = start + part.stop - part.start
    rendering: interface.RenderedResponse = part.request.payload.response_format.render(
        [messages.Piece(0, "the-batch", rows[start:stop])]
    )
    return rendering


def named(each: exchanges.Exchange | exchanges.Alone | exchanges.Apart) -> str:
    return f"{each.rule}: {each.name}"


@pytest.mark.parametrize("exchange", exchanges.EXCHANGES, ids=named)
def test_each_caller_gets_its_share_of_the_servers_answer(exchange):
    by = spoken(exchange.rule)
    parts = parts_of(by, exchange.requests)
    assert len({part.request.key for part in parts}) == 1
    call = by.merge("the-batch", exchange.path, parts)
    assert b"".join(call.body) == exchange.merged

    rows = call.read(interface.UpstreamResponse(exchange.answer, JSON)).rows
    at = 0
    for part, share in zip(parts, exchange.shares, strict=True):
        answer = rendered(part, at, rows)
        at += part.stop - part.start
        assert b"".join(answer.body) == share
        assert (answers.PRORATED in answer.headers) == exchange.is_prorated


@pytest.mark.parametrize("exchange", exchanges.EXCHANGES, ids=named)
def test_a_request_that_is_alone_gets_the_answer_unread(exchange):
    by = spoken(exchange.rule)
    part = parts_of(by, exchange.requests[:1])[0]
    call = by.merge("the-batch", exchange.path, [part])
    assert b"".join(call.body) == exchange.requests[0]
    rows = call.read(interface.UpstreamResponse(b"anything", {b"content-type": b"text/plain"})).rows
    assert b"".join(rendered(part, 0, rows).body) == b"anything"


@pytest.mark.parametrize(
    ("kind", "is_asked_for"),
    [(b"application/octet-stream", True), (b"application/json", False), (b"application/problem+JSON", False)],
)
def test_an_answer_in_another_form_than_json_is_asked_for_one_by_one_and_malformed_json_is_an_error(kind, is_asked_for):
    by = spoken("openai-embeddings")
    body = b'{"input":["a"],"encoding_format":"bytes"}'
    call = by.merge("the-batch", "/v1/embeddings", parts_of(by, (body, body)))
    with pytest.raises(errors.UpstreamBroken) as caught:
        call.read(interface.UpstreamResponse(b"\x00\x00\x80\xbf", {b"content-type": kind}))
    assert isinstance(caught.value, errors.Uneven) == is_asked_for
    if is_asked_for:
        with pytest.raises(errors.Unbatchable):
            by.parse(body, 10)


@pytest.mark.parametrize("apart", exchanges.APART, ids=named)
def test_what_differs_in_more_than_its_rows_shares_no_batch(apart):
    one, other = parts_of(spoken(apart.rule), (apart.one, apart.other))
    assert one.request.key != other.request.key


@pytest.mark.parametrize("exchange", exchanges.EXCHANGES, ids=named)
def test_the_rule_is_for_the_path(exchange):
    rule = rules.built_in()[exchange.rule]
    assert rule.matches(exchange.path)
    assert not rule.has_one_query(exchange.path)


@pytest.mark.parametrize("alone", exchanges.ALONE, ids=named)
def test_what_no_batch_may_have_travels_alone(alone):
    assert rules.built_in()[alone.rule].matches(alone.path) or alone.path == "/api/embeddings"
    with pytest.raises(errors.Unbatchable) as caught:
        spoken(alone.rule).parse(alone.body, 1000)
    assert caught.value.reason == alone.reason


@pytest.mark.parametrize(("rule", "theirs"), [(rule, body) for rule, _, body in exchanges.ERRORS])
def test_our_errors_have_the_shape_of_the_servers(rule, theirs):
    ours = json.loads(rules.built_in()[rule].render_error('a "message"', 503, "overloaded"))
    expected = json.loads(theirs)
    assert _names(ours) == _names(expected)
    assert 'a "message"' in json.dumps(ours).replace('\\"', '"')


@pytest.mark.parametrize(("rule", "path"), exchanges.ONE_QUERY)
def test_paths_with_one_query_are_known(rule, path):
    found = rules.built_in()[rule]
    assert found.has_one_query(path)
    assert not found.matches(path)


@pytest.mark.parametrize(("rule", "path"), exchanges.NOT_THEIRS)
def test_other_paths_are_left_alone(rule, path):
    assert not rules.built_in()[rule].matches(path)


def test_every_built_in_rule_has_exchanges_and_an_error():
    names = set(rules.built_in())
    assert {exchange.rule for exchange in exchanges.EXCHANGES} == names
    assert {rule for rule, _, _ in exchanges.ERRORS} == names
    for exchange in exchanges.EXCHANGES:
        json.loads(exchange.merged), json.loads(exchange.answer)
        assert len(exchange.requests) == len(exchange.shares) == 3
        assert all(map(json.loads, exchange.requests))


def _names(value: object) -> object:
    return {name: _names(each) for name, each in value.items()} if isinstance(value, dict) else None
