"""`carpool.loader` keeps what DataLoaders promise, over batches that all requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import carpool

BAD = 13


class Table:
    """A table that is looked up in batches, of which it keeps the keys."""

    def __init__(self) -> None:
        self.queries: list[list[Any]] = []
        self.rows = carpool.batched(self._rows, max_batch_size=100)

    async def _rows(self, keys: list[Any]) -> list[Any]:
        self.queries.append(list(keys))
        await asyncio.sleep(0)
        return [ValueError("bad") if key == BAD else f"row {key}" for key in keys]


@pytest.fixture
def table() -> Table:
    return Table()


async def load_all(loader: carpool.loader[Any, Any], keys: Sequence[Any]) -> list[Any]:
    return await asyncio.gather(*[loader.load(key) for key in keys], return_exceptions=True)


async def test_keys_of_one_turn_are_one_query_and_each_key_is_asked_for_once(table: Table) -> None:
    loader = carpool.loader(table.rows)
    assert await load_all(loader, [1, 2, 1]) == ["row 1", "row 2", "row 1"]
    assert loader.load(1) is loader.load(1)
    assert await loader.load_many([2, 3]) == ["row 2", "row 3"]
    assert table.queries == [[1, 2], [3]]


async def test_requests_share_batches_and_remember_only_what_they_asked_for_themselves(table: Table) -> None:
    first, second = carpool.loader(table.rows), carpool.loader(table.rows)
    await asyncio.gather(load_all(first, [1, 2]), load_all(second, [2, 3]))
    assert table.queries == [[1, 2, 2, 3]]
    await first.load(3)
    assert table.queries[1:] == [[3]]


async def test_many_are_none_and_their_order_is_that_of_the_keys(table: Table) -> None:
    loader = carpool.loader(table.rows)
    assert await loader.load_many([]) == []
    assert await loader.load_many([3, 1, 3]) == ["row 3", "row 1", "row 3"]


async def test_a_key_that_fails_fails_alone_and_stays_failed_until_it_is_cleared(table: Table) -> None:
    loader = carpool.loader(table.rows)
    good, bad, again = await load_all(loader, [1, BAD, BAD])
    assert (good, str(bad), str(again)) == ("row 1", "bad", "bad")
    with pytest.raises(ValueError, match="bad"):
        await loader.load(BAD)
    assert table.queries == [[1, BAD]]
    with pytest.raises(ValueError, match="bad"):
        await loader.clear(BAD).load(BAD)
    assert table.queries == [[1, BAD], [BAD]]


async def test_many_fail_with_the_first_that_fails_or_have_exceptions_in_their_places(table: Table) -> None:
    with pytest.raises(ValueError, match="bad"):
        await carpool.loader(table.rows).load_many([1, BAD])
    first, second = await carpool.loader(table.rows.using(return_exceptions=True)).load_many([BAD, 2])
    assert (str(first), second) == ("bad", "row 2")


async def test_what_is_primed_is_not_asked_for_and_an_exception_is_raised(table: Table) -> None:
    loader = carpool.loader(table.rows).prime(1, "mine").prime_many({2: "too", 3: KeyError("gone")}.items())
    assert await load_all(loader, [1, 2]) == ["mine", "too"]
    with pytest.raises(KeyError, match="gone"):
        await loader.load(3)
    assert table.queries == []


async def test_priming_changes_nothing_that_is_there_unless_it_is_forced(table: Table) -> None:
    loader = carpool.loader(table.rows)
    await loader.load(1)
    assert await loader.prime(1, "other").load(1) == "row 1"
    assert await loader.prime(1, "other", force=True).load(1) == "other"


async def test_what_is_cleared_is_asked_for_again_and_nothing_else(table: Table) -> None:
    loader = carpool.loader(table.rows)
    await loader.load_many([1, 2, 3])
    await loader.clear(1).clear_many([2]).load_many([1, 2, 3])
    assert table.queries == [[1, 2, 3], [1, 2]]
    await loader.clear_all().load(3)
    assert table.queries[2:] == [[3]]


async def test_a_caller_who_leaves_takes_nothing_from_those_who_ask_then_or_wait(table: Table) -> None:
    loader = carpool.loader(table.rows)
    leaving = asyncio.ensure_future(asyncio.wait_for(loader.load(1), 10))
    staying = asyncio.ensure_future(asyncio.wait_for(loader.load(1), 10))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == "row 1"
    alone = asyncio.ensure_future(asyncio.wait_for(loader.load(2), 10))
    await asyncio.sleep(0)
    alone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await alone
    assert await loader.load(2) == "row 2"
    many = loader.load_many([3, 4])
    many.cancel()
    assert await load_all(loader, [3, 4]) == ["row 3", "row 4"]


async def test_keys_without_a_hash_need_words_that_tell_them_apart(table: Table) -> None:
    with pytest.raises(TypeError, match="a key of a loader must be hashable, list is not; say with"):
        carpool.loader(table.rows).load([1])
    loader = carpool.loader(table.rows, key=tuple)
    assert await load_all(loader, [[1], [2], [1]]) == ["row [1]", "row [2]", "row [1]"]
    assert table.queries == [[[1], [2]]]


async def test_a_resolver_that_loads_what_another_load_told_is_batched_with_its_like(table: Table) -> None:
    loader = carpool.loader(table.rows)

    async def resolve(key: int) -> str:
        return f"{await loader.load(key)}, {await loader.load(key + 10)}"

    assert await asyncio.gather(resolve(1), resolve(2)) == ["row 1, row 11", "row 2, row 12"]
    assert table.queries == [[1, 2], [11, 12]]


def test_threads_load_too(table: Table) -> None:
    loader = carpool.loader(carpool.batched(lambda keys: [2 * key for key in keys]))
    assert loader.load_many([1, 2]).result(10) == [2, 4]


def test_what_is_not_batched_is_refused_with_words() -> None:
    with pytest.raises(TypeError, match=r"carpool.loader takes a function that carpool.batched made, not"):
        carpool.loader(len)  # type: ignore[arg-type]
