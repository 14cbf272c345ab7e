"""Answers that are passed on are read alike whether or not their heads are known from earlier ones; no sockets."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar import caches, errors
from carpool_sidecar.protocols import interface
from carpool_sidecar.upstream import connection
from tests.upstream.wire import CHUNKED, http

_ANSWERS = [
    http(b'{"models":["a"]}'),
    http(b'{"models":["b"]}'),
    http(b'{"models":["a"]}', headers=b"Date: Mon, 23 Nov 2026 05:33:53 GMT\r\nX: 1\r\nX: 2\r\n"),
    http(b"{}", headers=b"Connection: close\r\n"),
    http(b"", b"204 No Content"),
    http(b"", b"304 Not Modified"),
    http(b'{"error":"no"}', b"404 Not Found"),
    http(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    CHUNKED + b"2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + http(b"{}"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2000),
    b"\r\n" + http(b"{}"),
    b"nonsense\r\n\r\n",
]


def converse(make, pieces):
    """What each piece came to on one connection, and whether it may be used again; it ends where that may not be."""
    reader, told = make(), []
    for piece in pieces:
        try:
            outcome = reader.feed(memoryview(piece))
        except errors.UpstreamError as error:
            return [*told, repr(error)]
        if isinstance(outcome, interface.UpstreamResponse):
            outcome = outcome._replace(head=b"")
        told.append((outcome, reader.keep_alive if outcome is not None else None))
        if outcome is not None and not reader.keep_alive:
            break
    return told


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(_ANSWERS), st.integers(0, 60)), min_size=1, max_size=5),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_an_answer_is_the_same_with_a_head_that_is_known_or_not(connections):
    known = connection.KnownHeads()
    shared = functools.partial(connection.PassedAnswerReader, known, 1000)
    for answers in connections:
        pieces = [piece for text, cut in answers for piece in (text[:cut], text[cut:]) if piece]
        alone = converse(lambda: connection.PassedAnswerReader(connection.KnownHeads(), 1000), pieces)
        assert converse(shared, pieces) == alone


@pytest.mark.parametrize(("answer", "is_known"), [(_ANSWERS[0], True), (_ANSWERS[3], False), (_ANSWERS[8], False)])
def test_only_a_head_with_a_length_on_a_connection_that_goes_on_is_remembered(answer, is_known):
    known = connection.KnownHeads()
    reader = connection.PassedAnswerReader(known, 1000)
    reader.feed(memoryview(answer))
    assert (known.answer(answer) is not None) == is_known


def test_a_known_head_tells_nothing_of_a_body_that_is_not_all_there():
    known = connection.KnownHeads()
    reader = connection.PassedAnswerReader(known, 1000)
    reader.feed(memoryview(http(b"abc")))
    assert reader.feed(memoryview(http(b"xyz")[:-1])) is None
    assert reader.feed(memoryview(b"z")).body == b"xyz"
    assert reader.feed(memoryview(http(b"123"))).body == b"123"


def test_so_many_heads_are_remembered_and_no_more():
    known = connection.KnownHeads()
    reader = connection.PassedAnswerReader(known, 1000)
    texts = [http(b"{}", headers=b"X-Number: %d\r\n" % number) for number in range(2000)]
    for text in texts:
        reader.feed(memoryview(text))
    remembered = [text for text in texts if known.answer(text) is not None]
    assert 0 < sum(map(len, remembered)) + caches.ENTRY * len(remembered) <= 128 * 1024
    assert texts[-1] in remembered
    long = http(b"{}", headers=b"X-Long: %b\r\n" % bytes([65] * 3000))
    reader.feed(memoryview(long))
    assert known.answer(long) is None


def test_the_words_behind_a_status_are_whole_wherever_the_answer_was_cut():
    text = http(b"{}", b"404 Not Found")
    for cut in range(1, len(text)):
        reader = connection.PassedAnswerReader(connection.KnownHeads(), 1000)
        reader.feed(memoryview(text[:cut]))
        assert reader.feed(memoryview(text[cut:])).reason == b"Not Found"
