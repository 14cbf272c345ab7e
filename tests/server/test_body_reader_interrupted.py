"""Request bodies whose end never comes: late, abandoned or broken, and never counted for longer than they are read."""

from __future__ import annotations

import asyncio
import gzip

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from carpool_sidecar import errors
from tests.server.body_reader_site import CHUNKED, Send, Site, Wire, arriving, chunk, until


async def test_the_timeout_covers_decoding(site: Site) -> None:
    site.reader.max_body_bytes = site.memory.limit = 50_000_000
    site.reader.read_timeout = 0.0
    content = aiohttp.StreamReader(Wire(), 2**16)
    content.feed_data(gzip.compress(bytes(20_000_000)))
    content.feed_eof()
    with pytest.raises(errors.BodyTooLate):
        await site.reader.read(make_mocked_request("POST", "/", {"Content-Encoding": "gzip"}, payload=content))
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


@pytest.mark.parametrize(("post", "end"), [(False, ConnectionError), (True, asyncio.CancelledError)], indirect=["post"])
async def test_a_client_that_leaves_ends_the_reading_and_its_reservation(
    site: Site, post: Send, end: type[BaseException]
) -> None:
    client = await post("Content-Length: 10", b"x")
    await until(lambda: site.memory.held == 1)
    await client.close()
    assert isinstance(await site.outcomes.get(), end)
    assert site.memory.held == 0


async def test_cancelling_the_reader_releases_its_reservation(site: Site) -> None:
    request = arriving(10)
    request.content.feed_data(b"xyz")
    reading = asyncio.create_task(site.reader.read(request))
    await until(lambda: site.memory.held == 3)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert site.memory.held == 0


async def test_a_dead_connection_is_not_taken_for_a_slow_body(site: Site) -> None:
    request = arriving(10)
    request.content.set_exception(TimeoutError("ETIMEDOUT"))
    with pytest.raises(TimeoutError, match="ETIMEDOUT"):
        await site.reader.read(request)


async def test_a_body_that_http_cannot_read_is_a_bad_request(site: Site) -> None:
    request = arriving(10)
    request.content.set_exception(web.RequestPayloadError("broken"))
    with pytest.raises(errors.BadRequest, match="not valid HTTP: broken"):
        await site.reader.read(request)


@pytest.mark.looptime
async def test_broken_chunking_ends_by_the_timeout_at_the_latest(site: Site, post: Send) -> None:
    """aiohttp's C parser does not tell the reader of a body when the body's framing breaks."""
    client = await post(CHUNKED, chunk(b"x"))
    await until(lambda: site.memory.held == 1)
    await client.send(b"no length\r\n")
    assert isinstance(await site.outcomes.get(), errors.BadRequest | errors.BodyTooLate)
    assert site.memory.held == 0
    assert site.memory.held == 0
