"""Requests behind each other on one connection: answered in order, and nothing after the last."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import exchange, heads, streams
from tests.lanes.pair import Pair, Stream

pytestmark = pytest.mark.timeout(300)  # thousands of requests


def _tamed(part: bytes) -> bytes:
    # A predictor that never answers or rejects batches would make one stream depend on the others.
    head, gap, body = part.partition(b" HTTP/1.1\r\n")
    lines = body.replace(b"carpool-timeout-ms: 300", b"carpool-timeout-ms: 999000")
    return b"POST " + heads.target(b"echo") + gap + lines if head else part


def _together(parts: list[bytes]) -> Stream:
    return Stream(tuple(parts), predicts=len(parts))


@streams.examples(80)
@given(st.lists(streams.pipelined(), min_size=1, max_size=8))
def test_any_sequence_is_answered_alike(lanes: Pair, sent: list[Stream]) -> None:
    lanes.compare(sent)


# Predictors that answer, and with 200: behind a request that hangs 70 kB are not read to their end, so nobody sees that
# their client leaves; and whether requests that are refused were tried in one batch before depends on the lane.
_ANSWERED = st.one_of(streams.proper(), streams.passed_through).filter(
    lambda part: re.search(rb"/models/(?!echo-|slow-)", part) is None
)


@streams.examples(60)
@given(
    st.lists(
        st.builds(
            lambda good, bad, more: Stream((*good, bad, *more), predicts=len(good) + 1),
            st.lists(_ANSWERED, min_size=1, max_size=20),
            streams.malformed,
            st.lists(st.one_of(streams.proper(), streams.malformed), max_size=2),
        ),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_any_sequence_that_ends_in_something_malformed_is_answered_alike_if_it_comes_at_once(
    lanes: Pair, sent: list[Stream]
) -> None:
    lanes.compare(sent)


_GOOD = {
    "predict": streams.request(b'{"instances":[1]}', heads.target(b"echo")),
    "slow": streams.request(b'{"instances":[1]}', heads.target(b"slow")),
    "question": streams.request(b"", b"/v1/models/echo-@@@@@@", method=b"GET", length=False),
    "chunks": streams.request(
        streams.chunked(b'{"instances":[4]}', 5), heads.target(b"echo"), b"Transfer-Encoding: chunked", length=False
    ),
}
_BAD = {
    "no HTTP": b"\0\0\0\0",
    "no version": b"GET / \r\n\r\n",
    "no length": streams.request(b"", b"/x", b"Content-Length: x", length=False),
    "no host": streams.request(b"", b"/x", host=False),
    "two hosts": streams.request(b"", b"/x", b"Host: i"),
    "many fields": streams.request(b"", b"/x", *(b"X-%d: v" % number for number in range(2000))),
    "a long line": streams.request(b"", b"/x", b"X: " + b"v" * 300_000),
}
_TOO_LARGE = ("many fields", "a long line")


@pytest.mark.parametrize("bad", _BAD)
@pytest.mark.parametrize("good", _GOOD)
def test_what_comes_before_malformed_bytes_is_answered_before_these_are_refused(
    lanes: Pair, good: str, bad: str
) -> None:
    """In one read as in two."""
    for count in (1, 3):
        parts = (_GOOD[good],) * count + (_BAD[bad],)
        sent = [Stream(parts, predicts=count), Stream(parts, (len(_GOOD[good]) * count,), predicts=count)]
        lanes.compare(sent)
        for stream in sent:
            for each in (lanes.fast, lanes.slow):
                transcript = lanes.loop.run_until_complete(each.converse(stream.numbered(1).steps()))
                statuses = re.findall(rb"HTTP/1\.[01] (\d{3})", transcript.data)
                assert statuses == [b"200"] * count + [b"431" if bad in _TOO_LARGE else b"400"]
                assert transcript.end in ("closed", "reset")


def test_requests_whose_bodies_come_late_leave_no_trace(lanes: Pair) -> None:
    """After any number of them, two in one read are both answered."""
    late, plain = _GOOD["predict"], _GOOD["question"]
    head = late.index(b"{")
    cuts = [place for number in range(40) for place in (number * len(late) + head, (number + 1) * len(late))]
    sent = Stream((late,) * 40 + (plain, plain), tuple(cuts), exchange.Wait(0.1), predicts=40, are_apart=True)
    lanes.compare([sent])
    for each in (lanes.fast, lanes.slow):
        assert lanes.loop.run_until_complete(each.converse(sent.numbered(1).steps())).count == 42


@streams.examples(40)
@given(st.lists(st.lists(streams.proper().map(_tamed), min_size=2, max_size=20).map(_together), max_size=6))
def test_good_requests_are_answered_alike_when_they_have_to_share_batches(
    pair_with_one_place: Pair, sent: list[Stream]
) -> None:
    pair_with_one_place.compare(sent)


@pytest.fixture(scope="module")
def pair_with_one_place(module_pair_of: Callable[..., Pair]) -> Pair:
    """One batch at the predictor at a time, so that requests do meet."""
    return module_pair_of(max_in_flight=1, max_batch_size=4, max_queue_instances=10_000)


@pytest.mark.parametrize("count", [33, 64, 150])
def test_more_requests_than_a_server_likes_to_queue_are_all_answered_in_order(lanes: Pair, count: int) -> None:
    parts = [streams.request(b'{"instances":[%d]}' % index, heads.target(b"echo")) for index in range(count)]
    lanes.compare([Stream(tuple(parts), predicts=count), Stream((*parts, b"garbage\r\n\r\n"), predicts=count)])


def test_what_follows_a_request_that_closes_is_not_answered(lanes: Pair) -> None:
    first = streams.request(b'{"instances":[1]}', heads.target(b"echo"), b"Connection: close")
    second = streams.request(b'{"instances":["never"]}', heads.target(b"echo"))
    sent = [Stream((first, second), cuts, predicts=2) for cuts in [(), (len(first),), (len(first) + 9,), (30,)]]
    lanes.compare(sent)
    for stream in sent:
        transcript = lanes.loop.run_until_complete(lanes.fast.converse(stream.steps()))
        assert b"never" not in transcript.data
        assert transcript.end == "closed"
