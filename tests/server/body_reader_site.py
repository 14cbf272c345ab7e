"""A server that does nothing but read request bodies, a client that sends raw bytes, and requests without either."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from carpool.scheduling import ledger
from carpool_sidecar import errors
from carpool_sidecar.server.general import body_reader

Send = Callable[[str, bytes], Awaitable["Connection"]]


CHUNKED = "Transfer-Encoding: chunked"


class Site:
    """A server whose handler does nothing but read the body, and keeps what came of it."""

    def __init__(self) -> None:
        self.memory = ledger.Ledger(4_000_000)
        self.reader = body_reader.BodyReader(1_000_000, self.memory, 30.0)
        self.started = asyncio.Event()
        self.outcomes: asyncio.Queue[bytes | BaseException] = asyncio.Queue()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.started.set()
        try:
            body = await self.reader.read(request)
        except BaseException as error:
            self.outcomes.put_nowait(error)
            if not isinstance(error, errors.CarpoolError):
                raise
            response = web.Response(status=errors.status_of(error), text=str(error))
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

    async def line(self) -> bytes:
        """The next line, without its end."""
        return (await self._reader.readline()).rstrip()

    async def read(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def sized(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


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
