"""What time does to connections: idle ones are closed politely, silent and deaf ones without ceremony."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator

import pytest

from carpool_sidecar.server.http2 import frames, headers, limits, server, server_stream
from tests.server.http2 import echo, peer

LIMITS = limits.Limits(keep_alive=60.0, handshake=10.0, patience=20.0)
GREETING = frames.PREFACE + frames.settings({})
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Fountain:
    """Answers each request with more than a client that does not read will take."""

    def __init__(self) -> None:
        self.calls: list[peer.Call] = []

    def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
        self.calls.append(peer.Call(stream, head))
        stream.start(echo.HEAD)
        stream.send(bytes(64 * 1024 * 1024))
        return self.calls[-1]


@contextlib.asynccontextmanager
async def serving(door: server_stream.Service) -> AsyncIterator[server.Server]:
    opened = server.Server(door, LIMITS)
    await opened.listen("127.0.0.1", 0)
    yield opened
    await opened.close(1.0)


@pytest.fixture
async def here() -> AsyncIterator[server.Server]:
    async with serving(echo.Echo()) as opened:
        yield opened


@pytest.fixture
def fountain() -> Fountain:
    return Fountain()


@pytest.fixture
async def flowing(fountain: Fountain) -> AsyncIterator[server.Server]:
    async with serving(fountain) as opened:
        yield opened


async def connect(here: server.Server, text: bytes) -> Pair:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(text)
    return reader, writer


async def read_all(reader: asyncio.StreamReader) -> list[peer.Frame]:
    return peer.parse(await reader.read())


def seconds() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.looptime
async def test_an_idle_connection_is_warned_and_closed(here: server.Server) -> None:
    reader, writer = await connect(here, GREETING)
    began = seconds()
    found = await read_all(reader)
    assert 60 <= seconds() - began < 65
    assert [frame.kind for frame in found][-3:] == [frames.GOAWAY, frames.PING, frames.GOAWAY]
    writer.close()


@pytest.mark.looptime
async def test_a_connection_in_use_is_kept(here: server.Server) -> None:
    reader, writer = await connect(here, GREETING)
    client = peer.Peer()
    for number in range(1, 11, 2):
        await asyncio.sleep(50)
        writer.write(client.headers(number) + frames.frame(frames.DATA, frames.END_STREAM, number, b"x"))
    await asyncio.sleep(30)
    assert here.open == 1
    found = await read_all(reader)
    assert sum(frame.kind == frames.DATA for frame in found) == 5
    writer.close()


@pytest.mark.looptime
@pytest.mark.parametrize("text", [b"", frames.PREFACE[:10]])
async def test_a_client_that_does_not_introduce_itself_is_closed(here: server.Server, text: bytes) -> None:
    reader, writer = await connect(here, text)
    began = seconds()
    *_, farewell = await read_all(reader)
    assert 10 <= seconds() - began < 13
    assert farewell.kind == frames.GOAWAY
    assert int.from_bytes(farewell.payload[:4]) == 0, "what it may have sent by then was not seen"
    writer.close()


@pytest.mark.looptime
async def test_who_connects_to_a_server_that_leaves_is_served_for_a_second_and_then_warned(here: server.Server) -> None:
    here.goaway()
    reader, writer = await connect(here, GREETING)
    began = seconds()
    await asyncio.sleep(0.9)
    writer.write(peer.Peer().headers(1) + frames.frame(frames.DATA, frames.END_STREAM, 1, b"x"))
    found = await read_all(reader)
    assert 1 < seconds() - began < 5
    kinds = [frame.kind for frame in found]
    assert kinds.index(frames.DATA) < kinds.index(frames.GOAWAY)
    writer.close()


@pytest.mark.looptime
async def test_a_request_that_is_under_way_when_the_server_leaves_is_answered_also_if_it_is_the_clients_first_word(
    here: server.Server,
) -> None:
    """Without GOAWAY its client could not know whether it may send it once more: for grpcio the call has failed."""
    reader, writer = await connect(here, b"")
    await peer.until(lambda: here.open, step=0.01)
    here.goaway()
    writer.write(GREETING + peer.Peer().headers(1) + frames.frame(frames.DATA, frames.END_STREAM, 1, b"x"))
    found = await read_all(reader)
    assert [frame.kind for frame in found if frame.stream] == [frames.HEADERS, frames.DATA, frames.HEADERS]
    assert found[-1].kind == frames.GOAWAY
    assert int.from_bytes(found[-1].payload[:4]) == 1
    writer.close()


@pytest.mark.looptime
async def test_a_server_turns_everybody_away_once_they_know(here: server.Server) -> None:
    reader, writer = await connect(here, GREETING)
    await reader.read(9)
    port = here.port
    turning_away = asyncio.ensure_future(here.turn_away())
    await asyncio.sleep(0.5)
    assert not turning_away.done(), "calls that the client sent before it knew are still to come"
    writer.write(frames.frame(frames.PING, frames.ACK, 0, b"farewell"))
    await turning_away
    assert seconds() < 1.1
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.close()


@pytest.mark.looptime
async def test_a_client_that_does_not_say_whether_it_knows_is_not_waited_for(here: server.Server) -> None:
    _, writer = await connect(here, GREETING + peer.Peer().headers(1))
    await peer.until(lambda: here.open, step=0.01)
    await asyncio.sleep(0.1)
    began = seconds()
    await here.turn_away()
    assert 1 <= seconds() - began <= 1.6
    assert here.open == 1, "what it asked before is still answered"
    writer.close()


async def test_a_client_that_leaves_is_forgotten(here: server.Server) -> None:
    reader, writer = await connect(here, GREETING)
    await reader.read(9)
    assert here.open == 1
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(5):
        await peer.until(lambda: not here.open)


class Transport(asyncio.Transport):
    """A connection whose client reads all that it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_cut

    def write_eof(self) -> None:
        pass

    def abort(self) -> None:
        self.is_cut = True


class Reset(Transport):
    """A connection that its client has reset, which nobody has noticed yet."""

    def write_eof(self) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


async def test_a_client_that_resets_its_connection_as_the_server_ends_it_is_no_bug() -> None:
    reported: list[Exception] = []
    here = server.Server(echo.Echo(), report=reported.append)
    await here.listen("127.0.0.1", 0)
    client, transport = server.ServerProtocol(here), Reset()
    client.connection_made(transport)
    client.connection.close_to_new_streams()
    client.leave()
    assert transport.is_cut
    client.connection_lost(None)
    await here.close(1.0)
    assert reported == []


async def test_an_error_of_the_client_is_told_before_the_connection_closes(here: server.Server) -> None:
    reader, writer = await connect(here, b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
    async with asyncio.timeout(5):
        *_, farewell = await read_all(reader)
    assert farewell.kind == frames.GOAWAY
    assert b"prior knowledge" in farewell.payload
    writer.close()


async def test_what_crosses_the_servers_last_word_is_dropped_and_cuts_nobody_off_until_it_is_a_flood() -> None:
    here = server.Server(peer.Notes())
    await here.listen("127.0.0.1", 0)
    client, transport = server.ServerProtocol(here), Transport()
    client.connection_made(transport)
    client.data_received(frames.PREFACE + frames.settings({}) + frames.frame(frames.PING, 0, 1, bytes(8)))
    client.data_received(bytes(100_000))
    assert not transport.is_cut
    client.data_received(bytes(1_000_000))
    assert transport.is_cut
    client.connection_lost(None)
    await here.close(1.0)


@pytest.mark.looptime
async def test_a_deaf_client_is_cut_off_and_its_calls_are_cancelled(fountain: Fountain, flowing: server.Server) -> None:
    deaf = socket.create_connection(("127.0.0.1", flowing.port))
    client = peer.Peer()
    wide = frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}) + frames.window_update(0, 2**30)
    deaf.sendall(frames.PREFACE + wide + client.headers(1))
    await peer.until(lambda: fountain.calls)
    began = seconds()
    await peer.until(lambda: not flowing.open, step=1)
    assert 20 <= seconds() - began < 25
    assert fountain.calls[0].events == ["cancelled"]
    deaf.close()


@pytest.mark.looptime
async def test_a_deaf_client_that_gives_no_window_is_cut_off_too(fountain: Fountain, flowing: server.Server) -> None:
    reader, writer = await connect(flowing, GREETING + peer.Peer().headers(1))
    await peer.until(lambda: fountain.calls)
    writer.write(frames.window_update(1, 2**30))
    began = seconds()
    await reader.read()
    assert 20 <= seconds() - began < 25
    writer.close()


@pytest.mark.looptime
async def test_how_long_a_client_may_read_nothing_can_change_meanwhile(fountain: Fountain) -> None:
    patience = [1000.0]
    here = server.Server(fountain, LIMITS, patience=lambda: patience[0])
    await here.listen("127.0.0.1", 0)
    reader, writer = await connect(here, GREETING + peer.Peer().headers(1))
    await peer.until(lambda: fountain.calls)
    writer.write(frames.window_update(1, 2**30))
    await asyncio.sleep(100)
    assert here.open == 1
    patience[0] = 5.0
    await reader.read()
    assert seconds() < 105
    writer.close()
    await here.close(0.1)


async def test_a_port_that_is_taken_is_an_error(here: server.Server) -> None:
    with pytest.raises(OSError, match="in use"):
        await server.Server(echo.Echo()).listen("127.0.0.1", here.port)
