"""When freed memory goes back to the system."""

from __future__ import annotations

import asyncio

import pytest

from carpool.program import allocator

pytestmark = pytest.mark.looptime


class Trimmed(allocator.Trimmer):
    """Counts instead of trimming."""

    def __init__(self, held):
        super().__init__(held, lambda: self.times.append(asyncio.get_running_loop().time()))
        self.times = []


async def test_memory_is_given_back_a_while_after_the_last_large_body_was_let_go():
    held = 10_000_000
    trimmer = Trimmed(lambda: held)
    trimmer.large_body()
    trimmer.large_body()
    await asyncio.sleep(10.5)
    assert trimmer.times == []
    held = 0
    await asyncio.sleep(100)
    assert len(trimmer.times) == 1
    assert 10.5 < trimmer.times[0] <= 11.5


async def test_without_large_bodies_no_timer_runs():
    trimmer = Trimmed(lambda: 0)
    await asyncio.sleep(100)
    assert trimmer._timer is None
    assert trimmer.times == []


async def test_closing_stops_the_timer():
    trimmer = Trimmed(lambda: 0)
    trimmer.large_body()
    trimmer.close()
    await asyncio.sleep(10)
    assert trimmer.times == []


async def test_trimming_itself_is_harmless():
    trimmer = allocator.Trimmer(lambda: 0)
    trimmer.large_body()
    await asyncio.sleep(2)
    assert trimmer._timer is None


async def test_the_garbage_collector_runs_before_memory_is_given_back_and_every_half_minute_of_large_bodies():
    held, told = 10_000_000, []
    now = asyncio.get_running_loop().time
    trimmer = allocator.Trimmer(lambda: held, lambda: told.append("trim"), lambda: told.append(round(now())))
    trimmer.large_body()
    await asyncio.sleep(70)
    assert told == [30, 60]
    held = 0
    await asyncio.sleep(10)
    assert told == [30, 60, 71, "trim"]
    await asyncio.sleep(100)
    assert told == [30, 60, 71, "trim"]
