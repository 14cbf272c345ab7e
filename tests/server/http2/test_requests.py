"""Requests and answers on a connection without a socket."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.server.http2 import frames, headers, limits, server_stream
from tests.server.http2 import echo, peer

END = frames.END_STREAM


@pytest.fixture
def client() -> peer.Peer:
    return peer.Peer().begin()


def test_a_unary_call_is_given_whole_and_answered_in_three_frames(client: peer.Peer) -> None:
    call = client.call(1, b"question")
    assert call.head == headers.Head("POST", "/some.Service/Call", b"here", ((b"te", b"trailers"),))
    assert (call.body, call.events) == (b"question", ["end"])
    call.stream.answer(peer.HEAD, b"answer", peer.OK)
    head, data, trailers = client.read()
    assert client.fields(head) == list(peer.HEAD)
    assert (data.kind, data.payload) == (frames.DATA, b"answer")
    assert client.fields(trailers) == list(peer.OK)
    assert [frame.flags & END for frame in (head, data, trailers)] == [0, 0, END]
    assert not client.connection.streams


def test_streams_of_one_connection_have_its_number_and_no_others(client: peer.Peer) -> None:
    other = peer.Peer().begin()
    first, second, elsewhere = client.call(1).stream, client.call(3).stream, other.call(1).stream
    assert first.connection == second.connection != elsewhere.connection


def test_an_answer_without_a_body_has_no_data(client: peer.Peer) -> None:
    client.call().stream.answer(peer.HEAD, b"", peer.OK)
    assert [frame.kind for frame in client.read()] == [frames.HEADERS, frames.HEADERS]


def test_finish_alone_is_an_answer_of_trailers_only(client: peer.Peer) -> None:
    client.call().stream.finish((*peer.HEAD, *peer.OK))
    (only,) = client.read()
    assert client.fields(only) == [*peer.HEAD, *peer.OK]
    assert only.flags & END


def test_a_streamed_answer_keeps_its_order(client: peer.Peer) -> None:
    stream = client.call().stream
    stream.start(peer.HEAD)
    stream.send(b"one")
    assert [frame.kind for frame in client.read()] == [frames.HEADERS, frames.DATA]
    stream.send(b"two")
    stream.finish(peer.OK)
    assert client.read()[0].payload == b"two"


def test_a_long_header_block_is_continued_in_frames_the_client_takes(client: peer.Peer) -> None:
    long = (*peer.HEAD, (b"x", b"v" * 40_000))
    client.call().stream.finish(long)
    found = client.read()
    assert [frame.kind for frame in found] == [frames.HEADERS, frames.CONTINUATION, frames.CONTINUATION]
    assert [frame.flags for frame in found] == [END, 0, frames.END_HEADERS]
    whole = found[0]._replace(payload=b"".join(frame.payload for frame in found))
    assert client.fields(whole) == list(long)


def test_a_request_may_be_padded_continued_prioritised_and_end_in_trailers(client: peer.Peer) -> None:
    block = client.encoder.encode(peer.POST)
    begun = frames.frame(frames.HEADERS, 0x28, 1, b"\x02" + b"\x00\x00\x00\x00\x10" + block[:4] + b"\x00\x00")
    rest = frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[4:])
    data = frames.frame(frames.DATA, frames.PADDED, 1, b"\x03body\x00\x00\x00")
    client.say(begun, rest, data, client.headers(1, END, ((b"checksum", b"7"),)))
    (call,) = client.notes.calls
    assert (call.body, call.events, call.head.path) == (b"body", ["end"], "/some.Service/Call")


def test_an_early_answer_tells_the_client_to_stop_sending_and_what_it_sent_is_dropped(client: peer.Peer) -> None:
    client.say(client.headers(1))
    client.notes.calls[0].stream.answer(peer.HEAD, b"", peer.OK)
    *_, reset = client.read()
    assert (reset.kind, reset.word) == (frames.RST_STREAM, frames.Code.NO_ERROR)
    assert client.say(frames.frame(frames.DATA, 0, 1, b"late"), client.headers(1, END, ())) == []
    assert client.notes.calls[0].body == b""


def test_a_reset_by_the_client_cancels_its_call_once_and_nothing_is_sent_any_more(client: peer.Peer) -> None:
    call = client.call()
    assert client.say(frames.rst_stream(1, frames.Code.CANCEL), frames.rst_stream(1, frames.Code.CANCEL)) == []
    call.stream.answer(peer.HEAD, b"late", peer.OK)
    call.stream.start(peer.HEAD)
    call.stream.send(b"late")
    call.stream.finish(peer.OK)
    call.stream.reset(2)
    call.stream.consumed(10)
    assert client.read() == []
    assert call.events == ["end", "cancelled"]


def test_a_call_that_was_answered_is_not_cancelled() -> None:
    client = peer.Peer().begin(initial_window_size=0)
    call = client.call(1, b"question")
    call.stream.answer(peer.HEAD, b"waits for window", peer.OK)
    client.say(frames.rst_stream(1, frames.Code.CANCEL))
    assert call.events == ["end"]
    assert not client.connection.streams


def test_a_lost_connection_cancels_every_open_call(client: peer.Peer) -> None:
    first, second, third = (client.call(number) for number in (1, 3, 5))
    second.stream.answer(peer.HEAD, b"", peer.OK)
    client.connection.lost()
    assert [call.events for call in (first, second, third)] == [["end", "cancelled"], ["end"], ["end", "cancelled"]]


def test_one_stream_too_many_is_refused_and_the_others_go_on() -> None:
    client = peer.Peer(chosen=limits.Limits(max_streams=2)).begin()
    first = client.call(1)
    client.call(3)
    (refusal,) = client.say(client.headers(5, END))
    assert (refusal.kind, refusal.stream, refusal.word) == (frames.RST_STREAM, 5, frames.Code.REFUSED_STREAM)
    first.stream.answer(peer.HEAD, b"", peer.OK)
    client.call(7)
    assert [call.head.path for call in client.notes.calls] == ["/some.Service/Call"] * 3


class Broken(peer.Call):
    def end(self) -> None:
        raise ValueError("a bug")


@pytest.mark.parametrize("broken_open", [True, False])
def test_a_handler_that_raises_loses_its_own_stream_only(*, broken_open: bool) -> None:
    class Door:
        def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
            if head.path == "/good":
                return peer.Call(stream, head)
            if broken_open:
                raise ValueError("a bug")
            return Broken(stream, head)

    client = peer.Peer(Door()).begin()
    good = tuple((name, b"/good" if name == b":path" else value) for name, value in peer.POST)
    (reset,) = client.say(client.headers(1, 0, good), client.headers(3, END), client.headers(5, 0, good))
    assert (reset.kind, reset.stream, reset.word) == (frames.RST_STREAM, 3, frames.Code.INTERNAL_ERROR)
    assert list(client.connection.streams) == [1, 5]
    assert [str(error) for error in client.failures] == ["a bug"]


@pytest.mark.parametrize("where", ["data", "end", "writable"])
def test_a_handler_that_raises_is_told_that_its_stream_is_over(where: str) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    class Door(peer.Notes):
        def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
            handler = super().open(stream, head)
            setattr(handler, where, fail)
            return handler

    door = Door()
    client = peer.Peer(door, limits.Limits(most_unsent=10)).begin(initial_window_size=0)
    client.say(client.headers(1), frames.frame(frames.DATA, 0, 1, b"body"))
    (call,) = door.calls
    if where == "writable":
        call.stream.start(peer.HEAD)
        call.stream.send(bytes(20))
        assert call.stream.is_blocked
    client.say(frames.window_update(1, 100), frames.frame(frames.DATA, END, 1))
    assert [each for each in call.events if each != "end"] == ["cancelled"]
    assert [str(error) for error in client.failures] == ["a bug"]
    assert not client.connection.streams


def test_a_handler_that_raises_even_when_it_is_told_costs_nobody_else_anything() -> None:
    class Hopeless(Broken):
        def cancelled(self) -> None:
            raise ValueError("another bug")

    class Door:
        def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
            return Hopeless(stream, head)

    client = peer.Peer(Door()).begin()
    client.say(client.headers(1, END), client.headers(3, END))
    assert [str(error) for error in client.failures] == ["a bug", "another bug"] * 2
    assert not client.connection.streams


@given(st.data())
def test_bytes_may_be_split_anywhere(data: st.DataObject) -> None:
    client = peer.Peer(echo.Echo())
    calls = {number: bytes(number) * (number % 7) * 100 for number in range(1, 25, 2)}
    text = frames.PREFACE + frames.settings({}) + frames.window_update(0, 1_000_000)
    for number, body in calls.items():
        text += client.headers(number) + frames.frame(frames.DATA, END, number, body)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=40)))
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        client.receive(text[start:stop])
    found = client.read()
    bodies = {number: b"".join(f.payload for f in found if (f.kind, f.stream) == (0, number)) for number in calls}
    assert bodies == calls
    assert sum(frame.flags & END for frame in found if frame.kind == frames.HEADERS) == len(calls)


def test_bytes_may_come_one_by_one() -> None:
    client = peer.Peer(echo.Echo())
    text = frames.PREFACE + frames.settings({}) + client.headers(1) + frames.frame(frames.DATA, END, 1, b"abc")
    for at in range(len(text)):
        client.receive(text[at : at + 1])
    assert [frame.payload for frame in client.read() if frame.kind == frames.DATA] == [b"abc"]


def test_what_a_connection_remembers_of_streams_that_ended_is_little() -> None:
    client = peer.Peer().begin()

    def call(number: int) -> None:
        client.call(number).stream.answer(peer.HEAD, b"", peer.OK)
        client.connection.take()
        client.notes.calls.clear()

    for number in range(1, 401, 2):
        call(number)
    tracemalloc.start()
    try:
        for number in range(401, 6401, 2):
            call(number)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not client.connection.streams
    assert kept < 30_000
