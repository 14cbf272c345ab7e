"""How a connection ends: with warning, in two steps, and with every answer given that was begun."""

from __future__ import annotations

from carpool_sidecar.server.http2 import frames
from tests.server.http2 import peer

END = frames.END_STREAM


def last_stream(frame: peer.Frame) -> int:
    assert frame.kind == frames.GOAWAY
    assert frame.word == 0
    return int.from_bytes(frame.payload[:4])


def test_streams_that_crossed_the_warning_are_served_and_later_ones_ignored() -> None:
    client = peer.Peer().begin()
    first = client.call(1)
    client.connection.leave()
    warning, ping = client.read()
    assert last_stream(warning) == 2**31 - 1
    crossed = client.call(3)
    (final,) = client.say(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
    assert last_stream(final) == 3
    late = client.headers(5) + frames.frame(frames.DATA, END, 5, b"late") + frames.rst_stream(5, 8)
    assert client.say(late) == []
    assert len(client.notes.calls) == 2
    first.stream.answer(peer.HEAD, b"", peer.OK)
    assert not client.connection.is_done
    crossed.stream.answer(peer.HEAD, b"", peer.OK)
    assert client.connection.is_done
    assert [frame.stream for frame in client.read()] == [1, 1, 3, 3]


def test_a_client_that_never_answers_the_ping_is_told_when_its_time_is_up() -> None:
    client = peer.Peer().begin()
    client.connection.leave()
    client.read()
    client.connection.close_to_new_streams()
    client.connection.close_to_new_streams()
    (final,) = client.read()
    assert last_stream(final) == 0
    assert client.connection.is_done


def test_a_ping_of_the_clients_own_is_no_answer_to_ours() -> None:
    client = peer.Peer().begin()
    client.connection.leave()
    client.read()
    assert client.say(frames.frame(frames.PING, frames.ACK, 0, b"whatever")) == []
    assert not client.connection.is_done


def test_a_client_that_has_said_nothing_yet_is_warned_and_its_first_request_served() -> None:
    client = peer.Peer()
    client.connection.leave()
    greeting, *_, warning, ping = client.read()
    assert greeting.kind == frames.SETTINGS
    assert last_stream(warning) == 2**31 - 1
    client.begin()
    call = client.call(1)
    (final,) = client.say(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
    assert last_stream(final) == 1
    call.stream.answer(peer.HEAD, b"", peer.OK)
    assert client.connection.is_done


def test_fields_of_ignored_streams_still_count_for_the_table() -> None:
    client = peer.Peer().begin()
    client.say(client.headers(1))
    client.connection.leave()
    client.connection.close_to_new_streams()
    field = (b"x", b"new")
    client.say(client.headers(3, END, (*peer.POST, field)))
    client.say(client.headers(1, END, (field,)))
    assert [call.events for call in client.notes.calls] == [["end"]]


def test_trailers_of_ignored_streams_are_ignored_and_the_last_stream_told_never_rises() -> None:
    client = peer.Peer().begin()
    client.call(1)
    client.connection.leave()
    client.connection.close_to_new_streams()
    client.read()
    assert client.say(client.headers(3), client.headers(3, END, ((b"x", b"1"),))) == []
    (farewell,) = client.say(frames.frame(frames.PING, 0, 0, b"short"))
    assert int.from_bytes(farewell.payload[:4]) == 1
