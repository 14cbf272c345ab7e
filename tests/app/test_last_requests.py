"""The last requests of connections: a client that sends more, or leaves, takes no answer and no room from anybody."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web

from tests.app import plain_client
from tests.app.test_strict_framing import GET, UPGRADE, WEBSOCKET, in_two, request


@pytest.mark.looptime
@pytest.mark.parametrize("upgrade", [UPGRADE, WEBSOCKET])
@pytest.mark.parametrize("behind", [b"", b"G", request(GET), b"x" * 2000])
async def test_a_client_that_leaves_behind_an_upgrade_is_noticed(sidecar_of, upgrade, behind):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.gate.clear()
    client = await plain_client.connect(bench)
    await client.send(request(GET, *upgrade) + behind)
    await bench.predictor.received(1)
    assert not plain_client.is_at_rest(bench)
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))
    bench.predictor.gate.set()


@pytest.mark.looptime
async def test_a_websocket_that_is_answered_before_its_body_came_leaves_no_connection_behind(sidecar_of):
    bench = await sidecar_of(max_latency=0, max_connections=1)
    head = request(b"POST / HTTP/1.1", b"K-Network-Probe: queue", *WEBSOCKET, b"Content-Length: 1")
    for _ in range(3):
        assert await in_two(bench, head, b"x" + request(GET)) == ([200], True)


@pytest.mark.uvloop
@pytest.mark.parametrize(
    "last",
    [
        pytest.param(request(b"CONNECT a:1 HTTP/1.1"), id="CONNECT"),
        pytest.param(request(GET, *WEBSOCKET), id="WebSocket"),
        pytest.param(
            request(GET, *WEBSOCKET, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), id="WebSocket in chunks"
        ),
    ],
)
async def test_what_comes_behind_the_last_request_is_read_so_that_no_reset_takes_answers_away(sidecar_of, last):
    bench = await sidecar_of(max_latency=0)
    answer = b"x" * 1_000_000
    bench.predictor.behave = lambda seen, request: web.Response(body=answer)
    client = await plain_client.connect(bench, receive_buffer=16_384)
    # More than sockets hold: it can only be sent if it is read.
    await client.send(request(GET) * 2 + last + b"j" * 32_000_000)
    assert (await client.answer())[2] == answer
    assert (await client.answer())[2] == answer
    await client.rest()
    await client.leave()


SWITCH = b"HTTP/1.1 101 Go Ahead\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n"


@pytest.mark.looptime
@pytest.mark.parametrize("early", [b"", b"G", request(GET), request(GET) * 200])
@pytest.mark.parametrize("upgrade", [UPGRADE, WEBSOCKET])
async def test_what_is_sent_before_a_tunnel_is_open_goes_through_whole(sidecar_of, early, upgrade):
    tunnelled = asyncio.get_running_loop().create_future()

    async def switch(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(SWITCH % upgrade[1].removeprefix(b"Upgrade: "))
        tunnelled.set_result(await reader.read())
        writer.close()

    predictor = await asyncio.start_server(switch, "127.0.0.1", 0)
    port = predictor.sockets[0].getsockname()[1]
    bench = await sidecar_of(max_latency=0, component_port=port)
    async with predictor:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.port)
        writer.write(request(GET, *upgrade) + early)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(b"late")
        writer.write_eof()
        assert await reader.read() == b""
        assert await tunnelled == early + b"late"
        writer.close()
        await writer.wait_closed()


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("head", "statuses", "behind"),
    [
        pytest.param(request(b"POST /x HTTP/1.1", b"Transfer-Encoding: gzip, chunked"), [501], b"G", id="refused"),
        pytest.param(
            request(b"POST /x HTTP/1.1", b"K-Network-Probe: queue", b"Transfer-Encoding: chunked"),
            [200],
            b"zz\r\n",
            id="answered",
        ),
    ],
)
async def test_a_malformed_chunk_behind_an_answer_ends_the_connection(sidecar_of, caplog, head, statuses, behind):
    bench = await sidecar_of(max_latency=0)
    assert await in_two(bench, head, behind) == (statuses, True)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.looptime
@pytest.mark.parametrize("sent", [b"garbage\r\n\r\n", request(b"CONNECT a:1 HTTP/1.1")])
async def test_clients_that_go_on_sending_behind_their_last_answer_do_not_hold_up_the_shutdown(sidecar_of, sent):
    bench = await sidecar_of(max_latency=0)
    clients = [await plain_client.connect(bench) for _ in range(5)]
    for client in clients:
        await client.send(sent)
        assert (await client.answer())[0] == 400
        await client.send(b"more")
    started = asyncio.get_running_loop().time()
    assert await bench.sidecar.drain()
    await bench.sidecar.stop()
    assert asyncio.get_running_loop().time() - started < 0.1
    for client in clients:
        await client.leave()


@pytest.mark.looptime
@pytest.mark.parametrize(("pause", "seconds"), [(None, 2), (1.5, 30)])
async def test_a_connection_is_closed_behind_its_last_answer_when_its_client_is_quiet_or_has_had_time(
    sidecar_of, pause, seconds
):
    bench = await sidecar_of(max_latency=0)
    client = await plain_client.connect(bench)
    await client.send(request(b"CONNECT a:1 HTTP/1.1"))
    assert (await client.answer())[0] == 400
    started = asyncio.get_running_loop().time()
    while connections(bench):
        await asyncio.sleep(pause or 0.1)
        if pause and connections(bench):
            await client.send(b"more")
    assert seconds - 0.1 <= asyncio.get_running_loop().time() - started <= seconds + 2
    await client.leave()


def connections(bench) -> int:
    return bench.sidecar._http.crowd().open
