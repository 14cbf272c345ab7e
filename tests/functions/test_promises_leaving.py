"""Who leaves is not computed for: cancelled items and those past their time leave the queue, and disturb nobody."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import queue
import threading
from typing import Any

import pytest

import carpool
from tests.functions.ways import PATIENCE, Gate, Recorded, Way, double, every_way, kinds

pytestmark = pytest.mark.both_loops


class Busy:
    """A batched function that is held in its first call, made for the item `first`, so that other calls wait."""

    def __init__(self, way: Way, **options: Any) -> None:
        self.way = way
        self.gate = Gate()
        self.recorded = Recorded(double)
        self.function = way.batched(
            self.recorded, gate=self.gate, **{"max_batch_size": 4, "max_latency": 0.0, "max_in_flight": 1} | options
        )

    async def begin(self) -> carpool.Future[int]:
        future: carpool.Future[int] = await self.way.run(lambda: self.function("first"))
        await self.gate.reached()
        return future

    async def calls(self, *items: Any) -> list[carpool.Future[Any]]:
        return await self.way.run(lambda: [self.function(item) for item in items])


@every_way
async def test_a_call_cancelled_in_the_queue_is_never_computed(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()
    stays, leaves, stays_too = await busy.calls(1, 2, 3)
    assert leaves.cancel()
    assert leaves.cancelled()
    assert leaves.done()
    busy.gate.open()
    assert [await way.outcome(future) for future in (first, stays, stays_too)] == ["firstfirst", 2, 6]
    assert list(busy.recorded.items) == ["first", 1, 3]


@every_way
async def test_a_cancelled_call_makes_room_for_another_in_its_batch(way: Way) -> None:
    busy = Busy(way, max_batch_size=2)
    await busy.begin()
    one, two, three = await busy.calls(1, 2, 3)
    two.cancel()
    busy.gate.open()
    assert [await way.outcome(future) for future in (one, three)] == [2, 6]
    assert busy.recorded.calls == [["first"], [1, 3]]


@every_way
async def test_a_cancelled_call_makes_room_in_a_bounded_queue(way: Way) -> None:
    busy = Busy(way, max_queue=2)
    await busy.begin()
    one, two = await busy.calls(1, 2)
    [refused] = await busy.calls(3)
    assert type(await way.outcome(refused)) is carpool.Overloaded
    two.cancel()
    await asyncio.to_thread(lambda: None)
    [late] = await busy.calls(4)
    busy.gate.open()
    assert [await way.outcome(future) for future in (one, late)] == [2, 8]


@every_way
async def test_a_batch_of_only_cancelled_calls_is_not_computed(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()
    for future in await busy.calls(1, 2, 3):
        assert future.cancel()
    busy.gate.open()
    assert await way.outcome(first) == "firstfirst"
    [last] = await busy.calls(4)
    assert await way.outcome(last) == 8
    assert busy.recorded.calls == [["first"], [4]]


@every_way
async def test_a_map_that_is_cancelled_leaves_with_all_its_items(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()
    whole = await way.run(lambda: busy.function.map(range(100)))
    [one] = await busy.calls(1000)
    assert whole.cancel()
    busy.gate.open()
    assert await way.outcome(one) == 2000
    assert await way.outcome(first) == "firstfirst"
    assert list(busy.recorded.items) == ["first", 1000]


@every_way
async def test_a_map_cancelled_with_some_of_its_batches_computed_is_cancelled_once(way: Way) -> None:
    gate = Gate()
    recorded = Recorded(double)
    function = way.batched(recorded, gate=gate, max_batch_size=2, max_in_flight=1)
    whole = await way.run(lambda: function.map(range(10)))
    await gate.reached()
    whole.cancel()
    gate.open()
    last = await way.run(lambda: function(100))
    assert await way.outcome(last) == 200
    assert whole.cancelled()
    assert list(recorded.items) in ([0, 1, 100], [100])


@every_way
async def test_a_call_cancelled_while_it_is_computed_disturbs_none_of_its_mates(way: Way) -> None:
    gate = Gate()
    function = way.batched(double, gate=gate, max_batch_size=3, max_latency=PATIENCE)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3)])
    await gate.reached()
    was_cancelled = futures[1].cancel()
    gate.open()
    assert [await way.outcome(futures[0]), await way.outcome(futures[2])] == [2, 6]
    assert futures[1].cancelled() == was_cancelled
    if not was_cancelled:
        assert await way.outcome(futures[1]) == 4
    assert await way.call_all(function, [4, 5, 6]) == [8, 10, 12]


@every_way
async def test_cancelling_twice_or_after_the_answer_does_nothing(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()
    [future] = await busy.calls(1)
    called: list[Any] = []
    future.add_done_callback(called.append)
    assert future.cancel()
    assert future.cancel()
    assert called == [future]
    busy.gate.open()
    assert await way.outcome(first) == "firstfirst"
    assert not first.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()


# --- tasks that leave ---------------------------------------------------------------------------------------------

TASKS = pytest.mark.parametrize("way", [Way("def", "task"), Way("async def", "task")], ids=str)


@TASKS
async def test_a_cancelled_task_takes_its_call_out_of_the_queue(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()

    async def caller(item: int) -> int:
        return await busy.function(item)

    tasks = [asyncio.create_task(caller(item)) for item in (1, 2, 3)]
    await asyncio.sleep(0)
    tasks[1].cancel("bored")
    with pytest.raises(asyncio.CancelledError, match="bored"):
        await tasks[1]
    busy.gate.open()
    assert await asyncio.gather(first, tasks[0], tasks[2]) == ["firstfirst", 2, 6]
    assert list(busy.recorded.items) == ["first", 1, 3]


@TASKS
async def test_a_task_that_runs_out_of_time_takes_its_call_out_of_the_queue(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await busy.function(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(busy.function(2), 0.001)
    busy.gate.open()
    assert await first == "firstfirst"
    assert await busy.function(3) == 6
    assert list(busy.recorded.items) == ["first", 3]


@TASKS
async def test_a_failing_task_group_takes_the_calls_of_its_tasks_out_of_the_queue(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()

    async def caller(item: int) -> int:
        return await busy.function(item)

    async def group_of_callers() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(caller(1))
            group.create_task(caller(2))
            await asyncio.sleep(0)
            raise ValueError("no more")

    with pytest.raises(ExceptionGroup):
        await group_of_callers()
    busy.gate.open()
    assert await first == "firstfirst"
    assert await busy.function(3) == 6
    assert list(busy.recorded.items) == ["first", 3]


@TASKS
async def test_a_cancelled_gather_takes_all_its_calls_out_of_the_queue(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()
    gathered = asyncio.gather(*(busy.function(item) for item in range(10)))
    await asyncio.sleep(0)
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered
    busy.gate.open()
    assert await first == "firstfirst"
    assert await busy.function(100) == 200
    assert list(busy.recorded.items) == ["first", 100]


@TASKS
async def test_a_shielded_call_stays_when_its_task_leaves(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()
    future = busy.function(1)

    async def caller() -> int:
        return await asyncio.shield(future)

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    busy.gate.open()
    assert await future == 2
    assert await first == "firstfirst"


@TASKS
async def test_a_coroutine_that_is_closed_or_collected_takes_its_call_out_of_the_queue(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()

    async def caller(item: int) -> int:
        return await busy.function(item)

    closed, collected = caller(1), caller(2)
    closed.send(None)
    collected.send(None)
    assert inspect.getcoroutinestate(closed) == inspect.CORO_SUSPENDED
    closed.close()
    del collected
    gc.collect()
    busy.gate.open()
    assert await first == "firstfirst"
    assert await busy.function(3) == 6
    assert list(busy.recorded.items) == ["first", 3]


@TASKS
async def test_an_async_generator_that_is_closed_takes_its_call_out_of_the_queue(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()

    async def stream() -> Any:
        yield 0
        yield await busy.function(1)

    generator = stream()
    assert await anext(generator) == 0
    waiting = asyncio.create_task(anext(generator))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await generator.aclose()
    busy.gate.open()
    assert await first == "firstfirst"
    assert await busy.function(3) == 6
    assert list(busy.recorded.items) == ["first", 3]


@TASKS
async def test_a_task_that_leaves_takes_only_its_own_wait_away_from_a_future_that_others_await(way: Way) -> None:
    """As `asyncio.wrap_future` has it, a cancelled wait cancels the call: shield what is shared."""
    busy = Busy(way)
    first = await busy.begin()
    future = busy.function(1)

    async def caller() -> int:
        return await asyncio.shield(future)

    stays, leaves = asyncio.create_task(caller()), asyncio.create_task(caller())
    await asyncio.sleep(0)
    leaves.cancel()
    busy.gate.open()
    assert await stays == 2
    assert await first == "firstfirst"
    with pytest.raises(asyncio.CancelledError):
        await leaves


# --- time ---------------------------------------------------------------------------------------------------------


@every_way
async def test_a_call_past_its_time_is_told_so_and_never_computed(way: Way) -> None:
    busy = Busy(way)
    first = await busy.begin()
    late = await way.run(lambda: busy.function.using(timeout=0.01)(1))
    [stays] = await busy.calls(2)
    error = await way.outcome(late)
    assert type(error) is carpool.DeadlineExceeded
    assert isinstance(error, TimeoutError)
    busy.gate.open()
    assert [await way.outcome(first), await way.outcome(stays)] == ["firstfirst", 4]
    assert list(busy.recorded.items) == ["first", 2]


@every_way
async def test_a_call_past_its_time_while_it_is_computed_is_told_so_then(way: Way) -> None:
    gate = Gate()
    function = way.batched(double, gate=gate, max_batch_size=2, max_latency=PATIENCE)
    late, patient = await way.run(lambda: (function.using(timeout=0.05)(1), function(2)))
    await gate.reached()
    assert type(await way.outcome(late)) is carpool.DeadlineExceeded
    assert not patient.done()
    gate.open()
    assert await way.outcome(patient) == 4


@every_way
async def test_everybodys_time_is_their_own(way: Way) -> None:
    busy = Busy(way, timeout=0.01)
    recorded = busy.recorded
    gate = busy.gate
    await way.run(lambda: busy.function.using(timeout=PATIENCE)("first"))
    await gate.reached()
    views = [busy.function, busy.function.using(timeout=PATIENCE), busy.function.using(timeout=0.02)]
    futures = await way.run(lambda: [view(place) for place, view in enumerate(views)])
    assert kinds([await way.outcome(futures[0]), await way.outcome(futures[2])]) == [carpool.DeadlineExceeded] * 2
    gate.open()
    assert await way.outcome(futures[1]) == 2
    assert list(recorded.items) == ["first", 1]


@every_way
async def test_a_caller_that_stops_waiting_for_a_result_may_ask_again(way: Way) -> None:
    """The timeout of `result` is the caller's patience, not the call's: as with any future of the standard library."""
    busy = Busy(way)
    first = await busy.begin()
    [future] = await busy.calls(1)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(future.result, 0.001)
    assert not future.done()
    busy.gate.open()
    assert [await way.outcome(first), await way.outcome(future)] == ["firstfirst", 2]


@every_way
async def test_threads_and_tasks_that_cancel_at_once_agree(way: Way) -> None:
    """However the race ends, a call is either cancelled or answered, and its callbacks run once."""
    function = way.batched(double, max_batch_size=8, max_latency=0.0)
    for _ in range(20):
        futures = await way.run(lambda: [function(item) for item in range(16)])
        called: list[int] = []
        for place, future in enumerate(futures):
            future.add_done_callback(lambda _, place=place, called=called: called.append(place))
        barrier = threading.Barrier(2)

        def cancel(some: list[carpool.Future[Any]], barrier: threading.Barrier = barrier) -> list[bool]:
            barrier.wait(PATIENCE)
            return [future.cancel() for future in some]

        halves = await asyncio.gather(*(asyncio.to_thread(cancel, half) for half in (futures[::2], futures[::-2])))
        for future, cancelled in zip([*futures[::2], *futures[::-2]], [*halves[0], *halves[1]], strict=True):
            if cancelled:
                assert future.cancelled()
        for place, future in enumerate(futures):
            assert future.cancelled() or await way.outcome(future) == 2 * place
        assert sorted(called) == list(range(16))


# --- one call that several wait for -------------------------------------------------------------------------------


async def _abandoned(future: carpool.Future[Any]) -> None:
    """One task waits for it, and gives up."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(future, 0.01)


@every_way
async def test_a_task_that_leaves_takes_nothing_from_a_callback(way: Way) -> None:
    busy = Busy(way)
    await busy.begin()
    (shared,) = await busy.calls(1)
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    shared.add_done_callback(lambda future: told.put(future.result()))
    await _abandoned(shared)
    busy.gate.open()
    assert await way.outcome(shared) == 2
    assert await asyncio.to_thread(told.get, timeout=PATIENCE) == 2  # in a thread of the function, after who waits


@every_way
async def test_a_task_that_leaves_takes_nothing_from_who_wrapped_the_call(way: Way) -> None:
    busy = Busy(way)
    await busy.begin()
    (shared,) = await busy.calls(1)
    wrapped = asyncio.wrap_future(shared)
    await _abandoned(shared)
    busy.gate.open()
    assert await asyncio.wait_for(wrapped, PATIENCE) == 2


@every_way
async def test_a_task_that_leaves_takes_nothing_from_a_thread_that_waits_for_several(way: Way) -> None:
    busy = Busy(way)
    await busy.begin()
    (shared,) = await busy.calls(1)
    waiting = asyncio.create_task(asyncio.to_thread(concurrent.futures.wait, [shared], PATIENCE))
    await asyncio.sleep(0.05)  # until it waits, which nothing tells
    await _abandoned(shared)
    busy.gate.open()
    done, _ = await waiting
    assert [future.result() for future in done] == [2]
