"""Header blocks: read exactly as the library hpack reads them, written so that it reads the same back."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.server.http2 import frames, headers
from tests.server.http2 import peer

NAMES = st.sampled_from([b"te", b"grpc-timeout", b"content-type", b"x", b"user-agent", b"x-long-" + b"n" * 200])
VALUES = st.one_of(
    st.sampled_from([b"", b"trailers", b"20S", b"application/grpc", b"v" * 130, b"w" * 1500]), st.binary(max_size=40)
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


def outcome(decode: Callable[[], list[tuple[bytes, bytes]]]) -> list[tuple[bytes, bytes]] | str:
    try:
        return decode()
    except (hpack.HPACKError, frames.Http2ConnectionError, IndexError):
        return "refused"


def library(decoder: hpack.Decoder, block: bytes) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]


@given(st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 60, 4096])), max_size=8))
def test_blocks_of_an_encoder_are_read_as_the_library_reads_them(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]],
) -> None:
    encoder, theirs, ours = hpack.Encoder(), hpack.Decoder(), headers.Decoder(65536)
    for fields, is_huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        block = encoder.encode(fields, huffman=is_huffman)
        assert ours._decode(block)[0] == library(theirs, block) == fields
        assert list(ours._table.dynamic_entries) == list(theirs.header_table.dynamic_entries)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_read_or_refused_as_by_the_library(blocks: list[bytes]) -> None:
    theirs, ours = hpack.Decoder(), headers.Decoder(65536)
    for block in blocks:
        expected = outcome(lambda block=block: library(theirs, block))  # type: ignore[misc]
        assert outcome(lambda block=block: ours._decode(block)[0]) == expected  # type: ignore[misc]
        if expected == "refused":
            return
        assert list(ours._table.dynamic_entries) == list(theirs.header_table.dynamic_entries)


@given(st.lists(st.tuples(NAMES | st.just(b":status"), VALUES), max_size=8))
def test_what_is_written_needs_no_table_and_reads_the_same(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder()
    assert library(decoder, headers.NO_TABLE + headers.block(tuple(fields))) == fields
    assert not decoder.header_table.dynamic_entries


def test_a_block_seen_before_says_what_the_table_holds_now() -> None:
    encoder, decoder = hpack.Encoder(), headers.Decoder(65536)
    request = (*peer.POST, (b"x", b"first"))
    decoder.request(encoder.encode(request))
    block = encoder.encode(request)
    assert decoder.request(block) is decoder.request(block)
    newer = encoder.encode((*peer.POST, (b"x", b"second")))
    assert decoder.request(newer).headers[-1] == (b"x", b"second")
    assert decoder.request(encoder.encode(request)).headers[-1] == (b"x", b"first")


def test_long_blocks_are_not_remembered() -> None:
    decoder = headers.Decoder(65536)
    short, long = (headers.block((*peer.POST, (b"x", b"v" * size))) for size in (10, 10_000))
    assert decoder.request(short) is decoder.request(short)
    assert decoder.request(long) == decoder.request(long)
    assert decoder.request(long) is not decoder.request(long)


def test_a_list_of_fields_over_the_limit_costs_its_stream_and_leaves_the_table_in_order() -> None:
    encoder, decoder = hpack.Encoder(), headers.Decoder(500)
    with pytest.raises(frames.Http2StreamError, match="more than 500") as caught:
        decoder.request(encoder.encode((*peer.POST, (b"x", b"v" * 400))))
    assert caught.value.code == frames.Code.ENHANCE_YOUR_CALM
    assert decoder.request(encoder.encode(peer.POST)).path == "/some.Service/Call"


def test_a_small_block_that_expands_to_a_huge_list_is_not_read_to_its_end() -> None:
    encoder, decoder = hpack.Encoder(), headers.Decoder(65536)
    decoder.skip(encoder.encode([(b"x", b"v" * 4000)]))
    with pytest.raises(frames.Http2ConnectionError) as caught:
        decoder.skip(b"\xbe" * 10_000)
    assert caught.value.code == frames.Code.ENHANCE_YOUR_CALM


def test_more_fields_than_in_http1_cost_their_stream_and_leave_the_table_in_order() -> None:
    encoder, decoder = hpack.Encoder(), headers.Decoder(65536)
    fields = [*peer.POST, *((b"x", b"%d" % number) for number in range(128 - len(peer.POST)))]
    assert len(decoder.request(encoder.encode(fields)).headers) == 124
    with pytest.raises(frames.Http2StreamError, match="129 header fields, more than 128") as caught:
        decoder.request(encoder.encode([*fields, (b"y", b"1")]))
    assert caught.value.code == frames.Code.ENHANCE_YOUR_CALM
    with pytest.raises(frames.Http2StreamError, match="129 header fields"):
        decoder.trailers(encoder.encode([(b"y", b"1")] * 129))
    assert decoder.request(encoder.encode(peer.POST)).path == "/some.Service/Call"


def test_a_short_block_of_very_many_fields_is_not_read_to_its_end() -> None:
    with pytest.raises(frames.Http2ConnectionError) as caught:
        headers.Decoder(65536).request(hpack.Encoder().encode(peer.POST) + b"\x90" * 1300)
    assert caught.value.code == frames.Code.ENHANCE_YOUR_CALM


def test_what_a_connection_remembers_of_heads_is_little() -> None:
    decoders = [headers.Decoder(65536) for _ in range(10)]
    start = headers.block(peer.POST)
    tracemalloc.start()
    try:
        for at, decoder in enumerate(decoders):
            for number in range(200):
                fields = [(b"%d" % each, b"%d-%d" % (at, number)) for each in range(number % 120)]
                decoder.request(start + headers._write_block(tuple(fields)))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 10 * 100_000


def test_a_clients_own_head_is_remembered_with_a_token_of_usual_length() -> None:
    decoder = headers.Decoder(65536)
    block = headers.block((*peer.POST, (b"authorization", b"Bearer " + b"t" * 1500)))
    assert decoder.request(block) is decoder.request(block)
