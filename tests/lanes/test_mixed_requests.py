"""Ordinary and odd requests on one connection, which goes back and forth between two ways to read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import bodies, exchange, heads, recorder, streams
from tests.lanes.exchange import Wait
from tests.lanes.pair import Pair, Stream

pytestmark = pytest.mark.timeout(300)  # thousands of requests

_PLAIN = streams.request(b'{"instances":[1]}', heads.target(b"echo"), b"X-Request-ID: r1")
_ZIPPED = bodies.gzip_at_once(b'{"instances":[2]}')
_ODD = {
    "a question": streams.request(b"", b"/v1/models/echo-@@@@@@", method=b"GET", length=False),
    "gzip": streams.request(
        bodies.gzip_at_once(b'{"instances":[2]}'), heads.target(b"echo"), b"Content-Encoding: gzip"
    ),
    "no JSON": streams.request(b'{"instances":[3}', heads.target(b"echo")),
    "another method": streams.request(b"abc", b"/x-@@@@@@", method=b"PUT"),
    "chunks": streams.request(
        streams.chunked(b'{"instances":[4]}', 5), heads.target(b"echo"), b"Transfer-Encoding: chunked", length=False
    ),
    "no row": streams.request(b'{"inputs":{"a":[1]}}', heads.target(b"echo")),
    "of 1.0": streams.request(
        b'{"instances":[5]}', heads.target(b"echo"), b"Connection: keep-alive", version=b"HTTP/1.0"
    ),
    "a refused upgrade": streams.request(
        b"", b"/x-@@@@@@", b"Connection: Upgrade", b"Upgrade: tcp", method=b"GET", length=False
    ),
}
_PAUSES = [exchange.SHORTLY, exchange.Turns(2), exchange.Turns(5), exchange.Turns(20), Wait(0.3), Wait(2.3)]


@pytest.mark.parametrize("name", _ODD)
def test_an_odd_request_between_ordinary_ones_cut_in_two_at_any_byte(lanes: Pair, name: str) -> None:
    parts = (_PLAIN, _ODD[name], _PLAIN)
    cuts = range(len(_PLAIN) - 2, len(_PLAIN) + len(_ODD[name]) + 2)
    sent = [Stream(parts, (cut,), _PAUSES[cut % len(_PAUSES)], predicts=3) for cut in cuts]
    ends = (len(_PLAIN), len(_PLAIN) + len(_ODD[name]))
    lanes.compare([*sent, *(Stream(parts, ends, pause, predicts=3) for pause in _PAUSES)])


@streams.examples(60)
@given(
    st.lists(
        st.lists(st.one_of(streams.proper(), st.sampled_from(sorted(_ODD.values()))), min_size=2, max_size=9).flatmap(
            lambda parts: streams.cut(parts, most=10, pauses=_PAUSES)
        ),
        min_size=1, max_size=10,
    )
)  # fmt: skip
def test_any_sequence_of_ordinary_and_odd_requests_is_answered_alike(lanes: Pair, sent: list[Stream]) -> None:
    lanes.compare(sent)


@streams.examples(40)
@given(
    st.lists(
        st.lists(
            st.one_of(streams.proper(), st.sampled_from(sorted(_ODD.values())), streams.encoded(), streams.odd()),
            min_size=2, max_size=6,
        ).map(streams.one_by_one),
        min_size=1, max_size=10,
    )
)  # fmt: skip
def test_requests_of_all_kinds_each_after_the_answer_to_the_one_before_are_answered_alike(
    lanes: Pair, sent: list[Stream]
) -> None:
    lanes.compare(sent)


@pytest.mark.parametrize("behaviour", recorder.BEHAVIOURS)
@pytest.mark.parametrize("path", [b"/v1/models/%b-@@@@@@", b"/v2/models/%b-@@@@@@/ready", b"/v2/models/%b-@@@@@@"])
def test_a_question_is_passed_on_and_answered_alike_whatever_the_predictor_does(
    lanes: Pair, behaviour: str, path: bytes
) -> None:
    target = path % behaviour.encode()
    asked = [
        streams.request(b"", target, *lines, method=b"GET", length=False)
        for lines in (
            (), (b"Accept: */*", b"Cookie: a=b", b"Connection: keep-alive"), (b"X-Forwarded-For: 1.2.3.4", b"TE: gzip"),
            (b"x-forwarded-for: 1.2.3.4", b"forwarded: for=x", b"X-Forwarded-Proto: https", b"X-Forwarded-Host: a"),
            (b"Content-Length: 0",), (b"Connection: close",), (b"Keep-Alive: timeout=5", b"X-Hop: a"),
            (b"x-user: a", b"X-User: b", b"X-USER: a"),
        )
    ]  # fmt: skip
    pipelined = Stream((_PLAIN, asked[0], _PLAIN, asked[1], asked[2]), predicts=5)
    left = [Stream((one,), leave=0.3) for one in asked[:2]]
    lanes.compare([*(Stream((one,)) for one in asked), pipelined, *left])
