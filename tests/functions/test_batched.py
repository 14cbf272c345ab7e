"""The library from outside: a function of a list that many callers call with single items."""

from __future__ import annotations

import asyncio
import collections
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import carpool


def test_a_thread_gets_the_result_for_its_item() -> None:
    @carpool.batched
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    with double:
        assert double(21).result(10) == 42


async def test_tasks_that_call_in_one_turn_share_a_batch() -> None:
    batches: list[list[int]] = []

    @carpool.batched
    def double(numbers: list[int]) -> list[int]:
        batches.append(numbers)
        return [2 * number for number in numbers]

    async with double:
        assert await asyncio.gather(double(1), double(2), double(3)) == [2, 4, 6]
    assert batches == [[1, 2, 3]]


async def test_a_coroutine_function_runs_on_its_callers_loop() -> None:
    threads: set[int] = set()

    @carpool.batched
    async def double(numbers: list[int]) -> list[int]:
        threads.add(threading.get_ident())
        await asyncio.sleep(0)
        return [2 * number for number in numbers]

    async with double:
        assert await asyncio.gather(double(1), double(2)) == [2, 4]
    assert threads == {threading.get_ident()}


def test_a_thread_may_call_a_coroutine_function() -> None:
    @carpool.batched
    async def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    with double:
        assert double(21).result(10) == 42


def test_a_map_larger_than_a_batch_is_split_and_rejoined_in_order() -> None:
    sizes: list[int] = []

    @carpool.batched(max_batch_size=8)
    def double(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return [2 * number for number in numbers]

    with double:
        assert double.map(range(100)).result(10) == list(range(0, 200, 2))
    assert max(sizes) == 8


async def test_only_calls_that_agree_in_their_arguments_share_a_batch() -> None:
    batches: list[tuple[list[int], object]] = []

    @carpool.batched
    def scale(numbers: list[int], *, by: float = 2) -> list[float]:
        batches.append((numbers, by))
        return [by * number for number in numbers]

    async with scale:
        calls = [scale(1), scale(2, by=2), scale(3, by=2.0), scale(4, by=3)]
        assert await asyncio.gather(*calls) == [2, 4, 6.0, 12]
    assert batches == [([1, 2], 2), ([3], 2.0), ([4], 3)]


def test_an_item_that_makes_the_function_raise_fails_alone() -> None:
    @carpool.batched(max_batch_size=4, max_latency=30)
    def invert(numbers: list[int]) -> list[float]:
        return [1 / number for number in numbers]

    with invert:
        futures = [invert(number) for number in (1, 2, 0, 4)]
        assert [futures[place].result(10) for place in (0, 1, 3)] == [1.0, 0.5, 0.25]
        with pytest.raises(ZeroDivisionError) as caught:
            futures[2].result(10)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_generator_gives_each_caller_a_stream() -> None:
    @carpool.batched
    def count(starts: list[int]) -> Iterator[list[int]]:
        for step in range(3):
            yield [start + step for start in starts]

    @carpool.batched
    async def count_async(starts: list[int]) -> AsyncIterator[list[int]]:
        for step in range(3):
            await asyncio.sleep(0)
            yield [start + step for start in starts]

    async def read(stream: carpool.Stream[int]) -> list[int]:
        return [result async for result in stream]

    async with count, count_async:
        for function in (count, count_async):
            assert await asyncio.gather(read(function(10)), read(function(20))) == [[10, 11, 12], [20, 21, 22]]


def test_a_method_is_batched_for_each_instance() -> None:
    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @carpool.batched
        def scale(self, numbers: list[int]) -> list[int]:
            return [self.factor * number for number in numbers]

    twice, thrice = Model(2), Model(3)
    with twice.scale, thrice.scale:
        assert [twice.scale(7).result(10), thrice.scale(7).result(10)] == [14, 21]
        assert twice.scale.stats().answered == 1


def test_after_its_end_a_function_refuses() -> None:
    @carpool.batched
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    double.close().result(10)
    with pytest.raises(carpool.Closed, match="double is closed"):
        double(1).result(10)


def test_inline_calls_run_at_once_in_their_callers_thread() -> None:
    @carpool.batched
    def where(numbers: list[int]) -> list[int]:
        return [threading.get_ident() for _ in numbers]

    with carpool.inline():
        assert where(1).result(0) == threading.get_ident()


def test_a_function_may_use_its_lists_again_and_change_its_items() -> None:
    kept: list[int] = []

    @carpool.batched(max_batch_size=2, max_latency=30)
    def double(numbers: list[int]) -> list[int]:
        kept[:] = [2 * number for number in numbers]
        numbers.clear()
        return kept

    with double:
        futures = [double(number) for number in (1, 2, 3, 4)]
        assert [future.result(10) for future in futures] == [2, 4, 6, 8]


def test_an_exception_in_the_list_belongs_to_its_item_alone() -> None:
    @carpool.batched(max_batch_size=2, max_latency=30)
    def root(numbers: list[float]) -> list[float | Exception]:
        return [ValueError(f"{number} is negative") if number < 0 else number**0.5 for number in numbers]

    with root:
        good, bad = root(4), root(-1)
        assert good.result(10) == 2
        with pytest.raises(ValueError, match="-1 is negative"):
            bad.result(10)


def test_what_is_no_list_is_named_and_never_tried_again() -> None:
    calls: list[int] = []

    @carpool.batched(max_batch_size=3, max_latency=30)
    def wrong(numbers: list[int]) -> dict[int, int]:
        calls.append(len(numbers))
        return dict.fromkeys(numbers, 0)

    with wrong:
        futures = [wrong(number) for number in range(3)]
        for future in futures:
            with pytest.raises(carpool.WrongResult, match="returned a dict"):
                future.result(10)
    assert calls == [3]


def test_a_timeout_is_a_timeout_error_and_takes_the_item_out_of_the_queue() -> None:
    @carpool.batched(max_latency=30)
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    with pytest.raises(TimeoutError, match="no result within the timeout"):
        double.using(timeout=0.02)(1).result(10)
    assert double.stats().queued == 0
    double.close(0).result(10)


def test_equal_items_of_a_batch_are_computed_once_if_so_wished() -> None:
    seen: list[list[object]] = []

    @carpool.batched(max_batch_size=7, max_latency=30, dedupe=True)
    def same(items: list[object]) -> list[object]:
        seen.append(list(items))
        return [(type(item).__name__, item) for item in items]

    with same:
        futures = [same(item) for item in (1, True, 1, "a", [1], "a", [1])]
        assert [future.result(10) for future in futures] == [
            ("int", 1), ("bool", True), ("int", 1), ("str", "a"), ("list", [1]), ("str", "a"), ("list", [1]),
        ]  # fmt: skip
    assert seen == [[1, True, "a", [1], [1]]]


class Rows:
    """A list of results that is no list, and cannot be read."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: object) -> int:
        raise KeyError(index)


@pytest.mark.parametrize("returned", [Rows(), collections.deque([1, 2]), {1: 1, 2: 2}, "ab", None])
def test_whatever_a_function_returns_its_callers_are_answered(returned: Any) -> None:
    @carpool.batched(max_batch_size=2, max_latency=30, isolate=False)
    def odd(numbers: list[int]) -> Any:
        return returned

    with odd:
        futures = [odd(1), odd(2)]
        for future in futures:
            assert future.exception(10) is not None or future.result() in (1, 2)


def test_a_callback_that_exits_leaves_the_other_callers_their_results() -> None:
    @carpool.batched(max_batch_size=3, max_latency=30)
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    with double:
        first = double(1)
        first.add_done_callback(lambda _: sys.exit(1))
        assert [future.result(10) for future in (double(2), double(3), first)] == [4, 6, 2]


def test_endless_timeouts_are_as_good_as_none() -> None:
    @carpool.batched(timeout=sys.maxsize)
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    assert double(1).result(sys.maxsize) == 2
    double.close(timeout=sys.maxsize).result(10)


def test_results_of_one_instance_are_never_anothers_by_way_of_a_cache() -> None:
    cache: carpool.LRU[Any, int] = carpool.LRU()

    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @carpool.batched(cache=cache)
        def scale(self, numbers: list[int]) -> list[int]:
            return [self.factor * number for number in numbers]

    twice, thrice = Model(2), Model(3)
    with twice.scale, thrice.scale:
        assert [twice.scale(1).result(10), thrice.scale(1).result(10), twice.scale(1).result(10)] == [2, 3, 2]
        assert twice.scale.stats().cache_hits == 1


async def test_waiting_for_the_end_on_the_loop_that_it_needs_is_refused() -> None:
    @carpool.batched
    async def double(numbers: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return [2 * number for number in numbers]

    result = double(1)
    with pytest.raises(RuntimeError, match="await the future instead"):
        double.close().result(10)
    assert await result == 2
    await double.close()


class BadItem(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"bad item {number}")


def test_an_exception_with_arguments_of_its_own_says_the_same_to_its_caller() -> None:
    @carpool.batched
    def fail(numbers: list[int]) -> list[int]:
        raise BadItem(numbers[0])

    with fail, pytest.raises(BadItem, match=r"^bad item 5$"):
        fail(5).result(10)


def test_a_function_that_a_class_refers_to_stays_a_function() -> None:
    @carpool.batched
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    class Settings:
        function = double

    with double:
        assert double(2).result(10) == 4
        assert Settings.function(2).result(10) == 4


def test_a_map_whose_items_are_calls_of_their_own_can_be_asked_and_cancelled() -> None:
    begun, go_on = threading.Event(), threading.Event()

    @carpool.batched(max_batch_size=1)
    def wait(numbers: list[int]) -> list[int]:
        begun.set()
        go_on.wait(10)
        return numbers

    several = wait.using(return_exceptions=True).map([1, 2, 3])
    assert begun.wait(10)
    assert several.running()
    assert several.cancel()
    assert not several.running()
    go_on.set()
    wait.close().result(10)
    assert wait.stats().queued == 0
