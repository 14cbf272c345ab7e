"""A connection that ends while its client still sends: told at once, read for a bounded time, then closed."""

from __future__ import annotations

import asyncio

import pytest

from carpool_sidecar.server import lingering
from tests.server.connection_bench import Transport, settle

pytestmark = pytest.mark.looptime


class Former(asyncio.Protocol):
    """Who had the connection before."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def data_received(self, data: bytes) -> None:
        self.heard.append("data")

    def pause_writing(self) -> None:
        self.heard.append("paused")

    def resume_writing(self) -> None:
        self.heard.append("resumed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append("lost")


def begin() -> tuple[Transport, Former]:
    former = Former()
    client = Transport(former)
    client.stays = True
    lingering.Lingering(client, former)
    return client, former


async def test_a_client_that_leaves_ends_it() -> None:
    client, former = begin()
    assert client.is_ended
    assert not client.is_closing()
    client.leave()
    assert former.heard == ["lost"]


async def test_a_client_that_is_quiet_is_waited_for_a_little() -> None:
    client, former = begin()
    await asyncio.sleep(lingering.QUIET - 0.1)
    assert not client.is_closing()
    await asyncio.sleep(0.2)
    assert client.is_lost
    assert former.heard == ["lost"]


async def test_what_a_client_sends_is_dropped_and_never_for_longer_than_a_while() -> None:
    client, former = begin()
    seconds = 0
    while not client.is_closing():
        client.send(b"x")
        await asyncio.sleep(1)
        seconds += 1
    assert lingering.LONGEST - 1 <= seconds <= lingering.LONGEST + 1
    assert former.heard == ["lost"]


async def test_it_is_read_once_in_a_turn_of_the_loop_and_also_if_it_was_not_read_before() -> None:
    former = Former()
    client = Transport(former)
    client.stays = True
    client.pause_reading()
    lingering.Lingering(client, former)
    assert client.is_reading()
    client.send(b"x")
    assert not client.is_reading()
    await settle()
    assert client.is_reading()
    client.leave()


async def test_who_was_here_before_is_told_whether_there_is_room_to_write() -> None:
    client, former = begin()
    client.protocol.pause_writing()
    client.protocol.resume_writing()
    client.leave()
    assert former.heard == ["paused", "resumed", "lost"]
