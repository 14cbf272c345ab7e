"""How many clients may be connected, how long a head may take, and what of it is held, whichever server has them."""

from __future__ import annotations

import asyncio
import gc
import json
import resource

import pytest
from aiohttp import web

from carpool_sidecar.server import listening
from carpool_sidecar.server.http1 import exchange, messages
from tests.app import plain_client

pytestmark = pytest.mark.looptime

LONG_HEAD = b"GET /x HTTP/1.1\r\nHost: h\r\n" + b"X-Any: %b\r\n" % (b"v" * 1000) * 17
HELD = "carpool_held_bytes"
LATE = 'carpool_refused_total{reason="head_timeout"}'


async def is_told_off(client: plain_client.Client) -> bool:
    status, headers, body = await client.answer()
    assert await client.rest() == b""
    assert "head" in json.loads(body)["error"]
    return (status, headers["connection"]) == (408, "close")


@pytest.mark.parametrize("begun", [LONG_HEAD, b"GET /x HTTP/1.1\r\nHos", b"G", b"\r\n\r\nPOST"])
async def test_a_head_that_stops_is_told_off_and_counted(sidecar_of, begun):
    bench = await sidecar_of(head_timeout=3)
    client = await plain_client.connect(bench)
    await client.send(begun)
    assert await is_told_off(client)
    assert 3 <= asyncio.get_running_loop().time() <= 5
    assert await bench.metric(LATE) == 1
    assert plain_client.is_at_rest(bench)
    await client.leave()


@pytest.mark.parametrize("together", [True, False])
async def test_so_is_one_behind_a_request_that_was_passed_through(bench_of_three, together):
    client = await plain_client.connect(bench_of_three)
    first, second = plain_client.GET, LONG_HEAD
    if together:
        await client.send(first + second)
    else:
        await client.send(first)
    assert (await client.answer())[0] == 200
    if not together:
        await asyncio.sleep(100)  # as long as nothing began, it may stay
        await client.send(second)
    started = asyncio.get_running_loop().time()
    assert await is_told_off(client)
    assert 3 <= asyncio.get_running_loop().time() - started <= 5
    await client.leave()


async def test_and_one_whose_bytes_trickle(bench_of_three):
    client = await plain_client.connect(bench_of_three)
    await client.send(LONG_HEAD)
    for _ in range(5):
        await asyncio.sleep(0.7)
        await client.send(b"X")
    assert await is_told_off(client)
    await client.leave()


async def test_a_client_that_waits_for_an_answer_is_not_late_with_its_next_head(bench_of_three):
    bench_of_three.predictor.gate.clear()
    client = await plain_client.connect(bench_of_three)
    await client.send(plain_client.GET + b"GET /second HT")
    await asyncio.sleep(30)
    bench_of_three.predictor.gate.set()
    assert (await client.answer())[0] == 200
    await client.send(b"TP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.answer())[0] == 200
    await asyncio.sleep(30)
    await client.send(plain_client.GET)
    assert (await client.answer())[0] == 200
    assert await bench_of_three.metric(LATE) == 0
    await client.leave()


async def test_a_body_that_takes_its_time_is_no_head(bench_of_three):
    client = await plain_client.connect(bench_of_three)
    await client.send(b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 20\r\n\r\n")
    for _ in range(20):
        await asyncio.sleep(1)
        await client.send(b"x")
    assert (await client.answer())[0] == 200
    await client.leave()


async def test_what_has_come_of_a_head_counts_as_held(bench_of_three):
    clients = [await plain_client.connect(bench_of_three) for _ in range(3)]
    for client, begun in zip(clients, (LONG_HEAD, b"POST /v1", plain_client.GET + LONG_HEAD[:100]), strict=True):
        await client.send(begun)
    assert (await clients[2].answer())[0] == 200
    await plain_client.until(lambda: bench_of_three.sidecar.bodies.memory.held == len(LONG_HEAD) + 8 + 100)
    for client in clients:
        await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench_of_three))


async def test_pipelined_requests_that_wait_for_their_turn_count_as_held(bench_of_three):
    bench_of_three.predictor.gate.clear()
    client = await plain_client.connect(bench_of_three)
    await client.send(plain_client.request() + plain_client.GET * 10)
    await plain_client.until(lambda: bench_of_three.sidecar.bodies.memory.held == 17 + len(plain_client.GET) * 10)
    bench_of_three.predictor.gate.set()
    for _ in range(11):
        assert (await client.answer())[0] == 200
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench_of_three))


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize(
    ("most", "lines", "refusal", "together"),
    [(400_000, 5, 431, True), (400_000, 5, 431, False), (50_000, 1, 429, False)],
    ids=["too large, in one piece", "too large", "no room"],
)
async def test_a_head_is_refused_when_all_requests_before_it_are_answered(
    sidecar_of, before, most, lines, refusal, together
):
    bench = await sidecar_of(max_queue_bytes=most, max_body_bytes=most)
    bench.predictor.gate.clear()
    client = await plain_client.connect(bench)
    first = plain_client.request('{"instances":[1]}', "X-Any: 1") * before
    head = b"GET /x HTTP/1.1\r\nHost: h\r\n" + b"X-Any: %b\r\n" % (b"v" * 60_000) * lines
    if together:
        await client.send(first + head)
    else:
        await client.send(first)
        await bench.predictor.received(1)
        await client.send(head)
    await bench.predictor.received(1)
    bench.predictor.gate.set()
    told = [(await client.answer())[0] for _ in range(before)]
    assert told[0] == 200
    assert set(told) <= {200, refusal}
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (refusal, "close")
    assert await client.rest() == b""
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))


BEGUN = b"GET /x HTTP/1.1\r\nHost: h\r\nX-Any: " + b"v" * 2000


@pytest.mark.parametrize("gap", [0, 0.01])
@pytest.mark.parametrize(
    ("first", "count"),
    [
        (b"", plain_client.MORE_THAN_AIOHTTP_QUEUES),
        (b"", 200),
        (
            b"PUT /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            plain_client.MORE_THAN_AIOHTTP_QUEUES,
        ),
        (
            b"GET /u HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
            plain_client.MORE_THAN_AIOHTTP_QUEUES,
        ),
    ],
    ids=["40", "200", "a body in chunks", "a change of protocols that is declined"],
)
async def test_however_many_they_are(sidecar_of, first, count, gap):
    bench = await sidecar_of(max_queue_bytes=1024, max_body_bytes=1024)
    client = await plain_client.connect(bench)
    await client.send(first)
    await asyncio.sleep(gap)
    await client.send(plain_client.GET * count + BEGUN)
    for _ in range(count + bool(first)):
        assert (await client.answer())[0] == 200
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (429, "close")
    assert await client.rest() == b""
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))


@pytest.mark.parametrize("end", ["leaves", "goes on"])
async def test_a_client_whose_next_head_is_refused_may_go_on_or_leave(sidecar_of, end):
    bench = await sidecar_of(max_queue_bytes=1024, max_body_bytes=1024)
    bench.predictor.gate.clear()
    client = await plain_client.connect(bench)
    await client.send(plain_client.GET)
    await bench.predictor.received(1)
    await client.send(BEGUN)
    await plain_client.until(lambda: bench.sidecar.ledger.held > 2000)
    for _ in range(20):
        await client.send(b"v" * 100_000)
    assert bench.sidecar.ledger.held < 100_000
    if end == "goes on":
        bench.predictor.gate.set()
        assert (await client.answer())[0] == 200
        assert (await client.answer())[0] == 429
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))


async def test_a_head_has_a_largest_size_and_heads_together_have_no_more_room_than_bodies(sidecar_of):
    bench = await sidecar_of(max_queue_bytes=400_000, max_body_bytes=400_000)
    lines = [b"X-%d: %b\r\n" % (number, b"v" * 60_000) for number in range(5)]
    client = await plain_client.connect(bench)
    await client.send(b"GET /x HTTP/1.1\r\nHost: h\r\n")
    for line in lines[:5]:
        await client.send(line)
        await asyncio.sleep(0.01)
    status, headers, body = await client.answer()
    assert (status, headers["connection"]) == (431, "close")
    assert str(messages.MAX_HEAD) in json.loads(body)["error"]
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))
    several = [await plain_client.connect(bench) for _ in range(3)]
    for each, count in zip(several, (3, 3, 1), strict=True):
        await each.send(b"GET /x HTTP/1.1\r\nHost: h\r\n")
        for line in lines[:count]:
            await each.send(line)
            await asyncio.sleep(0.01)
    assert (await several[2].answer())[0] == 429
    assert all(each.is_open for each in several[:2])
    for each in several:
        await each.leave()


async def test_a_client_too_many_is_told_so_and_counted_and_there_is_room_when_one_leaves(sidecar_of):
    bench = await sidecar_of(max_connections=2, max_latency=0)
    first, second = await plain_client.connect(bench), await plain_client.connect(bench)
    for sent in (plain_client.request(), plain_client.GET, plain_client.request()):
        for client in (first, second):
            await client.send(sent)
            assert (await client.answer())[0] == 200
    third = await plain_client.connect(bench)
    status, headers, body = await third.answer()
    assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
    assert "too many connections" in json.loads(body)["error"]
    assert await third.rest() == b""
    assert await bench.metric("carpool_connections") == 2
    assert await bench.metric("carpool_connections_refused_total") == 1
    await first.leave()
    await plain_client.until(lambda: bench.sidecar.connection_limit.open == 1)
    fourth = await plain_client.connect(bench)
    await fourth.send(plain_client.request())
    assert (await fourth.answer())[0] == 200
    for client in (second, third, fourth):
        await client.leave()
    await plain_client.until(lambda: bench.sidecar.connection_limit.open == 0)


async def test_a_client_too_many_is_told_so_though_it_has_sent_its_request_and_counts_for_nothing(sidecar_of):
    bench = await sidecar_of(max_connections=1, max_latency=0)
    first = await plain_client.connect(bench)
    await first.send(plain_client.GET)
    assert (await first.answer())[0] == 200
    for size in (10, 5_000, 2_000_000):
        client = await plain_client.connect(bench)
        await client.send(b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        assert (await client.answer())[0] == 503
        assert await client.rest() == b""
        assert await bench.metric("carpool_connections") == 1
        await client.leave()
    assert len(bench.predictor.seen) == 1
    await first.leave()


async def test_of_a_flood_of_clients_too_many_few_are_kept_until_they_leave(sidecar_of):
    bench = await sidecar_of(max_connections=1, max_latency=0)
    first = await plain_client.connect(bench)
    flood = [await plain_client.connect(bench) for _ in range(200)]
    for client in flood:
        assert (await client.answer())[0] == 503
    kept = 0
    for client in flood:
        await client.send(b"x")  # whoever is closed resets the connection
        await asyncio.sleep(0)
        try:
            await client.send(b"x")
            kept += 1
        except ConnectionError:
            pass
    assert kept == 64
    for client in (first, *flood):
        await client.leave()
    await plain_client.until(lambda: bench.sidecar.connection_limit.open == 0)


async def test_a_tunnel_counts_as_a_connection_until_it_ends(sidecar_of, predictor):
    bench = await sidecar_of(max_connections=1)
    switch = {"Connection": "Upgrade", "Upgrade": "x"}
    predictor.behave = lambda seen, request: web.StreamResponse(status=101, headers=switch)
    client = await plain_client.connect(bench)
    await client.send(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
    await plain_client.until(lambda: len(bench.sidecar._relays.tunnels) == 1)
    assert bench.sidecar.connection_limit.open == 1
    await client.leave()
    await plain_client.until(lambda: len(bench.sidecar._relays.tunnels) == 0)
    await plain_client.until(lambda: bench.sidecar.connection_limit.open == 0)


async def test_what_comes_before_a_change_of_protocols_is_no_head_and_is_not_held_in_the_tunnel(sidecar_of):
    early, told = BEGUN + b"v" * 300_000, asyncio.Event()
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def switch(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await told.wait()
        writer.write(b"HTTP/1.1 101 Go Ahead\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        received.set_result(await reader.readexactly(len(early)))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(switch, "127.0.0.1", 0) as predictor:
        bench = await sidecar_of(
            component_port=predictor.sockets[0].getsockname()[1], max_queue_bytes=1024, max_body_bytes=1024
        )
        client = await plain_client.connect(bench)
        await client.send(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + early)
        await asyncio.sleep(1)
        told.set()
        assert await received == early
        assert bench.sidecar.ledger.held == 0
        await client.leave()
        await plain_client.until(lambda: plain_client.is_at_rest(bench))


@pytest.mark.parametrize("protocol", [b"x", b"websocket"])
async def test_nor_are_chunks_of_a_body_that_comes_with_it(sidecar_of, protocol):
    bench = await sidecar_of()
    client = await plain_client.connect(bench)
    lines = b"Host: h\r\nConnection: Upgrade\r\nUpgrade: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % protocol
    await client.send(b"PUT /x HTTP/1.1\r\n" + lines)
    await asyncio.sleep(0.1)
    bench.sidecar.ledger.limit, room = -1, bench.sidecar.ledger.limit
    await client.send(b"D")  # of a size in hexadecimal, or of DELETE
    await asyncio.sleep(0.1)
    bench.sidecar.ledger.limit = room
    await client.send(b"\r\n" + b"v" * 13 + b"\r\n0\r\n\r\n")
    assert (await client.answer())[0] == 200
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))


async def test_a_connection_that_was_served_is_freed_without_the_collector(bench_of_three):
    gc.collect()
    gc.disable()
    try:
        for sent in (plain_client.GET, LONG_HEAD):
            client = await plain_client.connect(bench_of_three)
            await client.send(sent)
            await asyncio.sleep(0.1)
            await client.leave()
        await plain_client.until(lambda: plain_client.is_at_rest(bench_of_three))
        await asyncio.sleep(1)
        assert not [each for each in gc.get_objects() if isinstance(each, (exchange.Exchange, messages.PartialHead))]
    finally:
        gc.enable()


def test_by_default_half_of_the_open_files_may_be_clients_and_never_more_than_10000() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert listening.usual_limit() == 480
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))
        assert listening.usual_limit() <= 10_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def bench_of_three(sidecar_of):
    """Three seconds for a head."""
    return await sidecar_of(head_timeout=3, max_latency=0)


async def test_a_head_that_grew_too_large_for_a_plain_request_has_no_more_time_for_that(bench_of_three):
    client = await plain_client.connect(bench_of_three)
    await client.send(LONG_HEAD[:100])
    await asyncio.sleep(2.5)
    await client.send(LONG_HEAD[100:])
    assert await is_told_off(client)
    assert asyncio.get_running_loop().time() < 4.6
    await client.leave()
