"""How many clients may be connected is for somebody else to say, who knows of other ports."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from carpool_sidecar.server import listening
from carpool_sidecar.server.http2 import server
from tests.server.http2 import echo

pytestmark = pytest.mark.looptime


async def test_a_client_too_many_is_closed_at_once_and_there_is_room_when_one_leaves() -> None:
    refused: list[bool] = []
    limit = listening.ConnectionLimit(1, lambda: refused.append(True))
    here = server.Server(echo.Echo(), connection_limit=limit)
    await here.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    assert await reader.readexactly(1)
    late_reader, late_writer = await asyncio.open_connection("127.0.0.1", here.port)
    with contextlib.suppress(ConnectionResetError):
        assert await late_reader.read() == b""
    assert (limit.open, refused, here.open) == (1, [True], 1)
    for each in (writer, late_writer):
        each.close()
    await asyncio.sleep(1)
    assert limit.open == 0
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    assert await reader.readexactly(1)
    await here.close(0.1)
    assert limit.open == 0
    writer.close()
