"""Clients that take seconds between the pieces of a request, on connections that are kept for long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import exchange, heads, lane, streams
from tests.lanes.exchange import Leave, Wait
from tests.lanes.pair import Pair, Stream

pytestmark = pytest.mark.timeout(300)  # thousands of requests

_PLAIN = streams.request(b'{"instances":[1]}', heads.target(b"echo"), b"X-Request-ID: r1")
_OTHER = streams.request(b'{"instances":[1,2]}', heads.target(b"echo"), b"Authorization: Bearer a")


def test_the_time_for_a_head_begins_anew_with_each_request(lanes: Pair) -> None:
    """Also if the head before it came in pieces too, longer ago than a head may take."""
    late = Wait(lane.TIMES["head_timeout"] + 5)
    cuts = (30, len(_PLAIN), len(_PLAIN) + 30)
    lanes.compare([Stream((_PLAIN, _PLAIN), cuts, (Wait(1), late, Wait(3), Wait(0)), predicts=2)])
    fourth = tuple(len(_PLAIN) * count + size for count in range(4) for size in (0, 30))
    lanes.compare([Stream((_PLAIN,) * 4, fourth, (Wait(1), late), predicts=4)])


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_a_head_that_begins_in_the_read_that_ends_a_slow_one_has_its_own_time(lanes: Pair, left: int) -> None:
    """Also if that read has only the last bytes of the empty line."""
    question = streams.request(b"", b"/v1/models/echo-@@@@@@", method=b"GET", length=False)
    pause = Wait(lane.TIMES["head_timeout"] - 5)
    sent = Stream((question, question), (len(question) - left, len(question) + 5), pause)
    lanes.compare([sent])
    for each in (lanes.fast, lanes.slow):
        transcript = lanes.loop.run_until_complete(each.converse(sent.numbered(1).steps()))
        assert transcript.count == transcript.data.count(b"HTTP/1.1 200 OK") == 2


@streams.examples(20)
@given(
    st.lists(
        st.builds(
            lambda parts, cuts, pauses: Stream(tuple(parts), _cuts(parts, cuts), tuple(pauses), predicts=len(parts)),
            st.lists(st.sampled_from([_PLAIN, _PLAIN, _PLAIN, _OTHER]), min_size=2, max_size=6),
            st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=6, max_size=6),
            st.lists(st.sampled_from([Wait(0.3), Wait(2.3), Wait(4.1), exchange.SHORTLY]), min_size=1, max_size=9),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_requests_that_arrive_piece_by_piece_over_many_seconds_are_answered_alike(
    lanes: Pair, sent: list[Stream]
) -> None:
    # No head takes longer than it may, but together they do.
    lanes.compare(sent)


def _cuts(parts: list[bytes], within: list[tuple[int, int]]) -> tuple[int, ...]:
    """Up to three pieces for each part, and cuts between parts."""
    found, at = [], 0
    for part, cuts in zip(parts, within, strict=False):
        found += [at, *(at + cut % len(part) for cut in cuts)]
        at += len(part)
    return tuple(found)


@pytest.mark.parametrize("size", [1, 30, _PLAIN.index(b"\r\n\r\n") + 2])
@pytest.mark.parametrize("before", [b"", _PLAIN], ids=["first", "behind another"])
def test_a_head_that_stops_is_told_so_in_time(lanes: Pair, before: bytes, size: int) -> None:
    async def script(each: lane.Lane) -> exchange.Transcript:
        return await each.converse([before + _PLAIN[:size], Wait(13), _PLAIN[size : size + 1]])

    fast, _ = lanes.run(script)
    moment, last = fast.events[-1]
    assert b'{"error":"the head of the request did not arrive in time"}' in last
    assert lane.TIMES["head_timeout"] <= moment <= lane.TIMES["head_timeout"] + 1
    assert fast.end == "closed"


def test_an_idle_connection_is_kept_for_as_long_as_set(lanes: Pair) -> None:
    lanes.compare([Stream((b"",)), Stream((_PLAIN,)), Stream((_PLAIN,), pause=Wait(3)), Stream((b"\r\n",))])
    steps = [_PLAIN.replace(b"@@@@@@", b"000001"), Wait(lane.TIMES["keep_alive"] - 3), _PLAIN, Wait(1), Leave.CLOSE]
    for each in (lanes.fast, lanes.slow):
        assert lanes.loop.run_until_complete(each.converse([*steps])).count == 2
