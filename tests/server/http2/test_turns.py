"""One client's flood holds nobody else up: what a turn does is bounded, and the turns go round."""

from __future__ import annotations

import asyncio

import hpack
import pytest

from carpool.scheduling import ledger
from carpool_sidecar.server.http2 import frames, headers, limits, server, server_stream
from tests.server.http2 import echo, peer

END = frames.END_STREAM
GREETING = frames.PREFACE + frames.settings({})


def test_a_turn_opens_a_bounded_number_of_streams_however_many_came_at_once() -> None:
    client = peer.Peer().begin()
    block = client.encoder.encode(peer.POST)
    text = b"".join(frames.headers(number, block, END, 2**20) for number in range(1, 1001, 2))
    client.connection.feed(text)
    opened = []
    while client.connection.has_more:
        before = len(client.notes.calls)
        client.connection.go_on()
        opened.append(len(client.notes.calls) - before)
    assert sum(opened) == 500
    assert max(opened) <= 32


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (frames.frame(frames.PING, 0, 0, bytes(8)) * 1500, 300),
        (frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 70_000}) * 60, 10),
        (frames.frame(frames.DATA, 0, 1, bytes(16_000)) * 16, 5),
    ],
    ids=["frames", "windows of many streams", "bytes"],
)
def test_a_turn_deals_with_a_bounded_number_of_frames(text: bytes, most: int) -> None:
    client = peer.Peer().begin()
    client.say(*(client.headers(number) for number in range(1, 101, 2)))
    count = len(peer.parse(text))
    client.say(text)
    assert client.turns >= count / most
    assert not client.connection.is_done


def test_what_came_last_is_dealt_with_last_and_nothing_is_lost() -> None:
    client = peer.Peer(echo.Echo()).begin()
    bodies = {number: bytes([number % 251]) * number for number in range(1, 400, 2)}
    parts = [client.headers(number) + frames.frame(frames.DATA, END, number, body) for number, body in bodies.items()]
    found = client.say(*parts)
    assert client.turns > 5
    assert [frame.payload for frame in found if frame.kind == frames.DATA] == list(bodies.values())


def test_a_lost_connection_with_many_streams_is_cleared_away_in_turns() -> None:
    client = peer.Peer().begin()
    client.say(*(client.headers(number) for number in range(1, 1001, 2)))
    client.connection.lost()
    gone = [call for call in client.notes.calls if call.events]
    assert 0 < len(gone) <= 32
    while client.connection.has_more:
        client.connection.go_on()
    assert [call.events for call in client.notes.calls] == [["cancelled"]] * 500
    assert not client.connection.streams


class Worker:
    """A client with so many turns of work."""

    def __init__(self, shared: limits.Turns, name: str, count: int, log: list[str]) -> None:
        self.shared, self.name, self.count, self.log = shared, name, count, log
        shared.wait(self)

    def take_turn(self) -> None:
        self.log.append(self.name)
        self.count -= 1
        self.shared.spend(128)
        if self.count:
            self.shared.wait(self)


async def test_turns_go_round_and_the_loop_does_other_things_in_between() -> None:
    shared = limits.Turns(asyncio.get_running_loop().call_soon)
    log: list[str] = []
    for name in "abcde":
        Worker(shared, name, 3, log)
    rounds = []
    while len(log) < 15:
        before = len(log)
        await asyncio.sleep(0)
        rounds.append(len(log) - before)
    assert "".join(log) == "abcde" * 3
    assert max(rounds) <= 4


@pytest.mark.both_loops
async def test_a_call_is_answered_in_the_midst_of_anothers_flood() -> None:
    here = server.Server(echo.Echo(), limits.Limits(idle_frames=10**9, resets=10**9))
    await here.listen("127.0.0.1", 0)
    _, flood = await asyncio.open_connection("127.0.0.1", here.port)
    flood.write(GREETING)
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(GREETING)
    await reader.readexactly(9)
    flood.write(frames.frame(frames.PRIORITY, 0, 1, b"\0\0\0\0\x10") * 500_000)
    client = peer.Peer()
    async with asyncio.timeout(10):
        for number in range(1, 41, 2):
            writer.write(client.headers(number) + frames.frame(frames.DATA, END, number, b"%04d" % number))
            while b"%04d" % number not in await reader.read(10_000):
                pass
    assert flood.transport.get_write_buffer_size() > 0, "the flood was over before the calls were"
    for each in (flood, writer):
        each.transport.abort()
    await here.close(1.0)


async def test_a_bug_of_the_server_is_reported_and_costs_one_connection() -> None:
    def fail() -> None:
        memory.on_large = None
        raise ValueError("a bug")

    caught: list[Exception] = []
    door, memory = peer.Notes(), ledger.Ledger()
    here = server.Server(door, report=caught.append, memory=memory)
    await here.listen("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(GREETING + peer.Peer().headers(1))
    await peer.until(lambda: door.calls)
    memory.on_large = fail  # the server tells it of large frames
    writer.write(frames.frame(frames.DATA, 0, 1, bytes(frames.LEAST_MAX_FRAME)))
    async with asyncio.timeout(5):
        await peer.until(lambda: not here.open)
    assert [str(error) for error in caught] == ["a bug"]
    assert door.calls[0].events == ["cancelled"]
    writer.close()
    await here.close(1.0)


async def test_who_broke_a_rule_and_goes_on_sending_is_cut_off() -> None:
    here = server.Server(peer.Notes())
    await here.listen("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(GREETING + frames.frame(frames.PING, 0, 1, bytes(8)))
    async with asyncio.timeout(5):
        while here.open:
            writer.write(bytes(100_000))
            await asyncio.sleep(0)
    writer.close()
    await here.close(1.0)


def test_the_door_answers_while_streams_wait_for_their_turn() -> None:
    class Door(peer.Notes):
        def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
            stream.finish((*peer.HEAD, *peer.OK))
            return super().open(stream, head)

    client = peer.Peer(Door()).begin()
    client.connection.feed(b"".join(client.headers(number, END) for number in range(1, 1001, 2)))
    client.connection.go_on()
    assert client.connection.has_more
    assert 0 < len(client.read()) <= 32


def test_a_turn_reads_a_bounded_number_of_bytes_of_fields_however_few_bytes_say_them() -> None:
    client = peer.Peer().begin()
    entry = hpack.Encoder().encode([(b"x", b"y" * 4000)], huffman=False)
    block = headers.block(peer.POST)
    client.receive(frames.headers(1, block + entry, END, 2**20))
    references = block + b"\xbe" * 14  # the newest entry of the table
    client.connection.feed(b"".join(frames.headers(number, references, END, 2**20) for number in range(3, 403, 2)))
    said = []
    while client.connection.has_more:
        before = len(client.notes.calls)
        client.connection.go_on()
        new = client.notes.calls[before:]
        said.append(sum(len(value) for call in new for _, value in call.head.headers))
    assert sum(said) >= 200 * 14 * 4000
    assert max(said) <= 150_000


def test_a_turn_ends_the_sooner_for_what_handlers_say_that_a_call_costs() -> None:
    class Door(peer.Notes):
        def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
            stream.charge(64)
            return super().open(stream, head)

    door = Door()
    client = peer.Peer(door).begin()
    client.connection.feed(b"".join(client.headers(number, END) for number in range(1, 101, 2)))
    opened = []
    while client.connection.has_more:
        before = len(door.calls)
        client.connection.go_on()
        opened.append(len(door.calls) - before)
    assert sum(opened) == 50
    assert max(opened) <= 4
