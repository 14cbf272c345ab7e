"""Any upgraded protocol passes through byte for byte, with back-pressure, and neither side is left hanging."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Start = Callable[[Any], Awaitable[Any]]

UPGRADE = b"GET /t HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo/1\r\nX-One: 1\r\n\r\n"
WEBSOCKET = UPGRADE.replace(b"echo/1", b"websocket")
SWITCH = b"HTTP/1.1 101 Go Ahead\r\nConnection: Upgrade\r\nUpgrade: echo/1\r\nX-Two: 2\r\n\r\n"
MIB = 1 << 20
pytestmark = pytest.mark.uvloop


async def echo(reader: Reader, writer: Writer) -> None:
    """Switches, echoes until the caller has finished sending, and then says so."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(SWITCH)
    while data := await reader.read(MIB):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye")


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_the_heads_pass_with_their_upgrade_and_then_bytes(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, method: bytes
) -> None:
    heads: list[bytes] = []

    async def predictor(reader: Reader, writer: Writer) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(SWITCH)
        assert await reader.readexactly(4) == b"\0GET"
        writer.write(b"\xffHTTP")

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(UPGRADE.replace(b"GET", method))
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"\0GET")
    assert await reader.read() == b"\xffHTTP"
    assert b"\r\nConnection: Upgrade\r\n" in heads[0]
    assert b"\r\nUpgrade: echo/1\r\n" in heads[0]
    assert answer.startswith(b"HTTP/1.1 101 Go Ahead\r\n")
    for field in (b"Connection: Upgrade", b"Upgrade: echo/1", b"X-Two: 2"):
        assert answer.count(b"\r\n" + field + b"\r\n") == 1
    assert b"Content-Length" not in answer
    assert b"Transfer-Encoding" not in answer


@pytest.mark.parametrize("field", [b"Content-Length: 4", b"Transfer-Encoding: chunked"])
async def test_a_request_with_a_body_is_passed_on_without_its_offer_to_upgrade(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, field: bytes
) -> None:
    heads: list[bytes] = []

    async def predictor(reader: Reader, writer: Writer) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readuntil(b"abcd")
        writer.write(b"HTTP/1.1 204 None\r\n\r\n")

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    body = b"4\r\nabcd\r\n0\r\n\r\n" if b"chunked" in field else b"abcd"
    writer.write(UPGRADE.replace(b"X-One: 1", field))
    writer.write(body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
    assert b"upgrade" not in heads[0].lower()


async def test_a_switch_to_a_protocol_that_was_not_offered_opens_no_tunnel(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH.replace(b"echo/1", b"echo/2") + b"tunnelled")
        assert await reader.read() == b""

    front, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(UPGRADE.replace(b"keep-alive", b"close"))
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"the predictor switched to a protocol that was not offered" in answer
    assert front.tunnels == 0


async def test_bytes_sent_along_with_a_head_are_not_lost(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH.replace(b"echo/1", b"websocket") + b"first of all")
        assert await reader.readexactly(10) == b"early bird"
        writer.write(b"done")

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(WEBSOCKET + b"early bird")
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.read() == b"first of alldone"


async def test_a_side_that_has_finished_sending_may_still_receive(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    _, port = await proxy_front(await proxy_predictor(echo))
    reader, writer = await proxy_connect(port)
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"x" * MIB)
    writer.write_eof()
    assert await reader.read() == b"x" * MIB + b"bye"


async def test_a_stalled_reader_stops_the_writer_on_the_other_side(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    sent = 0

    async def predictor(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        while sent < 200 * MIB:
            writer.write(bytes(MIB))
            await writer.drain()
            sent += MIB

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    before = -1
    while before < sent:
        before = sent
        for _ in range(2000):
            await asyncio.sleep(0)
    assert sent < 32 * MIB
    taken = 0
    while data := await reader.read(MIB):
        taken += len(data)
    assert taken == 200 * MIB


@pytest.mark.parametrize("aborted", ["caller", "predictor"])
async def test_a_connection_that_is_lost_takes_the_other_with_it(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, aborted: str
) -> None:
    ended = asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        await reader.readexactly(2)
        if aborted == "predictor":
            writer.transport.abort()
        assert await reader.read() == b""
        ended.set()

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"go")
    if aborted == "caller":
        await writer.drain()
        writer.transport.abort()
    else:
        assert await reader.read() == b""
    await ended.wait()


async def test_close_ends_open_tunnels_and_refuses_new_ones(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    proxy, port = await proxy_front(await proxy_predictor(echo))
    tunnels = [await proxy_connect(port) for _ in range(3)]
    for reader, writer in tunnels:
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
    await proxy.close()
    for reader, _ in tunnels:
        assert await reader.read() == b""


async def test_close_cuts_a_tunnel_whose_reader_is_stalled(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    stalled = asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH + bytes(64 * MIB))
        stalled.set()
        await writer.drain()

    proxy, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    await stalled.wait()
    for _ in range(2000):
        await asyncio.sleep(0)
    assert proxy.tunnels == 1
    proxy.relays.linger = 0.0
    await proxy.close()
    assert proxy.tunnels == 0


async def test_a_declined_upgrade_leaves_the_connection_usable_unless_it_was_for_a_websocket(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 426 No\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\nno")

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    for request in (UPGRADE, UPGRADE, WEBSOCKET):  # what comes behind the last may be a WebSocket's already
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\nno")
        assert answer.startswith(b"HTTP/1.1 426 No\r\n")
        assert (b"\r\nConnection: close\r\n" in answer) == (request is WEBSOCKET)
    assert await reader.read() == b""
