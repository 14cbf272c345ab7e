"""Request bodies whose end never comes: late, abandoned or broken, and never counted for longer than they are read."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from carpool_sidecar import errors
from tests.server.bodies_site import CHUNKED, Arriving, Send, Site, chunk, until


async def test_the_timeout_covers_decoding(site: Site) -> None:
    site.limits.max_body_bytes = site.memory.limit = 50_000_000
    site.limits.read_timeout = 0.0
    coded = gzip.compress(bytes(20_000_000))
    request = Arriving(site, len(coded), Content_Encoding="gzip")
    request.feed(coded)
    with pytest.raises(errors.BodyTooLate):
        await request.read()
    assert site.memory.held == 0


@pytest.mark.looptime
async def test_a_body_that_stops_coming_is_given_up_after_the_timeout(site: Site, post: Send, looptime: float) -> None:
    client = await post("Content-Length: 10", b"x")
    assert await client.status() == 408
    assert 30 <= looptime < 31
    assert site.memory.held == 0


@pytest.mark.looptime
async def test_bytes_that_trickle_do_not_extend_the_timeout(site: Site, post: Send, looptime: float) -> None:
    client = await post(CHUNKED, chunk(b"x"))
    for _ in range(3):
        await asyncio.sleep(9)
        await client.send(chunk(b"x"))
    assert await client.status() == 408
    assert 30 <= looptime < 31


async def test_a_client_that_leaves_ends_the_reading_and_its_reservation(site: Site, post: Send) -> None:
    client = await post("Content-Length: 10", b"x")
    await until(lambda: site.memory.held == 1)
    await client.leave()
    assert isinstance(await site.outcomes.get(), asyncio.CancelledError)
    assert site.memory.held == 0


async def test_the_leaving_of_a_client_releases_what_came_and_ends_the_reading(site: Site) -> None:
    request = Arriving(site, 10)
    request.feed(b"xyz")
    reading = asyncio.create_task(request.read())
    request.asked.cancel = reading.cancel
    await until(lambda: site.memory.held == 3)
    request.asked.lost()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert site.memory.held == 0


async def test_broken_chunking_is_a_bad_request_at_once(site: Site, post: Send) -> None:
    client = await post(CHUNKED, chunk(b"x"))
    await until(lambda: site.memory.held == 1)
    await client.send(b"no length\r\n")
    error = await site.outcomes.get()
    assert isinstance(error, errors.BadRequest)
    assert str(error).startswith("the body is not valid HTTP: ")
    assert await client.status() == 400
    assert site.memory.held == 0
