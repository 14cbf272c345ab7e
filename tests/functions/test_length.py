"""`length=`: items of like length share a batch."""

from __future__ import annotations

import asyncio

import pytest

import carpool
from carpool.functions import options

pytestmark = pytest.mark.looptime


async def test_each_caller_has_its_own_result_whatever_order_items_travel_in():
    sizes = []

    @carpool.batched(max_batch_size=4, length=len)
    async def shout(words):
        sizes.append(sorted(map(len, words)))
        await asyncio.sleep(0.01 + 0.0005 * len(words) * max(map(len, words)))
        return [word.upper() for word in words]

    async def call(number):
        for turn in range(20):
            word = chr(97 + number) * (1 if (number + turn) % 2 else 100)
            assert await shout(word) == word.upper()

    await asyncio.gather(*[call(number) for number in range(16)])
    assert len([each for each in sizes if each[0] != each[-1]]) < len(sizes) / 4


async def test_map_keeps_the_order_of_its_items():
    @carpool.batched(max_batch_size=3, length=len)
    async def same(words):
        return words

    words = ["a" * (number * 7 % 11) for number in range(20)]
    assert await same.map(words) == words


@pytest.mark.parametrize(
    ("returned", "error"), [(-1, ValueError), (2**40 + 1, ValueError), (0.5, TypeError), (None, TypeError)]
)
async def test_a_call_raises_at_once_what_is_wrong_with_its_length(returned, error):
    @carpool.batched(length=lambda item: returned)
    async def same(items):
        return items

    with pytest.raises(error):
        same(1)


def test_all_rows_of_a_merged_item_are_as_long_as_it_is():
    chosen = options.Options(length=len)
    assert chosen.measured(["abc"], 2).lengths == [3, 3]
    assert chosen.measured(["abc", "d"], 2).lengths == [3, 1]
