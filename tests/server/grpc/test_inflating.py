"""Large compressed messages are inflated in steps, one in each turn of the loop, and never beyond the memory left."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import statuses
from carpool_sidecar.server.grpc import arrivals
from carpool_sidecar.turns import Turns
from tests.server.grpc.any_calls import PATH, echo, framed, opened
from tests.server.grpc.peer import Peer
from tests.server.grpc.site import INFER, Bodies, Site, turns, until
from tests.server.grpc.test_infer_calls_on_sockets import asking

GZIP = (b"grpc-encoding", b"gzip")
MIB = 1024 * 1024


def squeezed(message: bytes) -> bytes:
    data = gzip.compress(message, 6)
    return b"\1" + len(data).to_bytes(4, "big") + data


def unexpected(error: Exception) -> None:
    raise error


class Inbox:
    """What comes of one arrival; `taken` has what was there after each piece of news."""

    def __init__(self, bodies: Bodies, turns: Turns) -> None:
        self.arrival = arrivals.Arrival(bodies, b"gzip", turns, self.news)
        self.taken: list[bytes] = []
        self.error: errors.CarpoolError | None = None

    def news(self) -> None:
        try:
            self.taken += self.arrival.take()
        except errors.CarpoolError as error:
            self.error = error

    def feed(self, data: bytes) -> None:
        self.taken += self.arrival.feed(data)


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


async def test_others_have_their_turn_after_every_step(bodies: Bodies) -> None:
    worked = Turns(unexpected)
    inboxes = [Inbox(bodies, worked) for _ in range(3)]
    for inbox in inboxes:
        inbox.feed(squeezed(bytes(4 * MIB)))
    before = bodies.memory.held
    most = 0
    steps = 0
    while not all(inbox.taken for inbox in inboxes):
        await asyncio.sleep(0)
        steps += 1
        most, before = max(most, bodies.memory.held - before), bodies.memory.held
    assert most <= arrivals.STEP
    assert steps >= 3 * (4 * MIB // arrivals.STEP - 2)
    assert [inbox.taken for inbox in inboxes] == [[bytes(4 * MIB)]] * 3
    assert bodies.memory.held == 3 * 4 * MIB
    for inbox in inboxes:
        inbox.arrival.release()
    assert (bodies.memory.held, bodies.large) == (0, 3)


async def test_messages_keep_their_order_whatever_takes_longer(bodies: Bodies) -> None:
    inbox = Inbox(bodies, Turns(unexpected))
    large = bytes(MIB)
    inbox.feed(squeezed(b"first") + squeezed(large) + framed(b"plain") + squeezed(b"last"))
    assert inbox.taken == [b"first"]
    inbox.feed(framed(b"later"))
    await turns(20)
    assert inbox.taken == [b"first", large, b"plain", b"last", b"later"]
    assert not inbox.arrival.is_inflating
    assert bodies.memory.held == sum(map(len, inbox.taken))


async def test_many_small_messages_that_become_large_are_one_steps_work_as_well(bodies: Bodies) -> None:
    inbox = Inbox(bodies, Turns(unexpected))
    inbox.feed(squeezed(bytes(100_000)) * 200)  # 20 MB in 30 kB
    assert len(inbox.taken) <= 3
    await turns(200)
    assert inbox.taken == [bytes(100_000)] * 200


async def test_a_bomb_is_refused_when_it_passes_the_limit_and_nothing_of_it_is_kept(bodies: Bodies) -> None:
    inbox = Inbox(bodies, Turns(unexpected))
    inbox.feed(squeezed(bytes(64 * MIB)))
    most = 0
    while inbox.error is None:
        await asyncio.sleep(0)
        most = max(most, bodies.memory.held)
    assert isinstance(inbox.error, errors.PayloadTooLarge)
    assert most <= bodies.max_body_bytes + arrivals.STEP + 100_000
    inbox.arrival.release()
    assert bodies.memory.held == 0


async def test_inflating_ends_where_the_memory_does(bodies: Bodies) -> None:
    bodies.memory.limit = MIB
    inbox = Inbox(bodies, Turns(unexpected))
    inbox.feed(squeezed(bytes(4 * MIB)))
    while inbox.error is None:
        await asyncio.sleep(0)
        assert bodies.memory.held <= bodies.memory.limit
    assert isinstance(inbox.error, errors.Overloaded)


async def test_what_is_let_go_in_between_has_no_more_turns(bodies: Bodies) -> None:
    worked = Turns(unexpected)
    inbox = Inbox(bodies, worked)
    inbox.feed(squeezed(bytes(4 * MIB)))
    await turns(2)
    inbox.arrival.release()
    await turns(20)
    assert (inbox.taken, bodies.memory.held) == ([], 0)


@pytest.mark.parametrize("cut", [-1, 300])
async def test_what_turns_out_to_be_no_gzip_later_is_refused(bodies: Bodies, cut: int) -> None:
    data = gzip.compress(np.random.default_rng(1).bytes(MIB))
    data = data[:-cut] if cut > 0 else data + b"x"
    inbox = Inbox(bodies, Turns(unexpected))
    inbox.feed(b"\1" + len(data).to_bytes(4, "big") + data)
    await turns(30)
    assert isinstance(inbox.error, statuses.Fault)
    assert "no clean end" in str(inbox.error)


async def test_who_fails_is_reported_and_the_others_have_their_turns() -> None:
    class Worker:
        def __init__(self, left: int) -> None:
            self.left = left

        def work(self) -> bool:
            self.left -= 1
            if self.left < 0:
                raise ValueError("a bug")
            return self.left > 0

    caught: list[Exception] = []
    worked = Turns(caught.append)
    workers = [Worker(left) for left in (3, 0, 2)]
    for worker in workers:
        worked.add(worker)
    await turns(10)
    assert [worker.left for worker in workers] == [0, -1, 0]
    assert [str(error) for error in caught] == ["a bug"]


async def test_messages_that_wait_to_be_inflated_take_no_more_memory_than_they_count(bodies: Bodies) -> None:
    inbox = Inbox(bodies, Turns(unexpected))
    data = squeezed(b"x") * 5000
    tracemalloc.start()
    try:
        inbox.feed(data)
        taken, _ = tracemalloc.get_traced_memory()
        assert taken < bodies.memory.held + 200_000  # the few that have begun
    finally:
        tracemalloc.stop()
    await turns(500)
    assert inbox.taken == [b"x"] * 5000
    assert bodies.memory.held == 5000


class TestCalls:
    ROWS = np.arange(400_000, dtype="f4")[None]

    async def test_a_large_inference_is_batched_once_it_is_inflated(self, site: Site) -> None:
        stream, handler = opened(site, GZIP, path=INFER)
        handler.data(squeezed(asking(self.ROWS, id="me")))
        handler.end()
        assert not stream.over.is_set()
        await stream.end()
        (message,) = stream.messages
        answer = pb.ModelInferResponse.FromString(message)
        assert (answer.id, answer.raw_output_contents[0]) == ("me", self.ROWS.tobytes())
        assert site.counted("batched", "OK") == 1
        assert site.bodies.memory.held == 0

    async def test_a_stream_is_passed_through_inflated(self, peer_site: Site, peer: Peer) -> None:
        peer.methods[PATH] = echo
        stream, handler = opened(peer_site, GZIP)
        handler.data(squeezed(bytes(MIB)) + squeezed(b"small"))
        handler.end()
        await stream.end()
        assert stream.messages == [bytes(MIB), b"small"]
        assert stream.granted == len(squeezed(bytes(MIB)) + squeezed(b"small"))
        await until(lambda: peer_site.bodies.memory.held == 0)

    @pytest.mark.parametrize("path", [INFER, PATH])
    async def test_a_bomb_is_refused(self, peer_site: Site, peer: Peer, path: str) -> None:
        peer.methods[PATH] = echo
        stream, handler = opened(peer_site, GZIP, path=path)
        handler.data(squeezed(bytes(64 * MIB)))
        handler.end()
        await stream.end()
        assert stream.status == statuses.RESOURCE_EXHAUSTED
        await until(lambda: peer_site.bodies.memory.held == 0)

    @pytest.mark.parametrize("path", [INFER, PATH])
    async def test_a_caller_may_leave_in_between(self, peer_site: Site, peer: Peer, path: str) -> None:
        peer.methods[PATH] = echo
        _, handler = opened(peer_site, GZIP, path=path)
        handler.data(squeezed(bytes(4 * MIB)))
        handler.end()
        await turns(2)
        handler.cancelled()
        await until(lambda: peer_site.bodies.memory.held == 0 and peer_site.life.active == 0)
