"""Messages survive any way a stream can be cut."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.workers import messages, payload

BYTES = st.one_of(st.binary(max_size=50), st.integers(60_000, 200_000).map(lambda size: b"%d," % size * (size // 7)))
MESSAGES = st.lists(
    st.tuples(st.sampled_from(messages.Kind), st.lists(BYTES, max_size=3), st.lists(BYTES, max_size=5)), max_size=4
)


@given(MESSAGES, st.lists(st.integers(1, 100_000), max_size=30))
def test_messages_arrive_whatever_the_pieces_of_the_stream(
    sent: list[tuple[messages.Kind, list[bytes], list[bytes]]], sizes: list[int]
) -> None:
    there, relay_in = socket.socketpair()
    relay_out, here = socket.socketpair()

    def send() -> None:
        channel = messages.Channel(there)
        for kind, pieces, buffers in sent:
            channel.send(kind, payload.Payload([*pieces], [*buffers]))
        there.close()

    def relay() -> None:
        left = iter(sizes)
        while piece := relay_in.recv(next(left, 100_000)):
            relay_out.sendall(piece)
        relay_out.close()

    threads = [threading.Thread(target=send), threading.Thread(target=relay)]
    with there, relay_in, relay_out, here:
        for thread in threads:
            thread.start()
        channel = messages.Channel(here)
        for kind, pieces, buffers in sent:
            got, body = channel.receive()
            assert got is kind
            assert b"".join(body.pieces) == b"".join(pieces)
            assert body.buffers == buffers
        with pytest.raises(messages.Ended):
            channel.receive()
        for thread in threads:
            thread.join()


def test_many_thousand_buffers_travel_in_one_message() -> None:
    left, right = socket.socketpair()
    buffers = [b"%d" % place for place in range(5000)]
    with left, right:
        sender = threading.Thread(
            target=messages.Channel(left).send, args=(messages.Kind.CALL, payload.Payload([b"x"], [*buffers]))
        )
        sender.start()
        assert messages.Channel(right).receive()[1].buffers == buffers
        sender.join()


@pytest.mark.parametrize("rest", [b"", b"\x04", b"\x04" + bytes(11) + b"\x05", b"\x04" + bytes(11) + b"\x051234"])
def test_the_end_of_the_stream_is_told_even_within_a_message(rest: bytes) -> None:
    left, right = socket.socketpair()
    with right:
        with left:
            left.sendall(rest)
        with pytest.raises(messages.Ended):
            messages.Channel(right).receive()


def test_a_peer_that_is_gone_is_told_to_who_writes() -> None:
    left, right = socket.socketpair()
    right.close()
    with left, pytest.raises(messages.Ended):
        messages.Channel(left).send(messages.Kind.CALL, payload.Payload([b"x"], []))
