"""Any number of event loops and threads use one batched function, one after the other and at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import uvloop

import carpool
from carpool.functions import futures
from tests.functions.ways import PATIENCE, WAYS, Gate, Recorded, Way, double, every_way, outcome

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
every_loop = pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
every_kind = pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda way: way.kind)

NewLoop = Callable[[], asyncio.AbstractEventLoop]


def run(new_loop: NewLoop, main: Any) -> Any:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


async def gathered(function: Any, *items: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return list(await asyncio.gather(*(function(item) for item in items)))


def in_threads(*actions: Callable[[], Any]) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(len(actions)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(action) for action in actions]]


# --- one after the other, and at once -----------------------------------------------------------------------------


@every_kind
@every_loop
def test_loops_one_after_the_other(way: Way, new_loop: NewLoop) -> None:
    function = way.batched(double)
    for start in range(0, 50, 10):
        assert run(new_loop, gathered(function, *range(start, start + 10))) == [2 * n for n in range(start, start + 10)]


@every_kind
def test_loops_of_different_kinds_at_once_and_threads_between_them(way: Way) -> None:
    function = way.batched(double, max_batch_size=8)

    def with_loop(start: int, new_loop: NewLoop) -> list[int]:
        async def rounds() -> list[int]:
            found = []
            for each in range(20):
                found += await gathered(function, *range(start + 10 * each, start + 10 * each + 10))
            return found

        return run(new_loop, rounds())

    def without(start: int) -> list[int]:
        return [outcome(function(item)) for item in range(start, start + 200)]

    starts = range(0, 1200, 200)
    found = in_threads(
        lambda: with_loop(0, asyncio.new_event_loop),
        lambda: with_loop(200, uvloop.new_event_loop),
        lambda: with_loop(400, asyncio.new_event_loop),
        lambda: with_loop(600, uvloop.new_event_loop),
        lambda: without(800),
        lambda: without(1000),
    )
    assert found == [[2 * item for item in range(start, start + 200)] for start in starts]


def test_calls_of_several_loops_and_threads_share_the_batches_of_a_def() -> None:
    recorded = Recorded(double)
    function = carpool.batched(recorded, max_batch_size=3, max_latency=PATIENCE)
    found = in_threads(
        lambda: run(asyncio.new_event_loop, gathered(function, 1)),
        lambda: run(uvloop.new_event_loop, gathered(function, 2)),
        lambda: outcome(function(3)),
    )
    assert found == [[2], [4], 6]
    assert [sorted(call) for call in recorded.calls] == [[1, 2, 3]]


def test_an_async_function_runs_on_the_loop_of_its_caller() -> None:
    async def where(items: list[Any]) -> list[Any]:
        return [asyncio.get_running_loop()] * len(items)

    function = carpool.batched(where)

    async def mine() -> bool:
        return await function(0) is asyncio.get_running_loop()

    assert in_threads(*[lambda: asyncio.run(mine())] * 3) == [True] * 3
    assert asyncio.run(mine())
    first, second = outcome(function(0)), outcome(function(0))
    assert first is second, "callers without a loop share one"
    assert first.is_running()


# --- one future, several who wait ---------------------------------------------------------------------------------


@every_kind
def test_one_future_is_awaited_by_tasks_of_several_loops_and_by_threads(way: Way) -> None:
    gate = Gate()
    function = way.batched(lambda items: [[item] for item in items], gate=gate)
    future = function("x")
    gate.wait_until_reached()
    ready = threading.Semaphore(0)

    async def wait() -> list[Any]:
        async def one() -> Any:
            ready.release()
            return await future

        return list(await asyncio.gather(one(), one(), one()))

    def wait_in_thread() -> Any:
        ready.release()
        return future.result(PATIENCE)

    def open_gate() -> None:
        for _ in range(11):
            assert ready.acquire(timeout=PATIENCE)
        gate.open()

    first, second, third, fourth, fifth, _ = in_threads(
        lambda: run(asyncio.new_event_loop, wait()),
        lambda: run(uvloop.new_event_loop, wait()),
        lambda: run(asyncio.new_event_loop, wait()),
        wait_in_thread,
        wait_in_thread,
        open_gate,
    )
    assert first == second == third == [["x"]] * 3
    assert fourth == fifth == ["x"]
    assert {id(each) for each in (*first, *second, *third, fourth, fifth)} == {id(fourth)}
    assert run(asyncio.new_event_loop, wait()) == [["x"]] * 3, "and after it is done"


@every_kind
@pytest.mark.parametrize("first", ["where it was made", "elsewhere"])
def test_two_loops_may_begin_to_await_a_future_at_the_same_moment(
    way: Way, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have begun to await it before either waits."""
    gate = Gate()
    function = way.batched(double, gate=gate)
    made: list[Any] = []
    looked, is_made, waits = threading.Barrier(2), threading.Event(), threading.Event()
    ask = futures._batch_here

    def pause(default: Any) -> Any:
        if threading.current_thread().name in ("where it was made", "elsewhere"):
            with contextlib.suppress(threading.BrokenBarrierError):
                looked.wait(0.5)  # whoever asks nothing here comes never
            if threading.current_thread().name != first:
                waits.wait(0.5)
        return ask(default)

    async def wait(name: str) -> Any:
        if name == "where it was made":
            made.append(function(6))
            await gate.reached()
            is_made.set()
        threading.current_thread().name = name
        asyncio.get_running_loop().call_later(0.1, waits.set)
        asyncio.get_running_loop().call_later(0.2, gate.open)
        try:
            async with asyncio.timeout(PATIENCE):
                return await made[0]
        finally:
            threading.current_thread().name = "another"

    def wait_elsewhere() -> Any:
        is_made.wait(PATIENCE)
        return run(asyncio.new_event_loop, wait("elsewhere"))

    monkeypatch.setattr(futures, "_batch_here", pause)
    assert in_threads(lambda: run(asyncio.new_event_loop, wait("where it was made")), wait_elsewhere) == [12, 12]


@every_kind
@pytest.mark.both_loops
@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
async def test_a_future_that_another_loop_awaits_first_is_awaited_where_it_was_made_as_well(
    way: Way, leaves: bool
) -> None:
    gate = Gate()
    future = way.batched(double, gate=gate)(6)
    await gate.reached()
    waits, may_leave = threading.Event(), threading.Event()

    async def wait() -> int:
        return await future

    async def wait_elsewhere() -> Any:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waits.set()
        if leaves:
            await asyncio.to_thread(may_leave.wait, PATIENCE)
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    elsewhere = asyncio.create_task(asyncio.to_thread(run, asyncio.new_event_loop, wait_elsewhere()))
    assert await asyncio.to_thread(waits.wait, PATIENCE)
    here = asyncio.create_task(wait())
    await asyncio.sleep(0)
    may_leave.set()
    if leaves:
        assert isinstance(await elsewhere, asyncio.CancelledError)
    gate.open()
    async with asyncio.timeout(PATIENCE):
        assert await here == 12
        assert leaves or await elsewhere == 12


@every_kind
def test_calls_made_where_a_loop_has_stopped_in_the_midst_of_a_turn_do_not_join_it(way: Way) -> None:
    function = way.batched(double)

    async def begin() -> Any:
        return function(1)

    async def in_another() -> Any:
        return await function(3)

    loop = asyncio.new_event_loop()
    try:
        first = loop.run_until_complete(begin())
        assert function(2).result(PATIENCE) == 4
        assert asyncio.run(in_another()) == 6
        second = loop.run_until_complete(begin())
        assert asyncio.run(in_another()) == 6
        assert [loop.run_until_complete(asyncio.wait_for(each, PATIENCE)) for each in (first, second)] == [2, 2]
    finally:
        loop.close()


@every_kind
@pytest.mark.parametrize("outer", LOOPS.values(), ids=LOOPS)
@every_loop
def test_calls_of_a_loop_that_runs_within_a_turn_of_another_do_not_join_that(
    way: Way, outer: NewLoop, new_loop: NewLoop
) -> None:
    """As libraries allow it that let a coroutine run where a loop runs already."""
    function = way.batched(double)

    async def within(item: int) -> int:
        async with asyncio.timeout(PATIENCE):
            first, second = function(item), function(item + 1)
            return await first + await second

    async def main() -> list[int]:
        future, loop = function(1), asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        try:
            found = run(new_loop, within(2))
        finally:
            asyncio._set_running_loop(loop)
        return [found, await function(4), await future]

    assert run(outer, main()) == [10, 8, 2]


CALLS: dict[str, Callable[[Any], Any]] = {
    "call": lambda function: function(1),
    "call with options": lambda function: function.using(timeout=PATIENCE)(1),
    "shared call": lambda _: carpool.batched(double, dedupe="in_flight")(1),
    "map": lambda function: function.map([1]),
    "map of calls": lambda function: function.using(return_exceptions=True).map([1]),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@every_call
@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.both_loops
async def test_another_loop_may_await_a_call_of_a_def_while_it_blocks_the_one_where_that_was_made(
    call: Callable[[Any], Any], is_wrapped: bool
) -> None:
    future = call(carpool.batched(double))

    async def elsewhere() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await (asyncio.wrap_future(future) if is_wrapped else future)

    [found] = in_threads(lambda: asyncio.run(elsewhere()))
    assert found in (2, [2])


@every_call
@every_loop
def test_another_loop_may_await_a_call_of_a_def_whose_own_loop_stopped_in_the_turn_of_the_call(
    call: Callable[[Any], Any], new_loop: NewLoop
) -> None:
    function = carpool.batched(double)
    loop = new_loop()

    made: list[carpool.Future[Any]] = []

    async def leave() -> None:
        made.append(call(function))
        raise SystemExit

    async def elsewhere() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await made[0]

    try:
        with pytest.raises(SystemExit):
            loop.run_until_complete(leave())
        assert asyncio.run(elsewhere()) in (2, [2])
    finally:
        loop.close()


@pytest.mark.both_loops
async def test_a_map_that_is_awaited_in_its_turn_shares_its_batch_with_those_of_others() -> None:
    recorded = Recorded(double)
    function = carpool.batched(recorded)

    async def mapped(item: int) -> Any:
        return await function.map([item])

    assert await asyncio.gather(*map(mapped, range(4))) == [[0], [2], [4], [6]]
    assert recorded.calls == [[0, 1, 2, 3]]


@every_way
@pytest.mark.both_loops
async def test_a_task_that_is_cancelled_and_uncancelled_has_no_result_that_is_not_there(way: Way) -> None:
    function = way.batched(double, max_batch_size=8, max_latency=PATIENCE)

    async def ask() -> Any:
        return await function(1)

    task = asyncio.ensure_future(ask())
    await asyncio.sleep(0.01)
    task.cancel()
    task.uncancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@every_way
@pytest.mark.both_loops
async def test_who_awaits_a_future_again_has_the_same_result(way: Way) -> None:
    function = way.batched(lambda items: [[item] for item in items])
    future = await way.run(lambda: function(1))
    first = await future
    assert await future is first
    assert future.result() is first
    assert await asyncio.gather(future, future, future) == [[1]] * 3


@every_way
@pytest.mark.both_loops
async def test_a_future_that_is_done_is_awaited_without_a_turn_of_the_loop(way: Way) -> None:
    future = await way.run(lambda: way.batched(double)(1))
    await way.outcome(future)
    with pytest.raises(StopIteration) as caught:
        future.__await__().send(None)
    assert caught.value.value == 2


# --- with the standard library's own tools ------------------------------------------------------------------------


@every_way
@pytest.mark.both_loops
async def test_asyncio_wraps_gathers_shields_and_limits_it(way: Way) -> None:
    function = way.batched(double)
    assert await asyncio.wrap_future(await way.run(lambda: function(1))) == 2
    assert await asyncio.gather(await way.run(lambda: function(2)), asyncio.sleep(0, 3)) == [4, 3]
    assert await asyncio.shield(await way.run(lambda: function(3))) == 6
    assert await asyncio.wait_for(await way.run(lambda: function(4)), PATIENCE) == 8
    async with asyncio.timeout(PATIENCE):
        assert await (await way.run(lambda: function(5))) == 10
    done, waiting = await asyncio.wait([asyncio.ensure_future(await way.run(lambda: function(6)))])
    assert [each.result() for each in done] == [12]
    assert not waiting
    assert [await each for each in asyncio.as_completed([await way.run(lambda: function(7))])] == [14]


async def _wait(function: Any) -> list[int]:
    done, left = await asyncio.wait([function(1), function(2)])
    assert not left
    return [each.result() for each in done]


async def _wait_for_the_first(function: Any) -> list[int]:
    done, left = await asyncio.wait([function(1), function(2)], return_when=asyncio.FIRST_COMPLETED)
    return [*[each.result() for each in done], *[await each for each in left]]


async def _as_completed(function: Any) -> list[int]:
    return [await each for each in asyncio.as_completed([function(1), function(2)])]


async def _wait_for(function: Any) -> list[int]:
    return [await asyncio.wait_for(function(each), PATIENCE) for each in (1, 2)]


async def _task_group(function: Any) -> list[int]:
    async def one(item: int) -> int:
        result: int = await function(item)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in (1, 2)]
    return [task.result() for task in tasks]


@every_kind
@every_loop
@pytest.mark.parametrize("ask", [_wait, _wait_for_the_first, _as_completed, _wait_for, _task_group])
def test_what_takes_awaitables_takes_calls(way: Way, new_loop: NewLoop, ask: Any) -> None:
    """With nothing else on the loop, which would wake it up."""
    function = way.batched(double)

    async def main() -> list[int]:
        async with asyncio.timeout(PATIENCE):
            return sorted(await ask(function))

    assert run(new_loop, main()) == [2, 4]


@every_kind
@every_loop
def test_a_loop_runs_until_a_call_is_answered(way: Way, new_loop: NewLoop) -> None:
    loop = new_loop()
    try:
        assert loop.run_until_complete(way.batched(double)(1)) == 2
    finally:
        loop.close()


@every_kind
async def test_what_takes_coroutines_says_that_a_call_is_none(way: Way) -> None:
    function = way.batched(double)
    async with asyncio.TaskGroup() as group:
        with pytest.raises(TypeError, match="a coroutine was expected"):
            group.create_task(function(1))  # type: ignore[arg-type]
    async with anyio.create_task_group() as nursery:
        with pytest.raises(TypeError, match="to return a coroutine"):
            nursery.start_soon(function, 1)
    with pytest.raises(RuntimeError, match=r"run\(\) cannot be called|event loop"):
        asyncio.run(function(1))  # type: ignore[arg-type]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="asyncio.run takes any awaitable")
@every_kind
def test_asyncio_run_says_that_a_call_is_no_coroutine(way: Way) -> None:
    with pytest.raises(ValueError, match="a coroutine was expected"):
        asyncio.run(way.batched(double)(1))  # type: ignore[arg-type]


@every_way
async def test_waiting_without_success_leaves_the_call_alone(way: Way) -> None:
    gate = Gate()
    future = await way.run(lambda: way.batched(double, gate=gate)(1))
    done, left = await asyncio.wait([future], timeout=0.001)
    assert (done, left) == (set(), {future})
    gate.open()
    assert await way.outcome(future) == 2


@every_way
@pytest.mark.both_loops
async def test_a_cancelled_wrapping_cancels_the_call(way: Way) -> None:
    gate, recorded = Gate(), Recorded(double)
    function = way.batched(recorded, gate=gate, max_latency=0.0, max_in_flight=1)
    first = await way.run(lambda: function(1))
    await gate.reached()
    second = await way.run(lambda: function(2))
    wrapped = asyncio.wrap_future(second)
    wrapped.cancel()
    await asyncio.sleep(0)
    assert second.cancelled()
    gate.open()
    assert await way.outcome(first) == 2
    assert await way.outcome(await way.run(lambda: function(3))) == 6
    assert list(recorded.items) == [1, 3]


@every_kind
def test_the_wait_functions_of_concurrent_futures_know_it(way: Way) -> None:
    gate = Gate()
    function = way.batched(lambda items: [ValueError(item) if item == 3 else item for item in items])
    slow = way.batched(double, gate=gate)
    waiting = slow(1)
    futures = [function(1), function(2)]
    assert sorted(each.result() for each in concurrent.futures.as_completed(futures, PATIENCE)) == [1, 2]
    done, others = concurrent.futures.wait(
        [waiting, function(1)], PATIENCE, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert [each.result() for each in done] == [1]
    assert others == {waiting}
    done, others = concurrent.futures.wait(
        [waiting, function(3)], PATIENCE, return_when=concurrent.futures.FIRST_EXCEPTION
    )
    assert [type(each.exception()) for each in done] == [ValueError]
    assert others == {waiting}
    done, others = concurrent.futures.wait([waiting], 0.001)
    assert (done, others) == (set(), {waiting})
    with pytest.raises(TimeoutError):
        list(concurrent.futures.as_completed([waiting], 0.001))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        mixed = [pool.submit(gate.open), waiting, function(2)]
        done, others = concurrent.futures.wait(mixed, PATIENCE)
        assert {each.result() for each in done} == {None, 2}
        assert not others


async def test_who_blocks_a_loop_with_the_wait_functions_has_calls_of_that_turn_begin() -> None:
    function = carpool.batched(lambda items: [2 * item for item in items])
    futures = [function(1), function(2)]
    done, others = concurrent.futures.wait(futures, PATIENCE)
    assert (done, others) == (set(futures), set())


@every_kind
def test_the_wait_functions_see_a_cancelled_call_as_done(way: Way) -> None:
    gate = Gate()
    function = way.batched(double, gate=gate, max_latency=0.0, max_in_flight=1)
    first = function(1)
    gate.wait_until_reached()
    second = function(2)
    ready = threading.Event()

    def leave() -> None:
        assert ready.wait(PATIENCE)
        second.cancel()

    def wait() -> Any:
        ready.set()
        return concurrent.futures.wait([second], PATIENCE)

    _, (done, others) = in_threads(leave, wait)
    assert (done, others) == ({second}, set())
    assert list(concurrent.futures.as_completed([second], PATIENCE)) == [second]
    gate.open()
    assert outcome(first) == 2


# --- loops that end -----------------------------------------------------------------------------------------------


@every_loop
def test_calls_of_a_loop_that_is_closed_while_they_wait_are_told_so(new_loop: NewLoop) -> None:
    """The function runs on that loop, so it can never go on."""
    entered = asyncio.Event()

    async def never(items: list[int]) -> list[int]:
        entered.set()
        await asyncio.Event().wait()
        return items

    function = carpool.batched(never, max_latency=0.0, max_in_flight=1, max_batch_size=1)
    futures: list[carpool.Future[int]] = []

    async def main() -> None:
        futures.extend([function(1), function(2)])
        await entered.wait()

    run(new_loop, main())
    other = outcome(carpool.batched(double)(1))
    assert other == 2
    for future in futures:
        with pytest.raises((carpool.Closed, concurrent.futures.CancelledError)):
            future.result(PATIENCE)
    assert isinstance(futures[1].exception(), carpool.Closed)


async def async_double(items: list[int]) -> list[int]:
    return double(items)


async def waited_for(function: Any) -> Any:
    return await function(1)


@every_loop
def test_a_def_goes_on_for_others_when_the_loop_of_a_caller_is_closed(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    recorded = Recorded(double)

    def held(items: list[int]) -> list[int]:
        gate.pass_through()
        return recorded(items)

    function = carpool.batched(held, max_batch_size=2, max_latency=PATIENCE)
    kept: list[carpool.Future[int]] = []

    async def main() -> None:
        kept.append(function(1))
        task = asyncio.ensure_future(kept[0])
        await gate.reached()
        assert not task.done()
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    def reach() -> carpool.Future[int]:
        return function(2)

    loop = new_loop()
    other = reach()
    loop.run_until_complete(main())
    loop.close()
    gate.open()
    assert outcome(other) == 4
    assert outcome(function.using(timeout=0.01)(3)) is not None
    assert recorded.calls[0] == [2, 1]
    assert [record.getMessage() for record in caplog.records] == []


@every_kind
@every_loop
def test_a_function_keeps_no_loop_alive_that_has_ended(way: Way, new_loop: NewLoop) -> None:
    function = way.batched(double)

    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        assert await function(1) == 2
        return weakref.ref(asyncio.get_running_loop())

    loops = [run(new_loop, main()) for _ in range(3)]
    assert run(new_loop, gathered(function, 1)) == [2]
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3


@every_loop
def test_a_call_waits_through_two_runs_of_one_loop(new_loop: NewLoop) -> None:
    """Between the two, the loop stands still; nothing is lost."""
    function = carpool.batched(async_double)
    loop = new_loop()
    try:
        future = loop.run_until_complete(made(function))
        assert loop.run_until_complete(waited_for_future(future)) == 2
    finally:
        loop.close()


async def made(function: Any) -> carpool.Future[int]:
    future: carpool.Future[int] = function(1)
    return future


async def waited_for_future(future: carpool.Future[int]) -> int:
    async with asyncio.timeout(PATIENCE):
        return await future


def test_a_loop_in_debug_mode_finds_nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> None:
    """It notices calls of its methods from other threads."""

    async def main(function: Any) -> list[int]:
        await asyncio.to_thread(lambda: outcome(function(0)))
        return await gathered(function, *range(100))

    for function in (carpool.batched(double), carpool.batched(async_double)):
        assert asyncio.run(main(function), debug=True) == [2 * item for item in range(100)]
    assert [record.getMessage() for record in caplog.records if "took" not in record.getMessage()] == []


def test_a_thousand_threads_are_each_answered() -> None:
    function = carpool.batched(double, max_batch_size=64)
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda item=item: found.update({item: outcome(function(item))})) for item in range(1000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {item: 2 * item for item in range(1000)}


# --- threads that wait for one batch ------------------------------------------------------------------------------


class Sleepers:
    """Threads that wait, and have their results at once."""

    def __init__(self, count: int) -> None:
        self._all = [futures._Sleeper() for _ in range(count)]
        self.queue = futures._WakingQueue(self._all)

    @property
    def woken(self) -> int:
        return sum(not sleeper.lock.locked() for sleeper in self._all)


def test_threads_are_woken_one_by_one_and_each_that_leaves_wakes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures._WakingQueue, "are_late", False)
    monkeypatch.setattr(futures, "LATE", PATIENCE)
    sleepers = Sleepers(4)
    assert sleepers.woken == 1
    for woken in (2, 3, 4, 4):  # whether it was woken, or its time was up
        sleepers.queue.wake_next()
        assert sleepers.woken == woken


def test_several_threads_are_woken_at_once_where_the_first_one_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others compute in Python, each that is woken has to wait for the interpreter's lock."""
    monkeypatch.setattr(futures._WakingQueue, "are_late", False)
    sleepers = Sleepers(12)
    assert sleepers.woken == 1
    monkeypatch.setattr(futures, "LATE", -1.0)
    sleepers.queue.wake_next()
    assert sleepers.woken == 9
    sleepers = Sleepers(12)
    assert sleepers.woken == 8, "the next ones at once"
    monkeypatch.setattr(futures, "LATE", PATIENCE)
    sleepers.queue.wake_next()
    assert sleepers.woken == 9
    assert Sleepers(12).woken == 1, "until one of them is in time"


def test_a_thread_that_left_before_it_was_put_in_the_queue_keeps_nobody_asleep() -> None:
    sleepers = [futures._Sleeper() for _ in range(3)]
    sleepers[0].leave()
    futures._WakingQueue(sleepers)
    assert not sleepers[1].lock.locked()
    sleepers[1].leave()
    assert not sleepers[2].lock.locked()


@pytest.mark.parametrize("way", [WAYS[0]], ids=lambda way: way.kind)
def test_threads_whose_time_is_up_as_the_results_come_leave_nobody_asleep(way: Way) -> None:
    function = way.batched(lambda items: time.sleep(0.01) or items, max_batch_size=8, max_latency=PATIENCE)

    def ask(item: int) -> Any:
        try:
            return function(item).result(0.01 if item % 2 else PATIENCE)
        except TimeoutError:
            return item

    for _ in range(20):
        begin = time.monotonic()
        assert in_threads(*[functools.partial(ask, item) for item in range(8)]) == list(range(8))
        assert time.monotonic() - begin < PATIENCE / 2
