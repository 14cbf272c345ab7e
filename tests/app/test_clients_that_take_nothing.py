"""Clients that send and never read lose their connections on every port; slow readers and idle ones do not."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import socket
import struct
import termios
import time

import pytest
from aiohttp import web

from tests.app import plain_client
from tests.app.plain_client import GET, connections, is_at_rest, request, until

pytestmark = pytest.mark.looptime

TIMEOUT = 3  # seconds
LONGEST = 20 * TIMEOUT  # the kernel of a client takes a little now and then at first, in its own time
LONG = '{"instances":["%s"]}' % ("x" * 50_000)
"""Its answer is one that nobody waits for: it fits into the transport's buffer, or the kernel's."""

LARGE = '{"instances":["%s"]}' % ("x" * 4_000_000)
PASSED = b"POST /v1/other HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000
MANY = 100  # whose answers are more than sockets hold
EXPECTED = "Expect: 100-continue"
SWITCH = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"


@pytest.fixture
async def bench(sidecar_of):
    """Three seconds to take something; idle connections stay."""
    return await sidecar_of(timeout=TIMEOUT, max_latency=0, keep_alive=80_000)


async def send(port, data, times, receive_buffer=4096):
    """A client that sends so many of these, as long as the server takes them, and reads nothing."""
    end = socket.socket()
    if receive_buffer is not None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    end.connect(("127.0.0.1", port))
    end.setblocking(False)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(1):
            for _ in range(times):
                await loop.sock_sendall(end, data)
    return end


async def kernels_are_still(end):
    """Wait until a client's kernel takes no more: in its own time, of which the loop's would pass far more."""
    before, waiting = -1, 0
    while waiting != before:
        before = waiting
        for _ in range(50):
            time.sleep(0.01)  # noqa: ASYNC251
            await asyncio.sleep(0)
        [waiting] = struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, bytes(4)))


async def is_cut_off(bench):
    """Wait until the only client has lost its connection."""
    await until(lambda: bench.sidecar.connection_limit.open == 1)
    async with asyncio.timeout(LONGEST):
        while bench.sidecar.connection_limit.open:  # noqa: ASYNC110
            await asyncio.sleep(0.5)


def give_large(seen, request):
    """What the predictor answers to `PASSED`."""
    return web.Response(body=io.BytesIO(LARGE.encode())) if seen.target == "/v1/other" else None


async def is_ended(end):
    """Whether the server has ended a connection, which nobody has read from."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(1):
            while await loop.sock_recv(end, 65536):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("times", [1, MANY])
@pytest.mark.parametrize(
    "data",
    [request(LONG), request(LONG, EXPECTED), PASSED, GET, GET.replace(b"Host", b"Cookie: a\r\nHost")],
    ids=["plain", "unusual", "passed on", "question", "unusual question"],
)
async def test_who_takes_nothing_loses_its_connection_though_idle_ones_stay_for_long(
    sidecar_of, predictor, data, times
):
    predictor.behave = lambda seen, request: web.Response(body=b"x" * 50_000) if seen.method == "GET" else None
    bench = await sidecar_of(timeout=TIMEOUT, max_latency=0, keep_alive=80_000, max_connections=1)
    end = await send(bench.sidecar.settings.port, data, times)
    await is_cut_off(bench)
    assert (await bench.post('{"instances":[1]}'))[0] == 200
    assert await is_ended(end)
    await until(lambda: is_at_rest(bench))
    end.close()


@pytest.mark.parametrize("lines", [(), (EXPECTED,)], ids=["plain", "unusual"])
async def test_who_reads_slowly_is_served_to_the_end(bench, lines):
    end = await send(bench.sidecar.settings.port, request(LONG, *lines), 1)
    loop, read = asyncio.get_running_loop(), 0
    while read < 50_000:
        await asyncio.sleep(TIMEOUT / 2)
        read += len(await loop.sock_recv(end, 4096))
    assert loop.time() > 5 * TIMEOUT
    end.close()
    await until(lambda: bench.sidecar.connection_limit.open == 0)


@pytest.mark.parametrize("receive_buffer", [None, 65536])
@pytest.mark.parametrize(
    ("data", "rate"),
    [(PASSED, 8 * 1024), (request(LARGE), 96 * 1024), (request(LARGE, EXPECTED), 96 * 1024)],
    ids=["passed on", "plain", "unusual"],
)
async def test_who_reads_all_the_time_is_served_to_the_end_though_the_kernel_takes_bytes_in_steps(
    sidecar_of, predictor, data, rate, receive_buffer
):
    predictor.behave = give_large
    bench = await sidecar_of(timeout=TIMEOUT, max_latency=0)
    end = await send(bench.sidecar.settings.port, data, 1, receive_buffer)
    loop, read = asyncio.get_running_loop(), 0
    while read < len(LARGE):
        await asyncio.sleep(1)
        piece = await loop.sock_recv(end, rate)
        assert piece
        read += len(piece)
    assert loop.time() > 10 * TIMEOUT
    end.close()
    await until(lambda: bench.sidecar.connection_limit.open == 0)


def what_kernels_take(of_server, of_client):
    """Bytes that a client who reads nothing is sent, with buffers of such sizes."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, of_client)
        client.connect(listening.getsockname())
        server, _ = listening.accept()
        with server, contextlib.suppress(BlockingIOError):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, of_server)
            server.setblocking(False)
            taken = 0
            while True:
                taken += server.send(bytes(65536))
    return taken


@pytest.mark.parametrize("rate", [8 * 1024, 96 * 1024])
async def test_who_reads_all_the_time_is_served_an_end_that_waits_behind_much_that_the_kernel_has(
    sidecar_of, predictor, rate
):
    of_server, of_client = 1024 * 1024, 64 * 1024
    size = what_kernels_take(of_server, of_client) + 150_000
    predictor.behave = lambda seen, request: web.Response(body=b"x" * size)
    bench = await sidecar_of(timeout=TIMEOUT, max_latency=0)
    end = await send(bench.sidecar.settings.port, b"", 1, of_client)
    await until(lambda: connections(bench) == 1)
    [connection] = bench.sidecar._http._connections
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, of_server)
    loop, read = asyncio.get_running_loop(), 0
    await loop.sock_sendall(end, PASSED)
    while read < size:
        await asyncio.sleep(1)
        piece = await loop.sock_recv(end, rate)
        assert piece
        read += len(piece)
    assert connections(bench) == 1
    end.close()
    await until(lambda: connections(bench) == 0)


@pytest.mark.parametrize("data", [PASSED, request(LARGE)], ids=["passed on", "batched"])
async def test_who_stops_reading_is_cut_off_within_half_a_minute_and_its_timeout(sidecar_of, predictor, data):
    predictor.behave = give_large
    bench = await sidecar_of(timeout=TIMEOUT, max_latency=0)
    end = await send(bench.sidecar.settings.port, data, 1, None)
    loop, read = asyncio.get_running_loop(), 0
    while read < len(LARGE) // 4:
        piece = await loop.sock_recv(end, 65536)
        assert piece
        read += len(piece)
    await kernels_are_still(end)
    begun = loop.time()
    await is_cut_off(bench)
    assert loop.time() - begun < TIMEOUT + 34
    end.close()


async def test_an_answer_that_was_taken_leaves_an_idle_connection_that_stays(bench):
    client = await plain_client.connect(bench)
    for sent in (request(LONG), request(LONG, EXPECTED), GET):
        await client.send(sent)
        with contextlib.suppress(ValueError):
            await client.answer()
        await asyncio.sleep(10 * TIMEOUT)
    assert bench.sidecar.connection_limit.open == 1
    await client.leave()
    await until(lambda: bench.sidecar.connection_limit.open == 0)


async def test_a_stream_of_events_with_nothing_to_tell_stays(bench, predictor):
    told = asyncio.Event()

    async def stream(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await told.wait()
        await response.write(b"data: 2\n\n")
        return response

    predictor.handle_stream = stream
    client = await plain_client.connect(bench)
    await client.send(GET.replace(b"/v1/models", b"/events"))
    await client._reader.readuntil(b"data: 1\n\n")
    await asyncio.sleep(20 * TIMEOUT)
    assert bench.sidecar.connection_limit.open == 1
    told.set()
    assert (await client._reader.readuntil(b"data: 2\n\n")).endswith(b"data: 2\n\n")
    await client.leave()
    await until(lambda: bench.sidecar.connection_limit.open == 0)


async def test_who_takes_nothing_of_a_stream_of_events_loses_it(bench, predictor):
    async def stream(request):
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"data: %b\n\n" % (b"x" * 1000))
                await asyncio.sleep(0.01)
        return response

    predictor.handle_stream = stream
    end = await send(bench.sidecar.settings.port, GET.replace(b"/v1/models", b"/events"), 1)
    await until(lambda: bench.sidecar.connection_limit.open == 1)
    await is_cut_off(bench)
    end.close()


async def test_who_takes_nothing_of_a_tunnel_loses_it(sidecar_of):
    async def switch(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Go Ahead\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n" + b"x" * 20_000)
            await reader.read()
        writer.close()

    async with await asyncio.start_server(switch, "127.0.0.1", 0) as predictor:
        bench = await sidecar_of(component_port=predictor.sockets[0].getsockname()[1], timeout=TIMEOUT, max_latency=0)
        end = await send(bench.sidecar.settings.port, SWITCH, 1)
        await until(lambda: len(bench.sidecar._relays.tunnels) == 1)
        await is_cut_off(bench)
        await until(lambda: len(bench.sidecar._relays.tunnels) == 0)
        end.close()


@pytest.mark.parametrize("times", [1, 4 * MANY])
async def test_who_takes_nothing_of_the_admin_port_loses_its_connection(bench, times):
    asked = GET.replace(b"/v1/models", b"/metrics")
    end = await send(bench.sidecar.settings.admin_port, asked, times)
    await asyncio.sleep(LONGEST)
    assert await is_ended(end)
    end.close()


@pytest.mark.parametrize(
    "data", [request(LONG), request(LONG, EXPECTED), PASSED], ids=["plain", "expected", "passed on"]
)
async def test_answers_that_nobody_takes_do_not_pile_up(sidecar_of, data):
    bench = await sidecar_of(timeout=TIMEOUT, max_latency=0)
    end = await send(bench.sidecar.settings.port, data, MANY)
    await asyncio.sleep(0.5)
    [(_, transport, _)] = bench.sidecar._unread._clients
    assert 0 < transport.get_write_buffer_size() < 200_000
    await is_cut_off(bench)
    end.close()
