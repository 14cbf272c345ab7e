"""Callers who connect at once are let in at once, also while the sidecar has work to do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from carpool_sidecar.server import data_port
from tests import loopback
from tests.server import fast_lane

CALLERS = 200
TURNS = 40


@pytest.fixture
async def lane() -> AsyncIterator[data_port.FastLane]:
    bench = fast_lane.Bench()
    limit = data_port.ConnectionLimit(CALLERS, lambda: None)
    made = data_port.FastLane(bench.settings, bench.requests, lambda since, home, size: fast_lane.General(), limit)
    yield made
    await made.close(0)


@pytest.mark.both_loops
async def test_hundreds_who_connect_at_once_are_let_in_within_few_turns_of_a_busy_loop(
    lane: data_port.FastLane,
) -> None:
    port = loopback.free_port()
    await lane.listen("127.0.0.1", port, CALLERS)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS)]
    for _ in range(TURNS):
        await asyncio.sleep(0)
    connected = lane.open
    for client in clients:
        client.close()
    assert connected == CALLERS


@pytest.mark.both_loops
async def test_nobody_is_let_in_once_the_lane_is_closed(lane: data_port.FastLane) -> None:
    port = loopback.free_port()
    await lane.listen("127.0.0.1", port, CALLERS)
    await lane.close(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)  # a handle is closed in a turn of its own
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.both_loops
async def test_a_port_that_is_taken_is_an_error(lane: data_port.FastLane) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        await lane.listen("127.0.0.1", other.getsockname()[1], CALLERS)
