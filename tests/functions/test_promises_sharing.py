"""What equal calls share, what each item has of its own, and what is computed that nobody asked for."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import carpool
from tests.functions.ways import PATIENCE, Gate, Recorded, Way, double, every_way, kinds

pytestmark = pytest.mark.both_loops
BAD = 13


# --- equal calls in flight --------------------------------------------------------------------------------------


@every_way
async def test_equal_calls_are_one_from_the_first_until_it_has_its_answer(way: Way) -> None:
    gate, body = Gate(), Recorded(double)
    function = way.batched(body, gate=gate, dedupe="in_flight", max_batch_size=1, max_in_flight=2)
    first = await way.run(lambda: [function(1), function(1)])
    await gate.reached()  # the batch of the first has left
    later = await way.run(lambda: [function(1), function(2)])
    assert len(set(map(id, [*first, *later]))) == 4
    gate.open()
    assert [await way.outcome(future) for future in [*first, *later]] == [2, 2, 2, 4]
    assert sorted(body.items) == [1, 2]
    assert await way.call_all(function, [1]) == [2]
    assert sorted(body.items) == [1, 1, 2]  # nothing is kept


@every_way
async def test_a_function_that_calls_itself_with_the_same_item_waits_for_no_call_that_waits_for_it(way: Way) -> None:
    def body(items: list[int]) -> list[int]:
        return [function(item).result(timeout=PATIENCE) for item in items]

    async def async_body(items: list[int]) -> list[int]:
        return [await function(item) for item in items]

    function = carpool.batched(body if way.kind == "def" else async_body, dedupe="in_flight", max_in_flight=2)
    assert isinstance(await way.outcome(await way.run(lambda: function(1))), RuntimeError)


@every_way
async def test_who_shares_a_failure_has_an_exception_of_its_own_with_the_same_cause(way: Way) -> None:
    def fail(items: list[int]) -> list[int]:
        raise ValueError("no")

    gate = Gate()
    function = way.batched(fail, gate=gate, dedupe="in_flight")
    futures = await way.run(lambda: [function(1), function(1)])
    gate.open()
    first, second = [await way.outcome(future) for future in futures]
    assert kinds([first, second]) == [ValueError, ValueError]
    assert first is not second
    assert first.__cause__ is second.__cause__ is not None


@every_way
async def test_one_of_those_who_share_a_call_may_leave_and_the_last_takes_it_along(way: Way) -> None:
    gate, body = Gate(), Recorded(double)
    function = way.batched(body, gate=gate, dedupe="in_flight", max_batch_size=1, max_in_flight=1)
    blocker = await way.run(lambda: function(0))
    await gate.reached()
    leaving, staying, lonely = await way.run(lambda: [function(1), function(1), function(2)])
    leaving.cancel()
    lonely.cancel()
    again = await way.run(lambda: function(2))
    again.cancel()
    gate.open()
    assert [await way.outcome(blocker), await way.outcome(staying)] == [0, 2]
    await way.call_all(function, [3])
    assert list(body.items) == [0, 1, 3]


@every_way
async def test_only_calls_that_agree_in_all_arguments_and_the_timeout_share(way: Way) -> None:
    body = Recorded(lambda items, by: [by * item for item in items])
    function = way.batched(body, dedupe="in_flight", max_batch_size=1)
    patient = function.using(timeout=PATIENCE)
    futures = await way.run(lambda: [function(1, by=2), function(1, by=3), patient(1, by=2), function([1], by=2)])
    assert [await way.outcome(future) for future in futures] == [2, 3, 2, [1, 1]]
    assert len(list(body.items)) == 4


@every_way
async def test_a_map_shares_with_what_is_under_way(way: Way) -> None:
    gate, body = Gate(), Recorded(double)
    function = way.batched(body, gate=gate, dedupe="in_flight", max_batch_size=1, max_in_flight=3)
    first = await way.run(lambda: function(1))
    await gate.reached()
    many = await way.run(lambda: function.map([1, 2, 2]))
    gate.open()
    assert [await way.outcome(first), await way.outcome(many)] == [2, [2, 4, 4]]
    assert sorted(body.items) == [1, 2]


async def test_what_refuses_a_call_at_once_refuses_those_who_have_joined(caplog: pytest.LogCaptureFixture) -> None:
    def cost(item: int) -> float:
        return -1.0

    function: Any = carpool.batched(double, dedupe="in_flight", cost=cost, max_batch_cost=1)
    for _ in range(2):
        with pytest.raises(ValueError, match="cost must return"):
            function(1)
    gc.collect()
    assert not caplog.records  # who called was told


# --- keys and caches --------------------------------------------------------------------------------------------


class AsyncCache:
    """As clients of Redis have it."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.fails = False

    async def get(self, key: Any) -> Any:
        await asyncio.sleep(0)
        if self.fails:
            raise ConnectionError
        return self.values.get(key)

    async def set(self, key: Any, value: Any) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise ConnectionError
        self.values[key] = value

    async def delete(self, key: Any) -> None:
        self.values.pop(key, None)


@every_way
async def test_a_key_says_which_items_are_the_same(way: Way) -> None:
    body = Recorded(lambda items: [item["id"] for item in items])
    cache = carpool.LRU[Any, int]()
    function = way.batched(body, key=lambda item: item["id"], cache=cache, dedupe=True)
    assert await way.outcome(await way.run(lambda: function.map([{"id": 1}, {"id": 1, "x": 2}]))) == [1, 1]
    assert await way.call_all(function, [{"id": 1}]) == [1]
    assert len(list(body.items)) == 1
    with pytest.raises(KeyError):
        await way.run(lambda: function({}))


@every_way
async def test_what_is_primed_is_not_computed_and_what_is_forgotten_is(way: Way) -> None:
    body = Recorded(lambda items, by=2: [by * item for item in items])
    function = way.batched(body, cache=carpool.LRU[Any, int]())
    function.prime(1, 100, by=3)
    assert [await way.outcome(await way.run(lambda by=by: function(1, by=by))) for by in (2, 3)] == [2, 100]
    function.forget(1, by=3)
    assert await way.outcome(await way.run(lambda: function(1, by=3))) == 3
    with pytest.raises(TypeError, match="has no cache to prime"):
        way.batched(body).prime(1, 2)
    with pytest.raises(TypeError, match=r"cannot keep a result for \[1\]"):
        function.prime([1], 2, by=3)


def test_a_cache_without_delete_cannot_forget() -> None:
    class Cache:
        def get(self, key: Any) -> None: ...
        def set(self, key: Any, value: Any) -> None: ...

    function: Any = carpool.batched(double, cache=Cache())
    with pytest.raises(TypeError, match=r"its cache Cache has no delete\(key\)"):
        function.forget(1)


@pytest.mark.parametrize("dedupe", [False, True])
async def test_a_cache_with_coroutine_methods_is_asked_in_the_batch_and_told_what_was_computed(dedupe: bool) -> None:
    cache, body = AsyncCache(), Recorded(lambda items: [None if item == 0 else 2 * item for item in items])
    function = Way("async def", "task").batched(body, cache=cache, dedupe=dedupe)
    assert await function.map([1, 2, 0]) == [2, 4, None]
    assert await function.map([3, 2, 3, 1]) == [6, 4, 6, 2]
    assert await function.map([1, 2]) == [2, 4]
    assert body.calls == [[1, 2, 0], [3] if dedupe else [3, 3]]
    assert cache.values == {1: 2, 2: 4, 3: 6}
    assert function.stats().cache_hits == 4
    await function.prime(1, 100)
    await function.forget(2)
    assert await function.map([1, 2]) == [100, 4]


async def test_a_cache_with_coroutine_methods_that_fails_counts_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    cache = AsyncCache()
    cache.fails = True
    function = Way("async def", "task").batched(double, cache=cache)
    assert await function.map([1, 2]) == [2, 4]
    assert {record.getMessage() for record in caplog.records} == {
        "a cache failed to get a result",
        "a cache failed to keep a result",
    }


async def test_one_bad_item_harms_no_other_where_a_cache_has_coroutine_methods() -> None:
    def picky(items: list[int]) -> list[int]:
        if BAD in items:
            raise ValueError("bad")
        return double(items)

    function = Way("async def", "task").batched(picky, cache=AsyncCache())
    assert kinds(await Way("async def", "task").call_all(function, [1, BAD, 2])) == [2, ValueError, 4]


# --- what each item has of its own --------------------------------------------------------------------------------


def speak(texts: list[str], voice: list[str], speed: list[float] = 1.0, *, kind: str = "wav") -> list[str]:  # type: ignore[assignment]
    assert len(texts) == len(voice) == len(speed)
    return [f"{text} {who} {pace} {kind}" for text, who, pace in zip(texts, voice, speed, strict=True)]


@every_way
async def test_calls_that_differ_in_what_each_has_of_its_own_share_a_batch(way: Way) -> None:
    sizes = []

    def spoken(texts: list[str], voice: list[str], speed: list[float] = 1.0, *, kind: str = "wav") -> list[str]:  # type: ignore[assignment]
        sizes.append(len(texts))
        return speak(texts, voice, speed, kind=kind)

    async def spoken_async(texts: list[str], voice: list[str], speed: Any = 1.0, *, kind: str = "wav") -> list[str]:
        return spoken(texts, voice, speed, kind=kind)

    options: dict[str, Any] = {"each": ["voice", "speed"], "max_batch_size": 3, "max_latency": PATIENCE}
    function: Any = carpool.batched(spoken if way.kind == "def" else spoken_async, **options)
    made = await way.run(lambda: [function("a", "x"), function("b", voice="y", speed=2), function("c", "z", 3)])
    assert [await way.outcome(future) for future in made] == ["a x 1.0 wav", "b y 2 wav", "c z 3 wav"]
    assert sizes == [3]
    every = await way.run(lambda: function.map(["a", "b", "c"], ["xyz"] * 3, kind="mp3"))
    assert await way.outcome(every) == ["a xyz 1.0 mp3", "b xyz 1.0 mp3", "c xyz 1.0 mp3"]


def test_methods_streams_and_keyword_arguments_have_their_own_too() -> None:
    class Model:
        @carpool.batched(each=["voice"])
        def speak(self, texts: list[str], voice: list[str], **more: str) -> list[str]:
            return [f"{text} {who} {more}" for text, who in zip(texts, voice, strict=True)]

        @carpool.batched(each=["voice"])
        def stream(self, texts: list[str], *, voice: list[str]) -> Iterator[list[str]]:
            yield texts
            yield voice

    model = Model()
    assert model.speak("a", "x", tone="low").result(PATIENCE) == "a x {'tone': 'low'}"
    assert model.speak.map(["a", "b"], voice=["x", "y"]).result(PATIENCE) == ["a x {}", "b y {}"]
    assert list(model.stream("a", voice="x")) == ["a", "x"]
    assert [list(each) for each in model.stream.map(["a", "b"], voice=["x", "y"])] == [["a", "x"], ["b", "y"]]
    with carpool.inline():
        assert model.speak("a", "x").result() == "a x {}"


def test_what_is_missing_or_of_another_number_is_told_at_the_call() -> None:
    function = carpool.batched(each=["voice", "speed"])(speak)
    with pytest.raises(TypeError, match=r"speak\(\): missing a required argument: 'voice'"):
        function("a")
    with pytest.raises(TypeError, match="map takes a list of voice, one for each item, not 'xy'"):
        function.map(["a", "b"], voice="xy")
    with pytest.raises(ValueError, match="map was given 1 of voice for 2 items"):
        function.map(["a", "b"], voice=["x"])


def test_items_are_the_same_only_if_all_of_their_own_is() -> None:
    cache, body = carpool.LRU[Any, str](), Recorded(speak)

    @carpool.batched(each=["voice"], cache=cache, dedupe=True)
    def function(texts: list[str], voice: list[Any]) -> list[str]:
        body.calls.append(list(zip(texts, voice, strict=True)))
        return [f"{text} {who}" for text, who in zip(texts, voice, strict=True)]

    assert function.map(["a"] * 3, voice=[1, True, 1]).result(PATIENCE) == ["a 1", "a True", "a 1"]
    assert function("a", voice=True).result(PATIENCE) == "a True"
    assert body.calls == [[("a", 1), ("a", True)]]
    function.forget("a", voice=True)
    assert function("a", voice=True).result(PATIENCE) == "a True"
    assert len(body.calls) == 2


def test_the_cost_and_the_key_of_an_item_see_what_it_has_of_its_own() -> None:
    @carpool.batched(
        each=["speed"],
        cost=lambda text, speed: len(text) / speed,
        max_batch_cost=10,
        key=lambda text, speed: speed,
        dedupe=True,
    )
    def function(texts: list[str], speed: list[float]) -> list[int]:
        return [len(texts)] * len(texts)

    assert function.map(["a", "bc", "d"], speed=[1, 1, 2]).result(PATIENCE) == [2, 2, 2]


# --- batches of fixed sizes, and before callers come --------------------------------------------------------------


@every_way
async def test_batches_are_filled_up_to_the_next_size_and_nobody_gets_what_fills_them(way: Way) -> None:
    body = Recorded(double)
    function = way.batched(body, pad_with=0, max_batch_size=8, allowed_batch_sizes=(2, 8))
    for items in ([1], [1, 2], [1, 2, 3]):
        assert await way.outcome(await way.run(lambda items=items: function.map(items))) == double(items)
    assert body.calls == [[1, 0], [1, 2], [1, 2, 3, 0, 0, 0, 0, 0]]
    body.calls.clear()
    fixed = way.batched(body, pad_with=9, max_batch_size=4, dedupe=True)
    assert await way.outcome(await way.run(lambda: fixed.map([1, 1]))) == [2, 2]
    assert body.calls == [[1, 9, 9, 9]]


def test_streams_are_filled_up_too() -> None:
    @carpool.batched(pad_with=0, max_batch_size=3)
    def count(starts: list[int]) -> Iterator[list[int]]:
        yield [start + len(starts) for start in starts]

    assert [list(stream) for stream in count.map([1, 2])] == [[4], [5]]


def test_a_function_that_gives_no_result_for_what_fills_a_batch_is_told() -> None:
    function = carpool.batched(lambda items: [item for item in items if item], pad_with=0, max_batch_size=3)
    with pytest.raises(carpool.WrongLength, match="returned 1 results; the items were 3"):
        function(1).result(PATIENCE)


@every_way
async def test_warming_up_calls_the_function_with_each_size_and_keeps_nothing(way: Way) -> None:
    body, cache = Recorded(double), carpool.LRU[Any, int]()
    function = way.batched(body, cache=cache, dedupe=True, max_batch_size=4)
    await way.outcome(await way.run(lambda: function.warm_up(7)))
    assert sorted(body.calls) == [[7], [7, 7, 7, 7]]
    assert len(cache) == 0
    body.calls.clear()
    sized = way.batched(body, max_batch_size=8, allowed_batch_sizes=(2, 8), max_latency=0.001)
    await way.outcome(await way.run(lambda: sized.warm_up(7)))
    assert sorted(map(len, body.calls)) == [2, 8]


@every_way
async def test_a_warm_up_that_fails_says_so(way: Way) -> None:
    def fail(items: list[int]) -> list[int]:
        raise ValueError("no model")

    assert kinds([await way.outcome(await way.run(lambda: way.batched(fail, isolate=False).warm_up(1)))]) == [
        ValueError
    ]


# --- failures nobody asked for ------------------------------------------------------------------------------------


def settled(function: Any, item: int) -> carpool.Future[Any]:
    """A future that is done, of which nobody was told."""
    future: carpool.Future[Any] = function(item)
    done = threading.Event()
    function(item).add_done_callback(lambda _: done.set())
    assert done.wait(PATIENCE)
    while not future.done():
        pass
    return future


def fail(items: list[int]) -> list[int]:
    raise ValueError("no")


def test_a_failure_that_nobody_asked_for_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    settled(carpool.batched(fail, name="lost"), 1)
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == [
        "lost failed, and nobody asked for the outcome of that call: ValueError: no"
    ]


@pytest.mark.parametrize("asks", ["exception", "result", "add_done_callback", "_state"])
def test_a_failure_that_somebody_asked_for_is_not_in_the_log(asks: str, caplog: pytest.LogCaptureFixture) -> None:
    future = settled(carpool.batched(fail), 1)
    if asks == "result":
        with pytest.raises(ValueError, match="no"):
            future.result()
    elif asks == "add_done_callback":
        future.add_done_callback(lambda _: None)
    elif asks == "_state":
        assert future._state == "FINISHED"  # as `concurrent.futures.wait` does
    else:
        assert future.exception() is not None
    del future
    gc.collect()
    assert caplog.records == []


@every_way
async def test_a_call_that_was_cancelled_or_closed_is_not_in_the_log(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    function = way.batched(double, gate=gate, max_batch_size=1, max_in_flight=1)
    futures = await way.run(lambda: [function(1), function(2), function(3)])
    futures[1].cancel()
    function.close(timeout=0.0)
    gate.open()
    await way.outcome(function.close())
    del futures
    gc.collect()
    assert caplog.records == []
