"""Frames survive any way a stream can be cut."""

from __future__ import annotations

import socket
import threading

from hypothesis import given
from hypothesis import strategies as st

from carpool.workers import frames

FRAMES = st.lists(
    st.tuples(
        st.integers(0, 599),
        st.one_of(
            st.binary(max_size=50),
            st.integers(60_000, 200_000).map(lambda size: b"%d," % size * (size // 7)),
        ),
    ),
    max_size=8,
)


@given(FRAMES, st.lists(st.integers(1, 100_000), min_size=1, max_size=20))
def test_decoder_finds_the_frames_whatever_the_pieces(sent: list[tuple[int, bytes]], sizes: list[int]) -> None:
    stream = b"".join(frames.header(kind, len(body)) + body for kind, body in sent)
    decoder, found, at, turn = frames.Decoder(), [], 0, 0
    while at < len(stream):
        buffer = decoder.buffer()
        count = min(len(buffer), sizes[turn % len(sizes)], len(stream) - at)
        assert count > 0
        buffer[:count] = stream[at : at + count]
        found += [(kind, bytes(body)) for kind, body in decoder.received(count)]
        at, turn = at + count, turn + 1
    assert found == sent


def test_blocking_ends_carry_large_frames_in_pieces() -> None:
    left, right = socket.socketpair()
    body = bytes(range(256)) * 20_000
    with left, right:
        sender = threading.Thread(target=frames.send, args=(left, 200, [b"head", body, memoryview(body), b"tail"]))
        sender.start()
        assert frames.receive(right) == (200, b"head" + body + body + b"tail")
        sender.join()


def test_the_end_of_the_stream_is_told_even_within_a_frame() -> None:
    for rest in (b"", b"\x00", frames.header(200, 5), frames.header(200, 5) + b"1234"):
        left, right = socket.socketpair()
        with right:
            with left:
                left.sendall(rest)
            assert frames.receive(right) is None
