"""How long bytes may wait for a client that takes none of them."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
import struct
from typing import cast

import pytest

from carpool.scheduling import ledger, limits
from carpool_sidecar.server import listening, unread
from tests import loopback

PATIENCE = 10.0


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([(0, 100, 0), (9, 100, 0)], 9),
        ([(0, 100, 0), (9, 500, 0)], 9),  # more waits, and nothing was taken
        ([(0, 100, 0), (9, 100, 50)], 0),  # as much came as was taken
        ([(0, 100, 0), (4, 100, 50), (9, 400, 50)], 5),
        ([(0, 100, 0), (4, 0, 100), (9, 100, 100)], 0),  # it took everything in between
        ([(0, 0, 7), (1000, 0, 7)], 0),  # nothing waits for an idle client
    ],
)
def test_a_client_takes_nothing_since_something_waited_or_since_it_last_took_something(looks, seconds):
    progress = unread.Progress()
    for now, waiting, taken in looks:
        found = progress.seconds(now, waiting, taken)
    assert found == seconds


def test_the_step_of_a_client_is_the_most_that_it_took_without_a_pause_and_at_first_all_that_it_had_taken():
    progress = unread.Progress()
    steps = []
    for now, taken in enumerate([50, 120, 120, 130, 170, 170, 300]):
        progress.seconds(now, 100, taken)
        steps.append(progress.step)
    assert steps == [50, 120, 120, 120, 120, 120, 130]


def test_a_client_has_a_second_longer_for_each_8_kib_of_its_step_up_to_32_and_less_when_memory_is_short():
    memory = ledger.Ledger(1000)
    patience = unread.Patience(limits.Limits(max_batch_size=1, max_latency=0.0, timeout=10), memory)
    steps = [0, 16 * 1024, 256 * 1024, 1024 * 1024]
    assert [patience.between_steps(each) for each in steps] == [10, 12, 42, 42]
    memory.reserve(600)
    assert [patience.between_steps(each) for each in steps] == [2, 2.25, 6, 6]


def test_a_client_has_as_long_as_a_request_and_longer_for_what_it_has_to_read_and_little_when_memory_is_short():
    bounds = limits.Limits(max_batch_size=1, max_latency=0.0, timeout=10)
    memory = ledger.Ledger(1000)
    patience = unread.Patience(bounds, memory)
    answers = [(0, 0), (80 * 1024, 0), (0, 80 * 1024), (80 * 1024, 160 * 1024), (640 * 1024, 0), (640 * 1024, 1 << 20)]
    assert [patience.seconds(*each) for each in answers] == [10, 20, 20, 30, 20, 26]
    memory.reserve(600)
    assert [patience.seconds(*each) for each in answers] == [2, 3.25, 3.25, 4.5, 12, 18]
    brief = limits.Limits(max_batch_size=1, max_latency=0.0, timeout=0.1)
    assert unread.Patience(brief, ledger.Ledger()).seconds(0, 0) == 2


class Transport:
    """Of a connection that only the kernel has bytes for."""

    aborted = 0
    reads = True

    def is_reading(self) -> bool:
        return self.reads

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        pass

    def abort(self) -> None:
        self.aborted += 1


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listening.getsockname())
        server, _ = listening.accept()
        with server:
            yield client, server


@pytest.mark.looptime
async def test_bytes_that_only_the_kernel_has_were_not_taken_and_those_that_the_client_has_were(ends):
    _, server = ends
    loop, transport = asyncio.get_running_loop(), Transport()
    watch = unread.Watch(lambda size: PATIENCE, loop.time)
    watch.add(server, cast(asyncio.Transport, transport))
    server.send(b"x" * 100)  # the client's kernel takes them
    await asyncio.sleep(3 * PATIENCE)
    assert not transport.aborted
    server.setblocking(False)
    server.send(b"x" * 100_000)
    await asyncio.sleep(PATIENCE - 1)
    assert not transport.aborted
    await asyncio.sleep(4)
    assert transport.aborted
    watch.stop()


@pytest.mark.looptime
async def test_a_reset_is_noticed_where_nothing_is_read_and_left_to_the_loop_where_it_reads(ends):
    client, server = ends
    loop, reading, paused = asyncio.get_running_loop(), Transport(), Transport()
    paused.reads = False
    watch = unread.Watch(lambda size: PATIENCE, loop.time)
    for transport in (reading, paused):
        watch.add(server, cast(asyncio.Transport, transport))
    client.send(b"x" * 100)
    await asyncio.sleep(2)
    assert (reading.aborted, paused.aborted) == (0, 0)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    await asyncio.sleep(2)
    assert not reading.aborted
    assert paused.aborted
    watch.stop()


@pytest.mark.looptime
async def test_what_a_client_sent_before_it_ended_is_still_read_though_our_side_ended_before(ends):
    client, server = ends
    transport = Transport()
    transport.reads = False
    watch = unread.Watch(lambda size: PATIENCE, asyncio.get_running_loop().time)
    watch.add(server, cast(asyncio.Transport, transport))
    server.shutdown(socket.SHUT_WR)
    client.send(b"x" * 100)
    client.close()
    await asyncio.sleep(2)
    assert not transport.aborted
    assert server.recv(200) == b"x" * 100
    watch.stop()


@pytest.mark.looptime
async def test_a_connection_whose_socket_is_closed_is_forgotten_with_the_timer(ends):
    _, server = ends
    watch = unread.Watch(lambda size: PATIENCE, asyncio.get_running_loop().time)
    watch.add(server, cast(asyncio.Transport, Transport()))
    server.close()
    await asyncio.sleep(2)
    assert (len(watch._clients), watch._timer.due_at) == (0, math.inf)


@pytest.mark.both_loops
async def test_whoever_comes_in_by_a_listener_is_watched_until_its_end() -> None:
    watch = unread.Watch(lambda size: 0.1, asyncio.get_running_loop().time)
    limit = listening.ConnectionLimit(10, lambda: None, watch.add)
    transports: list[asyncio.Transport] = []

    class Talker(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            talker = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
            transports.append(talker)
            talker.write(b"x" * 10_000_000)

    port = loopback.free_port()
    (listener,) = await listening.listen(("127.0.0.1", port), 10, Talker, limit=limit)
    deaf, leaver = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
    while len(watch._clients) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    leaver.close()
    while watch._clients:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert all(each.is_closing() for each in transports)
    assert deaf.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
    deaf.close()
    await listener.close()
