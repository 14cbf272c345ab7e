"""Batched functions that call batched functions, another or themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import carpool
from tests.functions.ways import PATIENCE, Way, double, every_way, outcome

pytestmark = pytest.mark.both_loops


@every_way
async def test_a_function_may_call_another_and_wait_for_it(way: Way) -> None:
    inner = way.batched(double)
    if way.kind == "def":

        def waiting(items: list[int]) -> list[int]:
            return [each.result(PATIENCE) + 1 for each in [inner(item) for item in items]]

        outer: Any = carpool.batched(waiting)
    else:

        async def calling(items: list[int]) -> list[int]:
            return [each + 1 for each in await asyncio.gather(*(inner(item) for item in items))]

        outer = carpool.batched(calling)
    assert await way.call_all(outer, range(20)) == [2 * item + 1 for item in range(20)]


async def test_an_async_function_may_call_a_def_and_a_def_an_async_function() -> None:
    inner = carpool.batched(double)

    async def middle_body(items: list[int]) -> list[int]:
        return [each + 1 for each in await inner.map(items)]

    middle = carpool.batched(middle_body)
    outer = carpool.batched(lambda items: [each + 1 for each in middle.map(items).result(PATIENCE)])
    assert await outer(1) == 4
    assert await asyncio.to_thread(lambda: outcome(outer(2))) == 6


async def test_an_async_function_may_call_itself_while_it_may_run_several_times() -> None:
    async def factorial(items: list[int]) -> list[int]:
        return [1 if item < 2 else item * await function(item - 1) for item in items]

    function = carpool.batched(factorial, max_in_flight=10, max_latency=0.0)
    async with asyncio.timeout(PATIENCE):
        assert await function(5) == 120


async def test_a_def_may_call_itself_while_it_has_threads_for_that() -> None:
    def factorial(items: list[int]) -> list[int]:
        return [1 if item < 2 else item * function(item - 1).result(PATIENCE) for item in items]

    function = carpool.batched(factorial, max_in_flight=10, max_latency=0.0)
    assert await function(5) == 120


async def test_a_function_may_call_itself_and_leave_the_answer_to_a_callback() -> None:
    found: list[Any] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def countdown(items: list[int]) -> list[int]:
        for item in items:
            if item:
                function(item - 1).add_done_callback(lambda each: found.append(each.result()))
            else:
                loop.call_soon_threadsafe(done.set)
        return items

    function = carpool.batched(countdown)
    assert await function(5) == 5
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    await asyncio.to_thread(lambda: outcome(function(0)))
    assert found == [4, 3, 2, 1, 0]
