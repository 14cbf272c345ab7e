"""The same on the production loop, whose transports are others: in real time, so each stream ends with a close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import heads, streams
from tests.lanes.pair import Pair, Stream

pytestmark = pytest.mark.timeout(300, method="thread")

_LAST = streams.request(b'{"instances":["last"]}', heads.target(b"echo"), b"Connection: close")


@pytest.fixture(scope="module")
def uv_lanes(uv_loop: asyncio.AbstractEventLoop, start_pairs: Callable[..., Any]) -> Iterator[Pair]:
    """A pair on uvloop; a request may take as long as on a busy machine."""
    with start_pairs(uv_loop) as start:
        yield start(timeout=60.0, head_timeout=60.0, keep_alive=60.0)


def _ends_by_itself(part: bytes) -> bool:
    return not any(word in part for word in (b"/models/hang-", b"/models/slow-", b"carpool-timeout-ms"))


_good = streams.proper().filter(_ends_by_itself)
# How reads are cut is chance here, and with it what differs: what follows a request of HTTP/1.0 is malformed and may
# make aiohttp forget others, and nobody is told to continue whose body is there already.
_passed_through = streams.passed_through.filter(lambda part: b"HTTP/1.0" not in part and b"Expect:" not in part)


@streams.examples(40, shrinks=False)
@given(
    st.lists(
        st.lists(st.one_of(_good, _good, _good, _passed_through), max_size=6).flatmap(
            lambda parts: streams.cut([*parts, _LAST], most=8, pauses=streams.TURNS)
        ),
        min_size=1, max_size=10,
    )
)  # fmt: skip
def test_any_sequence_of_good_requests_is_answered_alike(uv_lanes: Pair, sent: list[Stream]) -> None:
    uv_lanes.compare(sent)


def test_two_requests_cut_in_two_at_any_byte(uv_lanes: Pair) -> None:
    parts = (streams.request(b'{"instances":[1]}', heads.target(b"echo"), b"X-Request-ID: r"), _LAST)
    cuts = range(1, sum(map(len, parts)))
    uv_lanes.compare([Stream(parts, (cut,), streams.TURNS[cut % 3], predicts=2) for cut in cuts])


def _is_framed(part: bytes) -> bool:
    head, gap, body = part.partition(b"\r\n\r\n")
    names = (b"transfer-encoding", b"expect", b"upgrade", b"connection", b"content-encoding")
    is_there = bool(gap) and head.lower().count(b"\r\ncontent-length: %d\r\n" % len(body)) == 1
    return is_there and head.lower().count(b"content-length") == 1 and not any(name in head.lower() for name in names)


def _ended(part: bytes) -> Stream:
    return Stream((part, _LAST), predicts=2)


@streams.examples(15, shrinks=False)
@given(st.lists(streams.odd().filter(_ends_by_itself).filter(_is_framed).map(_ended), min_size=1, max_size=10))
def test_any_spelling_of_a_head_is_answered_alike(uv_lanes: Pair, sent: list[Stream]) -> None:
    """In real time nothing tells that no more will come, so only bodies whose end is certain."""
    uv_lanes.compare(sent)
