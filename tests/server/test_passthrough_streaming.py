"""Bodies of any size stream through: nothing is collected, and a slow reader slows its sender down."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Start = Callable[[Any], Awaitable[Any]]

MIB = 1 << 20
SIZE = 200 * MIB
# What may be on the way between a producer and a stalled consumer: four socket buffers of the kernel (several MiB
# each on loopback) and the proxy's own. Far below SIZE, which is what counts.
MOST_ON_THE_WAY = 32 * MIB
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
pytestmark = pytest.mark.uvloop


class Producer:
    """Writes SIZE bytes as fast as they are taken, and counts them."""

    def __init__(self) -> None:
        self.sent = 0

    async def run(self, writer: Writer) -> None:
        block = bytes(MIB)
        while self.sent < SIZE:
            writer.write(block)
            await writer.drain()
            self.sent += len(block)

    async def until_stalled(self) -> None:
        """Returns once a good many turns of the loop brought nothing new."""
        before = -1
        while before < self.sent:
            before = self.sent
            for _ in range(2000):
                await asyncio.sleep(0)


async def consume(reader: Reader, size: int) -> int:
    taken = 0
    while taken < size and (block := await reader.read(min(MIB, size - taken))):
        taken += len(block)
    return taken


async def test_a_stalled_caller_stops_the_predictor(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    producer = Producer()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
        await producer.run(writer)

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await producer.until_stalled()
    assert producer.sent < MOST_ON_THE_WAY
    assert await consume(reader, SIZE) == SIZE


@pytest.mark.parametrize("early", [False, True], ids=["read later", "answered early"])
async def test_a_stalled_predictor_stops_the_caller(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, early: bool
) -> None:
    go_on = asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if early:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        await go_on.wait()
        assert await consume(reader, SIZE) == SIZE
        writer.write(b"1\r\n}\r\n0\r\n\r\n" if early else OK)

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % SIZE)
    producer = Producer()
    sending = asyncio.create_task(producer.run(writer))
    await producer.until_stalled()
    assert producer.sent < MOST_ON_THE_WAY
    go_on.set()
    await sending
    assert b"}" in await reader.readuntil(b"0\r\n\r\n") if early else await reader.readuntil(b"ok")


async def test_events_arrive_as_they_are_sent(proxy_predictor: Start, proxy_front: Start, proxy_connect: Start) -> None:
    seen = asyncio.Semaphore(0)

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for number in range(20):
            await seen.acquire()
            writer.write(b"data: %d\n\n" % number)

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    for number in range(20):
        seen.release()
        assert (await reader.readuntil(b"\n\n\r\n")).endswith(b"data: %d\n\n\r\n" % number)
    assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"


async def test_request_chunks_arrive_as_they_are_sent(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (chunk := await reader.readuntil(b"\r\n") + await reader.readuntil(b"\r\n")) != b"0\r\n\r\n":
            writer.write(chunk)
        writer.write(chunk)

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    for _ in range(10):
        writer.write(b"3\r\nabc\r\n")
        assert await reader.readexactly(8) == b"3\r\nabc\r\n"
    writer.write(b"0\r\n\r\n")
    assert await reader.readexactly(5) == b"0\r\n\r\n"


async def test_an_early_refusal_reaches_a_caller_that_is_still_sending(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await reader.read()

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\nabc" % SIZE)
    answer = await reader.readuntil(b"\r\n\r\nno")
    assert answer.startswith(b"HTTP/1.1 413 Content Too Large\r\n")


async def test_a_body_that_was_read_already_is_sent_with_its_length(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    got: list[bytes] = []

    async def predictor(reader: Reader, writer: Writer) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        got.append(await reader.readexactly(3))
        writer.write(OK)

    _, port = await proxy_front(await proxy_predictor(predictor), reads_first=True)
    reader, writer = await proxy_connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")
    await reader.readuntil(b"ok")
    assert b"Content-Length: 3\r\n" in got[0]
    assert b"Transfer-Encoding" not in got[0]
    assert got[1] == b"abc"
