"""When memory that large reviews left behind is given back."""

from __future__ import annotations

import asyncio

import pytest

from injector.webhook import memory


class Heap:
    """Counts how often it was trimmed."""

    def __init__(self) -> None:
        self.trimmed = 0
        self.held = 0
        self.trimmer = memory.Trimmer(lambda: self.held, self.trim)

    def trim(self) -> None:
        self.trimmed += 1


@pytest.mark.looptime
async def test_memory_is_given_back_once_after_a_burst_of_large_reviews() -> None:
    heap = Heap()
    for _ in range(10):
        heap.trimmer.freed(memory.LARGE)
    assert heap.trimmed == 0
    await asyncio.sleep(5)
    assert heap.trimmed == 1


@pytest.mark.looptime
async def test_not_while_large_reviews_are_held_but_right_after() -> None:
    heap = Heap()
    heap.held = memory.LARGE
    heap.trimmer.freed(memory.LARGE)
    await asyncio.sleep(10)
    assert heap.trimmed == 0
    heap.held = 0
    await asyncio.sleep(2)
    assert heap.trimmed == 1


@pytest.mark.looptime
async def test_small_reviews_cost_nothing() -> None:
    heap = Heap()
    heap.trimmer.freed(memory.LARGE - 1)
    await asyncio.sleep(5)
    assert heap.trimmed == 0


def test_giving_memory_back_for_real_works_here() -> None:
    assert memory._trim() is None  # type: ignore[func-returns-value]
