"""An exception or a result that refuses to be touched ends its own call, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import carpool
from carpool.workers import errors as worker_errors
from carpool.workers import pool
from tests.functions import odd_exceptions
from tests.functions.odd_exceptions import ALL, GRAVE, KINDS, ODD_RESULTS, odd_result
from tests.functions.ways import PATIENCE, Way, every_way

TOGETHER: dict[str, Any] = {"max_batch_size": 3, "max_latency": PATIENCE}
ITEMS = ["a", "bad", "c"]

every_kind = pytest.mark.parametrize("kind", ALL)


def outcome(future: carpool.Future[Any]) -> Any:
    error = future.exception(PATIENCE)
    return future.result() if error is None else error


async def outcomes(way: Way, function: Any, items: list[str] = ITEMS) -> list[Any]:
    """The outcome of one call for each item; nothing is asked of an exception."""
    futures = await way.run(lambda: [function(item) for item in items])
    if way.caller == "thread":
        return await asyncio.to_thread(lambda: [outcome(each) for each in futures])
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*futures, return_exceptions=True)


def check(kind: str, found: list[Any], *, raised: bool) -> None:
    """The bad one has its own exception or `BatchFailed`, and the others their results."""
    if raised and kind in GRAVE:
        assert [type(each) for each in found] == [carpool.BatchFailed] * 3
        return
    original = type(ALL[kind]())
    assert (found[0], found[2]) == ("a", "c")
    assert type(found[1]) is original or type(found[1]) is carpool.BatchFailed
    if type(found[1]) is carpool.BatchFailed and original is not odd_exceptions.OddMeta:
        assert original.__name__ in str(found[1])


@every_kind
@every_way
async def test_an_exception_of_any_kind_that_is_raised_ends_its_own_call_only(way: Way, kind: str) -> None:
    def body(items: list[str]) -> list[str]:
        if "bad" in items:
            raise ALL[kind]()
        return items

    function = way.batched(body, **TOGETHER)
    found = await outcomes(way, function)
    if way.kind == "async def" and kind == "stop":  # which Python does not let out of a coroutine
        assert [found[0], type(found[1]), found[2]] == ["a", RuntimeError, "c"]
    else:
        check(kind, found, raised=True)
    assert await outcomes(way, function, ["d", "e", "f"]) == ["d", "e", "f"]


@every_kind
@every_way
async def test_an_exception_of_any_kind_in_the_list_ends_its_own_call_only(way: Way, kind: str) -> None:
    function = way.batched(lambda items: [ALL[kind]() if item == "bad" else item for item in items], **TOGETHER)
    check(kind, await outcomes(way, function), raised=False)
    future = await way.run(lambda: function.map(ITEMS))
    error = await asyncio.to_thread(future.exception, PATIENCE)
    assert type(error) in (type(ALL[kind]()), carpool.BatchFailed)


def read(stream: carpool.Stream[Any]) -> Any:
    try:
        return list(stream)
    except BaseException as error:
        return error


@every_kind
@pytest.mark.parametrize("is_raised", [False, True], ids=["in a list", "raised"])
async def test_an_exception_of_any_kind_in_a_stream_ends_its_own_stream_only(kind: str, is_raised: bool) -> None:
    @carpool.batched(**TOGETHER)
    def plain(items: list[str]) -> Iterator[list[Any]]:
        if is_raised and "bad" in items:
            raise ALL[kind]()
        yield [ALL[kind]() if item == "bad" else item for item in items]
        yield items

    @carpool.batched(**TOGETHER)
    async def coroutine(items: list[str]) -> Any:
        if is_raised and "bad" in items:
            raise ALL[kind]()
        yield [ALL[kind]() if item == "bad" else item for item in items]
        yield items

    for function in (plain, coroutine):
        streams = await asyncio.to_thread(lambda f=function: [f(item) for item in ITEMS])
        found = await asyncio.to_thread(lambda s=streams: [read(each) for each in s])
        found = [each[0] if type(each) is list else each for each in found]
        if is_raised and kind in ("stop", "async stop"):
            assert [found[0], found[2]] == ["a", "c"]
        else:
            check(kind, found, raised=is_raised)


@pytest.fixture(scope="module")
def in_process() -> Iterator[Any]:
    with pool.processes(odd_exceptions.Model).on("cpu") as there:
        yield there


@every_kind
@pytest.mark.parametrize("returned", [False, True], ids=["raised", "in the list"])
def test_an_exception_of_any_kind_of_a_worker_process_ends_its_own_call_only(
    in_process: Any, kind: str, returned: bool
) -> None:
    function = carpool.batched(in_process, **TOGETHER)
    in_process.acquire()  # so that it outlives the function
    futures = [function(item, returned=returned) for item in ("a", kind, "c")]
    found = [outcome(each) for each in futures]
    function.close().result(PATIENCE)
    if not returned and all(type(each) is carpool.BatchFailed for each in found):
        assert kind in GRAVE
        return
    assert (found[0], found[2]) == ("a", "c")
    assert type(found[1]) in (type(ALL[kind]()), carpool.BatchFailed, worker_errors.RemoteError, odd_exceptions.Other)


@every_way
@pytest.mark.parametrize("what", ODD_RESULTS)
async def test_a_result_that_refuses_to_be_touched_reaches_its_caller(way: Way, what: str) -> None:
    results = {"a": "a", "bad": odd_result(what), "c": "c"}
    function = way.batched(lambda items: [results[item] for item in items], **TOGETHER)
    futures = await way.run(lambda: [function(item) for item in ITEMS])
    found = await asyncio.to_thread(lambda: [each.result(PATIENCE) for each in futures])
    assert found[1] is results["bad"]
    assert (found[0], found[2]) == ("a", "c")
    mapped = await way.run(lambda: function.map(ITEMS))
    assert (await asyncio.to_thread(mapped.result, PATIENCE))[1] is results["bad"]


@every_way
@pytest.mark.parametrize("what", ODD_RESULTS)
async def test_a_list_that_refuses_to_be_touched_fails_its_batch_and_the_function_goes_on(way: Way, what: str) -> None:
    function = way.batched(lambda items: odd_result(what) if "bad" in items else items, **TOGETHER)
    found = await outcomes(way, function)
    assert all(isinstance(each, carpool.WrongResult | odd_exceptions.Trap) or each in ("a", "c") for each in found)
    assert await outcomes(way, function, ["d", "e", "f"]) == ["d", "e", "f"]


def test_there_are_many_kinds() -> None:
    assert len(KINDS) > 50


async def test_a_kept_note_is_the_callers_own() -> None:
    error = ValueError("bad")
    error.add_note("of the function")
    function = carpool.batched(lambda items: [error for _ in items], **TOGETHER)
    futures = [function(item) for item in ITEMS]
    first, second, _ = await asyncio.to_thread(lambda: [each.exception(PATIENCE) for each in futures])
    assert first is not None
    assert second is not None
    first.add_note("mine")
    assert (first.__notes__, second.__notes__) == (["of the function", "mine"], ["of the function"])
    assert error.__notes__ == ["of the function"]
