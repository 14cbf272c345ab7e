"""Options are checked where a function is decorated, and the error names the option, its value and what is allowed."""

from __future__ import annotations

import decimal
import fractions
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import carpool
from carpool.functions import options


class NoCache:
    def get(self, key: object) -> None: ...


class AsyncCache:
    async def get(self, key: object) -> None: ...

    async def set(self, key: object, value: object) -> None: ...


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_batch_size", 0, "max_batch_size must be from 1 to 1000000, not 0"),
        ("max_batch_size", 2.0, "max_batch_size must be a whole number, not 2.0"),
        ("max_batch_size", True, "max_batch_size must be a whole number, not True"),
        ("max_latency", -0.1, "max_latency must be 0 or more seconds, or None for none, not -0.1"),
        ("max_latency", "5", "max_latency must be a number of seconds or None, not '5'"),
        ("slo", 0, "slo must be more than 0 seconds"),
        ("timeout", float("inf"), "timeout must be more than 0 seconds, or None for none, not inf"),
        ("timeout", float("nan"), "timeout must be more than 0 seconds"),
        ("max_in_flight", 0, "max_in_flight must be from 1 to 1024, not 0"),
        ("max_queue", -1, "max_queue must be at least 1, not -1"),
        ("small_batch_threshold", -1, "small_batch_threshold must be from 0"),
        ("allowed_batch_sizes", [8, 4, 32], "allowed_batch_sizes must ascend"),
        ("allowed_batch_sizes", [4, 8], "must be max_batch_size, 32"),
        ("allowed_batch_sizes", "4,8", "allowed_batch_sizes must be a list of whole numbers, not '4,8'"),
        ("isolate", BaseException, "isolate must be True, False or exception types"),
        ("isolate", "ValueError", "isolate must be True, False or exception types"),
        ("dedupe", 1, "dedupe must be True, False or 'in_flight', not 1"),
        ("dedupe", "in flight", "dedupe must be True, False or 'in_flight', not 'in flight'"),
        ("cache", NoCache(), "cache must have the methods get and set; NoCache does not"),
        ("key", 3, "key must be a function of an item, not 3"),
        ("each", "voice", "each must be a list of names of arguments, not 'voice'"),
        ("each", ("voice", "voice"), "each must name each argument once, not ('voice', 'voice')"),
        ("cost", 3, "cost must be a function of an item, not 3"),
        ("length", 3, "length must be a function of an item, not 3"),
        ("cost", len, "cost and max_batch_cost go together"),
        ("max_batch_cost", 3, "cost and max_batch_cost go together"),
        ("merge", 3, "merge must have rows, join and split"),
        ("merge", carpool.arrays, "merge must be an object: call arrays"),
        ("name", 3, "name must be of type str, not 3"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_value_and_the_range(name: str, value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        carpool.batched(**{name: value})
    assert words in str(caught.value)


def test_a_name_that_is_no_option_is_told_what_is_meant() -> None:
    with pytest.raises(TypeError, match="has no option batch_size; did you mean max_batch_size"):
        carpool.batched(batch_size=3)  # type: ignore[call-overload]


def test_a_function_is_refused_options_that_do_not_go_with_it() -> None:
    def plain(texts: list[str], voice: list[str], *args: int) -> list[str]:
        return texts

    def stream(texts: list[str]) -> Iterator[list[str]]:
        yield texts

    with pytest.raises(TypeError, match="the coroutine methods of AsyncCache need an async def that returns a list"):
        carpool.batched(plain, cache=AsyncCache())
    with pytest.raises(TypeError, match="stream yields, and who joins late would miss the begin"):
        carpool.batched(stream, dedupe="in_flight")
    with pytest.raises(TypeError, match=r"each names speed, which is no parameter of .*plain .* those are: voice"):
        carpool.batched(each=["speed"])(plain)
    with pytest.raises(TypeError, match=r"each does not go with the \*arguments of"):
        carpool.batched(each=["voice"])(plain)
    with pytest.raises(TypeError, match="pad_with must be a tuple of an item and its voice, not 'a'"):
        carpool.batched(each=["voice"], pad_with="a")


@pytest.mark.parametrize(
    "first", [{"dedupe": True}, {"cache": carpool.LRU[str, int]()}, {"key": str}, {"pad_with": 0}, {"each": ["a"]}]
)
def test_items_that_are_merged_are_not_compared(first: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not go with merge"):
        carpool.batched(merge=carpool.arrays(), **first)


def test_what_says_what_is_computed_cannot_be_changed_while_it_runs() -> None:
    chosen = options.Options()
    with pytest.raises(TypeError, match="dedupe cannot be changed while it runs"):
        chosen.changed({"dedupe": True})
    with pytest.raises(TypeError, match="configure has no option batch_size"):
        chosen.changed({"batch_size": 3})
    assert chosen.changed({"max_batch_size": 7}).max_batch_size == 7


def test_a_call_with_arguments_that_the_function_does_not_take_raises_at_once() -> None:
    @carpool.batched
    def double(numbers: list[int], *, by: int = 2) -> list[int]:
        return [by * number for number in numbers]

    with pytest.raises(TypeError, match="unexpected keyword argument 'to'"):
        double(1, to=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'to'"):
        double.map([], to=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="argument by of a batched function must be hashable"):
        double(1, by=[])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32, np.float64, fractions.Fraction, decimal.Decimal])
def test_numbers_of_other_kinds_are_numbers(kind: Any) -> None:
    chosen = options.Options(max_latency=kind(1), slo=kind(2), timeout=kind(3), cost=kind, max_batch_cost=kind(4))
    found = (chosen.max_latency, chosen.slo, chosen.timeout, chosen.max_batch_cost)
    assert found == (1, 2, 3, 4)
    assert {type(each) for each in found} <= {int, float}
    assert chosen.measured([3], 1).costs == [3]


def test_whole_numbers_of_other_kinds_are_whole_numbers() -> None:
    chosen = options.Options(max_batch_size=np.int64(8), allowed_batch_sizes=[np.uint8(4), np.int32(8)])
    assert (chosen.max_batch_size, chosen.allowed_batch_sizes) == (8, (4, 8))
    assert {type(each) for each in (chosen.max_batch_size, *chosen.allowed_batch_sizes)} == {int}
    assert carpool.LRU(np.int64(3), ttl=np.float32(1)).maxsize == 3
    for truth in (np.bool_(True), True):
        with pytest.raises(TypeError, match="max_batch_size must be a whole number"):
            options.Options(max_batch_size=truth)
        with pytest.raises(ValueError, match="cost must return a number"):
            options.Options(cost=lambda _, truth=truth: truth, max_batch_cost=1).measured([1], 1)
