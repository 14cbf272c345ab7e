"""A function that has no memory for a batch is given smaller ones."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import pytest

from tests.functions.ways import PATIENCE, Recorded, Way, every_way, kinds

pytestmark = pytest.mark.both_loops

TOGETHER: dict[str, Any] = {"max_batch_size": 8, "max_latency": PATIENCE}


class OutOfMemoryError(RuntimeError):
    """Of the name that torch's and cupy's have."""


class Worse(OutOfMemoryError):
    """A kind of it."""


def takes(most: int, kind: type[Exception] = MemoryError) -> Recorded:
    def body(items: list[Any]) -> list[Any]:
        if len(items) > most:
            raise kind("no memory")
        return list(items)

    return Recorded(body)


@every_way
@pytest.mark.parametrize("kind", [MemoryError, OutOfMemoryError, Worse])
async def test_all_items_of_a_batch_that_memory_does_not_hold_are_answered(way: Way, kind: type[Exception]) -> None:
    recorded = takes(2, kind)
    assert await way.call_all(way.batched(recorded, **TOGETHER), range(8)) == list(range(8))
    sizes = [len(items) for items in recorded.calls]
    assert sizes[0] == 8
    assert sizes.count(4) <= 2
    assert sizes[-4:] == [2] * 4


@every_way
async def test_a_map_that_fills_a_batch_by_itself_is_answered_as_well(way: Way) -> None:
    function = way.batched(takes(3), **TOGETHER)
    for count in (8, 20):
        future = await way.run(functools.partial(function.map, range(count)))
        assert await way.outcome(future) == list(range(count))


@every_way
async def test_later_batches_are_smaller(way: Way) -> None:
    recorded = takes(4)
    function = way.batched(recorded, **TOGETHER)
    await way.call_all(function, range(8))
    recorded.calls.clear()
    assert await way.call_all(function, range(8)) == list(range(8))
    assert [len(items) for items in recorded.calls] == [4, 4]


@every_way
async def test_an_item_that_memory_does_not_hold_alone_gets_the_exception(way: Way) -> None:
    recorded = takes(0)
    outcomes = await way.call_all(way.batched(recorded, max_batch_size=2, max_latency=PATIENCE), [1, 2])
    assert kinds(outcomes) == [MemoryError] * 2
    assert [len(items) for items in recorded.calls] == [2, 1, 1]


@every_way
@pytest.mark.parametrize("isolate", [False, (ValueError,)])
async def test_nothing_is_tried_again_where_isolation_is_not_wanted_after_it(way: Way, isolate: Any) -> None:
    recorded = takes(2)
    outcomes = await way.call_all(way.batched(recorded, isolate=isolate, **TOGETHER), range(8))
    assert kinds(outcomes) == [MemoryError] * 8
    assert len(recorded.calls) == 1


class Tensor:
    """Something large."""


@every_way
async def test_what_the_function_had_in_its_variables_is_free_when_it_runs_again(way: Way) -> None:
    made: list[weakref.ref[Tensor]] = []
    left: list[int] = []

    def body(items: list[int]) -> list[int]:
        left.append(sum(each() is not None for each in made))
        large = Tensor()
        made.append(weakref.ref(large))
        if len(items) > 4:
            raise MemoryError
        return items

    assert await way.call_all(way.batched(body, max_in_flight=1, **TOGETHER), range(8)) == list(range(8))
    assert left == [0, 0, 0]
