"""Request bodies over real connections that come back whole, and decoded."""

from __future__ import annotations

import gzip

import pytest

from carpool_sidecar import errors
from tests.server.bodies_site import CHUNKED, Arriving, Send, Site, chunk, sized


@pytest.mark.parametrize("size", [0, 1, 8_000, 100_000, 1_000_000])
async def test_a_body_with_a_length_comes_back_whole(site: Site, post: Send, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await post(sized(body), body)
    assert await site.outcomes.get() == body
    assert site.limits.memory.held == 0


async def test_a_body_without_length_or_chunks_is_empty(site: Site, post: Send) -> None:
    await post("X-Nothing: 1", b"")
    assert await site.outcomes.get() == b""


async def test_a_chunked_body_comes_back_whole(site: Site, post: Send) -> None:
    client = await post(CHUNKED, chunk(b"first "))
    await site.started.wait()
    await client.send(chunk(b"second ") + chunk(b"third") + b"0\r\n\r\n")
    assert await site.outcomes.get() == b"first second third"
    assert site.limits.memory.held == 0


async def test_a_body_that_arrived_in_one_piece_is_not_copied(site: Site) -> None:
    body = b"x" * 8_000
    request = Arriving(site, len(body))
    request.feed(body)
    assert await request.read() is body


@pytest.mark.parametrize("name", ["gzip", "GZIP"])
@pytest.mark.parametrize("split", [False, True])
async def test_a_coded_body_comes_back_decoded(site: Site, post: Send, name: str, split: bool) -> None:
    body, coded = b"x" * 5_000, gzip.compress(b"x" * 5_000)
    half = len(coded) // 2 if split else len(coded)
    client = await post(f"Content-Encoding: {name}\r\n{sized(coded)}", coded[:half])
    await site.started.wait()
    await client.send(coded[half:])
    assert await site.outcomes.get() == body
    assert site.limits.memory.held == 0


async def test_several_codings_are_refused_in_one_header_line_or_in_several(site: Site, post: Send) -> None:
    coded = gzip.compress(gzip.compress(b"x"))
    for lines in ("Content-Encoding: gzip, gzip\r\n", "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n"):
        await post(f"{lines}{sized(coded)}", coded)
        assert isinstance(await site.outcomes.get(), errors.UnsupportedEncoding)
