"""Answers that nobody reads are counted, bounded, and cut, and what was counted always comes back."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import ledger
from carpool_sidecar.server.http2 import frames, headers, limits, server, server_stream
from tests.server.http2 import echo, peer

MB = 1_000_000


class Memory(ledger.Ledger):
    """A small one; `told` counts how often it was told of large answers."""

    def __init__(self, most: int = 10 * MB) -> None:
        super().__init__(most)
        self.told = 0
        self.large, self.on_large = 64 * 1024, self._on_large

    def _on_large(self) -> None:
        self.told += 1


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def client(memory: Memory) -> peer.Peer:
    return peer.Peer(memory=memory).begin(initial_window_size=0)


def resets(found: list[peer.Frame]) -> list[tuple[int, int]]:
    return [(frame.stream, frame.word) for frame in found if frame.kind == frames.RST_STREAM]


def test_an_answer_counts_whole_until_its_last_byte_is_taken(client: peer.Peer, memory: Memory) -> None:
    client.call(1).stream.answer(peer.HEAD, bytes(60_000), peer.OK)
    assert memory.held == 60_000
    client.say(frames.window_update(1, 59_999))
    assert memory.held == 60_000
    client.say(frames.window_update(1, 1))
    assert memory.held == 0


def test_pieces_of_a_stream_count_until_each_is_taken(client: peer.Peer, memory: Memory) -> None:
    stream = client.call(1).stream
    stream.start(peer.HEAD)
    for _ in range(3):
        stream.send(bytes(1000))
    client.say(frames.window_update(1, 1500))
    assert memory.held == 2000
    stream.reset(frames.Code.INTERNAL_ERROR)
    assert memory.held == 0


@pytest.mark.parametrize("end", ["reset", "lost", "fault"])
def test_what_waits_is_forgotten_with_its_stream_or_connection(client: peer.Peer, memory: Memory, end: str) -> None:
    for number in range(1, 201, 2):
        client.call(number).stream.answer(peer.HEAD, bytes(70_000), peer.OK)
    assert memory.held == 100 * 70_000
    if end == "reset":
        client.say(*(frames.rst_stream(number, 8) for number in range(1, 201, 2)))
    elif end == "fault":
        client.say(frames.frame(frames.PING, 0, 1, bytes(8)))
    else:
        client.connection.lost()
        client.receive(b"")
    assert memory.held == 0
    assert memory.told >= 100


def test_no_more_waits_for_a_client_than_the_memory_has_room_for(client: peer.Peer, memory: Memory) -> None:
    calls = [client.call(number) for number in range(1, 301, 2)]
    for call in calls:
        call.stream.answer(peer.HEAD, bytes(3 * MB), peer.OK)
    assert memory.held <= memory.limit
    assert resets(client.read()) == [(number, frames.Code.ENHANCE_YOUR_CALM) for number in range(7, 301, 2)]


def test_a_stream_that_may_not_wait_is_told_so(client: peer.Peer, memory: Memory) -> None:
    calls = [client.call(number) for number in range(1, 21, 2)]
    for call in calls:
        call.stream.start(peer.HEAD)
        call.stream.send(bytes(3 * MB))
        call.stream.send(b"more")
    assert memory.held <= memory.limit
    assert [call.events for call in calls] == [["end"]] * 3 + [["end", "cancelled"]] * 7


def test_who_reads_loses_nothing_to_who_does_not(client: peer.Peer, memory: Memory) -> None:
    for number in range(1, 41, 2):
        client.call(number).stream.answer(peer.HEAD, bytes(3 * MB), peer.OK)
    other = peer.Peer(memory=memory).begin(initial_window_size=500_000)
    for number in range(1, 41, 2):
        other.call(number).stream.answer(peer.HEAD, bytes(500_000), peer.OK)
        found = other.say(frames.window_update(0, 500_000))
        assert sum(len(frame.payload) for frame in found if frame.kind == frames.DATA) >= 434_000
        assert not resets(found)


def test_when_memory_is_short_slow_clients_have_seconds_and_streams_are_cut_too(memory: Memory) -> None:
    client = peer.Peer(memory=memory).begin(initial_window_size=0)
    client.call(1).stream.answer(peer.HEAD, bytes(100_000), peer.OK)
    call = client.call(3)
    call.stream.start(peer.HEAD)
    call.stream.send(bytes(100_000))
    for now in (0.0, 5.0, 20.0):
        client.connection.cut_slow(now, patience=30)
    assert not resets(client.read())
    memory.held += 6 * MB
    client.connection.cut_slow(21.0, patience=30)
    assert [number for number, _ in resets(client.read())] == [1, 3]
    assert call.events == ["end", "cancelled"]
    assert memory.held == 6 * MB


def test_a_stream_that_its_client_reads_at_leisure_is_not_cut_while_there_is_memory(client: peer.Peer) -> None:
    call = client.call(1)
    call.stream.start(peer.HEAD)
    call.stream.send(bytes(100_000))
    for now in (0.0, 50.0, 500.0):
        client.connection.cut_slow(now, patience=30)
    assert call.events == ["end"]


def test_when_much_is_unread_all_streams_of_the_client_are_to_bring_no_more_until_it_has_read(
    client: peer.Peer,
) -> None:
    waiting = client.call(1)
    assert not waiting.stream.is_blocked
    for number in (3, 5, 7):
        client.call(number).stream.answer(peer.HEAD, bytes(3 * MB), peer.OK)
    assert waiting.stream.is_blocked
    client.say(frames.rst_stream(3, 8))
    assert waiting.events == ["end"]  # 6 MB are no little
    client.say(frames.rst_stream(5, 8))
    assert waiting.events == ["end", "writable"]
    assert not waiting.stream.is_blocked


def test_who_waits_for_others_of_its_client_to_be_read_is_cut_in_the_end(client: peer.Peer, memory: Memory) -> None:
    waiting, patient = client.call(1), client.call(3)
    assert not patient.stream.is_blocked
    unread_answers = [client.call(number) for number in (5, 7, 9)]
    for each in unread_answers:
        each.stream.start(peer.HEAD)
        each.stream.send(bytes(3 * MB))  # a stream that its client reads at leisure
    assert waiting.stream.is_blocked
    memory.limit = 100 * MB
    for now in (0.0, 50.0, 157.0):
        client.connection.cut_slow(now, patience=30)
        assert waiting.events == ["end"]
    client.connection.cut_slow(159.0, patience=30)
    assert waiting.events == ["end", "cancelled"]
    assert patient.events == ["end"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answer", "send", "widen", "all", "reset", "cut"]), st.integers(0, 5), st.integers(1, 900)
        ),
        max_size=40,
    )
)
def test_the_count_is_never_below_what_waits_and_nothing_remains(steps: list[tuple[str, int, int]]) -> None:
    memory = Memory(3000)
    client = peer.Peer(memory=memory).begin(initial_window_size=0)
    calls = [client.call(2 * at + 1) for at in range(6)]
    for call in calls[:3]:
        call.stream.start(peer.HEAD)
    for now, (what, at, size) in enumerate(steps):
        if what == "answer":
            calls[at].stream.finish(peer.OK) if at < 3 else calls[at].stream.answer(peer.HEAD, bytes(size), peer.OK)
        elif what == "send" and at < 3:
            calls[at].stream.send(bytes(size))
        elif what == "widen":
            client.say(frames.window_update(2 * at + 1, size))
        elif what == "all":
            client.say(frames.window_update(0, size))
        elif what == "reset":
            client.say(frames.rst_stream(2 * at + 1, 8))
        else:
            client.connection.cut_slow(float(now), patience=3)
        waiting = sum(each.unsent_size for each in client.connection.streams.values())
        assert waiting <= memory.held == client.connection.sender.unread.size
    client.connection.lost()
    assert memory.held == 0


class Fountain(peer.Notes):
    """Answers each request with more than a client that does not read will take."""

    def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
        stream.start(echo.HEAD)
        stream.send(bytes(64 * MB))
        return super().open(stream, head)


@pytest.mark.looptime
async def test_what_the_socket_does_not_take_is_counted_until_its_client_is_cut_off() -> None:
    memory = Memory(200 * MB)
    here = server.Server(Fountain(), limits.Limits(patience=20.0), memory=memory)
    await here.listen("127.0.0.1", 0)
    deaf = socket.create_connection(("127.0.0.1", here.port))
    wide = frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}) + frames.window_update(0, 2**30)
    deaf.sendall(frames.PREFACE + wide + peer.Peer().headers(1))
    await peer.until(lambda: memory.held > 64 * MB)
    await peer.until(lambda: not here.open, step=1)
    assert memory.held == 0
    deaf.close()
    await here.close(1.0)
