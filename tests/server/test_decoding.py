"""Content-Encoding: what was coded comes back, and nothing else ever comes out."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import re
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar import errors, turns
from carpool_sidecar.protocols import steps
from carpool_sidecar.server import content_coding

LIMIT = 1_000_000
BODY = b'{"instances": [[1.0, 2.0], [3.0, 4.0]]}' * 40


def raw_deflate(data: bytes, level: int = 6) -> bytes:
    coder = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return coder.compress(data) + coder.flush()


CODERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("gzip", lambda data: gzip.compress(data, 0)),
    ("x-gzip", lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])),
    ("deflate", zlib.compress),
    ("deflate", lambda data: zlib.compress(data, 0)),
    ("deflate", raw_deflate),
    ("deflate", lambda data: raw_deflate(data, 0)),
    ("identity", bytes),
]
# Codings with a checksum strong enough that a few corrupt bytes cannot go unnoticed.
CHECKED = [("gzip", gzip.compress)]
CODED = [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)]

bodies = st.one_of(
    st.binary(max_size=3000),
    st.builds(lambda seed, times: seed * times, st.binary(min_size=1, max_size=20), st.integers(0, 20_000)),
)


def decode(body: bytes, content_encoding: str, limit: int = LIMIT) -> bytes:
    """All steps, one after the other."""
    return steps.at_once(content_coding.decoding(body, content_encoding, limit))


async def decode_in_turns(
    body: bytes, content_encoding: str, limit: int, reserve: Callable[[int], object] | None = None
) -> bytes:
    """One step in each turn of the loop."""
    return await turns.Turns().run(content_coding.decoding(body, content_encoding, limit, reserve))


@given(bodies, st.sampled_from(CODERS))
def test_any_bytes_come_back_from_any_coding(data: bytes, coding: tuple[str, Callable[[bytes], bytes]]) -> None:
    name, coder = coding
    assert decode(coder(data), name) == data


@given(st.data(), st.sampled_from(CODED), bodies)
def test_a_body_cut_off_anywhere_is_a_bad_request(
    data: st.DataObject, coding: tuple[str, Callable[[bytes], bytes]], body: bytes
) -> None:
    name, coder = coding
    coded = coder(body)
    cut = data.draw(st.integers(0, len(coded) - 1))
    with pytest.raises(errors.BadRequest, match=f"not valid {name} data"):
        decode(coded[:cut], name)


@given(st.data(), st.sampled_from(CODED), bodies)
def test_corruption_gives_a_refusal_or_bytes_within_the_limit_and_nothing_else(
    data: st.DataObject, coding: tuple[str, Callable[[bytes], bytes]], body: bytes
) -> None:
    name, coder = coding
    coded = bytearray(coder(body))
    for _ in range(data.draw(st.integers(1, 3))):
        coded[data.draw(st.integers(0, len(coded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decoded = decode(bytes(coded), name)
    except (errors.BadRequest, errors.PayloadTooLarge):
        return
    assert len(decoded) <= LIMIT
    if coding in CHECKED:
        assert decoded == body


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]))
def test_arbitrary_bytes_never_raise_anything_but_a_refusal(data: bytes, name: str) -> None:
    with contextlib.suppress(errors.BadRequest, errors.PayloadTooLarge):
        decode(data, name)


@given(st.sampled_from(CODED), bodies, st.integers(0, 2000))
def test_never_more_than_the_limit(coding: tuple[str, Callable[[bytes], bytes]], body: bytes, limit: int) -> None:
    name, coder = coding
    coded = coder(body)
    if max(len(coded), len(body)) <= limit:
        assert decode(coded, name, limit) == body
    else:
        with pytest.raises(errors.PayloadTooLarge, match=f"limit of {limit} bytes"):
            decode(coded, name, limit)


@pytest.mark.parametrize(("name", "coder"), CODED)
def test_something_after_the_end_is_a_bad_request(name: str, coder: Callable[[bytes], bytes]) -> None:
    with pytest.raises(errors.BadRequest):
        decode(coder(BODY) + b"tail of no meaning", name)


@pytest.mark.parametrize(("name", "coder"), CODED)
def test_a_bomb_is_refused_before_it_has_gone_off(name: str, coder: Callable[[bytes], bytes]) -> None:
    bomb = coder(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(errors.PayloadTooLarge):
            decode(bomb, name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * LIMIT  # 50 times as much would have come out


@pytest.mark.parametrize("header", ["gzip", "GZIP", " x-GZip ", "identity, gzip", ",gzip,", "gzip, identity,identity"])
def test_names_of_codings_are_read_as_http_says(header: str) -> None:
    assert decode(gzip.compress(BODY), header) == BODY


@pytest.mark.parametrize("header", ["br", "zstd", "gzip, br", "compress", "gzip;q=1", "g zip"])
def test_other_codings_are_refused_with_the_list_of_known_ones(header: str) -> None:
    with pytest.raises(errors.UnsupportedEncoding, match="allowed: gzip, deflate, identity"):
        decode(BODY, header)


@pytest.mark.parametrize("header", ["gzip, gzip", "deflate, identity, gzip"])
def test_several_codings_are_refused_with_the_list_of_known_ones(header: str) -> None:
    with pytest.raises(errors.UnsupportedEncoding, match=r"several .* one of gzip, deflate, identity"):
        decode(BODY, header)


async def test_the_event_loop_runs_between_the_slices() -> None:
    decoded = asyncio.create_task(decode_in_turns(gzip.compress(bytes(20_000_000)), "gzip", 20_000_000))
    count = 0
    while not decoded.done():
        await asyncio.sleep(0)
        count += 1
    assert count >= 70
    assert await decoded == bytes(20_000_000)


async def test_the_event_loop_runs_between_many_tiny_members() -> None:
    decoded = asyncio.create_task(decode_in_turns(gzip.compress(b"") * 2000, "gzip", LIMIT))
    count = 0
    while not decoded.done():
        await asyncio.sleep(0)
        count += 1
    assert count >= 20
    assert await decoded == b""


def test_more_members_than_any_writer_makes_are_a_bad_request() -> None:
    member, most = gzip.compress(b""), content_coding.MAX_MEMBERS
    assert decode(member * most, "gzip") == b""
    with pytest.raises(errors.BadRequest, match=f"not valid gzip data: it has more than {most} members"):
        decode(member * (most + 1), "gzip")


async def test_hundreds_of_thousands_of_members_cost_next_to_nothing() -> None:
    body = gzip.compress(b"") * 500_000
    started = time.process_time()
    with pytest.raises(errors.BadRequest, match="members"):
        await decode_in_turns(body, "gzip", 20_000_000)
    assert time.process_time() - started < 0.5  # 1 s a few thousand members, uncapped


def test_what_follows_a_member_is_not_copied_for_each_of_them() -> None:
    """What zlib has not used it gives back as a copy."""
    small = gzip.compress(b"x")
    body = small * 1000 + gzip.compress(random.Random(1).randbytes(500_000))
    tracemalloc.start()
    try:
        parts = content_coding._inflate_all(body, "gzip")
        for _ in range(1000):
            next(parts)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


async def test_input_that_gives_nothing_counts_as_work() -> None:
    empty_blocks = zlib.compressobj(wbits=31)
    body = empty_blocks.flush(zlib.Z_FULL_FLUSH) + b"\0\0\0\xff\xff" * 1_600_000 + empty_blocks.flush()
    decoded = asyncio.create_task(decode_in_turns(body, "gzip", 20_000_000))
    count = 0
    while not decoded.done():
        await asyncio.sleep(0)
        count += 1
    assert await decoded == b""
    assert count >= 28


async def test_every_kept_byte_is_announced_first_and_may_be_refused() -> None:
    announced = []
    coded = gzip.compress(BODY)
    await decode_in_turns(coded, "gzip", LIMIT, announced.append)
    assert sum(announced) == len(BODY)

    def refuse(count: int) -> None:
        raise errors.Overloaded

    with pytest.raises(errors.Overloaded):
        await decode_in_turns(coded, "gzip", LIMIT, refuse)


def test_the_refusal_names_what_is_wrong() -> None:
    with pytest.raises(errors.BadRequest, match=re.escape("the body is not valid gzip data: it is cut off")):
        decode(gzip.compress(BODY)[:-1], "gzip")


@pytest.mark.parametrize("sizes", [(300_000,), (10, 700_000), (700_000, 10), (300_000, 700_000), (700_000, 300_000)])
def test_a_body_whose_last_member_says_how_large_it_is_is_kept_once_whatever_the_others_have(
    sizes: tuple[int, ...],
) -> None:
    data = [bytes([65 + place]) * size for place, size in enumerate(sizes)]
    body = b"".join(map(gzip.compress, data))
    reserved: list[int] = []
    decoded = steps.at_once(content_coding.decoding(body, "gzip", 2_000_000, reserved.append))
    assert decoded == b"".join(data)
    assert sum(reserved) == sum(sizes)


def test_a_body_that_lies_about_its_size_is_refused_and_kept_for_no_more_than_it_may_have() -> None:
    body = gzip.compress(bytes(1000))
    for told in (300_000, 1_000_000, 4_000_000_000):
        reserved: list[int] = []
        lying = body[:-4] + told.to_bytes(4, "little")
        with pytest.raises(errors.BadRequest):
            steps.at_once(content_coding.decoding(lying, "gzip", 1 << 20, reserved.append))
        assert sum(reserved) <= 1032 * len(body) + 1000
