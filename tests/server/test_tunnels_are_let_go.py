"""However a tunnel ends, nothing of it waits for the garbage collector."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests import cycles
from tests.server.bodies_site import until
from tests.server.test_tunnel_bytes import SWITCH, UPGRADE

Start = Callable[[Any], Awaitable[Any]]


@pytest.mark.both_loops
@pytest.mark.parametrize(
    "how", ["the caller leaves", "the predictor leaves", "both have finished", "it is lost", "it is closed"]
)
async def test_a_tunnel_leaves_nothing(proxy_predictor: Start, proxy_front: Start, how: str) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        if how != "the predictor leaves":
            await reader.read()

    front, port = await proxy_front(await proxy_predictor(predictor))

    async def run() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        if how == "both have finished":
            writer.write_eof()
        elif how == "it is lost":
            writer.transport.abort()
        elif how == "the caller leaves":
            writer.close()
        elif how == "it is closed":
            front.relays.close_tunnels()
            front.relays.is_closed = False
        if how != "it is lost":
            await reader.read()
        writer.close()
        await until(lambda: not front.tunnels)

    await run()
    with cycles.counted() as found:
        await run()
        await run()
    assert found == []
