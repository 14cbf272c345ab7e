"""The data port on sockets as time passes: who stops, idles or does not read is let go of, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import socket
import tracemalloc

import pytest

from tests.app.plain_client import GET, connect, connections, is_at_rest, numbered, request, until

pytestmark = pytest.mark.looptime

LARGE = json.dumps({"instances": ["x" * 8_000_000]}).encode()


@pytest.fixture
async def bench(sidecar_of):
    """10 s for a head, 20 s for a body or an answer, 60 s for nothing at all."""
    return await sidecar_of(max_latency=0, head_timeout=10, timeout=20, keep_alive=60)


def now():
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("before", [b"", numbered(0)], ids=["first", "second"])
@pytest.mark.parametrize("begun", [request()[:1], request()[:60], GET[:25]], ids=["a byte", "more", "of any request"])
async def test_a_head_that_stops_arriving_is_408_after_the_heads_time(bench, begun, before):
    client = await connect(bench)
    await client.send(before)
    if before:
        await client.predictions()
    await client.send(begun)
    status, headers, body = await client.answer()
    assert (status, headers["connection"]) == (408, "close")
    assert json.loads(body) == {"error": "the head of the request did not arrive in time"}
    assert 10 < now() < 12
    assert await client.rest() == b""
    assert await bench.metric('carpool_refused_total{reason="head_timeout"}') == 1
    await client.leave()


async def test_a_head_that_comes_byte_by_byte_has_no_more_time(bench):
    client = await connect(bench)
    for byte in request()[:20]:
        await client.send(bytes([byte]))
        await asyncio.sleep(0.5)
    assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
    assert 10 < now() < 12
    await client.leave()


@pytest.mark.parametrize("sent", [b"", b'{"instances":'], ids=["none of it", "some of it"])
async def test_a_body_that_stops_arriving_is_408_after_the_timeout(bench, sent):
    client = await connect(bench)
    await client.send(request(sent, length=100))
    await asyncio.sleep(1)
    assert (bench.sidecar.bodies.memory.held, bench.sidecar.life.active) == (len(sent), 1)
    status, headers, body = await client.answer()
    assert (status, headers["connection"]) == (408, "close")
    assert json.loads(body) == {"error": "the request body did not arrive in time"}
    assert 20 < now() < 22
    assert await client.rest() == b""
    assert is_at_rest(bench)
    await client.leave()


async def test_idle_connections_are_closed_and_busy_ones_are_not(sidecar_of):
    bench = await sidecar_of(max_latency=50_000, head_timeout=10, timeout=100, keep_alive=20)
    idle, busy = await connect(bench), await connect(bench)
    await busy.send(numbered(1))
    assert await idle.rest() == b""
    assert 20 < now() < 22
    assert await busy.predictions() == [1]
    assert 50 <= now() < 51
    assert await busy.rest() == b""
    assert 70 < now() < 72
    assert connections(bench) == 0
    await idle.leave()
    await busy.leave()


@pytest.mark.parametrize(("rate", "longest"), [(0, 20), (8 * 1024, 20 + len(LARGE) / 65536)])
async def test_a_client_that_reads_nothing_or_too_slowly_is_cut_off_and_its_memory_given_back(bench, rate, longest):
    client = await connect(bench, receive_buffer=4096)
    if not rate:
        client._writer.transport.pause_reading()
    sending = asyncio.ensure_future(client.send(request(LARGE) * 3))
    await bench.predictor.received(1)
    await until(lambda: bench.sidecar.bodies.memory.held > 7_900_000)
    begun = now()
    while now() < begun + longest - 3:
        await asyncio.sleep(1)
        if rate:
            await client._reader.read(rate)
    assert connections(bench) == 1
    await asyncio.sleep(6)
    assert connections(bench) == 0
    assert is_at_rest(bench)
    assert len(bench.predictor.seen) == 1
    await client.leave()
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_client_that_leaves_the_last_bytes_of_an_answer_unread_is_not_kept_forever(bench):
    client = await leave_few_bytes_unread(bench)
    await asyncio.sleep(500)
    assert connections(bench) == 0
    await client.leave()


async def test_stop_ends_a_connection_whose_last_bytes_nobody_reads(bench):
    client = await leave_few_bytes_unread(bench)
    await bench.sidecar.stop()
    await asyncio.sleep(5)
    assert connections(bench) == 0
    await client.leave()


async def leave_few_bytes_unread(bench):
    """So few that the transport takes them without a word, but the socket does not."""
    client = await connect(bench, receive_buffer=4096)
    await client.send(numbered(1))
    await client.predictions()
    [connection] = bench.sidecar._http._connections
    transport = connection.transport
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await client.send(request(json.dumps({"instances": ["x" * 50_000]})))
    await until(lambda: bench.sidecar.core.idle and transport.get_write_buffer_size() > 0)
    assert is_at_rest(bench)
    return client


async def test_accepted_requests_of_one_connection_are_all_answered_when_draining_begins(sidecar_of):
    bench = await sidecar_of(max_latency=60_000, timeout=100, max_batch_size=4)
    client = await connect(bench)
    await client.send(numbered(1, 2, 3))
    await bench.queued(3)
    assert await bench.sidecar.drain() is True
    assert [await client.predictions() for _ in range(3)] == [[1], [2], [3]]
    assert await client.rest() == b""
    assert is_at_rest(bench)
    await client.leave()


async def test_at_the_end_of_the_quiet_period_an_answer_closes_its_connection_and_then_a_request_is_refused(sidecar_of):
    bench = await sidecar_of(max_latency=0, quiet_period=10, grace_period=3000, keep_alive=1000)
    early, late = await connect(bench), await connect(bench)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(1)
    await early.send(numbered(1))
    assert await early.predictions() == [1]
    await asyncio.sleep(8)
    await early.send(numbered(1))
    status, headers, _ = await early.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await early.rest() == b""
    bench.sidecar.life.skip_quiet_period()
    assert await draining is True
    await late.send(numbered(2))
    status, headers, _ = await late.answer()
    assert (status, headers["connection"]) == (503, "close")
    assert await late.rest() == b""
    await early.leave()
    await late.leave()


async def test_the_memory_of_a_large_body_is_free_after_its_answer(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    client, other = await connect(bench), await connect(bench)
    tracemalloc.start()
    gc.disable()
    try:
        await client.send(request(LARGE))
        assert len((await client.predictions())[0]) == 8_000_000
        await other.send(numbered(1))  # for aiohttp, as the predictor's server, keeps its last answer
        await other.predictions()
        bench.predictor.seen.clear()
        assert tracemalloc.get_traced_memory()[0] < 4_000_000
    finally:
        gc.enable()
        tracemalloc.stop()
    await client.leave()
    await other.leave()


async def test_no_timer_runs_when_nobody_is_connected(bench):
    client = await connect(bench)
    await client.send(numbered(1))
    await client.predictions()
    assert bench.sidecar._http._timer.due_at < math.inf
    await client.leave()
    await asyncio.sleep(2)
    assert bench.sidecar._http._timer.due_at == math.inf


@pytest.mark.parametrize(
    ("chosen", "least", "most"),
    [
        ({"head_timeout": 10}, 10, 11),
        ({"head_timeout": 2}, 2, 2.5),
        ({"head_timeout": 10, "keep_alive": 2}, 10, 10.5),
        ({"head_timeout": 10, "timeout": 2}, 10, 10.5),
        ({"head_timeout": 0.1}, 0.1, 0.15),
    ],
)
async def test_what_is_late_is_noticed_within_a_quarter_of_the_shortest_time_and_a_second(
    sidecar_of, chosen, least, most
):
    bench = await sidecar_of(**{"max_latency": 0, "timeout": 100, "keep_alive": 100, **chosen})
    client = await connect(bench)
    began = now()
    await client.send(request()[:1])
    assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
    assert least < now() - began <= most + 0.001
    await client.leave()


async def test_nobody_looks_at_the_clock_while_nobody_is_connected_and_everybody_is_watched_again_after_that(bench):
    server = bench.sidecar._http
    assert server._timer.due_at == math.inf
    for _ in range(3):
        client = await connect(bench)
        await until(lambda: server._timer.due_at < math.inf)
        await client.leave()
        await asyncio.sleep(2)
        assert server._timer.due_at == math.inf
    late = await connect(bench)
    await late.send(GET[:25])
    assert (await late.rest()).startswith(b"HTTP/1.1 408 ")
    await late.leave()
