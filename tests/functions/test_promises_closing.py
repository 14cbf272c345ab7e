"""A function that is closed answers what it accepted, takes nothing new, and leaves no thread behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import carpool
from tests.functions.driven import DrivenFunction, Item
from tests.functions.ways import PATIENCE, WAYS, Gate, Recorded, Way, double, every_way, kinds, outcome

pytestmark = pytest.mark.both_loops


@every_way
async def test_closing_answers_what_was_accepted_and_refuses_the_rest(way: Way) -> None:
    recorded = Recorded(double)
    gate = Gate()
    function = way.batched(recorded, gate=gate, max_batch_size=2, max_latency=PATIENCE)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3)])
    closed = await way.run(function.close)
    [refused] = await way.run(lambda: [function(4)])
    assert type(await way.outcome(refused)) is carpool.Closed
    assert not closed.done()
    gate.open()
    assert [await way.outcome(future) for future in futures] == [2, 4, 6]
    assert await way.outcome(closed) is None
    assert sorted(recorded.calls) == [[1, 2], [3]]  # an async def works on both at once, in either order


@pytest.mark.parametrize("way", [way for way in WAYS if way.caller == "thread"], ids=str)
async def test_what_is_called_after_the_end_was_asked_for_is_refused_though_that_waits_its_turn(way: Way) -> None:
    function = way.batched(double)
    first = await way.run(lambda: function(1))
    assert await way.outcome(first) == 2
    (made,) = function._site.batchers
    with made._lock:  # somebody is at it
        closed = await way.run(function.close)
        [late] = await way.run(lambda: [function(2)])
    made.mark()
    assert type(await way.outcome(late)) is carpool.Closed
    assert await way.outcome(closed) is None


@every_way
async def test_closing_does_not_wait_for_a_window_to_end(way: Way) -> None:
    function = way.batched(double, max_batch_size=100, max_latency=1000.0)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3)])
    assert await way.outcome(await way.run(function.close)) is None
    assert [await way.outcome(future) for future in futures] == [2, 4, 6]


@every_way
async def test_after_its_timeout_closing_refuses_who_still_waits(way: Way) -> None:
    gate = Gate()
    function = way.batched(double, gate=gate, max_batch_size=1, max_latency=0.0, max_in_flight=1)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3)])
    await gate.reached()
    closed = await way.run(lambda: function.close(timeout=0.02))
    assert kinds([await way.outcome(future) for future in futures[1:]]) == [carpool.Closed] * 2
    assert kinds([await way.outcome(futures[0])]) == [carpool.Closed]
    gate.open()
    assert await way.outcome(closed) is None


@every_way
async def test_a_timeout_of_zero_refuses_at_once(way: Way) -> None:
    gate, recorded = Gate(), Recorded(double)
    function = way.batched(recorded, gate=gate, max_batch_size=1, max_latency=0.0, max_in_flight=1)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3)])
    await gate.reached()
    closed = await way.run(lambda: function.close(timeout=0))
    assert kinds([await way.outcome(future) for future in futures]) == [carpool.Closed] * 3
    gate.open()
    assert await way.outcome(closed) is None
    assert [item for item in recorded.items if item != 1] == []


@every_way
@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
async def test_a_timeout_that_is_none_is_refused_with_its_range(way: Way, timeout: Any) -> None:
    function = way.batched(double)
    with pytest.raises((ValueError, TypeError), match="timeout"):
        function.close(timeout=timeout)
    assert await way.call_all(function, [1]) == [2]


@every_way
async def test_closing_twice_is_closing_once(way: Way) -> None:
    gate = Gate()
    function = way.batched(double, gate=gate)
    future = await way.run(lambda: function(1))
    first, second = await way.run(lambda: (function.close(), function.close()))
    gate.open()
    assert [await way.outcome(each) for each in (first, second, future)] == [None, None, 2]
    assert await way.outcome(await way.run(function.close)) is None


@every_way
async def test_a_second_closing_may_shorten_the_first(way: Way) -> None:
    gate = Gate()
    function = way.batched(double, gate=gate, max_batch_size=1, max_latency=0.0, max_in_flight=1)
    futures = await way.run(lambda: [function(item) for item in (1, 2)])
    await gate.reached()
    patient, short = await way.run(lambda: (function.close(), function.close(timeout=0.001)))
    assert type(await way.outcome(futures[1])) is carpool.Closed
    gate.open()
    assert [await way.outcome(patient), await way.outcome(short)] == [None, None]


@every_way
async def test_closing_what_was_never_called_is_done_at_once_and_starts_nothing(way: Way) -> None:
    before = set(threading.enumerate())
    function = way.batched(double)
    closed = function.close()
    assert closed.done()
    assert set(threading.enumerate()) == before
    assert type(await way.outcome(await way.run(lambda: function(1)))) is carpool.Closed
    assert type(await way.outcome(await way.run(lambda: function.map([1, 2])))) is carpool.Closed


@every_way
async def test_many_threads_that_close_and_call_at_once_leave_nobody_waiting(way: Way) -> None:
    for _ in range(10):
        function = way.batched(double, max_batch_size=4)
        barrier = threading.Barrier(6)

        def call(start: int, function: Any = function, barrier: Any = barrier) -> list[Any]:
            barrier.wait(PATIENCE)
            return [outcome(future) for future in [function(item) for item in range(start, start + 50)]]

        def close(function: Any = function, barrier: Any = barrier) -> Any:
            barrier.wait(PATIENCE)
            return outcome(function.close())

        found = await asyncio.gather(
            *(asyncio.to_thread(call, start) for start in range(0, 200, 50)), *(asyncio.to_thread(close),) * 1,
            asyncio.to_thread(close),
        )  # fmt: skip
        assert found[-2:] == [None, None]
        for start, outcomes in zip(range(0, 200, 50), found, strict=False):
            for item, each in enumerate(outcomes, start):
                assert each == 2 * item or type(each) is carpool.Closed


def test_giving_up_answers_everybody_though_other_threads_call_and_cancel_meanwhile() -> None:
    driven = DrivenFunction()
    operations = driven.batcher._operations

    class LookedAt(tuple[Any, ...]):
        """Another thread puts something on the queue as the one that gives up looks at this."""

        def __iter__(self) -> Iterator[Any]:
            operations.append((print, ()))
            return super().__iter__()

    future = driven.call(Item("one"), False, "key", None, 0)
    operations.append(LookedAt((print, ())))
    driven.batcher.give_up("the interpreter exits")
    assert type(future.exception(0)) is carpool.Closed


@pytest.mark.parametrize("meanwhile", ["is put in", "is answered", "is closed"])
def test_what_another_thread_does_while_all_is_refused_is_answered_too(meanwhile: str) -> None:
    """It comes after the look at what is open, and before that is refused: as a turn among it ends."""
    driven = DrivenFunction(max_batch_size=1, max_latency=0.0, max_in_flight=1)
    late: list[Any] = []

    def act() -> None:
        if meanwhile == "is put in":
            late.append(driven.call(Item("late"), False, "key", None, 0))
        elif meanwhile == "is answered":
            driven.answer(driven.out[0], ["answer"])
        else:
            late.append(driven.batcher.close())

    before = [driven.call(Item(text), False, "key", None, 0) for text in ("travels", "waits")]
    turn = driven.turn("key", None, 0, act)
    before.append(turn.join(Item("joins")))  # type: ignore[arg-type]
    driven.batcher._operations.append((driven.batcher._submit, ([turn],)))
    driven.batcher._begin_anew("its event loop has ended")
    assert {"answer", carpool.Closed} >= set(kinds([outcome(future) for future in before]))
    if meanwhile == "is put in":
        driven.answer(next(out for out in driven.out if out.texts == ["late"]), ["answer"])
        assert late[0].result(1) == "answer"
    else:
        assert [future.result(1) for future in late] == [None] * len(late)


def test_answers_that_were_to_be_handed_out_as_all_was_refused_still_are() -> None:
    driven = DrivenFunction(max_batch_size=1, max_latency=0.0)
    future = driven.call(Item("one"), False, "key", None, 0)
    done = driven.out[0].done

    def fails(outcome: Any) -> None:
        assert done is not None
        done(outcome)
        raise ValueError("a bug, once the answer is to be handed out")

    driven.out[0].done = fails
    driven.answer(driven.out[0], ["answer"])
    assert future.result(1) == "answer"


@every_way
async def test_a_function_may_close_itself(way: Way) -> None:
    """It cannot wait for that, but the answers of its batch and of all accepted before still come."""
    closings: list[Any] = []

    def body(items: list[int]) -> list[int]:
        closings.append(function.close())
        return double(items)

    function = way.batched(body, max_batch_size=2, max_latency=PATIENCE)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3, 4)])
    outcomes = [await way.outcome(future) for future in futures]
    assert outcomes[:2] == [2, 4]
    assert all(each in (6, 8) or type(each) is carpool.Closed for each in outcomes[2:])
    assert await way.outcome(closings[0]) is None


@every_way
async def test_a_callback_may_close_the_function(way: Way) -> None:
    function = way.batched(double, max_batch_size=1)
    closings: list[Any] = []
    closed = threading.Event()

    def close(_: Any) -> None:
        closings.append(function.close())
        closed.set()

    futures = await way.run(lambda: [function(1), function(2)])
    futures[0].add_done_callback(close)
    assert [await way.outcome(future) for future in futures] == [2, 4]
    await asyncio.to_thread(closed.wait, PATIENCE)
    assert await way.outcome(closings[0]) is None


@every_way
async def test_a_callback_of_the_closing_may_call_and_close(way: Way) -> None:
    function = way.batched(double)
    await way.call_all(function, [1])
    found: list[Any] = []
    done = threading.Event()

    def after(_: Any) -> None:
        found.append((function(2), function.close()))
        done.set()

    closed = await way.run(function.close)
    closed.add_done_callback(after)
    assert await way.outcome(closed) is None
    await asyncio.to_thread(done.wait, PATIENCE)
    [(refused, again)] = found
    assert type(await way.outcome(refused)) is carpool.Closed
    assert await way.outcome(again) is None


@every_way
async def test_closing_cancelled_by_who_waits_for_it_goes_on(way: Way) -> None:
    gate = Gate()
    function = way.batched(double, gate=gate)
    future = await way.run(lambda: function(1))
    await gate.reached()
    closed = await way.run(function.close)
    closed.cancel()
    gate.open()
    assert await way.outcome(future) == 2
    assert type(await way.outcome(await way.run(lambda: function(2)))) is carpool.Closed
    assert await way.outcome(await way.run(function.close)) is None


@every_way
async def test_a_retry_that_is_due_is_still_made_while_closing(way: Way) -> None:
    gate = Gate()

    def body(items: list[int]) -> list[int]:
        if 2 in items:
            raise ValueError("two")
        return items

    function = way.batched(body, gate=gate, max_batch_size=4, max_latency=PATIENCE)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3, 4)])
    await gate.reached()
    closed = await way.run(function.close)
    gate.open()
    assert kinds([await way.outcome(future) for future in futures]) == [1, ValueError, 3, 4]
    assert await way.outcome(closed) is None


@every_way
async def test_no_thread_is_left_when_closing_is_done(way: Way) -> None:
    before = set(threading.enumerate())
    function = way.batched(double)
    await asyncio.to_thread(lambda: None)
    pool = set(threading.enumerate()) - before
    await way.call_all(function, range(10))
    assert await way.outcome(await way.run(function.close)) is None
    left = [each for each in set(threading.enumerate()) - before - pool if not each.name.startswith("asyncio_")]
    for each in left:
        await asyncio.to_thread(each.join, PATIENCE)
    assert [each for each in left if each.is_alive() and way.kind == "def"] == []


async def test_as_a_context_manager_it_waits_at_the_end() -> None:
    def work() -> list[Any]:
        with carpool.batched(double) as function:
            futures = [function(item) for item in range(10)]
        assert all(future.done() for future in futures)
        assert type(outcome(function(1))) is carpool.Closed
        return [future.result() for future in futures]

    assert await asyncio.to_thread(work) == [2 * item for item in range(10)]


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=str)
async def test_as_an_async_context_manager_it_waits_at_the_end(way: Way) -> None:
    async with way.batched(double) as function:
        futures = [function(item) for item in range(10)]
    assert [future.result() for future in futures] == [2 * item for item in range(10)]
    assert type(await way.outcome(function(1))) is carpool.Closed


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=str)
async def test_an_exception_in_the_block_passes_and_what_was_accepted_is_answered(way: Way) -> None:
    futures = []

    async def block() -> None:
        async with way.batched(double, max_batch_size=9, max_latency=PATIENCE) as function:
            futures.append(function(1))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await block()
    assert [future.result() for future in futures] == [2]


async def test_closing_one_instances_method_leaves_the_others() -> None:
    class Model:
        @carpool.batched
        def double(self, items: list[int]) -> list[int]:
            return double(items)

    one, other = Model(), Model()
    assert [await one.double(1), await other.double(1)] == [2, 2]
    await one.double.close()
    with pytest.raises(carpool.Closed):
        await one.double(2)
    assert await other.double(2) == 4
    assert await Model().double(2) == 4
