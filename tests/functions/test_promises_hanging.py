"""A batch of which the function makes nothing holds its own callers and one place, and nobody else waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import carpool
from tests.functions.ways import PATIENCE, Gate, Way, every_way

pytestmark = pytest.mark.both_loops
HANG = -1


@pytest.mark.parametrize("latency", [{}, {"max_latency": 0.0}], ids=["adaptive", "window"])
@pytest.mark.parametrize("is_warm", [False, True], ids=["first call", "warm"])
@every_way
async def test_others_are_answered_while_all_places_but_one_hang(
    way: Way, is_warm: bool, latency: dict[str, Any]
) -> None:
    gate = Gate()

    def waiting(items: list[int]) -> list[int]:
        if HANG in items:
            gate.pass_through()
        return items

    async def calling(items: list[int]) -> list[int]:
        if HANG in items:
            await gate.pass_through_async()
        return items

    function: Any = carpool.batched(waiting if way.kind == "def" else calling, max_in_flight=3, **latency)
    if is_warm:
        assert await way.call_all(function, range(50)) == [*range(50)]
    hung = []
    for _ in range(2):
        hung.append(await way.run(lambda: function(HANG)))
        await gate.reached()
    async with asyncio.timeout(PATIENCE / 2):
        for start in range(0, 50, 10):
            assert await way.call_all(function, range(start, start + 10)) == [*range(start, start + 10)]
    gate.open()
    assert [await way.outcome(each) for each in hung] == [HANG, HANG]


@pytest.mark.parametrize("is_warm", [False, True], ids=["first call", "warm"])
async def test_others_are_answered_where_nothing_is_said_of_places(is_warm: bool) -> None:
    gate = Gate()

    @carpool.batched
    async def function(items: list[int]) -> list[int]:
        if HANG in items:
            await gate.pass_through_async()
        return items

    if is_warm:
        assert await asyncio.gather(*map(function, range(50))) == [*range(50)]
    hung = asyncio.ensure_future(function(HANG))
    await gate.reached()
    async with asyncio.timeout(PATIENCE / 2):
        for number in range(20):
            assert await function(number) == number
    gate.open()
    assert await hung == HANG
