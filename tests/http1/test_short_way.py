"""A plain predict request takes a short way through the sidecar, and gets what it would get on the way of any other.

The same streams go through two sidecars, one of which has no short way. Batches are of one row, so that what reaches
the predictor does not depend on what was under way together.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import looptime
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tests import examples
from tests.http1 import corpus, freeze, tables
from tests.http1.exchange import End, Step, Stream

pytestmark = pytest.mark.timeout(300, method="thread")

_LAST = tables.request(b'{"instances":["last"]}', tables.target(b"echo"), b"Connection: close")
_LINES = (
    b"Content-Type: application/json", b"Authorization: Bearer a", b"Authorization: Bearer b", b"X-Request-ID: r1",
    b"x-request-id: r2", b"Accept: */*", b"carpool-timeout-ms: 300", b"User-Agent: curl/8", b"Connection: keep-alive",
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"Cookie: a=b", b"Content-Encoding: gzip",
    b"Content-Type: text/plain", b"X-Any: caf\xe9",
)  # fmt: skip
_SPACES = st.sampled_from([b"", b"", b" ", b"\r\n"])
_LISTS = st.tuples(
    _SPACES, st.sampled_from([b'{"instances":', b'{"inputs" :', b'{"a":null,"instances":']), _SPACES,
    st.lists(st.sampled_from(tables.ROWS), min_size=1, max_size=5).map(lambda rows: b"[" + b",".join(rows) + b"]}"),
    _SPACES,
).map(b"".join)  # fmt: skip
_BODIES = st.one_of(_LISTS, _LISTS, _LISTS, st.sampled_from([*tables.INVALID, *tables.COLUMNS]))
_PREDICTS = st.builds(
    lambda body, target, lines: tables.request(body, target, *lines),
    _BODIES, st.sampled_from([tables.target(b"echo"), tables.target(b"other")]),
    st.lists(st.sampled_from(_LINES), max_size=4, unique_by=lambda line: line.lower().partition(b":")[0]),
)  # fmt: skip
_REQUESTS = st.one_of(_PREDICTS, _PREDICTS, _PREDICTS, st.sampled_from([*corpus.KINDS.values()]))
_BEHIND = st.one_of(st.just(b""), st.just(_LAST), st.sampled_from(corpus.MALFORMED))


def _stream(whole: bytes, places: Sequence[int], *behind: Step) -> Stream:
    """These bytes, cut at these places."""
    edges = sorted({0, len(whole), *(place % len(whole) for place in places)})
    steps = [whole[start:stop] for start, stop in itertools.pairwise(edges)]
    return Stream("generated", repr(whole[:200]), (*steps, *behind))


# When the client's connection ended, and whether the predictor's did soon.
_MOMENTS = re.compile(r" \[(?:closed|reset)[^\]]*\]|(?<=closed|.reset), .*\Z")
_CUTS = st.lists(st.integers(0, 1 << 20), max_size=4)
_STREAMS = st.one_of(
    st.builds(
        lambda parts, behind, cuts: _stream(b"".join([*parts, behind]), cuts),
        st.lists(_REQUESTS, min_size=1, max_size=6), _BEHIND, _CUTS,
    ),
    # Of one request: of several some more, or fewer, are under way when their client leaves.
    st.builds(
        lambda part, size, cuts, end: _stream(part[: 1 + size % len(part)], cuts, end, 1.0),
        _PREDICTS, st.integers(0, 1 << 20), _CUTS, st.sampled_from(list(End)),
    ),
)  # fmt: skip


class Pair:
    """Two sidecars in one event loop, and the same streams through both."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **chosen: Any) -> None:
        self._loop = loop
        self._sites = [freeze.Site(short_way, max_batch_size=1, **chosen) for short_way in (True, False)]
        for site in self._sites:
            loop.run_until_complete(site.start())

    def compare(self, streams: Sequence[Stream]) -> None:
        """Each leads to the same, and nothing stays behind."""
        short, long = (self._loop.run_until_complete(site.run(streams)) for site in self._sites)
        for stream, one, other in zip(streams, short, long, strict=True):
            assert self._comparable(one) == self._comparable(other), stream
        for site in self._sites:
            life = site.sidecar.life
            assert (life.active, site.sidecar.bodies.memory.held) == (0, 0)

    def _comparable(self, told: str) -> str:
        """In real time nobody knows how soon an end is noticed."""
        return told if isinstance(self._loop, looptime.LoopTimeEventLoop) else _MOMENTS.sub("", told)

    def close(self) -> None:
        """Stop both."""
        for site in self._sites:
            self._loop.run_until_complete(site.stop())
        left = asyncio.all_tasks(self._loop)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        assert not left


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair(looptime.new_event_loop(start=0, noop_cycles=4))
    yield made
    made.close()


@examples.examples(60)
@given(st.lists(_STREAMS, min_size=1, max_size=8))
def test_any_streams_lead_to_the_same_on_the_short_way_of_plain_requests_and_on_that_of_all(
    pair: Pair, streams: list[Stream]
) -> None:
    pair.compare(streams)


def test_a_request_may_be_cut_or_left_at_any_byte(pair: Pair) -> None:
    request = tables.request(b'{"instances":[1,2]}', tables.target(b"echo"), b"X-Request-ID: r")
    pair.compare([_stream(request + _LAST, [at]) for at in range(1, len(request + _LAST))])
    pair.compare([_stream(request[:at], [], End.RESET, 1.0) for at in range(1, len(request) + 1)])


def test_streams_lead_to_the_same_on_the_loop_of_production() -> None:
    """In real time, so that each ends with a close."""
    pair = Pair(uvloop.new_event_loop(), timeout=60.0, head_timeout=60.0, keep_alive=60.0)
    pairs = itertools.product(corpus.KINDS.values(), repeat=2)
    pair.compare([_stream(one + two + _LAST, [7 * at, 31 * at]) for at, (one, two) in enumerate(pairs)])
    pair.close()


@pytest.mark.parametrize("group", ["JSON", "codings", "fields", "cuts", "slow", "lengths", "answers to predict"])
def test_kept_streams_lead_to_the_same_on_either_way(pair: Pair, group: str) -> None:
    pair.compare(corpus.streams(group))
