"""Request bodies over real connections: whole, within the limits, and never counted for longer than they are read."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from sidecar import errors
from sidecar.http import intake

Send = Callable[[str, bytes], Awaitable["Connection"]]


class Site:
    """A server whose handler does nothing but read the body, and keeps what came of it."""

    def __init__(self) -> None:
        self.queued = 0
        self.intake = intake.Intake(1_000_000, 4_000_000, 30.0, lambda: self.queued)
        self.started = asyncio.Event()
        self.outcomes: asyncio.Queue[bytes | BaseException] = asyncio.Queue()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.started.set()
        try:
            body = await self.intake.read(request)
        except BaseException as error:
            self.outcomes.put_nowait(error)
            if not isinstance(error, errors.CarpoolError):
                raise
            response = web.Response(status=error.status, text=str(error))
            response.force_close()
            return response
        self.outcomes.put_nowait(body)
        return web.Response(text=str(len(body)))


class Connection:
    """A client that sends exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def status(self) -> int:
        return int((await self._reader.readline()).split()[1])

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
async def post(site: Site, request: pytest.FixtureRequest) -> AsyncIterator[Send]:
    """Send `POST /` with the given header lines, then the given first bytes of the body.

    Its parameter: whether the server cancels the handler of a client that left.
    """
    server = web.Server(
        site.handle,
        auto_decompress=False,
        lingering_time=0.0,
        handler_cancellation=getattr(request, "param", False),
    )
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    connections = []

    async def post(headers: str, body: bytes) -> Connection:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
        connections.append(connection)
        await connection.send(b"POST / HTTP/1.1\r\nHost: a\r\n" + headers.encode() + b"\r\n\r\n" + body)
        return connection

    yield post
    for connection in connections:
        await connection.close()
    listener.close()
    await listener.wait_closed()
    await server.shutdown(1.0)


def sized(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = "Transfer-Encoding: chunked"


class Wire:
    """As much of aiohttp's protocol as a `StreamReader` needs."""

    connected = True

    def resume_reading(self, resume_parser: bool = True) -> None: ...


def arriving(length: int) -> web.BaseRequest:
    """A request of which only the head is there."""
    content = aiohttp.StreamReader(Wire(), 2**16)
    return make_mocked_request("POST", "/", {"Content-Length": str(length)}, payload=content)


def arrived(body: bytes) -> web.BaseRequest:
    request = arriving(len(body))
    request.content.feed_data(body)
    request.content.feed_eof()
    return request


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 - a counter, not an event
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [0, 1, 8_000, 100_000, 1_000_000])
async def test_a_body_with_a_length_comes_back_whole(site: Site, post: Send, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await post(sized(body), body)
    assert await site.outcomes.get() == body
    assert site.intake.buffered_bytes == 0


async def test_a_body_without_length_or_chunks_is_empty(site: Site, post: Send) -> None:
    await post("X-Nothing: 1", b"")
    assert await site.outcomes.get() == b""


async def test_a_chunked_body_comes_back_whole(site: Site, post: Send) -> None:
    client = await post(CHUNKED, chunk(b"first "))
    await site.started.wait()
    await client.send(chunk(b"second ") + chunk(b"third") + b"0\r\n\r\n")
    assert await site.outcomes.get() == b"first second third"
    assert site.intake.buffered_bytes == 0


async def test_a_body_that_arrived_in_one_piece_is_not_copied(site: Site) -> None:
    body = b"x" * 8_000
    assert await site.intake.read(arrived(body)) is body


@pytest.mark.parametrize("name", ["gzip", "GZIP"])
@pytest.mark.parametrize("split", [False, True])
async def test_a_coded_body_comes_back_decoded(site: Site, post: Send, name: str, split: bool) -> None:
    body, coded = b"x" * 5_000, gzip.compress(b"x" * 5_000)
    half = len(coded) // 2 if split else len(coded)
    client = await post(f"Content-Encoding: {name}\r\n{sized(coded)}", coded[:half])
    await site.started.wait()
    await client.send(coded[half:])
    assert await site.outcomes.get() == body
    assert site.intake.buffered_bytes == 0


async def test_codings_may_come_in_several_header_lines(site: Site, post: Send) -> None:
    coded = gzip.compress(gzip.compress(b"x"))
    await post(f"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n{sized(coded)}", coded)
    assert await site.outcomes.get() == b"x"


async def test_a_declared_length_over_the_limit_is_refused_before_reading(site: Site, post: Send) -> None:
    client = await post("Content-Length: 1000001", b"")
    assert await client.status() == 413
    assert isinstance(await site.outcomes.get(), errors.PayloadTooLarge)


async def test_a_complete_body_over_the_limit_is_refused(site: Site, post: Send) -> None:
    site.intake.max_body_bytes = 10
    client = await post(sized(b"x" * 11), b"x" * 11)
    assert await client.status() == 413


async def test_a_chunked_body_is_refused_as_soon_as_it_grows_over_the_limit(site: Site, post: Send) -> None:
    site.intake.max_body_bytes = 10
    client = await post(CHUNKED, chunk(b"x" * 10))
    await site.started.wait()
    await client.send(chunk(b"x"))  # and never the end
    assert await client.status() == 413
    assert site.intake.buffered_bytes == 0


async def test_a_body_that_decodes_to_more_than_the_limit_is_refused(site: Site, post: Send) -> None:
    bomb = gzip.compress(bytes(1_000_001))
    client = await post(f"Content-Encoding: gzip\r\n{sized(bomb)}", bomb)
    assert await client.status() == 413
    assert site.intake.buffered_bytes == 0


async def test_bytes_that_have_arrived_keep_others_out(site: Site, post: Send) -> None:
    site.intake.max_buffered_bytes = 100
    first = await post("Content-Length: 90", b"x" * 60)
    await until(lambda: site.intake.buffered_bytes == 60)
    refused = await post(sized(b"x" * 41), b"x" * 41)
    assert await refused.status() == 429
    admitted = await post(sized(b"x" * 40), b"x" * 40)
    assert await admitted.status() == 200
    await first.send(b"x" * 30)
    assert await first.status() == 200
    assert site.intake.buffered_bytes == 0


async def test_bytes_that_are_only_declared_keep_nobody_out(site: Site, post: Send) -> None:
    site.intake.max_buffered_bytes = 100
    silent = [await post("Content-Length: 90", b"x") for _ in range(4)]
    await until(lambda: site.intake.buffered_bytes == 4)
    assert await (await post(sized(b"x" * 96), b"x" * 96)).status() == 200
    for client in silent:
        await client.close()
    await until(lambda: site.intake.buffered_bytes == 0)


async def test_of_bodies_that_grow_beyond_the_limit_together_the_last_is_refused(site: Site, post: Send) -> None:
    site.intake.max_buffered_bytes = 100
    first = await post("Content-Length: 100", b"x" * 75)
    await until(lambda: site.intake.buffered_bytes == 75)
    second = await post("Content-Length: 25", b"x" * 10)
    await until(lambda: site.intake.buffered_bytes == 85)
    await first.send(b"x" * 15)
    await until(lambda: site.intake.buffered_bytes == 100)
    await second.send(b"x")
    assert await second.status() == 429
    await first.send(b"x" * 10)
    assert await first.status() == 200
    assert site.intake.buffered_bytes == 0


async def test_a_body_can_be_counted_for_longer_than_it_is_read(site: Site, post: Send) -> None:
    site.intake.max_buffered_bytes = 100
    with site.intake.hold(60):
        assert site.intake.buffered_bytes == 60
        assert await (await post(sized(b"x" * 41), b"x" * 41)).status() == 429
    assert site.intake.buffered_bytes == 0


async def test_a_body_is_not_counted_any_more_when_what_it_was_held_for_failed(site: Site) -> None:
    with pytest.raises(errors.UpstreamClosed), site.intake.hold(60):
        raise errors.UpstreamClosed
    assert site.intake.buffered_bytes == 0


async def test_the_timeout_covers_decoding(site: Site) -> None:
    site.intake.max_body_bytes = site.intake.max_buffered_bytes = 50_000_000
    site.intake.read_timeout = 0.0
    content = aiohttp.StreamReader(Wire(), 2**16)
    content.feed_data(gzip.compress(bytes(20_000_000)))
    content.feed_eof()
    with pytest.raises(errors.BodyTooLate):
        await site.intake.read(make_mocked_request("POST", "/", {"Content-Encoding": "gzip"}, payload=content))
    assert site.intake.buffered_bytes == 0


async def test_a_length_that_finds_no_room_is_refused_before_reading(site: Site, post: Send) -> None:
    site.intake.max_buffered_bytes = 100
    client = await post("Content-Length: 101", b"")
    assert await client.status() == 429
    assert isinstance(await site.outcomes.get(), errors.Overloaded)


async def test_queued_bytes_count_against_the_same_limit(site: Site, post: Send) -> None:
    site.intake.max_buffered_bytes, site.queued = 100, 91
    assert await (await post(sized(b"x" * 10), b"x" * 10)).status() == 429
    site.queued = 90
    assert await (await post(sized(b"x" * 10), b"x" * 10)).status() == 200


async def test_a_chunked_body_is_refused_as_soon_as_there_is_no_room(site: Site, post: Send) -> None:
    site.intake.max_buffered_bytes = 10
    client = await post(CHUNKED, chunk(b"x" * 10))
    await site.started.wait()
    await until(lambda: site.intake.buffered_bytes == 10)
    await client.send(chunk(b"x"))
    assert await client.status() == 429
    assert site.intake.buffered_bytes == 0


async def test_decoded_bytes_need_room_as_well(site: Site, post: Send) -> None:
    site.intake.max_buffered_bytes = 5_000
    coded = gzip.compress(bytes(5_000))
    client = await post(f"Content-Encoding: gzip\r\n{sized(coded)}", coded)
    assert await client.status() == 429
    assert site.intake.buffered_bytes == 0


@pytest.mark.looptime
async def test_a_body_that_stops_coming_is_given_up_after_the_timeout(site: Site, post: Send, looptime: float) -> None:
    client = await post("Content-Length: 10", b"x")
    assert await client.status() == 408
    assert 30 <= looptime < 31
    assert site.intake.buffered_bytes == 0


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
    await until(lambda: site.intake.buffered_bytes == 1)
    await client.close()
    assert isinstance(await site.outcomes.get(), end)
    assert site.intake.buffered_bytes == 0


async def test_cancelling_the_reader_releases_its_reservation(site: Site) -> None:
    request = arriving(10)
    request.content.feed_data(b"xyz")
    reading = asyncio.create_task(site.intake.read(request))
    await until(lambda: site.intake.buffered_bytes == 3)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert site.intake.buffered_bytes == 0


async def test_a_dead_connection_is_not_taken_for_a_slow_body(site: Site) -> None:
    request = arriving(10)
    request.content.set_exception(TimeoutError("ETIMEDOUT"))
    with pytest.raises(TimeoutError, match="ETIMEDOUT"):
        await site.intake.read(request)


async def test_a_body_that_http_cannot_read_is_a_bad_request(site: Site) -> None:
    request = arriving(10)
    request.content.set_exception(web.RequestPayloadError("broken"))
    with pytest.raises(errors.BadRequest, match="not valid HTTP: broken"):
        await site.intake.read(request)


@pytest.mark.looptime
async def test_broken_chunking_ends_by_the_timeout_at_the_latest(site: Site, post: Send) -> None:
    """aiohttp's C parser does not tell the reader of a body when the body's framing breaks."""
    client = await post(CHUNKED, chunk(b"x"))
    await until(lambda: site.intake.buffered_bytes == 1)
    await client.send(b"no length\r\n")
    assert isinstance(await site.outcomes.get(), errors.BadRequest | errors.BodyTooLate)
    assert site.intake.buffered_bytes == 0
    assert site.intake.buffered_bytes == 0


async def test_limits_can_be_changed_between_requests(site: Site, post: Send) -> None:
    site.intake.max_body_bytes = 1
    assert await (await post(sized(b"xx"), b"xx")).status() == 413
    site.intake.max_body_bytes = 2
    assert await (await post(sized(b"xx"), b"xx")).status() == 200
