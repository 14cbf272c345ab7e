"""Request bodies over real connections that are too large, or that find no room beside those being read."""

from __future__ import annotations

import gzip

import pytest

from carpool_sidecar import errors
from tests.server.bodies_site import CHUNKED, Send, Site, chunk, sized, until


async def test_a_declared_length_over_the_limit_is_refused_before_reading(site: Site, post: Send) -> None:
    client = await post("Content-Length: 1000001", b"")
    assert await client.status() == 413
    assert isinstance(await site.outcomes.get(), errors.PayloadTooLarge)


async def test_a_complete_body_over_the_limit_is_refused(site: Site, post: Send) -> None:
    site.limits.max_body_bytes = 10
    client = await post(sized(b"x" * 11), b"x" * 11)
    assert await client.status() == 413


async def test_a_chunked_body_is_refused_as_soon_as_it_grows_over_the_limit(site: Site, post: Send) -> None:
    site.limits.max_body_bytes = 10
    client = await post(CHUNKED, chunk(b"x" * 10))
    await site.started.wait()
    await client.send(chunk(b"x"))  # and never the end
    assert await client.status() == 413
    assert site.memory.held == 0


async def test_a_body_that_decodes_to_more_than_the_limit_is_refused(site: Site, post: Send) -> None:
    bomb = gzip.compress(bytes(1_000_001))
    client = await post(f"Content-Encoding: gzip\r\n{sized(bomb)}", bomb)
    assert await client.status() == 413
    assert site.memory.held == 0


async def test_bytes_that_have_arrived_keep_others_out(site: Site, post: Send) -> None:
    site.memory.limit = 100
    first = await post("Content-Length: 90", b"x" * 60)
    await until(lambda: site.memory.held == 60)
    refused = await post(sized(b"x" * 41), b"x" * 41)
    assert await refused.status() == 429
    admitted = await post(sized(b"x" * 40), b"x" * 40)
    assert await admitted.status() == 200
    await first.send(b"x" * 30)
    assert await first.status() == 200
    assert site.memory.held == 0


async def test_bytes_that_are_only_declared_keep_nobody_out(site: Site, post: Send) -> None:
    site.memory.limit = 100
    silent = [await post("Content-Length: 90", b"x") for _ in range(4)]
    await until(lambda: site.memory.held == 4)
    assert await (await post(sized(b"x" * 96), b"x" * 96)).status() == 200
    for client in silent:
        await client.leave()
    await until(lambda: site.memory.held == 0)


async def test_of_bodies_that_grow_beyond_the_limit_together_the_last_is_refused(site: Site, post: Send) -> None:
    site.memory.limit = 100
    first = await post("Content-Length: 100", b"x" * 75)
    await until(lambda: site.memory.held == 75)
    second = await post("Content-Length: 25", b"x" * 10)
    await until(lambda: site.memory.held == 85)
    await first.send(b"x" * 15)
    await until(lambda: site.memory.held == 100)
    await second.send(b"x")
    assert await second.status() == 429
    await first.send(b"x" * 10)
    assert await first.status() == 200
    assert site.memory.held == 0


async def test_a_body_can_be_counted_for_longer_than_it_is_read(site: Site, post: Send) -> None:
    site.memory.limit = 100
    with site.memory.reserve(60):
        assert site.memory.held == 60
        assert await (await post(sized(b"x" * 41), b"x" * 41)).status() == 429
    assert site.memory.held == 0


async def test_a_body_is_not_counted_any_more_when_what_it_was_held_for_failed(site: Site) -> None:
    with pytest.raises(errors.UpstreamClosed), site.memory.reserve(60):
        raise errors.UpstreamClosed
    assert site.memory.held == 0


async def test_a_length_that_finds_no_room_is_refused_before_reading(site: Site, post: Send) -> None:
    site.memory.limit = 100
    client = await post("Content-Length: 101", b"")
    assert await client.status() == 429
    assert isinstance(await site.outcomes.get(), errors.Overloaded)


async def test_queued_bytes_count_against_the_same_limit(site: Site, post: Send) -> None:
    site.memory.limit, queued = 100, site.memory.reserve(91)
    assert await (await post(sized(b"x" * 10), b"x" * 10)).status() == 429
    queued.resize(90)
    assert await (await post(sized(b"x" * 10), b"x" * 10)).status() == 200


async def test_a_chunked_body_is_refused_as_soon_as_there_is_no_room(site: Site, post: Send) -> None:
    site.memory.limit = 10
    client = await post(CHUNKED, chunk(b"x" * 10))
    await site.started.wait()
    await until(lambda: site.memory.held == 10)
    await client.send(chunk(b"x"))
    assert await client.status() == 429
    assert site.memory.held == 0


async def test_decoded_bytes_need_room_as_well(site: Site, post: Send) -> None:
    site.memory.limit = 5_000
    coded = gzip.compress(bytes(5_000))
    client = await post(f"Content-Encoding: gzip\r\n{sized(coded)}", coded)
    assert await client.status() == 429
    assert site.memory.held == 0


async def test_limits_can_be_changed_between_requests(site: Site, post: Send) -> None:
    site.limits.max_body_bytes = 1
    assert await (await post(sized(b"xx"), b"xx")).status() == 413
    site.limits.max_body_bytes = 2
    assert await (await post(sized(b"xx"), b"xx")).status() == 200
