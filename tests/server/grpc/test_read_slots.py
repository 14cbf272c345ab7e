"""How many answers may arrive for one connection at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from carpool_sidecar.protocols.v2_grpc import statuses
from carpool_sidecar.server.grpc import read_slots
from tests.server.grpc.any_calls import PATH, framed, opened
from tests.server.grpc.fake_stream import FakeStream
from tests.server.grpc.peer import Peer
from tests.server.grpc.site import INFER, Site, until

MANY = 40


@pytest.fixture
def found() -> Iterator[read_slots.ConnectionSlots]:
    made = read_slots.ConnectionSlots()
    yield made
    assert len(made) == 0


async def entering(slots: read_slots.ReadSlots, count: int) -> tuple[list[int], list[asyncio.Task[None]]]:
    """As many as there are places are in at once; the others in the order in which they came."""
    entered: list[int] = []

    async def enter(who: int) -> None:
        await slots.acquire(who)
        entered.append(who)

    tasks = [asyncio.create_task(enter(who)) for who in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return entered, tasks


@pytest.mark.looptime
async def test_whoever_is_done_makes_place_for_the_one_who_has_waited_longest(
    found: read_slots.ConnectionSlots,
) -> None:
    slots = found.open(1)
    entered, tasks = await entering(slots, MANY)
    at_once = len(entered)
    assert 1 <= at_once < MANY
    for who in range(MANY - at_once):
        slots.release(who)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert entered == list(range(at_once + who + 1))
    await asyncio.gather(*tasks)
    slots.close()


@pytest.mark.looptime
async def test_messages_that_take_their_time_keep_others_waiting_for_a_moment_only(
    found: read_slots.ConnectionSlots, looptime: float
) -> None:
    slots = found.open(1)
    entered, tasks = await entering(slots, MANY)
    await asyncio.gather(*tasks)
    assert entered == list(range(MANY))
    assert 0.05 < looptime < 0.2
    slots.close()


@pytest.mark.looptime
async def test_whoever_does_not_want_a_place_any_more_takes_none(found: read_slots.ConnectionSlots) -> None:
    slots = found.open(1)
    entered, tasks = await entering(slots, MANY)
    at_once = len(entered)
    tasks[at_once].cancel()
    slots.release(0)
    tasks[at_once + 1].cancel()  # it has its place already, and does not know yet
    await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == [who for who in range(MANY) if who not in (at_once, at_once + 1)]
    slots.close()


async def test_connections_do_not_share_places(found: read_slots.ConnectionSlots) -> None:
    one, other = found.open(1), found.open(2)
    taken = 0
    while one.try_whole():
        taken += 1
    assert taken < MANY
    assert other.try_whole()
    assert found.open(1) is one
    for each in (one, one, other):
        each.close()


class Shy(FakeStream):
    """One of the streams of a connection whose client may be given 200 kB before it reads."""

    is_read = False
    sizes: dict[int, int]

    def send(self, data: bytes) -> None:
        super().send(data)
        self.sizes[id(self)] = len(self.sent)

    @property
    def is_blocked(self) -> bool:
        return not self.is_read and sum(self.sizes.values()) >= 200_000


@pytest.fixture
def shy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that are opened are `Shy`, and of one connection."""
    sizes: dict[int, int] = {}

    def make() -> Shy:
        stream = Shy()
        stream.sizes, stream.connection = sizes, 1
        return stream

    monkeypatch.setattr("tests.server.grpc.any_calls.FakeStream", make)


@pytest.mark.parametrize("path", [PATH, INFER])
@pytest.mark.usefixtures("shy")
async def test_a_client_that_does_not_read_is_given_no_more_answers_than_may_arrive_at_once(
    peer_site: Site, peer: Peer, path: str
) -> None:
    asked = 0

    async def blob(messages: object, context: object) -> None:
        nonlocal asked
        asked += 1
        await context.write(bytes(100_000))  # type: ignore[attr-defined]

    peer.methods[path] = blob
    calls = [opened(peer_site, path=path) for _ in range(MANY)]
    for _, handler in calls:
        handler.data(framed(b"\x2a\x00" if path == INFER else b"please"))  # an id field, no model
        handler.end()
    await until(lambda: asked == MANY)
    await asyncio.sleep(0.3)
    given = sum(bool(stream.sent) for stream, _ in calls)
    assert 2 <= given < MANY
    Shy.is_read = True
    try:
        for stream, handler in calls:
            if not stream.over.is_set():
                handler.writable()
        for stream, _ in calls:
            await stream.end()
            assert (stream.messages, stream.status) == ([bytes(100_000)], statuses.OK)
    finally:
        Shy.is_read = False
