"""Callers are let in at once while few requests wait, and no faster than the others are served while many do."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest
from aiohttp import web

from carpool.scheduling import ledger
from carpool_sidecar import drain
from carpool_sidecar.server import data_port, listening
from carpool_sidecar.server.general import server as general
from tests import loopback
from tests.server import fast_lane

CALLERS = 200
TURNS = 40


class Protocol(asyncio.Protocol):
    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._crowd.transports.append(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.gone += 1


class Crowd:
    """Who is in: `before` were there already, and so many have asked."""

    def __init__(self, before: int = 0) -> None:
        self.before = before
        self.asked = 0
        self.waiting = self.gone = 0
        self.transports: list[asyncio.BaseTransport] = []

    @property
    def open(self) -> int:
        return self.before + len(self.transports)

    def make(self) -> Protocol:
        return Protocol(self)


@pytest.fixture
def clients() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for client in opened:
        client.close()


async def listen(crowd: Crowd) -> tuple[listening.Listener, int]:
    port = loopback.free_port()
    (listener,) = await listening.listen("127.0.0.1", port, CALLERS, crowd.make, crowd)
    return listener, port


async def end(listener: listening.Listener, crowd: Crowd) -> None:
    await listener.close()
    for transport in crowd.transports:
        transport.close()
    while crowd.gone < len(crowd.transports):  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.both_loops
async def test_hundreds_who_connect_at_once_are_let_in_within_few_turns_while_few_requests_wait(
    clients: list[socket.socket],
) -> None:
    crowd = Crowd()
    listener, port = await listen(crowd)
    clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS)]
    for _ in range(TURNS):
        await asyncio.sleep(0)
    let_in = len(crowd.transports)
    await end(listener, crowd)
    assert let_in == CALLERS


@pytest.mark.both_loops
async def test_callers_are_let_in_slowly_while_many_wait_for_answers(clients: list[socket.socket]) -> None:
    crowd = Crowd(before=1600)
    crowd.waiting = 256
    listener, port = await listen(crowd)
    clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS)]
    for _ in range(TURNS):
        crowd.asked += 100
        await asyncio.sleep(0)
    let_in = len(crowd.transports)
    await end(listener, crowd)
    # One in each turn, and one for each hundredth of those who are in: and none is forgotten.
    assert TURNS / 2 <= let_in <= 2 * TURNS


@pytest.mark.parametrize(
    ("before", "asked", "allowed"),
    [
        (0, 0, 16),
        (256, 0, 1),
        (256, 128, 9),
        (512, 128, 5),
        (8192, 128, 1),
        (8192, 100_000, 16),  # nobody has knocked for long
    ],
)
def test_those_who_are_in_have_to_be_served_before_as_many_come(before: int, asked: int, allowed: int) -> None:
    crowd = Crowd(before)
    crowd.waiting = 256
    assert listening.allowance(crowd, asked) == allowed


async def test_somebody_is_let_in_when_files_ran_out_and_are_there_again(
    clients: list[socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    class Full(socket.socket):
        is_full = True

        def accept(self) -> tuple[socket.socket, object]:
            if self.is_full:
                self.is_full = False
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    crowd = Crowd()
    bound = Full()
    bound.bind(("127.0.0.1", 0))
    bound.setblocking(False)
    bound.listen(1)
    listener = listening.Listener(bound, crowd.make, crowd, rest=0.0)
    clients.append(socket.create_connection(bound.getsockname()))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    let_in = len(crowd.transports)
    await end(listener, crowd)
    assert let_in == 1
    assert "too many open files" in caplog.text


@pytest.fixture
async def lane() -> AsyncIterator[data_port.FastLane]:
    bench = fast_lane.Bench()
    limit = data_port.ConnectionLimit(CALLERS, lambda: None)
    made = data_port.FastLane(bench.settings, bench.requests, lambda since, home, size: asyncio.Protocol(), limit)
    yield made
    await made.close(0)


@pytest.mark.both_loops
async def test_nobody_is_let_in_once_the_lane_is_closed(lane: data_port.FastLane) -> None:
    port = loopback.free_port()
    await lane.listen("127.0.0.1", port, CALLERS)
    await lane.close(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)  # a handle is closed in a turn of its own
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.both_loops
async def test_a_port_that_is_taken_is_an_error(lane: data_port.FastLane) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        await lane.listen("127.0.0.1", other.getsockname()[1], CALLERS)


@pytest.mark.both_loops
async def test_who_was_let_in_just_before_the_end_and_has_asked_is_answered(clients: list[socket.socket]) -> None:
    bench = fast_lane.Bench()
    limit = data_port.ConnectionLimit(CALLERS, lambda: None)
    lane = data_port.FastLane(bench.settings, bench.requests, lambda since, home, size: fast_lane.General(), limit)
    port = loopback.free_port()
    await lane.listen("127.0.0.1", port, CALLERS)
    bench.life.draining, bench.life.phase, bench.life.parting = True, drain.Phase.QUIET, True
    client = socket.create_connection(("127.0.0.1", port))
    clients.append(client)
    client.sendall(fast_lane.post(b"{}"))
    while not lane.open:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await lane.close(1.0)
    assert client.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.fixture
async def closing() -> AsyncIterator[tuple[data_port.FastLane, int]]:
    """A lane whose sidecar refuses new requests, and its port."""
    bench = fast_lane.Bench()
    limit = data_port.ConnectionLimit(CALLERS, lambda: None)
    lane = data_port.FastLane(bench.settings, bench.requests, lambda since, home, size: Refusing(home), limit)
    port = loopback.free_port()
    await lane.listen("127.0.0.1", port, CALLERS)
    bench.life.draining, bench.life.phase, bench.life.parting = True, drain.Phase.DRAINED, True
    yield lane, port
    await lane.close(0)


class Refusing(asyncio.Protocol):
    """A general server of a sidecar that is shutting down, which takes a while."""

    def __init__(self, home: data_port.Home) -> None:
        self._home = home

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(0.01, self._answer)

    def _answer(self) -> None:
        self._transport.write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._home.connection_lost(exc)


@pytest.mark.both_loops
async def test_who_waits_outside_at_the_end_is_let_in_and_told(
    closing: tuple[data_port.FastLane, int], clients: list[socket.socket]
) -> None:
    lane, port = closing
    clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS // 4)]
    for client in clients:
        client.sendall(fast_lane.post())
    await lane.close(1.0)
    assert {client.recv(12) for client in clients} == {b"HTTP/1.1 503"}


@pytest.mark.both_loops
async def test_who_has_asked_by_the_end_is_told_however_long_ago_it_connected(
    closing: tuple[data_port.FastLane, int], clients: list[socket.socket]
) -> None:
    lane, port = closing
    clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS // 4)]
    while lane.open < len(clients):  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    later = lane.requests.clock() + 2 * data_port.LINGER
    lane.requests.clock = lambda: later
    for client in clients:
        client.sendall(fast_lane.post())
    await lane.close(1.0)
    assert {client.recv(12) for client in clients} == {b"HTTP/1.1 503"}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has just connected has all the time to ask, so that it is asking that ends the waiting."""
    monkeypatch.setattr(data_port, "LINGER", 3600.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.both_loops
@pytest.mark.parametrize("begun", [0, 10, 60])
async def test_who_has_just_connected_and_asks_a_moment_later_is_told(
    closing: tuple[data_port.FastLane, int], clients: list[socket.socket], begun: int
) -> None:
    lane, port = closing
    request = fast_lane.post()
    client = socket.create_connection(("127.0.0.1", port))
    clients.append(client)
    while not lane.open:  # noqa: ASYNC110
        await asyncio.sleep(0)
    client.sendall(request[:begun])
    ended = asyncio.create_task(lane.close(3600.0))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    client.sendall(request[begun:])
    await ended
    assert client.recv(12) == b"HTTP/1.1 503"


@pytest.mark.both_loops
async def test_who_has_connected_and_never_asks_is_not_waited_for_as_long_as_requests_are(
    closing: tuple[data_port.FastLane, int], clients: list[socket.socket]
) -> None:
    lane, port = closing
    clients.append(socket.create_connection(("127.0.0.1", port)))
    async with asyncio.timeout(30):
        await lane.close(patience=3600.0)
    assert clients[0].recv(12) == b""


@pytest.fixture
async def general_only() -> AsyncIterator[tuple[general.Server, int]]:
    """A general server that listens by itself, refuses all requests, and its port."""

    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503)

    clock = asyncio.get_running_loop().time
    limit = data_port.ConnectionLimit(CALLERS, lambda: None)
    server = general.Server(refuse, limit, ledger.Ledger(1 << 20), clock, 10.0, lambda error, seconds: b"")
    port = loopback.free_port()
    await server.listen("127.0.0.1", port, CALLERS)
    yield server, port
    await server.stop_listening()
    await server.shutdown(1.0)
    server.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.both_loops
@pytest.mark.parametrize("begun", [0, 10, 60])
async def test_who_has_just_connected_is_told_where_there_is_no_fast_lane(
    general_only: tuple[general.Server, int], clients: list[socket.socket], begun: int
) -> None:
    server, port = general_only
    request = fast_lane.post()
    clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS // 4)]
    for client in clients:
        client.sendall(request[:begun])
    ended = asyncio.create_task(server.stop_listening())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    for client in clients:
        client.sendall(request[begun:])
    await ended
    server.pre_shutdown()
    await server.shutdown(1.0)
    assert {client.recv(12) for client in clients} == {b"HTTP/1.1 503"}


@pytest.mark.both_loops
async def test_who_never_asks_is_waited_for_a_quarter_of_a_second_where_there_is_no_fast_lane(
    general_only: tuple[general.Server, int], clients: list[socket.socket]
) -> None:
    server, port = general_only
    clients.append(socket.create_connection(("127.0.0.1", port)))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.timeout(30):
        await server.stop_listening()
    assert loop.time() - begun > 0.2
