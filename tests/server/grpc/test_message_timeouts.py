"""Calls whose message does not arrive are given up, all by one timer."""

from __future__ import annotations

import asyncio

import pytest

from carpool_sidecar.server.grpc import arrivals
from tests.server.grpc.site import Bodies

pytestmark = pytest.mark.looptime


def unexpected(error: Exception) -> None:
    raise error


class Call:
    def __init__(self) -> None:
        self.expired: float | None = None

    def expire(self) -> None:
        assert self.expired is None
        self.expired = asyncio.get_running_loop().time()


async def test_each_is_expired_in_its_time_and_those_removed_never(looptime) -> None:
    waiting = arrivals.MessageTimeouts(Bodies(), unexpected)
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
    waiting = arrivals.MessageTimeouts(Bodies(), unexpected)
    first, second = Call(), Call()
    waiting.add(first)
    waiting.close()
    await asyncio.sleep(10)
    waiting.add(second)
    await asyncio.sleep(10)
    assert (first.expired, second.expired) == (None, pytest.approx(15, abs=0.1))


async def test_a_call_that_fails_to_expire_is_reported_and_the_others_expire_all_the_same(looptime) -> None:
    class Broken(Call):
        def expire(self) -> None:
            raise ValueError("a bug")

    caught: list[Exception] = []
    waiting = arrivals.MessageTimeouts(Bodies(), caught.append)
    calls = [Broken(), Call(), Call()]
    waiting.add(calls[0])
    waiting.add(calls[1])
    await asyncio.sleep(1)
    waiting.add(calls[2])
    await asyncio.sleep(20)
    assert [str(error) for error in caught] == ["a bug"]
    assert [call.expired for call in calls] == [None, pytest.approx(5, abs=0.1), pytest.approx(6, abs=0.1)]
