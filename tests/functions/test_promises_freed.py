"""Nothing is kept that nobody needs: freed by counting references alone, with the garbage collector switched off."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import carpool
from tests.functions.ways import PATIENCE, WAYS, Gate, Way, every_way, outcome

pytestmark = pytest.mark.both_loops
every_kind = pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda way: way.kind)


@pytest.fixture(autouse=True)
def _no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Thing:
    """What can be watched: an item or a result."""

    def __init__(self, name: Any = None) -> None:
        self.name = name


class Trouble(Exception):
    """An exception that can be watched."""


async def gone(*watched: weakref.ref[Any]) -> bool:
    """Whether they are freed, at once or as soon as the threads that used them have gone to sleep."""
    for _ in range(200):
        if all(each() is None for each in watched):
            return True
        await asyncio.sleep(0.005)
    referrers = [(each(), [type(by) for by in gc.get_referrers(each())]) for each in watched if each() is not None]
    raise AssertionError(f"still there: {referrers}")


def make_things(items: list[Any]) -> list[Thing]:
    return [Thing(item) for item in items]


@every_way
async def test_items_and_results_are_let_go_with_their_future(way: Way) -> None:
    function = way.batched(make_things, max_batch_size=3, max_latency=PATIENCE)
    items = [Thing(1), Thing(2), Thing(3)]
    watched = [weakref.ref(item) for item in items]
    results = await way.call_all(function, items)
    for result in results:
        result.name = None
    watched += [weakref.ref(result) for result in results]
    del items, results
    result = None
    assert await gone(*watched)


@every_way
async def test_a_result_lives_no_longer_than_its_own_caller_wants(way: Way) -> None:
    """Whatever its batch mates do with theirs."""
    function = way.batched(make_things, max_batch_size=3, max_latency=PATIENCE)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3)])
    kept = await way.outcome(futures[0])
    watched = [weakref.ref(await way.outcome(future)) for future in futures[1:]]
    del futures
    assert await gone(*watched)
    assert kept.name == 1


@every_way
async def test_the_items_of_a_computed_batch_are_let_go_though_the_results_are_kept(way: Way) -> None:
    function = way.batched(lambda items: [item.name for item in items])
    item = Thing("name")
    watched = weakref.ref(item)
    future = await way.run(lambda item=item: function(item))
    assert await way.outcome(future) == "name"
    del item
    assert await gone(watched)
    assert future.done()


@every_way
async def test_exceptions_in_the_list_are_let_go(way: Way) -> None:
    function = way.batched(lambda items: [Trouble(item) for item in items])
    [error] = await way.call_all(function, [Thing()])
    watched = [weakref.ref(error), weakref.ref(error.args[0])]
    del error
    assert await gone(*watched)


@every_way
async def test_cancelled_calls_and_their_items_are_let_go_at_once(way: Way) -> None:
    gate = Gate()
    function = way.batched(lambda items: items, gate=gate, max_latency=0.0, max_in_flight=1)
    first = await way.run(lambda: function("first"))
    await gate.reached()
    item = Thing()
    watched = [weakref.ref(item)]
    futures = await way.run(lambda item=item: [function(item), function.map([item, item])])
    del item
    watched += [weakref.ref(future) for future in futures]
    for future in futures:
        future.cancel()
    future = None
    del futures
    assert await gone(*watched), "while the function is still held"
    gate.open()
    assert await way.outcome(first) == "first"


@every_way
async def test_calls_past_their_time_are_let_go_at_once(way: Way) -> None:
    gate = Gate()
    function = way.batched(lambda items: items, gate=gate, max_latency=0.0, max_in_flight=1)
    first = await way.run(lambda: function("first"))
    await gate.reached()
    item = Thing()
    watched = [weakref.ref(item)]
    future = await way.run(lambda item=item: function.using(timeout=0.01)(item))
    del item
    assert type(await way.outcome(future)) is carpool.DeadlineExceeded
    watched.append(weakref.ref(future))
    del future
    assert await gone(*watched)
    gate.open()
    assert await way.outcome(first) == "first"


@every_kind
async def test_a_task_that_was_cancelled_is_let_go(way: Way) -> None:
    gate = Gate()
    function = way.batched(lambda items: items, gate=gate, max_latency=0.0, max_in_flight=1)
    first = function("first")
    await gate.reached()

    async def caller(item: Any) -> Any:
        return await function(item)

    item = Thing()
    task = asyncio.create_task(caller(item))
    await asyncio.sleep(0)
    watched = [weakref.ref(item), weakref.ref(task)]
    task.cancel()
    await asyncio.wait([task])
    del task, item
    assert await gone(*watched)
    gate.open()
    assert await first == "first"


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_what_a_call_failed_with_that_another_loop_or_batch_awaits_is_let_go(is_elsewhere: bool) -> None:
    watched: list[weakref.ref[Any]] = []

    def fail(items: list[Any]) -> list[Any]:
        raise Trouble("always")

    inner = carpool.batched(fail)

    async def fails(made: list[carpool.Future[Any]]) -> None:
        try:
            await made.pop()
        except Trouble as error:
            watched.append(weakref.ref(error))

    @carpool.batched
    async def outer(items: list[Any]) -> list[Any]:
        await fails([inner(1)])
        return items

    if is_elsewhere:
        await asyncio.to_thread(asyncio.run, fails([inner(1)]))
    else:
        await outer(1)
    assert len(watched) == 1
    assert await gone(*watched)


# --- functions and instances --------------------------------------------------------------------------------------


class Model:
    @carpool.batched
    def double(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]

    @carpool.batched
    async def double_async(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]

    @carpool.batched
    def count(self, items: list[int]) -> Any:
        for step in range(3):
            yield [step * item for item in items]

    @carpool.batched
    def fail(self, items: list[int]) -> list[int]:
        raise Trouble("always")

    @carpool.batched(max_latency=0.3, max_batch_size=100)
    def slow(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]


class Slots:
    __slots__ = ("__weakref__", "factor")

    def __init__(self) -> None:
        self.factor = 2

    @carpool.batched
    def double(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]


def use_method(model: Any) -> None:
    assert outcome(model.double(1)) == 2


def use_none(model: Any) -> None:
    assert model.double is not None


def use_view(model: Any) -> None:
    assert outcome(model.double.using(timeout=1)(1)) == 2


def use_map(model: Any) -> None:
    assert outcome(model.double.map([1, 2])) == [2, 4]


def use_async(model: Any) -> None:
    assert outcome(model.double_async(1)) == 2


def use_stream(model: Any) -> None:
    assert list(model.count(1)) == [0, 1, 2]


def leave_stream(model: Any) -> None:
    assert next(iter(model.count(1))) == 0


def use_failing(model: Any) -> None:
    assert type(outcome(model.fail(1))) is Trouble


def use_cancelled(model: Any) -> None:
    assert model.slow(1).cancel()


def use_late(model: Any) -> None:
    assert type(outcome(model.slow.using(timeout=0.01)(1))) is carpool.DeadlineExceeded


def use_stats(model: Any) -> None:
    assert outcome(model.double(1)) == 2
    assert model.double.stats() is not None


def use_close(model: Any) -> None:
    assert outcome(model.double(1)) == 2
    assert outcome(model.double.close()) is None


USES = [use_none, use_method, use_view, use_map, use_async, use_stream, leave_stream, use_cancelled,
        use_late, use_stats, use_close]  # fmt: skip


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_an_instance_is_freed_with_its_batchers_and_their_threads(use: Callable[[Any], None]) -> None:
    before = set(threading.enumerate())

    def work() -> list[weakref.ref[Any]]:
        model = Model()
        use(model)
        return [weakref.ref(model)]

    assert await gone(*await asyncio.to_thread(work))
    for each in set(threading.enumerate()) - before:
        if each.name.startswith("carpool Model"):
            await asyncio.to_thread(each.join, PATIENCE)
            assert not each.is_alive()


PLAIN_USES = [use_none, use_method, use_map, use_view, use_stats, use_close]


@pytest.mark.parametrize("use", PLAIN_USES, ids=lambda use: use.__name__)
async def test_an_instance_with_slots_is_freed_too(use: Callable[[Any], None]) -> None:
    def work() -> list[weakref.ref[Any]]:
        model = Slots()
        use(model)
        return [weakref.ref(model)]

    assert await gone(*await asyncio.to_thread(work))


async def test_an_instance_whose_async_method_was_called_on_a_loop_is_freed() -> None:
    async def work() -> list[weakref.ref[Any]]:
        model = Model()
        assert await model.double_async(1) == 2
        assert await model.double(1) == 2
        return [weakref.ref(model)]

    assert await gone(*await asyncio.create_task(work()))


async def test_an_instance_that_is_freed_with_calls_in_the_queue_answers_them_first() -> None:
    def work() -> tuple[carpool.Future[int], weakref.ref[Any]]:
        model = Model()
        return model.double(21), weakref.ref(model)

    future, watched = await asyncio.to_thread(work)
    assert await future == 42
    del future
    assert await gone(watched)


async def test_an_instance_that_is_freed_with_calls_in_an_open_window_answers_them_too() -> None:
    def work() -> tuple[carpool.Future[int], weakref.ref[Any]]:
        model = Model()
        return model.slow(21), weakref.ref(model)

    future, watched = await asyncio.to_thread(work)
    async with asyncio.timeout(2 * PATIENCE):
        assert await future == 42
    del future
    assert await gone(watched)
