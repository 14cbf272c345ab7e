"""A client whose bytes are dear to take: others get their turns, and memory stays small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.server import connection_bench, front
from tests.server.bodies_site import CHUNKED, Connection, Site, chunk, until

HEAD = f"POST / HTTP/1.1\r\nHost: a\r\n{CHUNKED}\r\n\r\n".encode()
END = chunk(b"")
_PER_TURN = 128


class Turns:
    """Counts the turns of the loop; each was once the longest wait of somebody else."""

    def __init__(self) -> None:
        self.count = 0
        self._handle = asyncio.get_running_loop().call_soon(self._again)

    def _again(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._again)

    def stop(self) -> None:
        self._handle.cancel()


class Bench:
    """A site behind a port, and the turns of the loop."""

    def __init__(self, port: int, site: Site) -> None:
        self.site = site
        self.port = port
        self.turns = Turns()


@pytest.fixture
async def bench(site: Site) -> AsyncIterator[Bench]:
    async with front.serving(site, site.memory) as (_, port):
        found = Bench(port, site)
        yield found
        found.turns.stop()


async def test_a_client_that_takes_no_refusal_either_loses_its_connection() -> None:
    bench = connection_bench.Bench(head_timeout=10)
    client = bench.connect()
    client.stays = True
    client.send(b"GET / HT")
    await bench.pass_time(11)
    assert client.statuses == [408]
    assert client.is_ended
    assert not client.is_aborted
    await bench.pass_time(61)
    assert client.is_lost


@pytest.mark.parametrize("size", [100, 512 * 1024 + 100, 700_000], ids=["little", "much", "more"])
async def test_what_comes_behind_an_unknown_upgrade_in_one_read_is_answered_whatever_body_is_in_front(
    bench: Bench, size: int
) -> None:
    client = await connect(bench)
    upload = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"v" * size
    upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    await client.send(upload + upgrade + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert await bench.site.outcomes.get() == b"v" * size
    for length in (len(str(size)), 3, 3):
        assert await client.status() == 200
        while await client.line():
            pass
        await client.read(length)
    await client.leave()


async def connect(bench: Bench) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", bench.port))


async def test_a_turn_of_the_loop_takes_a_bounded_number_of_chunks(bench: Bench) -> None:
    client, count = await connect(bench), 40_000
    await client.send(HEAD)
    await bench.site.started.wait()
    before = bench.turns.count
    await client.send(chunk(b"x") * count + END)
    assert await bench.site.outcomes.get() == b"x" * count
    assert bench.turns.count - before >= count // _PER_TURN
    await client.leave()
    await until(lambda: bench.site.limits.memory.held == 0)


async def test_a_turn_of_the_loop_takes_a_bounded_number_of_pipelined_requests(bench: Bench) -> None:
    client, count = await connect(bench), 2_000
    before = bench.turns.count
    await client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * count)
    for _ in range(count):
        assert await client.status() == 200
        while await client.line():
            pass
        await client.read(3)
    assert bench.turns.count - before >= count // _PER_TURN
    await client.leave()
    await until(lambda: bench.site.limits.memory.held == 0)


async def test_chunks_that_are_put_off_count_as_held_and_are_let_go_with_their_client(bench: Bench) -> None:
    client = await connect(bench)
    await client.send(HEAD)
    await bench.site.started.wait()
    await client.send(chunk(b"x") * 40_000)
    await until(lambda: bench.site.limits.memory.held > 40_000)
    await client.leave()
    await until(lambda: bench.site.limits.memory.held == 0)
    assert isinstance(await bench.site.outcomes.get(), asyncio.CancelledError)


async def test_a_body_in_large_chunks_comes_whole_between_small_ones(bench: Bench) -> None:
    client = await connect(bench)
    parts = [b"a" * 100_000, *[b"b"] * 5_000, b"c" * 200_000, *[b"d"] * 5_000]
    await client.send(HEAD + b"".join(map(chunk, parts)) + END)
    assert await bench.site.outcomes.get() == b"".join(parts)
    assert await client.status() == 200
    await client.leave()


async def test_a_body_in_more_tiny_chunks_than_any_client_sends_is_refused(bench: Bench) -> None:
    client = await connect(bench)
    await client.send(HEAD)
    await bench.site.started.wait()
    sent = asyncio.ensure_future(client.send(chunk(b"x") * 200_000))
    error = await bench.site.outcomes.get()
    assert "too small chunks" in str(error)
    assert await client.status() == 400
    sent.cancel()
    await asyncio.gather(sent, return_exceptions=True)
    await client.leave()


async def test_chunks_of_three_bytes_are_never_too_small(bench: Bench) -> None:
    bench.site.limits.max_body_bytes = 2_000_000
    client, count = await connect(bench), 400_000
    sending = asyncio.ensure_future(client.send(HEAD + chunk(b"xyz") * count + END))
    assert await bench.site.outcomes.get() == b"xyz" * count
    await sending
    await client.leave()
