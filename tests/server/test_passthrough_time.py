"""Bodies that stop: a caller or a predictor that sends no more is not waited for for ever, but streams may be quiet."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from carpool_sidecar.server.http1 import handler, relay
from carpool_sidecar.upstream import predictor as upstream
from carpool_sidecar.upstream import readiness
from tests import loopback
from tests.server import connection_bench

Start = Callable[..., Awaitable[Any]]
TIMEOUT = 40.0  # seconds
HEAD = b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n"
GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
pytestmark = pytest.mark.looptime


@pytest.fixture
def relayed(proxy_predictor: Start, proxy_front: Start, proxy_connect: Start) -> Start:
    """Connects a caller to a relay in front of this predictor."""

    async def relayed(predictor: Callable[[Reader, Writer], Awaitable[None]]) -> tuple[Reader, Writer]:
        _, port = await proxy_front(await proxy_predictor(predictor), timeout=TIMEOUT)
        reader, writer = await proxy_connect(port)
        return reader, writer

    return relayed


async def test_a_body_that_stops_coming_is_408_and_the_predictor_is_let_go(relayed: Start, looptime: float) -> None:
    let_go = asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\nabc")
        await reader.read()
        let_go.set()

    reader, writer = await relayed(predictor)
    writer.write(HEAD + b"abc")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert b"the request body did not arrive in time" in answer
    assert TIMEOUT <= looptime < TIMEOUT + 5
    await let_go.wait()


async def test_a_body_that_comes_slowly_may_take_its_time(relayed: Start, looptime: float) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"0123456789")
        writer.write(OK + b"0123456789")

    reader, writer = await relayed(predictor)
    writer.write(HEAD)
    for digit in b"0123456789":
        await asyncio.sleep(TIMEOUT * 0.9)
        writer.write(bytes([digit]))
    assert (await reader.readuntil(b"0123456789")).startswith(b"HTTP/1.1 200 ")
    assert looptime > TIMEOUT * 8


@pytest.mark.parametrize("begun", [b"", STREAM + b"1\r\na\r\n"], ids=["504", "reset"])
async def test_a_body_that_the_predictor_does_not_take_is_504_or_a_reset_if_an_answer_has_begun(
    relayed: Start, looptime: float, begun: bytes
) -> None:
    let_go = asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begun)
        await let_go.wait()

    reader, writer = await relayed(predictor)
    writer.write(HEAD.replace(b": 10", b": 100000000") + b"x" * 50_000_000)
    if begun:
        await reader.readuntil(b"\r\na\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
    else:
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 504 ")
        assert b"\r\nConnection: close\r\n" in answer
        assert b"the predictor did not take the request in time" in answer
    assert TIMEOUT <= looptime < TIMEOUT * 2
    let_go.set()


async def test_a_predictor_that_takes_a_body_slowly_may_take_its_time(relayed: Start, looptime: float) -> None:
    size = 20_000_000
    head = HEAD.replace(b": 10", b": %d" % size)

    async def predictor(reader: Reader, writer: Writer) -> None:
        left = size
        await reader.readuntil(b"\r\n\r\n")
        while left:
            await asyncio.sleep(TIMEOUT / 100)
            left -= len(await reader.read(20_000))
        writer.write(OK + b"0123456789")

    reader, writer = await relayed(predictor)
    writer.write(head + b"x" * size)
    assert (await reader.readuntil(b"0123456789")).startswith(b"HTTP/1.1 200 ")
    assert looptime > TIMEOUT * 4


class FullPredictor:
    """Takes what is written once, and nothing after that; as `predictor.Pool` and `connection.Connection`."""

    host = "h"
    is_full = False
    is_dropped = False

    def take(self, receiver: Any = None, is_head: bool = False, is_last: bool = False) -> FullPredictor:
        self.receiver = receiver
        return self

    def write(self, data: bytes) -> None:
        self.is_full = True
        self.receiver.predictor_full(True)

    def end_request(self) -> None:
        """Nothing comes of it."""

    def abort(self) -> None:
        self.is_dropped = True


@pytest.mark.skipif(not str(upstream.__file__).endswith(".py"), reason="compiled classes take no fakes of each other")
@pytest.mark.parametrize("behind", [1, 0], ids=["in two parts", "at once"])
async def test_who_has_sent_all_is_read_on_though_the_predictor_is_full_so_that_its_leaving_is_noticed(
    behind: int,
) -> None:
    predictor, bench = FullPredictor(), connection_bench.Bench()
    relays = relay.Relays(cast(upstream.Pool, predictor), lambda: False, lambda status: None)
    nobody = cast(readiness.Readiness, None)
    bench.handler = handler.Handler(bench.rules, None, relays, nobody)
    client = bench.connect()
    request = HEAD + b"0123456789"
    client.send(request[: len(request) - behind])
    assert client.is_reading() is not bool(behind)
    if behind:
        client.protocol.data_received(request[-behind:])  # as it was on its way
    assert client.is_reading()
    client.leave()
    assert predictor.is_dropped


async def test_an_answer_that_stops_short_of_its_length_resets_the_callers_connection(
    relayed: Start, looptime: float
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(3):
            writer.write(OK + b"a" if not _ else b"a")
            await asyncio.sleep(TIMEOUT * 0.8)
        await reader.read()

    reader, writer = await relayed(predictor)
    writer.write(GET)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    assert TIMEOUT * 2.6 <= looptime < TIMEOUT * 3


async def test_a_stream_may_be_quiet_for_longer(relayed: Start, looptime: float) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM + b"1\r\na\r\n")
        await asyncio.sleep(TIMEOUT * 3)
        writer.write(b"1\r\nb\r\n0\r\n\r\n")

    reader, writer = await relayed(predictor)
    writer.write(GET)
    assert (await reader.readuntil(b"\r\n0\r\n\r\n")).endswith(b"b\r\n0\r\n\r\n")
    assert looptime >= TIMEOUT * 3


async def test_whoever_was_not_told_to_send_its_body_as_nobody_listens_is_told_that_the_connection_ends(
    proxy_front: Start, proxy_connect: Start
) -> None:
    _, port = await proxy_front(loopback.free_port())
    reader, writer = await proxy_connect(port)
    writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 ")
    assert b"\r\nConnection: close\r\n" in head


async def test_whoever_was_not_told_to_send_its_body_is_told_that_the_connection_ends(relayed: Start) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.read()

    reader, writer = await relayed(predictor)
    probe = b"GET / HTTP/1.1\r\nHost: h\r\nK-Network-Probe: queue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    writer.write(probe)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    assert b"\r\nConnection: close\r\n" in head
