"""How long an exchange, a connect and an idle connection may take, in virtual time."""

from __future__ import annotations

import asyncio
import math
import socket

import pytest

from carpool.runtime import deadline_timer
from carpool_sidecar import errors
from carpool_sidecar.upstream import predictor as predictors
from tests.upstream.wire import ask

pytestmark = pytest.mark.looptime


async def test_an_answer_that_is_late_is_a_timeout_and_ends_its_connection(wire, predictor, looptime):
    await ask(predictor)
    wire.answers = [None]
    with pytest.raises(errors.UpstreamTimeout):
        await ask(predictor, timeout=2.5)
    assert 2.5 <= looptime <= 2.51
    await wire.peers[0].gone.wait()
    await ask(predictor)
    assert len(wire.peers) == 2


async def test_the_time_an_answer_takes_counts_from_the_request_not_from_the_connection(wire, predictor, looptime):
    wire.answers = [None]
    with pytest.raises(errors.UpstreamTimeout):
        await ask(predictor, timeout=7.0)
    assert 7.0 <= looptime <= 7.01


async def test_each_exchange_has_its_own_deadline(wire, predictor, looptime):
    wire.answers = [None] * 4
    ends = {}

    async def wait(timeout: float) -> None:
        with pytest.raises(errors.UpstreamTimeout):
            await ask(predictor, timeout=timeout)
        ends[timeout] = asyncio.get_running_loop().time()

    await asyncio.gather(*map(wait, (5.0, 1.0, 9.0, 3.0)))
    assert all(timeout <= at <= timeout + 0.01 for timeout, at in ends.items())
    assert len(ends) == 4


async def test_a_trickle_of_bytes_does_not_prolong_an_answer(wire, predictor, looptime):
    wire.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"]
    asked = asyncio.ensure_future(ask(predictor, timeout=5.0))
    await wire.received(1)
    for _ in range(4):
        await asyncio.sleep(1)
        wire.peers[0].say(b"x")
    with pytest.raises(errors.UpstreamTimeout):
        await asked
    assert 5.0 <= looptime <= 5.01


@pytest.mark.parametrize(("connect_timeout", "timeout", "status"), [(0.5, 5.0, 502), (0.5, 0.5, 502), (5.0, 0.5, 504)])
async def test_a_connect_that_takes_too_long_is_unreachable_and_one_that_callers_cannot_wait_for_late(
    looptime, connect_timeout, timeout, status
):
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = listener.getsockname()[1]
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    client = predictors.HttpPredictor(f"http://127.0.0.1:{port}", connect_timeout)
    with pytest.raises(errors.UpstreamError, match="connecting timed out") as caught:
        await ask(client, timeout=timeout)
    assert errors.status_of(caught.value) == status
    assert caught.value.is_overload
    assert 0.5 <= looptime <= 0.51
    asked = asyncio.ensure_future(ask(client))
    await asyncio.sleep(0)
    await client.close()  # while it connects
    with pytest.raises(errors.UpstreamClosed):
        await asked
    for each in (*fillers, listener):
        each.close()


async def test_idle_connections_are_closed_after_4_seconds_each_in_its_time(wire, predictor, looptime):
    wire.answers = [None, None]
    asked = [asyncio.ensure_future(ask(predictor)) for _ in range(2)]
    await wire.received(2)
    first, second = wire.requests
    first.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await asyncio.sleep(1)
    second.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await asyncio.gather(*asked)
    await asyncio.sleep(2.9)
    assert not first.gone.is_set()
    await first.gone.wait()
    assert 4.0 <= looptime <= 4.01
    assert not second.gone.is_set()
    await second.gone.wait()
    assert 5.0 <= looptime <= 5.01


async def test_a_connection_in_use_is_not_idle(wire, predictor):
    for _ in range(5):
        await ask(predictor)
        await asyncio.sleep(3)
    wire.answers = [None]
    asked = asyncio.ensure_future(ask(predictor, timeout=60))
    await asyncio.sleep(30)
    wire.requests[-1].say(b"HTTP/1.1 204 No\r\n\r\n")
    assert await asked == b""
    assert len(wire.peers) == 1


async def test_a_timer_fires_once_for_the_earliest_of_many_deadlines(looptime):
    looked = []
    many = deadline_timer.DeadlineTimer(lambda now: looked.append(now) or math.inf)
    for number in range(1000):
        many.look_by(5.0 + number)
    many.look_by(2.0)
    many.look_by(3.0)
    await asyncio.sleep(20)
    assert len(looked) == 1
    assert 2.0 <= looked[0] <= 2.01
    many.look_by(21.0)
    await asyncio.sleep(2)
    assert len(looked) == 2


async def test_a_timer_goes_on_with_the_deadline_it_is_told(looptime):
    deadlines = [1.0, 2.5, 2.5, 7.0, math.inf]
    looked = []

    def look(now: float) -> float:
        looked.append(now)
        while deadlines[0] <= now:
            deadlines.pop(0)
        return deadlines[0]

    several = deadline_timer.DeadlineTimer(look)
    several.look_by(deadlines[0])
    await asyncio.sleep(60)
    assert [math.floor(at * 10) / 10 for at in looked] == [1.0, 2.5, 7.0]
    several.look_by(100.0)
    several.stop()
    await asyncio.sleep(100)
    assert len(looked) == 3
