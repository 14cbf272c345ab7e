"""What a client does wrong costs it the stream or the connection, with the right code, and never more than that."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.server.http2 import frames, headers, limits, server_stream
from tests.server.http2 import echo, peer

END, ACK, END_HEADERS = frames.END_STREAM, frames.ACK, frames.END_HEADERS
Code = frames.Code


def setting(name: frames.Setting, value: int) -> bytes:
    return frames.settings({name: value})


# Sent after the greetings and a call on stream 1 that has ended on the client's side.
ENDS_THE_CONNECTION = {
    "DATA for no stream": (frames.frame(frames.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "DATA for an idle stream": (frames.frame(frames.DATA, 0, 9, b"x"), Code.PROTOCOL_ERROR),
    "HEADERS for no stream": (frames.frame(frames.HEADERS, 5, 0, b"\x82"), Code.PROTOCOL_ERROR),
    "a stream of even number": (frames.frame(frames.HEADERS, 5, 2, b"\x82"), Code.PROTOCOL_ERROR),
    "fields that are not HPACK": (frames.frame(frames.HEADERS, 5, 3, b"\xff\xff\xff"), Code.COMPRESSION_ERROR),
    "index zero": (frames.frame(frames.HEADERS, 5, 3, b"\x80"), Code.COMPRESSION_ERROR),
    "too much padding": (frames.frame(frames.HEADERS, 0xD, 3, b"\x09\x82"), Code.PROTOCOL_ERROR),
    "no pad length": (frames.frame(frames.HEADERS, 0xD, 3), Code.FRAME_SIZE_ERROR),
    "half a priority": (frames.frame(frames.HEADERS, 0x25, 3, b"\x00"), Code.FRAME_SIZE_ERROR),
    "a block not continued": (
        frames.frame(frames.HEADERS, 0, 3, b"\x82") + frames.frame(frames.PING, 0, 0, bytes(8)),
        Code.PROTOCOL_ERROR,
    ),
    "CONTINUATION of nothing": (frames.frame(frames.CONTINUATION, 4, 1, b"\x82"), Code.PROTOCOL_ERROR),
    "a frame too long": (frames.frame(frames.DATA, 0, 1, bytes(70_000)), Code.FRAME_SIZE_ERROR),
    "PING of 7 bytes": (frames.frame(frames.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "PING for a stream": (frames.frame(frames.PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "SETTINGS of 5 bytes": (frames.frame(frames.SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
    "SETTINGS for a stream": (frames.frame(frames.SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
    "SETTINGS in an ACK": (frames.frame(frames.SETTINGS, ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
    "a window setting": (setting(frames.Setting.INITIAL_WINDOW_SIZE, 2**31), Code.FLOW_CONTROL_ERROR),
    "a frame setting": (setting(frames.Setting.MAX_FRAME_SIZE, 2**24), Code.PROTOCOL_ERROR),
    "a push setting": (setting(frames.Setting.ENABLE_PUSH, 2), Code.PROTOCOL_ERROR),
    "a window too wide": (frames.window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "a window not widened": (frames.window_update(0, 0), Code.PROTOCOL_ERROR),
    "a window of an idle stream": (frames.window_update(9, 1), Code.PROTOCOL_ERROR),
    "half a WINDOW_UPDATE": (frames.frame(frames.WINDOW_UPDATE, 0, 0, b"\x00"), Code.FRAME_SIZE_ERROR),
    "RST_STREAM for an idle stream": (frames.rst_stream(9, 0), Code.PROTOCOL_ERROR),
    "half a RST_STREAM": (frames.frame(frames.RST_STREAM, 0, 1, b"\x00"), Code.FRAME_SIZE_ERROR),
    "PUSH_PROMISE": (frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "GOAWAY for a stream": (frames.frame(frames.GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "PRIORITY for no stream": (frames.frame(frames.PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", ENDS_THE_CONNECTION)
def test_the_connection_ends_with_goaway_and_its_calls_are_cancelled(name: str) -> None:
    client = peer.Peer().begin()
    call = client.call(1)
    text, code = ENDS_THE_CONNECTION[name]
    *_, farewell = client.say(text)
    assert farewell.kind == frames.GOAWAY
    assert int.from_bytes(farewell.payload[:4]) == 1 or name == "fields that are not HPACK" or name == "index zero"
    assert int.from_bytes(farewell.payload[4:8]) == code
    assert client.connection.is_done
    assert call.events == ["end", "cancelled"]
    assert client.say(frames.frame(frames.PING, 0, 0, bytes(8))) == []


ENDS_THE_STREAM = {
    "DATA after its end": (frames.frame(frames.DATA, 0, 1, b"x"), Code.STREAM_CLOSED),
    "HEADERS after its end": (frames.frame(frames.HEADERS, 5, 1), Code.STREAM_CLOSED),
    "a window too wide": (frames.window_update(1, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "a window not widened": (frames.window_update(1, 0), Code.PROTOCOL_ERROR),
    "PRIORITY of 4 bytes": (frames.frame(frames.PRIORITY, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
    "PRIORITY on itself": (frames.frame(frames.PRIORITY, 0, 1, b"\x00\x00\x00\x01\x00"), Code.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", ENDS_THE_STREAM)
def test_one_stream_ends_and_the_next_is_served(name: str) -> None:
    client = peer.Peer().begin()
    call = client.call(1)
    text, code = ENDS_THE_STREAM[name]
    (reset,) = client.say(text)
    assert (reset.kind, reset.stream, reset.word) == (frames.RST_STREAM, 1, code)
    assert call.events == ["end", "cancelled"]
    assert client.call(3).events == ["end"]


@pytest.mark.parametrize("sizes", [[3], [1, 1], [2, 0, 1], []])
def test_a_body_of_another_size_than_content_length_says_breaks_its_stream(sizes: list[int]) -> None:
    client = peer.Peer().begin()
    fields = (*peer.POST, (b"content-length", b"2" if sizes != [1, 1] else b"3"))
    flags = 0 if sizes else END
    data = [frames.frame(frames.DATA, END * (at == len(sizes) - 1), 1, bytes(size)) for at, size in enumerate(sizes)]
    (reset,) = client.say(client.headers(1, flags, fields), *data)
    assert (reset.kind, reset.word) == (frames.RST_STREAM, Code.PROTOCOL_ERROR)


def test_streams_opened_out_of_order_or_twice_end_the_connection() -> None:
    for number, code in ((3, Code.PROTOCOL_ERROR), (1, Code.STREAM_CLOSED)):
        client = peer.Peer().begin()
        client.call(1).stream.answer(peer.HEAD, b"", peer.OK)
        client.call(5)
        *_, farewell = client.say(client.headers(number, END))
        assert int.from_bytes(farewell.payload[4:8]) == code


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.1\r\n\r\n", frames.PREFACE + frames.frame(frames.PING, 0, 0, bytes(8)), b"\x16\x03\x01"]
)
def test_what_is_not_http2_is_told_so(text: bytes) -> None:
    client = peer.Peer()
    *_, farewell = client.say(text)
    assert (farewell.kind, int.from_bytes(farewell.payload[4:8])) == (frames.GOAWAY, Code.PROTOCOL_ERROR)


def test_unknown_frames_settings_and_flags_are_ignored() -> None:
    client = peer.Peer().begin()
    unknown = frames.frame(frames.SETTINGS, 0, 0, b"\x00\x77\x00\x00\x00\x01")
    (ack,) = client.say(frames.frame(0xEE, 0xFF, 77, b"whatever"), unknown)
    assert (ack.kind, ack.flags) == (frames.SETTINGS, ACK)
    assert client.say(frames.frame(frames.PING, 0xFE, 0, b"12345678")) == [peer.Frame(frames.PING, 1, 0, b"12345678")]


def test_resets_in_quick_succession_end_the_connection_and_slow_ones_do_not() -> None:
    for pause, ends in ((0.0, True), (1.0, False)):
        client = peer.Peer(chosen=limits.Limits(resets=20)).begin()
        for number in range(1, 81, 2):
            client.now += pause
            client.say(client.headers(number), frames.rst_stream(number, Code.CANCEL))
        assert client.connection.is_done is ends


def test_a_header_block_of_endless_continuations_ends_the_connection() -> None:
    client = peer.Peer().begin()
    client.say(frames.frame(frames.HEADERS, 0, 1))
    *_, farewell = client.say(frames.frame(frames.CONTINUATION, 0, 1) * 10)
    assert int.from_bytes(farewell.payload[4:8]) == Code.ENHANCE_YOUR_CALM


def test_settings_that_never_stop_end_the_connection() -> None:
    client = peer.Peer().begin()
    *_, farewell = client.say(frames.settings({}) * 200)
    assert int.from_bytes(farewell.payload[4:8]) == Code.ENHANCE_YOUR_CALM


def test_pings_of_a_client_that_does_not_read_end_the_connection() -> None:
    client = peer.Peer().begin()
    client.connection.sender.is_paused = True
    for _ in range(100):
        client.receive(frames.frame(frames.PING, 0, 0, bytes(8)) * 1000)
    assert client.connection.is_done
    assert client.connection.sender.size < 2 * 1024 * 1024


KINDS = st.integers(0, 10)
STREAMS = st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1])
PAYLOADS = st.one_of(
    st.binary(max_size=20), st.sampled_from([bytes(4), bytes(5), bytes(8), b"\x83\x86\x84", b"\x05abc"])
)
NOISE = st.lists(st.tuples(KINDS, st.integers(0, 255), STREAMS, PAYLOADS), max_size=30)


@given(NOISE, st.sampled_from([echo.Echo(), peer.Notes()]))
def test_no_sequence_of_frames_does_more_than_end_the_connection(
    noise: list[tuple[int, int, int, bytes]], door: peer.Notes
) -> None:
    client = peer.Peer(door).begin()
    text = b"".join(frames.frame(kind, flags, stream, payload) for kind, flags, stream, payload in noise)
    found = client.say(client.headers(1), client.headers(3, END), text)
    ended = [frame for frame in found if frame.kind == frames.GOAWAY]
    assert len(ended) == client.connection.is_done
    assert not client.failures
    assert not (client.connection.is_done and client.connection.streams)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_end_the_connection(text: bytes) -> None:
    client = peer.Peer().begin()
    client.say(text)
    assert not client.failures


# --- floods ----------------------------------------------------------------------------------------------------

ACT = frames.frame(frames.DATA, 0, 1, b"\0\0\0\0\0")
BRINGS_NOTHING = {
    "PRIORITY": frames.frame(frames.PRIORITY, 0, 9, b"\0\0\0\0\x10"),
    "WINDOW_UPDATE of the connection": frames.window_update(0, 1),
    "WINDOW_UPDATE of a stream": frames.window_update(1, 1),
    "an unknown frame": frames.frame(0xEE, 0, 0, b""),
    "PING": frames.frame(frames.PING, 0, 0, bytes(8)),
    "PING, answered": frames.frame(frames.PING, ACK, 0, bytes(8)),
    "SETTINGS, acknowledged": frames.frame(frames.SETTINGS, ACK, 0),
    "GOAWAY": frames.frame(frames.GOAWAY, 0, 0, bytes(8)),
    "DATA of nothing": frames.frame(frames.DATA, 0, 1),
    "DATA of one byte": frames.frame(frames.DATA, 0, 1, b"x"),
    "DATA of padding": frames.frame(frames.DATA, frames.PADDED, 1, b"\x64" + bytes(100)),
    "RST_STREAM of a stream that is gone": frames.rst_stream(3, Code.CANCEL),
}


@pytest.mark.parametrize("name", BRINGS_NOTHING)
def test_frames_that_bring_nothing_are_allowed_now_and_then_but_not_in_floods(name: str) -> None:
    for pause, ends in ((0.0, True), (0.01, False)):
        client = peer.Peer(chosen=limits.Limits(idle_frames=100)).begin()
        client.say(client.headers(1), client.headers(3), frames.rst_stream(3, Code.CANCEL))
        for _ in range(300):
            client.now += pause
            farewell = client.say(BRINGS_NOTHING[name])[-1:]
            if client.connection.is_done:
                break
        assert client.connection.is_done is ends
        if ends:
            assert int.from_bytes(farewell[0].payload[4:8]) == Code.ENHANCE_YOUR_CALM


def test_a_client_that_widens_windows_and_sends_pings_for_every_message_it_gets_is_never_cut_off() -> None:
    client = peer.Peer(chosen=limits.Limits(idle_frames=100)).begin(initial_window_size=1_000_000)
    call = client.call(1)
    call.stream.start(peer.HEAD)
    for _ in range(1000):
        call.stream.send(b"a few bytes")
    for frame in client.read():
        if frame.kind == frames.DATA:
            size = len(frame.payload)
            client.say(frames.window_update(0, size), frames.window_update(1, size), BRINGS_NOTHING["PING"])
    assert not client.connection.is_done


def test_windows_widened_byte_by_byte_earn_nothing() -> None:
    client = peer.Peer(chosen=limits.Limits(idle_frames=100)).begin(initial_window_size=0)
    client.call(1).stream.answer(peer.HEAD, bytes(10_000), peer.OK)
    client.say(frames.window_update(1, 1) * 300)
    assert client.connection.is_done


def test_a_client_that_streams_small_messages_is_never_cut_off() -> None:
    client = peer.Peer(chosen=limits.Limits(idle_frames=100)).begin()
    client.say(client.headers(1))
    for _ in range(1000):
        client.say(ACT)
    assert not client.connection.is_done
    assert len(client.notes.calls[0].body) == 5000


def test_bodies_ended_by_empty_data_are_no_flood() -> None:
    client = peer.Peer(echo.Echo(), limits.Limits(idle_frames=100)).begin()
    for number in range(1, 2001, 2):
        client.say(client.headers(number), frames.frame(frames.DATA, END, number))
    assert not client.connection.is_done


class Refusing:
    """A door that answers before it has heard all."""

    def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
        stream.finish((*peer.HEAD, *peer.OK))
        return peer.Call(stream, head)


COMES_TO_NOTHING = {
    "answered early": lambda client, number: client.headers(number),
    "malformed": lambda client, number: frames.frame(frames.HEADERS, 5, number, b"\x82"),
    "a wrong length": lambda client, number: client.headers(number, END, (*peer.POST, (b"content-length", b"2"))),
    "PRIORITY of 4 bytes": lambda client, number: frames.frame(frames.PRIORITY, 0, number, bytes(4)),
}


@pytest.mark.parametrize("name", COMES_TO_NOTHING)
def test_streams_that_we_end_are_limited_like_those_that_the_client_resets(name: str) -> None:
    for pause, ends in ((0.0, True), (1.0, False)):
        client = peer.Peer(Refusing(), limits.Limits(resets=20)).begin()
        for number in range(1, 81, 2):
            client.now += pause
            client.say(COMES_TO_NOTHING[name](client, number))
        assert client.connection.is_done is ends


def test_whole_requests_that_are_refused_count_as_served() -> None:
    client = peer.Peer(Refusing(), limits.Limits(resets=20)).begin()
    for number in range(1, 81, 2):
        client.say(client.headers(number, END))
    assert not client.connection.is_done


def test_header_blocks_of_a_client_that_hears_nothing_any_more_are_no_way_to_keep_us_busy() -> None:
    client = peer.Peer(chosen=limits.Limits(idle_frames=100)).begin()
    client.connection.leave()
    client.call(1)
    client.connection.close_to_new_streams()
    client.say(*(client.headers(number, END) for number in range(3, 403, 2)))
    assert client.connection.is_done


def test_long_header_blocks_are_limited() -> None:
    client = peer.Peer(chosen=limits.Limits(idle_frames=100)).begin()
    long = (*peer.POST, (b"x", b"v" * 16_000))
    for number in range(1, 101, 2):
        client.say(client.headers(number, END, long))
        client.encoder = hpack.Encoder()
    assert client.connection.is_done
