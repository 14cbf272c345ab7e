"""However the network cuts a stream, both lanes read the same requests from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import exchange, heads, streams
from tests.lanes.pair import Pair, Stream

pytestmark = pytest.mark.timeout(300)  # thousands of requests

_FIRST = streams.request(
    b'{"instances":[1,"\xc3\xa9"]}', heads.target(b"echo"), b"Content-Type: application/json", b"X-Request-ID: r1",
    b"authorization:Bearer a", b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)  # fmt: skip
_SECOND = streams.request(b'{"inputs":[[2]],"id":"7"}', heads.target(b"outputs"), b"Accept: */*", b"X-Request-ID:  r2 ")
_PAUSES = [exchange.SHORTLY, exchange.Turns(2), exchange.Turns(3), exchange.Turns(5)]
_STREAMS = {
    "two predict requests": (_FIRST, _SECOND),
    "predict and close": (_FIRST, streams.request(b'{"instances":[3]}', heads.target(b"echo"), b"Connection: close")),
    "predict and something passed through": (_FIRST, streams.request(b"abc", b"/v1/x-@@@@@@", method=b"PUT")),
    "passed through and predict": (streams.request(b"", b"/x-@@@@@@", method=b"GET", length=False), _SECOND),
    "predict and a chunked one": (
        _SECOND,
        streams.request(
            streams.chunked(b'{"instances":[4]}', 5), heads.target(b"echo"), b"Transfer-Encoding: chunked", length=False
        ),
    ),
    "a malformed head behind a good request": (_FIRST, b"POST /v1 HTTP/1.1\r\nHost: h\r\nBad Name: v\r\n\r\n"),
    "a body that is no JSON": (streams.request(b'{"instances":[1}', heads.target(b"echo")), _SECOND),
    "empty lines around requests": (b"\r\n\r\n" + _FIRST, b"\r\n" + _SECOND + b"\r\n"),
}


@pytest.mark.parametrize("name", _STREAMS)
def test_a_stream_of_two_requests_cut_in_two_at_any_byte(lanes: Pair, name: str) -> None:
    parts = _STREAMS[name]
    cuts = range(1, sum(map(len, parts)))
    lanes.compare([Stream(parts, (cut,), _PAUSES[cut % len(_PAUSES)], predicts=2) for cut in cuts])


@pytest.mark.parametrize("name", _STREAMS)
def test_a_stream_of_two_requests_byte_by_byte(lanes: Pair, name: str) -> None:
    parts = _STREAMS[name]
    every = tuple(range(1, sum(map(len, parts))))
    lanes.compare([Stream(parts, every[::step], pause, predicts=2) for step in (1, 2, 7) for pause in _PAUSES])


@streams.examples(40)
@given(
    st.sampled_from(sorted(_STREAMS)).flatmap(
        lambda name: st.lists(streams.cut(_STREAMS[name], most=20), min_size=1, max_size=20)
    )
)
def test_a_stream_of_two_requests_in_many_pieces(lanes: Pair, sent: list[Stream]) -> None:
    lanes.compare(sent)
