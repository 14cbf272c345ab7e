"""Requests behind each other on one connection: answered in order, and nothing after the last."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import heads, streams
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
