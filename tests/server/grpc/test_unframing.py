"""Messages are found in a stream's data however that is cut, and what is no message is refused."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import hypothesis
import pytest
from hypothesis import strategies

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import statuses
from carpool_sidecar.server.grpc import arrivals

MESSAGES = (b"", b"a", b"hello" * 30)


def fed(pieces, limit: int = 1000, encoding: bytes | None = None) -> list[bytes]:
    unframer = arrivals.Unframer(limit, encoding)
    messages = [message for piece in pieces for message in unframer.feed(piece)]
    unframer.end()
    return [message if isinstance(message, bytes) else inflated(message) for message in messages]


def inflated(message: arrivals.Inflation) -> bytes:
    while not message.is_done:
        assert message.step() <= arrivals.STEP
    return message.plain()


def compressed(data: bytes) -> bytes:
    return b"\1" + len(data).to_bytes(4, "big") + data


@hypothesis.given(strategies.lists(strategies.binary(max_size=40), max_size=6), strategies.data())
def test_messages_come_out_as_they_went_in_at_every_split(messages, data) -> None:
    stream = b"".join(arrivals.frame((message,)) for message in messages)
    places = sorted(data.draw(strategies.lists(strategies.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:stop] for start, stop in zip([0, *places], [*places, len(stream)], strict=True)]
    assert fed(filter(None, pieces)) == messages


def test_a_stream_may_come_byte_by_byte() -> None:
    stream = b"".join(arrivals.frame((message,)) for message in MESSAGES)
    assert fed(stream[i : i + 1] for i in range(len(stream))) == list(MESSAGES)


def memory_of(piece: bytes, count: int) -> int:
    """Bytes that `count` pieces of a message take, which says that it is of 60 MB."""
    unframer = arrivals.Unframer(2**26)
    tracemalloc.start()
    try:
        unframer.feed(b"\0" + (60_000_000).to_bytes(4, "big"))
        for _ in range(count):
            unframer.feed(bytes(bytearray(piece)))  # as from a socket: a copy of its own
        assert unframer.held == 5 + count * len(piece)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("size", "count"), [(5, 20_000), (16_384, 100)])
def test_a_message_on_its_way_takes_little_more_than_its_bytes(size: int, count: int) -> None:
    assert memory_of(bytes(size), count) < 1.6 * size * count + 10_000


def test_a_large_message_is_put_together_without_another_copy() -> None:
    piece, count = bytes(16_384), 2_000
    unframer = arrivals.Unframer(2**26)
    tracemalloc.start()
    try:
        unframer.feed(b"\0" + (len(piece) * count).to_bytes(4, "big"))
        found = [message for _ in range(count) for message in unframer.feed(piece)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(message) for message in found] == [len(piece) * count]
    assert most < 1.5 * len(piece) * count


def test_pieces_of_a_message_are_joined() -> None:
    assert arrivals.frame([b"ab", memoryview(b"cd")]) == b"\0\0\0\0\4abcd"


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_messages_are_decompressed_beside_plain_ones(encoding, compress) -> None:
    stream = compressed(compress(b"hello")) + arrivals.frame((b"plain",)) + compressed(compress(b""))
    assert fed([stream[:7], stream[7:]], encoding=encoding) == [b"hello", b"plain", b""]


def test_a_message_over_the_limit_is_refused_by_its_length_before_it_has_come() -> None:
    assert fed([arrivals.frame((b"x" * 1000,))]) == [b"x" * 1000]
    with pytest.raises(errors.PayloadTooLarge, match="limit of 1000 bytes"):
        fed([arrivals.frame((b"x" * 1001,))[:5]])


def test_a_message_that_is_too_large_once_decompressed_is_refused() -> None:
    assert fed([compressed(gzip.compress(b"x" * 1000))], encoding=b"gzip") == [b"x" * 1000]
    with pytest.raises(errors.PayloadTooLarge):
        fed([compressed(gzip.compress(b"x" * 1001))], encoding=b"gzip")


@pytest.mark.parametrize(
    ("stream", "encoding", "code", "words"),
    [
        (compressed(b"x"), b"br", statuses.UNIMPLEMENTED, "identity,deflate,gzip"),
        (compressed(b"x"), None, statuses.INTERNAL, "does not say how"),
        (compressed(b"x"), b"identity", statuses.INTERNAL, "does not say how"),
        (b"\2\0\0\0\0", None, statuses.INTERNAL, "begins with 2"),
        (compressed(b"x"), b"gzip", statuses.INTERNAL, "not valid"),
        (compressed(gzip.compress(b"x", mtime=0)[:-1]), b"gzip", statuses.INTERNAL, "no clean end"),
        (compressed(gzip.compress(b"x", mtime=0) + b"y"), b"gzip", statuses.INTERNAL, "no clean end"),
        (b"\0\0\0", None, statuses.INTERNAL, "in the middle of a message"),
        (b"\0\0\0\0\5abcd", None, statuses.INTERNAL, "in the middle of a message"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_code_for_it(stream, encoding, code, words) -> None:
    with pytest.raises(statuses.Fault, match=words) as fault:
        fed([stream], encoding=encoding)
    assert statuses.code(fault.value) == code
