"""A predictor that speaks raw bytes, the pass-through in front of it, and raw callers; a site that reads bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from tests.server import front
from tests.server.bodies_site import Connection, Send, Site

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _raw_server(script: Script) -> AsyncIterator[int]:
    """Runs `script` once per connection, then closes it; yields the port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
    for result in results:
        if isinstance(result, Exception):
            raise result


@asynccontextmanager
async def _front(
    predictor_port: int, reads_first: bool = False, **chosen: Any
) -> AsyncIterator[tuple[front.Front, int]]:
    async with front.relaying(predictor_port, reads_first, **chosen) as (proxy, port):
        yield proxy, port


@pytest.fixture
async def proxy_stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def proxy_predictor(proxy_stack: AsyncExitStack) -> Callable[[Script], Awaitable[int]]:
    """Starts a predictor that runs a script on each connection; returns its port."""
    return lambda script: proxy_stack.enter_async_context(_raw_server(script))


@pytest.fixture
def proxy_front(
    proxy_stack: AsyncExitStack,
) -> Callable[..., Awaitable[tuple[front.Front, int]]]:
    """Starts the pass-through in front of a port; returns it and its own port."""
    return lambda port, **chosen: proxy_stack.enter_async_context(_front(port, **chosen))


@pytest.fixture
def proxy_connect(proxy_stack: AsyncExitStack) -> Callable[[int], Awaitable[Streams]]:
    """Opens a raw connection to a port, closed after the test."""

    async def connect(port: int) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def close() -> None:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

        proxy_stack.push_async_callback(close)
        return reader, writer

    return connect


@pytest.fixture
def proxy_exchange(
    proxy_predictor: Callable[[Script], Awaitable[int]],
    proxy_front: Callable[..., Awaitable[tuple[front.Front, int]]],
    proxy_connect: Callable[[int], Awaitable[Streams]],
) -> Callable[[bytes, bytes], Awaitable[tuple[bytes, bytes]]]:
    """Sends one raw request through the proxy to a predictor with one raw answer, then closes.

    Returns what the predictor got and what the caller got. The request must ask for `Connection: close`, and a
    request with a body must end in `END`, which is how the predictor knows that it has come to its end.
    """

    async def exchange(request: bytes, answer: bytes) -> tuple[bytes, bytes]:
        got: list[bytes] = []

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readuntil(b"END") if b"END" in request else b""
            got.append(head + body)
            if body and b"chunked" in head.lower():
                got[-1] += await reader.readuntil(b"0\r\n\r\n")
            writer.write(answer)
            await writer.drain()

        _, port = await proxy_front(await proxy_predictor(script))
        reader, writer = await proxy_connect(port)
        writer.write(request)
        answered = await reader.read()
        return (got[0] if got else b""), answered

    return exchange


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
async def post(site: Site) -> AsyncIterator[Send]:
    """Send `POST /` with the given header lines, then the given first bytes of the body."""
    connections = []
    async with front.serving(site, site.memory) as (_, port):

        async def post(headers: str, body: bytes) -> Connection:
            connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
            connections.append(connection)
            await connection.send(b"POST / HTTP/1.1\r\nHost: a\r\n" + headers.encode() + b"\r\n\r\n" + body)
            return connection

        yield post
        for connection in connections:
            await connection.leave()
