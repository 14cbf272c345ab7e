"""Any stream means to the data port what it means to h11, or is refused.

`make fuzz ARGS="http1_streams"` looks for one that does not, for longer.
"""

from __future__ import annotations

import asyncio
import functools
import itertools

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from tests import examples
from tests.http1 import corpus, disguises, meaning, tables
from tests.http1.tables import NUMBER

_HOSTILE = ("smuggling", "transfer codings", "chunkings", *disguises.GROUPS)


def _numbered(*texts: bytes) -> list[bytes]:
    return [text.replace(NUMBER, b"1") for text in texts]


_STARTS = _numbered(
    *(b"POST " + target + b" HTTP/1.1\r\n" for target in (tables.target(b"m"), b"/x", b"*", b"http://h/x")),
    b"GET /x HTTP/1.1\r\n", b"GET /x HTTP/1.0\r\n", b"PUT /x  HTTP/1.1\r\n", b"CONNECT h:1 HTTP/1.1\r\n", b"GET /x\r\n",
)  # fmt: skip
_LINES = [
    b"Host: h\r\n", b"Content-Length: 5\r\n", b"Content-Length: 17\r\n", b"Content-Length: 0\r\n",
    b"content-length:5 \r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: identity\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: Upgrade\r\nUpgrade: x\r\n",
    b"Expect: 100-continue\r\n", b"X: y\r\n z\r\n", b"X : y\r\n", b"X: \xe9\r\n", b"X: y\n", b"X\r\n",
    b"Content-Encoding: gzip\r\n",
]  # fmt: skip
_BODIES = [
    b'{"instances":[1]}', b"abcde", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n",
    b'11\r\n{"instances":[1]}\r\n',
    b"5;a=b\r\nabcde\r\n", b"5\nabcde\r\n", b"\r\n", b"\n", b"",
]  # fmt: skip
_MESSAGES = st.tuples(
    st.sampled_from(_STARTS), st.lists(st.sampled_from(_LINES), max_size=5).map(b"".join), st.just(b"\r\n"),
    st.lists(st.sampled_from(_BODIES), max_size=3).map(b"".join),
).map(b"".join)  # fmt: skip
_STREAMS = st.lists(_MESSAGES, min_size=1, max_size=3).map(b"".join)
_PUT = st.one_of(st.binary(max_size=3), st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"\0", b"0", *_LINES]))
_CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), _PUT), max_size=2)


@functools.cache
def _judge() -> meaning.Judge:
    """One for all examples: to make it takes longer than to read a stream."""
    return meaning.Judge()


def _cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:stop] for start, stop in itertools.pairwise(edges)]


@examples.examples(200)
@given(
    _STREAMS,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), _PUT), max_size=2),
    st.lists(st.integers(0, 600), max_size=4),
)
def test_a_stream_of_any_bytes_means_what_it_means_to_h11_or_is_refused(
    stream: bytes, changes: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    for at, gone, put in changes:
        stream = stream[:at] + put + stream[at + gone :]
    target(len(meaning.read_by_h11(stream)))
    assert asyncio.run(_judge().disagreement(_cut(stream, cuts))) == ""


@pytest.mark.parametrize("group", _HOSTILE)
async def test_each_hostile_stream_means_what_it_means_to_h11_or_is_refused(group: str) -> None:
    judge = meaning.Judge()
    for stream in corpus.streams(group):
        steps, _ = stream.numbered(1)
        told = await judge.disagreement([step for step in steps if isinstance(step, bytes)])
        assert not told, stream.key


async def test_requests_are_noticed_that_h11_does_not_find() -> None:
    assert meaning.read_by_h11(b"GET / HTTP/1.1\r\nHost: h\r\n\r\nPOST  / HTTP/1.1\r\n\r\n") == [
        meaning.Request("GET", "/", b"")
    ]
    port = meaning.DataPort(is_batching=True)
    taken, _ = await port.take([b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n", b"ab"])
    assert taken == [meaning.Request("PUT", "/", b"ab")]
