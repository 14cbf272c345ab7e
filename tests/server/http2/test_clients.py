"""Real clients: grpcio's, blocking and asyncio, for all kinds of calls, on both event loops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from carpool_sidecar.server.http2 import headers, server, server_stream
from tests.server.http2 import echo, peer

pytestmark = pytest.mark.both_loops
PATIENCE = 5.0


@pytest.fixture
async def served() -> AsyncIterator[server.Server]:
    here = server.Server(echo.Echo())
    await here.listen("127.0.0.1", 0, backlog=256)
    yield here
    await here.close(PATIENCE)


@pytest.fixture
async def channel(served: server.Server) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options=options) as opened:
        yield opened


async def test_unary_calls_of_all_sizes_come_back(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/echo/Unary")
    for size in (0, 1, 16_379, 16_380, 65_531, 1_000_000, 9_000_000):
        assert await call(bytes(size), timeout=PATIENCE) == bytes(size)


async def test_many_calls_at_once_get_their_own_answers(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/echo/Unary")
    bodies = [bytes([at % 256]) * (at * 37 % 5000) for at in range(300)]
    assert await asyncio.gather(*(call(body, timeout=PATIENCE) for body in bodies)) == bodies


async def test_large_calls_share_the_connection(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/echo/Unary")
    bodies = [bytes([at]) * 3_000_000 for at in range(8)]
    assert await asyncio.gather(*(call(body, timeout=PATIENCE) for body in bodies)) == bodies


async def test_streams_both_ways_keep_order_and_bytes(channel: grpc.aio.Channel) -> None:
    messages = [bytes([at]) * (at * 4001) for at in range(60)]
    call = channel.stream_stream("/echo/Stream")(iter(messages), timeout=PATIENCE)
    assert [message async for message in call] == messages


async def test_a_slow_reader_gets_everything(channel: grpc.aio.Channel) -> None:
    messages = [bytes([at]) * 500_000 for at in range(20)]
    call = channel.stream_stream("/echo/Stream")(iter(messages), timeout=PATIENCE)
    for message in messages:
        await asyncio.sleep(0.005)
        assert await call.read() == message


async def test_half_streamed_calls_work(channel: grpc.aio.Channel) -> None:
    call = channel.unary_stream("/echo/Stream")(b"only", timeout=PATIENCE)
    assert [message async for message in call] == [b"only"]
    assert await channel.stream_unary("/echo/Unary")(iter([b"one"]), timeout=PATIENCE) == b"one"


async def test_a_blocking_client_is_served(served: server.Server) -> None:
    def work() -> list[bytes]:
        with grpc.insecure_channel(f"127.0.0.1:{served.port}") as channel:
            call = channel.unary_unary("/echo/Unary")
            return [call(bytes([at]) * at, timeout=PATIENCE) for at in range(100)]

    assert await asyncio.to_thread(work) == [bytes([at]) * at for at in range(100)]


class Silent:
    """Never answers; notes who was cancelled."""

    def __init__(self) -> None:
        self.opened = 0
        self.gone = asyncio.Event()

    def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
        self.opened += 1
        return self

    def data(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        pass

    def cancelled(self) -> None:
        self.gone.set()

    def writable(self) -> None:
        pass


async def test_a_deadline_or_a_cancelled_call_reaches_the_handler() -> None:
    door = Silent()
    here = server.Server(door)
    await here.listen("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{here.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/silent/Call")(b"", timeout=0.1)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(PATIENCE):
            await door.gone.wait()
    await here.close(PATIENCE)
    assert here.open == 0


async def test_hundreds_who_connect_at_once_are_let_in_within_few_turns(served: server.Server) -> None:
    clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(200)]
    for _ in range(40):
        await asyncio.sleep(0)
    let_in = served.open
    for client in clients:
        client.close()
    assert let_in == 200


async def test_streams_are_counted(served: server.Server, channel: grpc.aio.Channel) -> None:
    for _ in range(3):
        await channel.unary_unary("/echo/Unary")(b"", timeout=PATIENCE)
    assert served.asked == 3


async def test_a_server_that_leaves_finishes_what_runs_and_clients_come_back(
    served: server.Server, channel: grpc.aio.Channel
) -> None:
    call = channel.unary_unary("/late")
    running = [asyncio.ensure_future(call(b"", timeout=PATIENCE)) for _ in range(20)]
    await peer.until(lambda: served.open)
    await asyncio.sleep(0.02)
    served.goaway()
    assert len(await asyncio.gather(*running)) == 20
    assert await channel.unary_unary("/echo/Unary")(b"again", timeout=PATIENCE) == b"again"


async def test_no_call_fails_while_the_server_keeps_leaving(served: server.Server, channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/echo/Unary")

    async def work() -> None:
        for at in range(100):
            assert await call(bytes(at), timeout=PATIENCE) == bytes(at)

    async def leave() -> None:
        for _ in range(10):
            await asyncio.sleep(0.01)
            served.goaway()

    await asyncio.gather(work(), work(), work(), leave())


async def test_close_cancels_what_does_not_end_in_time() -> None:
    door = Silent()
    here = server.Server(door)
    await here.listen("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{here.port}") as channel:
        running = asyncio.ensure_future(channel.unary_unary("/silent/Call")(b"", timeout=PATIENCE))
        await peer.until(lambda: door.opened)
        await here.close(0.05)
        assert door.gone.is_set()
        assert here.open == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await running
