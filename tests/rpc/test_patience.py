"""Calls whose message does not arrive are given up, all by one timer."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.rpc import patience
from tests.rpc.site import Room

pytestmark = pytest.mark.looptime


class Call:
    def __init__(self) -> None:
        self.expired: float | None = None

    def expire(self) -> None:
        assert self.expired is None
        self.expired = asyncio.get_running_loop().time()


async def test_each_is_expired_in_its_time_and_those_removed_never(looptime) -> None:
    waiting = patience.Patience(Room())
    calls = [Call() for _ in range(4)]
    for call in calls:
        waiting.add(call)
        await asyncio.sleep(1)
    waiting.remove(calls[1])
    waiting.remove(calls[1])
    await asyncio.sleep(20)
    assert [call.expired for call in calls] == [
        pytest.approx(5, abs=0.1),
        None,
        pytest.approx(7, abs=0.1),
        pytest.approx(8, abs=0.1),
    ]


async def test_nothing_expires_once_it_is_closed_and_it_can_wait_again(looptime) -> None:
    waiting = patience.Patience(Room())
    first, second = Call(), Call()
    waiting.add(first)
    waiting.close()
    await asyncio.sleep(10)
    waiting.add(second)
    await asyncio.sleep(10)
    assert (first.expired, second.expired) == (None, pytest.approx(15, abs=0.1))
