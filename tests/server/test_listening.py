"""Callers are let in at once while few requests wait, and no faster than the others are served while many do."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from carpool_sidecar import drain
from carpool_sidecar.server import listening, responses
from carpool_sidecar.server.http1 import exchange
from carpool_sidecar.server.http1 import server as http1
from tests import loopback
from tests.server import connection_bench

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
    """Who is in: `before` were there already, and so many have asked. Called, it tells."""

    def __init__(self, before: int = 0) -> None:
        self.before = before
        self.asked = 0
        self.waiting = self.gone = 0
        self.transports: list[asyncio.BaseTransport] = []

    def __call__(self) -> listening.Crowd:
        return listening.Crowd(self.before + len(self.transports), self.asked, self.waiting)

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
    (listener,) = await listening.listen(("127.0.0.1", port), CALLERS, crowd.make, crowd)
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
    assert listening.allowance(listening.Crowd(before, 0, waiting=256), asked) == allowed


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
async def server() -> AsyncIterator[http1.Server]:
    bench = connection_bench.Bench()
    limit = listening.ConnectionLimit(CALLERS, lambda: None)
    made = http1.Server(bench.settings, bench.requests, bench.handler, limit)
    yield made
    await made.close(0)


@pytest.mark.both_loops
async def test_nobody_is_let_in_once_the_server_is_closed(server: http1.Server) -> None:
    port = loopback.free_port()
    await server.listen("127.0.0.1", port, CALLERS)
    await server.close(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)  # a handle is closed in a turn of its own
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.both_loops
async def test_a_port_that_is_taken_is_an_error(server: http1.Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        await server.listen("127.0.0.1", other.getsockname()[1], CALLERS)


@pytest.mark.both_loops
async def test_who_was_let_in_just_before_the_end_and_has_asked_is_answered(clients: list[socket.socket]) -> None:
    bench = connection_bench.Bench()
    limit = listening.ConnectionLimit(CALLERS, lambda: None)
    server = http1.Server(bench.settings, bench.requests, bench.handler, limit)
    port = loopback.free_port()
    await server.listen("127.0.0.1", port, CALLERS)
    bench.life.draining, bench.life.phase, bench.life.parting = True, drain.Phase.QUIET, True
    client = socket.create_connection(("127.0.0.1", port))
    clients.append(client)
    client.sendall(connection_bench.post(b"{}"))
    while not server.crowd().open:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await server.close(1.0)
    assert client.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.fixture
async def closing() -> AsyncIterator[tuple[http1.Server, int]]:
    """A server whose sidecar refuses new requests, and its port."""
    bench = connection_bench.Bench()
    limit = listening.ConnectionLimit(CALLERS, lambda: None)
    server = http1.Server(bench.settings, bench.requests, Refusing(), limit)
    port = loopback.free_port()
    await server.listen("127.0.0.1", port, CALLERS)
    bench.life.draining, bench.life.phase, bench.life.parting = True, drain.Phase.DRAINED, True
    yield server, port
    await server.close(0)


class Refusing(connection_bench.Handler):
    """That of a sidecar that is shutting down, which takes a while."""

    def begin(self, asked: exchange.Exchange) -> None:
        super().begin(asked)
        refusal = responses.Response(503, (), b"", close=True)
        asyncio.get_running_loop().call_later(0.01, asked.respond, refusal)


@pytest.mark.both_loops
async def test_who_waits_outside_at_the_end_is_let_in_and_told(
    closing: tuple[http1.Server, int], clients: list[socket.socket]
) -> None:
    server, port = closing
    clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS // 4)]
    for client in clients:
        client.sendall(connection_bench.post())
    await server.close(1.0)
    assert {client.recv(12) for client in clients} == {b"HTTP/1.1 503"}


@pytest.mark.both_loops
async def test_who_has_asked_by_the_end_is_told_however_long_ago_it_connected(
    closing: tuple[http1.Server, int], clients: list[socket.socket]
) -> None:
    server, port = closing
    clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS // 4)]
    while server.crowd().open < len(clients):  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    later = server.requests.clock() + 2 * http1.LINGER
    server.requests.clock = lambda: later
    for client in clients:
        client.sendall(connection_bench.post())
    await server.close(1.0)
    assert {client.recv(12) for client in clients} == {b"HTTP/1.1 503"}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has just connected has all the time to ask, so that it is asking that ends the waiting."""
    monkeypatch.setattr(http1, "LINGER", 3600.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.both_loops
@pytest.mark.parametrize("begun", [0, 10, 60])
async def test_who_has_just_connected_and_asks_a_moment_later_is_told(
    closing: tuple[http1.Server, int], clients: list[socket.socket], begun: int
) -> None:
    server, port = closing
    request = connection_bench.post()
    client = socket.create_connection(("127.0.0.1", port))
    clients.append(client)
    while not server.crowd().open:  # noqa: ASYNC110
        await asyncio.sleep(0)
    client.sendall(request[:begun])
    ended = asyncio.create_task(server.close(3600.0))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    client.sendall(request[begun:])
    client.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(client, 12) == b"HTTP/1.1 503"
    client.close()  # else the server reads on for a while, so that nothing sent meets a reset
    await ended


@pytest.mark.both_loops
async def test_who_asks_in_the_last_moment_of_its_time_to_do_so_is_told(
    closing: tuple[http1.Server, int], clients: list[socket.socket]
) -> None:
    server, port = closing
    client = socket.create_connection(("127.0.0.1", port))
    clients.append(client)
    while not server.crowd().open:  # noqa: ASYNC110
        await asyncio.sleep(0)

    def ask_late() -> None:
        time.sleep(http1.LINGER)  # the loop is busy: it finds the end of that time and the request at once
        client.sendall(connection_bench.post())

    asyncio.get_running_loop().call_later(http1.LINGER / 2, ask_late)
    await server.close(1.0)
    assert client.recv(12) == b"HTTP/1.1 503"


@pytest.mark.both_loops
async def test_who_has_connected_and_never_asks_is_not_waited_for_as_long_as_requests_are(
    closing: tuple[http1.Server, int], clients: list[socket.socket]
) -> None:
    server, port = closing
    clients.append(socket.create_connection(("127.0.0.1", port)))
    async with asyncio.timeout(30):
        await server.close(patience=3600.0)
    assert clients[0].recv(12) == b""
