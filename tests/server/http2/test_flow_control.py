"""Both directions of flow control: nothing is sent that was not allowed, nothing lost, and little kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.server.http2 import frames, headers, limits, server_stream
from tests.server.http2 import peer

END = frames.END_STREAM


def data_of(found: list[peer.Frame], stream: int = 1) -> bytes:
    return b"".join(frame.payload for frame in found if (frame.kind, frame.stream) == (frames.DATA, stream))


def ended(found: list[peer.Frame]) -> set[int]:
    return {frame.stream for frame in found if frame.flags & END and frame.kind in (frames.HEADERS, frames.DATA)}


# --- what is sent ----------------------------------------------------------------------------------------------


def test_an_answer_wider_than_its_streams_window_waits_for_more_of_it() -> None:
    client = peer.Peer().begin(initial_window_size=10)
    client.call().stream.answer(peer.HEAD, b"0123456789abcdef", peer.OK)
    found = client.read()
    assert (data_of(found), ended(found)) == (b"0123456789", set())
    found = client.say(frames.window_update(1, 100))
    assert (data_of(found), ended(found)) == (b"abcdef", {1})


def test_the_connections_window_holds_for_all_streams_together_and_small_answers_overtake() -> None:
    client = peer.Peer().begin(initial_window_size=1_000_000)
    calls = {number: client.call(number) for number in (1, 3, 5)}
    for number in (1, 3):
        calls[number].stream.answer(peer.HEAD, bytes(60_000), peer.OK)
    found = client.read()
    assert len(data_of(found)) + len(data_of(found, 3)) == frames.FIRST_WINDOW
    assert client.connection.sender.is_stuck
    calls[5].stream.finish((*peer.HEAD, *peer.OK))
    assert ended(client.read()) == {5}
    found += client.say(frames.window_update(0, 1_000_000))
    assert (len(data_of(found)), len(data_of(found, 3)), ended(found)) == (60_000, 60_000, {1, 3})
    assert not client.connection.sender.is_stuck


def test_a_changed_initial_window_applies_to_open_streams_even_below_zero() -> None:
    client = peer.Peer().begin(initial_window_size=100)
    client.call().stream.answer(peer.HEAD, bytes(300), peer.OK)
    assert len(data_of(client.read())) == 100
    assert data_of(client.say(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 50}))) == b""
    assert data_of(client.say(frames.window_update(1, 50))) == b""
    assert len(data_of(client.say(frames.window_update(1, 20)))) == 20
    found = client.say(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 1000}))
    assert (len(data_of(found)), ended(found)) == (180, {1})


def test_settings_are_acknowledged_before_anything_is_sent_that_only_they_allow() -> None:
    client = peer.Peer().begin(initial_window_size=10)
    client.call().stream.answer(peer.HEAD, bytes(300), peer.OK)
    client.read()
    found = client.say(
        frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 1000, frames.Setting.MAX_FRAME_SIZE: 20_000})
    )
    kinds = [frame.kind for frame in found]
    assert kinds.index(frames.SETTINGS) < kinds.index(frames.DATA)


def test_an_initial_window_that_overflows_an_open_stream_ends_the_connection() -> None:
    client = peer.Peer().begin(initial_window_size=0)
    client.call()
    client.say(frames.window_update(1, 2**31 - 1))
    *_, farewell = client.say(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 1}))
    assert int.from_bytes(farewell.payload[4:8]) == frames.Code.FLOW_CONTROL_ERROR


def test_frames_are_no_longer_than_the_client_allows() -> None:
    for size, count in ((16_384, 4), (65_536, 1)):
        client = peer.Peer().begin(max_frame_size=size)
        client.call().stream.answer(peer.HEAD, bytes(60_000), peer.OK)
        assert sum(frame.kind == frames.DATA for frame in client.read()) == count


def test_a_full_socket_holds_answers_back_until_it_takes_more() -> None:
    client = peer.Peer().begin(initial_window_size=2**30)
    client.say(frames.window_update(0, 2**30))
    client.connection.sender.is_paused = True
    calls = [client.call(number) for number in (1, 3, 5)]
    for at, call in enumerate(calls):
        call.stream.answer(peer.HEAD, bytes([at]) * 100_000, peer.OK)
    assert client.connection.sender.size == 0
    client.connection.sender.is_paused = False
    found = client.read()
    assert [data_of(found, number) for number in (1, 3, 5)] == [bytes([at]) * 100_000 for at in range(3)]
    assert ended(found) == {1, 3, 5}


def test_a_source_is_told_when_to_pause_and_when_to_go_on() -> None:
    client = peer.Peer(chosen=limits.Limits(most_unsent=1000)).begin(initial_window_size=0)
    call = client.call()
    call.stream.start(peer.HEAD)
    call.stream.send(bytes(999))
    assert not call.stream.is_blocked
    call.stream.send(bytes(1))
    assert call.stream.is_blocked
    client.say(frames.window_update(1, 499))
    assert call.events == ["end"]
    client.say(frames.window_update(1, 1))
    assert call.events == ["end", "writable"]
    client.say(frames.window_update(1, 500))
    assert call.events == ["end", "writable"]


def test_a_stream_reset_while_its_answer_waits_sends_nothing_more() -> None:
    client = peer.Peer().begin(initial_window_size=10)
    stream = client.call().stream
    stream.start(peer.HEAD)
    stream.send(bytes(100))
    client.read()
    stream.reset(frames.Code.INTERNAL_ERROR)
    (reset,) = client.read()
    assert (reset.kind, reset.word) == (frames.RST_STREAM, frames.Code.INTERNAL_ERROR)
    assert client.say(frames.window_update(1, 1000)) == []


@pytest.mark.parametrize("increment", [0, 1])
def test_a_complete_answer_that_is_taken_too_slowly_is_broken_off_in_time(increment: int) -> None:
    client = peer.Peer(chosen=limits.Limits(slowest_reader=10)).begin(initial_window_size=10)
    for number in (1, 3):
        client.call(number).stream.answer(peer.HEAD, bytes(100), peer.OK)
    client.read()
    client.connection.cut_slow(0.0, patience=5)
    client.say(frames.window_update(3, 20), frames.window_update(1, increment) if increment else b"")
    client.connection.cut_slow(4.0, patience=5)
    client.connection.cut_slow(6.0, patience=5)
    (reset,) = client.read()
    assert (reset.kind, reset.stream, reset.word) == (frames.RST_STREAM, 1, frames.Code.CANCEL)
    client.connection.cut_slow(7.5, patience=5)
    assert [frame.stream for frame in client.read()] == [3]


@given(
    st.lists(st.lists(st.binary(max_size=50), max_size=4), min_size=1, max_size=5),
    st.integers(0, 100),
    st.data(),
)
def test_every_answer_arrives_whole_whatever_the_windows(
    answers: list[list[bytes]], window: int, data: st.DataObject
) -> None:
    client = peer.Peer().begin(initial_window_size=window)
    for at, pieces in enumerate(answers):
        stream = client.call(2 * at + 1).stream
        if len(pieces) == 1:
            stream.answer(peer.HEAD, pieces[0], peer.OK)
            continue
        stream.start(peer.HEAD)
        for piece in pieces:
            stream.send(piece)
        stream.finish(peer.OK)
    found = client.read()
    granted = {2 * at + 1: window for at in range(len(answers))}
    while len(ended(found)) < len(answers):
        for number in sorted(set(granted) - ended(found)):
            assert len(data_of(found, number)) <= granted[number]
            increment = data.draw(st.integers(1, 60))
            granted[number] += increment
            found += client.say(frames.window_update(number, increment))
    assert [data_of(found, 2 * at + 1) for at in range(len(answers))] == [b"".join(each) for each in answers]
    assert not client.connection.streams


# --- what is received ------------------------------------------------------------------------------------------

SMALL = limits.Limits(stream_window=65_535, connection_window=100_000, max_frame=70_000)


def updates(found: list[peer.Frame]) -> dict[int, int]:
    return {frame.stream: frame.word for frame in found if frame.kind == frames.WINDOW_UPDATE}


def test_windows_are_widened_when_half_is_consumed() -> None:
    client = peer.Peer(chosen=SMALL).begin()
    client.say(client.headers(1), frames.frame(frames.DATA, 0, 1, bytes(60_000)))
    stream = client.notes.calls[0].stream
    stream.consumed(30_000)
    assert updates(client.read()) == {}
    stream.consumed(10_000)
    assert updates(client.read()) == {1: 40_000}
    stream.consumed(999_999)
    assert updates(client.read()) == {}


def test_a_stream_that_has_ended_gets_no_more_window() -> None:
    client = peer.Peer(chosen=SMALL).begin()
    stream = client.call(1, bytes(60_000)).stream
    client.read()
    stream.consumed(60_000)
    assert client.read() == []


def test_streams_that_consume_nothing_leave_the_connections_window_to_the_others() -> None:
    client = peer.Peer(chosen=SMALL).begin()
    granted = 0
    for number in (1, 3, 5):
        found = client.say(client.headers(number), frames.frame(frames.DATA, 0, number, bytes(60_000)))
        granted += updates(found)[0]
    assert granted == 180_000
    assert client.call(7, b"served").body == b"served"


def test_more_than_a_streams_window_breaks_the_stream_and_more_than_the_connections_all() -> None:
    client = peer.Peer(chosen=SMALL).begin()
    found = client.say(client.headers(1), frames.frame(frames.DATA, 0, 1, bytes(65_536)))
    assert [frame.word for frame in found if frame.kind == frames.RST_STREAM] == [frames.Code.FLOW_CONTROL_ERROR]
    client = peer.Peer(chosen=SMALL).begin()
    client.say(client.headers(1), frames.frame(frames.DATA, 0, 1, bytes(45_000)))
    *_, farewell = client.say(client.headers(3), frames.frame(frames.DATA, 0, 3, bytes(60_000)))
    assert int.from_bytes(farewell.payload[4:8]) == frames.Code.FLOW_CONTROL_ERROR


def test_padding_and_data_for_streams_gone_count_and_are_given_back() -> None:
    client = peer.Peer(chosen=SMALL).begin()
    client.say(client.headers(1), frames.rst_stream(1, 8))
    client.say(client.headers(3))
    found: list[peer.Frame] = []
    for _ in range(300):
        found += client.say(frames.frame(frames.DATA, frames.PADDED, 3, b"\xff" + bytes(255)))
        found += client.say(frames.frame(frames.DATA, 0, 1, bytes(256)))
    assert sum(frame.word for frame in found if frame.kind == frames.WINDOW_UPDATE and not frame.stream) >= 50_000
    assert not client.connection.is_done


def test_a_handler_that_is_gone_does_not_stop_its_body_from_being_read() -> None:
    class Hasty(peer.Call):
        def data(self, data: bytes) -> None:
            self.stream.answer(peer.HEAD, b"no", peer.OK)

    class Door:
        def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
            return Hasty(stream, head)

    client = peer.Peer(Door(), SMALL).begin()
    found = client.say(client.headers(1), frames.frame(frames.DATA, END, 1, bytes(60_000)))
    assert updates(found) == {0: 60_000}
    assert [frame.kind for frame in found if frame.stream] == [frames.HEADERS, frames.DATA, frames.HEADERS]


@given(st.lists(st.integers(0, 1000)))
def test_a_window_never_grants_more_than_was_taken(counts: list[int]) -> None:
    window, taken, granted = limits.ReceiveWindow(1000), 0, 0
    for count in counts:
        if taken + count - granted > 1000:
            break
        assert window.take(count)
        taken += count
        granted += window.give_back(count)
        assert taken - 500 < granted <= taken or granted == taken


def test_an_allowance_refills_with_time() -> None:
    now = [0.0]
    allowance = limits.TokenBucket(2, 1.0, lambda: now[0])
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    now[0] = 100.0
    assert [allowance.take() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("limit", [1, 65_535])
def test_a_window_smaller_than_clients_assume_is_not_enforced(limit: int) -> None:
    client = peer.Peer(chosen=limits.Limits(stream_window=limit, connection_window=limit)).begin()
    client.say(client.headers(1), frames.frame(frames.DATA, 0, 1, bytes(60_000)))
    assert len(client.notes.calls[0].body) == 60_000
