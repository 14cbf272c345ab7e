"""WebSockets work through the sidecar as if it were not there: a real server, a real client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

Start = Callable[[Any], Awaitable[Any]]
pytestmark = pytest.mark.uvloop


async def echo(request: web.Request) -> web.WebSocketResponse:
    """Echoes; `close <code>` makes it close with that code. The close code it got goes to `request.app`."""
    socket = web.WebSocketResponse(protocols=("v2", "v1"), max_msg_size=0)
    await socket.prepare(request)
    try:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            elif message.data.startswith("close "):
                await socket.close(code=int(message.data[6:]), message=b"as asked")
            else:
                await socket.send_str(message.data)
    finally:
        request.app[CLOSED].put_nowait(socket.close_code)
    return socket


CLOSED = web.AppKey("closed", asyncio.Queue[int | None])


@pytest.fixture
async def application() -> web.Application:
    app = web.Application()
    app[CLOSED] = asyncio.Queue()
    app.router.add_get("/ws", echo)
    return app


@pytest.fixture
async def url(
    application: web.Application,
    aiohttp_server: Callable[[web.Application], Awaitable[TestServer]],
    proxy_front: Start,
) -> str:
    _, port = await proxy_front((await aiohttp_server(application)).port)
    return f"http://127.0.0.1:{port}/ws"


async def test_text_binary_and_pings_pass_both_ways(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(url, autoping=False) as socket:
        await socket.send_str("héllo")
        assert (await socket.receive()).data == "héllo"
        await socket.send_bytes(b"\0\xff")
        assert (await socket.receive()).data == b"\0\xff"
        await socket.ping(b"are you there")
        pong = await socket.receive()
        assert (pong.type, bytes(pong.data)) == (aiohttp.WSMsgType.PONG, b"are you there")


@pytest.mark.parametrize("compress", [0, 15])
async def test_a_message_of_5_mb_comes_back_whole(url: str, compress: int) -> None:
    message = bytes(range(256)) * (5_000_000 // 256)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, max_msg_size=0, compress=compress) as socket,
    ):
        assert socket.compress == compress
        await socket.send_bytes(message)
        assert (await socket.receive()).data == message


async def test_subprotocols_are_negotiated_end_to_end(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(url, protocols=("v1", "v2")) as socket:
        assert socket.protocol == "v1"


async def test_the_callers_close_code_reaches_the_predictor(url: str, application: web.Application) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        await socket.close(code=4001, message=b"enough")
        assert await application[CLOSED].get() == 4001


async def test_the_predictors_close_code_reaches_the_caller(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        await socket.send_str("close 4002")
        message = await socket.receive()
        assert (message.type, message.data, message.extra) == (aiohttp.WSMsgType.CLOSE, 4002, "as asked")


async def test_a_caller_that_vanishes_is_noticed_by_the_predictor(url: str, application: web.Application) -> None:
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(url)
        assert socket._response.connection is not None
        assert socket._response.connection.transport is not None
        socket._response.connection.transport.abort()
        assert await application[CLOSED].get() is None  # its handler was cancelled: no close frame came


async def test_a_hundred_at_once_do_not_mix(url: str) -> None:
    async def talk(session: aiohttp.ClientSession, number: int) -> None:
        async with session.ws_connect(url) as socket:
            for turn in range(5):
                await socket.send_str(f"{number}/{turn}")
                assert (await socket.receive()).data == f"{number}/{turn}"

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(talk(session, number) for number in range(100)))


async def test_a_declined_upgrade_is_answered_as_usual(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as failure:
            await session.ws_connect(url.replace("/ws", "/elsewhere"))
    assert failure.value.status == 404
