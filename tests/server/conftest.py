"""A predictor that speaks raw bytes, the pass-through in front of it, and raw callers; a site that reads bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import yarl
from aiohttp import web

from carpool_sidecar import errors
from carpool_sidecar.server.general import passthrough
from tests.server.body_reader_site import Connection, Send, Site

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
async def _front(predictor_port: int) -> AsyncIterator[tuple[passthrough.PassThrough, int]]:
    proxy = passthrough.PassThrough(
        yarl.URL(f"http://127.0.0.1:{predictor_port}"), connect_timeout=5, is_ending=lambda: False
    )

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await proxy.handle(request)
        except errors.CarpoolError as error:
            return web.json_response({"error": str(error)}, status=errors.status_of(error))

    server = web.Server(handle, handler_cancellation=True, auto_decompress=False, access_log=None)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        yield proxy, listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await proxy.close()
        server.pre_shutdown()
        await server.shutdown(0.01)
        await listening.wait_closed()


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
) -> Callable[[int], Awaitable[tuple[passthrough.PassThrough, int]]]:
    """Starts the pass-through in front of a port; returns it and its own port."""
    return lambda port: proxy_stack.enter_async_context(_front(port))


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
    proxy_front: Callable[[int], Awaitable[tuple[passthrough.PassThrough, int]]],
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
