"""Calls of bytes survive any way a stream can be cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from carpool.workers import messages, payload
from carpool_predictor import calls

BYTES = st.one_of(st.binary(max_size=50), st.integers(9_000, 40_000).map(lambda size: b"%d," % size * (size // 7)))
MESSAGES = st.lists(
    st.tuples(st.sampled_from(messages.Kind), st.lists(BYTES, max_size=3), st.lists(BYTES, max_size=5)), max_size=4
)


@given(MESSAGES, st.lists(st.integers(1, 100_000), min_size=1, max_size=30))
def test_messages_are_found_whatever_the_pieces_of_the_stream(
    sent: list[tuple[messages.Kind, list[bytes], list[bytes]]], sizes: list[int]
) -> None:
    encoded = [messages.encoded(kind, payload.Payload([*pieces], [*buffers])) for kind, pieces, buffers in sent]
    stream = memoryview(b"".join([*itertools.chain.from_iterable(encoded)]))
    decoder, found = calls.Decoder(), []
    for size in itertools.cycle(sizes):
        if not stream:
            break
        buffer = decoder.buffer()
        count = min(size, len(buffer), len(stream))
        buffer[:count] = stream[:count]
        stream = stream[count:]
        found += decoder.received(count)
    assert [(kind, b"".join(body.pieces), body.buffers) for kind, body in found] == [
        (kind, b"".join(pieces), buffers) for kind, pieces, buffers in sent
    ]
