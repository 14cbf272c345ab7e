"""Clients that go away at any moment: nobody else notices, and nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import exchange, heads, lane, streams
from tests.lanes.exchange import Leave, Wait
from tests.lanes.pair import Pair, Stream

pytestmark = pytest.mark.timeout(300)  # thousands of requests

_REQUEST = streams.request(b'{"instances":[1,2]}', heads.target(b"slow"), b"X-Request-ID: r")


@pytest.mark.parametrize("leave", [0.0, 0.3], ids=["at once", "after a while"])
def test_a_client_that_leaves_after_any_byte_of_its_request(lanes: Pair, leave: float) -> None:
    """In the head, in the body, or while the predictor works on it."""
    cut_off = [Stream((_REQUEST[:size],), leave=leave) for size in range(1, len(_REQUEST) + 1)]
    lanes.compare(cut_off)


def test_a_client_that_leaves_while_it_is_answered(lanes: Pair) -> None:
    large = streams.request(b'{"instances":[1,2,3,4,5]}', heads.target(b"large"))
    lanes.compare([Stream((large,), leave=0.5), Stream((large, large), leave=0.5, predicts=2)])


@pytest.mark.parametrize("body", [b'{"inputs":{"a":[1]}}', b'{"instances":[1]}'], ids=["passed on", "of a batch"])
@pytest.mark.parametrize(("size", "count"), [(300, 400), (70_000, 1), (399_000, 1), (399_000, 3)])
def test_a_client_that_leaves_while_more_than_is_read_waits_behind_a_request_without_an_answer(
    lanes: Pair, body: bytes, size: int, count: int
) -> None:
    behind = streams.request(b'{"instances":["%b"]}' % (b"x" * size))
    lanes.compare([Stream((streams.request(body, heads.target(b"hang")), *[behind] * count), leave=3.3, predicts=9)])


@streams.examples(60)
@given(
    st.lists(
        st.builds(
            lambda parts, leave, start, keep: Stream(_kept(parts, keep), start=start, leave=leave, predicts=9),
            st.lists(streams.proper(), min_size=1, max_size=3),
            st.sampled_from([None, 0.0, 0.25, 1.1]), st.sampled_from([0.0, 2.05, 4.03]), st.integers(0, 5000),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_clients_that_come_and_go_at_any_time(lanes: Pair, sent: list[Stream]) -> None:
    lanes.compare(sent)


def _kept(parts: Sequence[bytes], size: int) -> tuple[bytes, ...]:
    whole = b"".join(parts)
    return (whole[: size or 1] if size < 900 else whole,)


def test_a_client_that_leaves_the_queue_is_never_sent_to_the_predictor(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(max_in_flight=1, max_batch_size=2)

    async def script(each: lane.Lane) -> Any:
        before = each.counts()
        each.predictor.gate.clear()
        first = asyncio.ensure_future(each.converse([_number(_REQUEST, 1), Wait(4), Leave.CLOSE]))
        await asyncio.sleep(0.1)
        second = [_number(_REQUEST, 2), Wait(0.5), Leave.RESET]
        waiting = [asyncio.ensure_future(each.converse([*second])) for _ in range(3)]
        third = asyncio.ensure_future(each.converse([_number(_REQUEST, 3), Wait(4), Leave.CLOSE]))
        await asyncio.sleep(1)
        each.predictor.gate.set()
        transcripts = [await first, await third, *[await one for one in waiting]]
        counts = each.counts()
        counts.subtract(before)
        targets = [seen.target for seen in each.predictor.seen]
        return [len(one.data) for one in transcripts], +counts, targets, each.leftovers()

    fast, slow = pair.run(script)
    assert fast == slow
    assert not any("000002" in target for target in fast[2])
    assert fast[1]["carpool_abandoned_total[]"] == 3


def _number(request: bytes, number: int) -> bytes:
    return request.replace(b"@@@@@@", b"%06d" % number)


_BEHIND = {
    "nothing": b"",
    "a part of a head": _REQUEST[:30],
    "a part of a body": _REQUEST[:-3],
    "a request to pass through": streams.request(b"", b"/x-@@@@@@", method=b"GET", length=False),
    "a chunked request": streams.request(b"5\r\n{", heads.target(b"echo"), b"Transfer-Encoding: chunked", length=False),
}


@pytest.mark.parametrize("name", _BEHIND)
def test_a_client_that_leaves_is_noticed_at_once_whatever_it_sent_behind_its_request(lanes: Pair, name: str) -> None:
    """While the first request is at the predictor: it is abandoned, and not answered to nobody."""
    steps = [_number(_REQUEST + _BEHIND[name], 6), Wait(0.3), Leave.RESET]

    async def script(each: lane.Lane) -> Any:
        before = each.counts()
        await each.converse([*steps])
        await asyncio.sleep(5)
        counts = each.counts()
        counts.subtract(before)
        return +counts, each.leftovers()

    fast, slow = lanes.run(script)
    assert fast == slow == ({"carpool_abandoned_total[]": 1}, {})


_ECHO = _number(streams.request(b'{"instances":[1]}', heads.target(b"echo")), 7)


@pytest.mark.parametrize("request_", [_ECHO, _number(_REQUEST, 8)], ids=["at once", "while it waits"])
@pytest.mark.parametrize("steps", [[], [exchange.Turns(3)], [Wait(0.3)]], ids=str)
def test_a_client_that_will_send_no_more_counts_as_gone(lanes: Pair, request_: bytes, steps: list[Any]) -> None:
    """As for Go's and aiohttp's servers."""
    fast, slow = lanes.run(lambda each: each.converse([request_, *steps, Leave.HALF_CLOSE]))
    assert (fast.count, fast.end, fast.ended) == (slow.count, slow.end, slow.ended)
    assert lanes.fast.leftovers() == lanes.slow.leftovers() == {}


@pytest.mark.parametrize("size", [0, 1, 30, len(_ECHO) - 1])
def test_a_client_that_will_send_no_more_before_its_request_is_complete_gets_nothing(lanes: Pair, size: int) -> None:
    fast, slow = lanes.run(lambda each: each.converse([_ECHO[:size], Wait(0.01), Leave.HALF_CLOSE]))
    assert (fast.data, fast.end, fast.ended) == (slow.data, slow.end, slow.ended) == (b"", "closed", 0.01)
