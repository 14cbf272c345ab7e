"""Batched functions that call batched functions, another or themselves."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest
import uvloop

import carpool
from tests.functions.programs import run_program
from tests.functions.ways import PATIENCE, Way, double, every_way, kinds, outcome

pytestmark = pytest.mark.both_loops


@every_way
async def test_a_function_may_call_another_and_wait_for_it(way: Way) -> None:
    inner = way.batched(double)
    if way.kind == "def":

        def waiting(items: list[int]) -> list[int]:
            return [each.result(PATIENCE) + 1 for each in [inner(item) for item in items]]

        outer: Any = carpool.batched(waiting)
    else:

        async def calling(items: list[int]) -> list[int]:
            return [each + 1 for each in await asyncio.gather(*(inner(item) for item in items))]

        outer = carpool.batched(calling)
    assert await way.call_all(outer, range(20)) == [2 * item + 1 for item in range(20)]


async def test_an_async_function_may_call_a_def_and_a_def_an_async_function() -> None:
    inner = carpool.batched(double)

    async def middle_body(items: list[int]) -> list[int]:
        return [each + 1 for each in await inner.map(items)]

    middle = carpool.batched(middle_body)
    outer = carpool.batched(lambda items: [each + 1 for each in middle.map(items).result(PATIENCE)])
    assert await outer(1) == 4
    assert await asyncio.to_thread(lambda: outcome(outer(2))) == 6


async def test_an_async_function_may_call_itself_while_it_may_run_several_times() -> None:
    async def factorial(items: list[int]) -> list[int]:
        return [1 if item < 2 else item * await function(item - 1) for item in items]

    function = carpool.batched(factorial, max_in_flight=10, max_latency=0.0)
    async with asyncio.timeout(PATIENCE):
        assert await function(5) == 120


async def test_a_def_may_call_itself_while_it_has_threads_for_that() -> None:
    def factorial(items: list[int]) -> list[int]:
        return [1 if item < 2 else item * function(item - 1).result(PATIENCE) for item in items]

    function = carpool.batched(factorial, max_in_flight=10, max_latency=0.0)
    assert await function(5) == 120


async def test_a_function_may_call_itself_and_leave_the_answer_to_a_callback() -> None:
    found: list[Any] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def countdown(items: list[int]) -> list[int]:
        for item in items:
            if item:
                function(item - 1).add_done_callback(lambda each: found.append(each.result()))
            else:
                loop.call_soon_threadsafe(done.set)
        return items

    function = carpool.batched(countdown)
    assert await function(5) == 5
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    await asyncio.to_thread(lambda: outcome(function(0)))
    assert found == [4, 3, 2, 1, 0]


# --- functions that wait for themselves ---------------------------------------------------------------------------


async def with_to_thread(future: Callable[[], carpool.Future[int]]) -> int:
    return await asyncio.to_thread(lambda: future().result(PATIENCE))


async def with_gather(future: Callable[[], carpool.Future[int]]) -> int:
    [found] = await asyncio.gather(future())
    return found


async def with_task(future: Callable[[], carpool.Future[int]]) -> int:
    async def waiting() -> int:
        return await future()

    return await asyncio.create_task(waiting())


async def with_wrap_future(future: Callable[[], carpool.Future[int]]) -> int:
    return await asyncio.wrap_future(future())


async def with_timeout(future: Callable[[], carpool.Future[int]]) -> int:
    return await asyncio.wait_for(asyncio.ensure_future(asyncio.shield(future())), PATIENCE)


async def with_task_group(future: Callable[[], carpool.Future[int]]) -> int:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(plainly(future))
    return task.result()


async def with_tasks_that_are_waited_for(future: Callable[[], carpool.Future[int]]) -> int:
    [done], _ = await asyncio.wait([asyncio.create_task(plainly(future))])
    return done.result()


async def with_as_completed_tasks(future: Callable[[], carpool.Future[int]]) -> int:
    [found] = [await each for each in asyncio.as_completed([plainly(future)])]
    return found


async def with_task_awaited_later(future: Callable[[], carpool.Future[int]]) -> int:
    task = asyncio.create_task(plainly(future))
    for _ in range(5):
        await asyncio.sleep(0)
    return await task


async def with_worker(future: Callable[[], carpool.Future[int]]) -> int:
    jobs: asyncio.Queue[carpool.Future[int]] = asyncio.Queue()
    found: list[int | Exception] = []

    async def work() -> None:
        for each in await asyncio.gather(await jobs.get(), return_exceptions=True):
            found.append(each)
            jobs.task_done()

    worker = asyncio.create_task(work())
    jobs.put_nowait(future())
    await jobs.join()
    await worker
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


async def plainly(future: Callable[[], carpool.Future[int]]) -> int:
    return await future()


ASYNC_WAYS = [
    plainly,
    with_gather,
    with_task,
    with_to_thread,
    with_wrap_future,
    with_timeout,
    with_task_group,
    with_tasks_that_are_waited_for,
    with_as_completed_tasks,
    with_task_awaited_later,
    with_worker,
]


def with_wait(future: carpool.Future[int]) -> int:
    [done] = concurrent.futures.wait([future], timeout=PATIENCE).done
    return done.result()


def with_as_completed(future: carpool.Future[int]) -> int:
    [done] = concurrent.futures.as_completed([future], timeout=PATIENCE)
    return done.result()


def texts(errors: Iterable[Any]) -> str:
    """What they say, each of a group too."""
    return "\n".join(texts(each.exceptions) if isinstance(each, ExceptionGroup) else str(each) for each in errors)


PLAIN_WAYS: list[Callable[[carpool.Future[int]], int]] = [
    lambda future: future.result(),
    lambda future: repr(future.exception()) and future.result(),
    with_wait,
    with_as_completed,
]


@pytest.mark.parametrize("wait", ASYNC_WAYS)
@pytest.mark.parametrize("options", [{}, {"max_in_flight": 1}, {"max_in_flight": 3}, {"max_latency": 0.0}], ids=str)
async def test_an_async_function_that_awaits_itself_for_ever_fails_and_serves_others(
    wait: Callable[[Callable[[], carpool.Future[int]]], Awaitable[int]], options: dict[str, Any]
) -> None:
    if wait is with_to_thread and options.get("max_in_flight") is None:
        pytest.skip("the loop's own executor has fewer threads than there may be batches")

    async def body(items: list[int]) -> list[int]:
        return [item if item == 0 else await wait(lambda: function(1)) for item in items]

    function = carpool.batched(body, **options)
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(function(1), return_exceptions=True)
        assert "(__wrapped__), or allow more batches at once with max_in_flight" in texts(found)
        assert await function(0) == 0


@pytest.mark.parametrize("wait", ASYNC_WAYS)
@pytest.mark.parametrize("options", [{}, {"max_in_flight": 5}, {"max_latency": 0.0}], ids=str)
async def test_an_async_function_may_await_itself_in_any_way_as_deep_as_batches_may_run(
    wait: Callable[[Callable[[], carpool.Future[int]]], Awaitable[int]], options: dict[str, Any]
) -> None:
    async def factorial(items: list[int]) -> list[int]:
        return [1 if item < 2 else item * await wait(lambda item=item: function(item - 1)) for item in items]

    function = carpool.batched(factorial, **options)
    async with asyncio.timeout(PATIENCE):
        for _ in range(30):  # once something was learned too
            assert await function(1) == 1
        assert await function(5) == 120


@pytest.mark.parametrize("wait", PLAIN_WAYS)
@pytest.mark.parametrize("most", [1, 3])
async def test_a_def_that_waits_for_itself_for_ever_fails_and_serves_others(
    wait: Callable[[carpool.Future[int]], int], most: int
) -> None:
    function = carpool.batched(
        lambda items: [item if item == 0 else wait(function(1)) for item in items], max_in_flight=most
    )
    found = await asyncio.to_thread(lambda: outcome(function(1)))
    assert isinstance(found, RuntimeError)
    assert "(__wrapped__), or allow more batches at once with max_in_flight" in str(found)
    assert await function(0) == 0


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_in_task", [False, True])
async def test_a_def_that_awaits_itself_for_ever_on_a_loop_of_its_own_fails_and_serves_others(
    new_loop: Callable[[], asyncio.AbstractEventLoop], is_in_task: bool
) -> None:
    async def awaited() -> int:
        return await function(1)

    async def main() -> int:
        return await (asyncio.create_task(awaited()) if is_in_task else awaited())

    def ask() -> int:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(main())

    function = carpool.batched(lambda items: [item and ask() for item in items])
    found = await asyncio.to_thread(lambda: outcome(function(1)))
    assert isinstance(found, RuntimeError)
    assert "would never answer" in str(found)
    assert await function(0) == 0


def in_a_thread(call: Callable[[], int]) -> int:
    found: list[int] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return found[0]


def in_an_executor(call: Callable[[], int]) -> int:
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        return sum(executor.map(lambda _: call(), range(1)))


def in_an_executor_of_all(call: Callable[[], int]) -> int:
    [done] = concurrent.futures.wait([EXECUTOR.submit(call)]).done
    return done.result()


EXECUTOR = concurrent.futures.ThreadPoolExecutor(8)


@pytest.mark.parametrize("place", [in_a_thread, in_an_executor, in_an_executor_of_all])
@pytest.mark.parametrize("most", [1, 2])
async def test_a_def_that_waits_for_itself_in_threads_that_it_starts_fails_and_serves_others(
    place: Callable[[Callable[[], int]], int], most: int
) -> None:
    calls: list[list[int]] = []

    def body(items: list[int]) -> list[int]:
        calls.append(items)
        return [item and place(lambda: function(1).result()) for item in items]

    function = carpool.batched(body, max_in_flight=most)
    found = await asyncio.to_thread(lambda: outcome(function(1)))
    assert isinstance(found, RuntimeError)
    assert await function(0) == 0
    await function.close()
    assert len(calls) <= most + 2, "what nobody waits for any more is not computed"


async def test_a_thread_that_a_function_leaves_behind_has_its_answer_after_the_function_has_ended() -> None:
    found: list[Any] = []
    threads: list[threading.Thread] = []
    waits = threading.Event()

    def body(items: list[int]) -> list[int]:
        for item in items:
            if item:
                call = function(0)
                threads.append(threading.Thread(target=lambda call=call: (waits.set(), found.append(call.result()))))
                threads[-1].start()
                waits.wait(PATIENCE)
                time.sleep(0.3)  # in which the thread looks whether it waits for ever
        return items

    function = carpool.batched(body)
    assert await function(1) == 1
    await asyncio.to_thread(threads[0].join, PATIENCE)
    assert found == [0]


@pytest.mark.parametrize("wait", ASYNC_WAYS)
async def test_a_task_that_a_function_leaves_behind_has_its_answer_after_the_function_has_ended(
    wait: Callable[[Callable[[], carpool.Future[int]]], Awaitable[int]],
) -> None:
    found: list[int] = []
    tasks: set[asyncio.Task[None]] = set()
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    async def later(item: int) -> None:
        found.append(await wait(lambda: function(item)))
        if len(found) == 2:  # on another loop, where the call came from a thread
            loop.call_soon_threadsafe(done.set)

    async def body(items: list[int]) -> list[int]:
        for item in filter(None, items):
            task = asyncio.create_task(later(item - 1))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if any(items):
            await asyncio.sleep(0.3)  # in which the task looks whether it waits for ever
        return items

    function = carpool.batched(body, max_in_flight=1)
    async with asyncio.timeout(PATIENCE):
        assert await function(2) == 2
        await done.wait()
    assert sorted(found) == [0, 1]  # threads may be told in one moment


async def test_a_task_that_reads_a_stream_of_its_own_function_is_served_after_the_function_has_ended() -> None:
    tasks: list[asyncio.Task[int]] = []

    async def first(item: int) -> int:
        return await anext(count(item))

    @carpool.batched(max_in_flight=1)
    async def count(items: list[int]) -> AsyncIterator[list[int]]:
        tasks.extend([asyncio.create_task(first(item - 1)) for item in items if item])
        await asyncio.sleep(0.1)
        yield items

    async with asyncio.timeout(PATIENCE):
        assert await anext(count(1)) == 1
        assert await asyncio.gather(*tasks) == [0]


async def test_a_stream_that_is_read_in_a_task_awaited_later_fails() -> None:
    async def first(item: int) -> int:
        return await anext(count(item))

    @carpool.batched(max_in_flight=1)
    async def count(items: list[int]) -> AsyncIterator[list[int]]:
        task = asyncio.create_task(first(1))
        await asyncio.sleep(0.01)
        yield [await task]

    with pytest.raises(RuntimeError, match="max_in_flight"):
        await asyncio.wait_for(anext(count(1)), PATIENCE)


class Result:
    pass


async def await_wrapped(future: carpool.Future[Result]) -> None:
    await asyncio.wrap_future(future)


async def wait_in_thread(future: carpool.Future[Result]) -> None:
    await asyncio.to_thread(concurrent.futures.wait, [future])


@pytest.mark.parametrize("wait", [await_wrapped, wait_in_thread])
async def test_a_result_that_was_waited_for_in_a_batch_is_kept_no_longer_than_its_future(
    wait: Callable[[carpool.Future[Result]], Awaitable[None]],
) -> None:
    inner = carpool.batched(lambda items: [Result() for _ in items])

    async def body(items: list[int]) -> list[int]:
        kept = []
        for _ in range(5):
            future = inner(0)
            await wait(future)
            kept.append(weakref.ref(future.result()))
            del future
        await asyncio.get_running_loop().shutdown_default_executor()  # a thread may not have put its last call away yet
        gc.collect()
        return [sum(result() is not None for result in kept) for _ in items]

    assert await carpool.batched(body)(1) <= 1  # the last one's batch may not be put away yet


async def test_the_advice_of_the_error_helps() -> None:
    def factorial(items: list[int]) -> list[int]:
        return [1 if item < 2 else item * function(item - 1).result() for item in items]

    function = carpool.batched(factorial, max_in_flight=10)
    assert await asyncio.to_thread(lambda: outcome(function(6))) == 720
    with_plain = carpool.batched(lambda items: [sum(range(item)) for item in items])
    assert with_plain.__wrapped__([3]) == [3]


async def test_functions_that_wait_for_each_other_go_on_at_once_where_any_of_them_has_room() -> None:
    begun, gate = asyncio.Queue[str](), asyncio.Event()

    async def roomy_body(items: list[str]) -> list[str]:
        begun.put_nowait(items[0])
        if items == ["first"]:
            await gate.wait()
            await narrow("last")
        return items

    async def narrow_body(items: list[str]) -> list[str]:
        begun.put_nowait(items[0])
        if items == ["second"]:
            await roomy("third")
        return items

    roomy, narrow = carpool.batched(roomy_body), carpool.batched(narrow_body, max_in_flight=1)
    async with asyncio.timeout(PATIENCE):
        calls = [asyncio.ensure_future(roomy("first"))]
        assert await begun.get() == "first"
        calls.append(asyncio.ensure_future(narrow("second")))
        assert await begun.get() == "second"
        await asyncio.sleep(0)
        gate.set()
        for _ in range(30):  # turns of the loop, which take far less time than a batch is given
            await asyncio.sleep(0)
        assert [begun.get_nowait() for _ in range(begun.qsize())] == ["third", "last"]
        await asyncio.gather(*calls)


@every_way
@pytest.mark.parametrize("most", [1, 2])
async def test_functions_that_wait_for_each_other_in_a_circle_fail_and_serve_others(way: Way, most: int) -> None:
    def make(place: int) -> Any:
        if way.kind == "def":

            def body(items: list[int]) -> list[int]:
                return [item and functions[(place + 1) % 3](item).result() for item in items]

            return carpool.batched(body, max_in_flight=most)

        async def async_body(items: list[int]) -> list[int]:
            return [item and await functions[(place + 1) % 3](item) for item in items]

        return carpool.batched(async_body, max_in_flight=most)

    functions = [make(place) for place in range(3)]
    assert kinds(await way.call_all(functions[0], [1])) == [RuntimeError]
    assert [await way.call_all(each, [0]) for each in functions] == [[0]] * 3


async def test_a_def_and_an_async_function_that_wait_for_each_other_fail() -> None:
    plain = carpool.batched(lambda items: [coroutine(item).result() for item in items])

    async def body(items: list[int]) -> list[int]:
        return [await plain(item) for item in items]

    coroutine = carpool.batched(body, max_in_flight=1)
    assert isinstance(await asyncio.to_thread(lambda: outcome(plain(1))), RuntimeError)


async def test_a_stream_that_reads_itself_fails() -> None:
    @carpool.batched
    def count(items: list[int]) -> Iterator[list[int]]:
        for item in items:
            yield [item and next(count(item))] * len(items)

    @carpool.batched(max_in_flight=1)
    async def count_async(items: list[int]) -> Any:
        for item in items:
            yield [item and await anext(count_async(item))] * len(items)

    for function in (count, count_async):
        with pytest.raises(RuntimeError, match="max_in_flight"):
            await asyncio.wait_for(anext(function(1)), PATIENCE)
        assert await anext(function(0)) == 0


async def test_a_map_that_waits_for_itself_fails() -> None:
    function = carpool.batched(lambda items: [item and sum(function.map([item] * 40).result()) for item in items])
    assert isinstance(await asyncio.to_thread(lambda: outcome(function(1))), RuntimeError)
    assert await function.map([0] * 40) == [0] * 40


async def test_waiting_for_its_own_end_fails() -> None:
    function = carpool.batched(lambda items: [function.close().result() for _ in items])
    assert isinstance(await asyncio.to_thread(lambda: outcome(function(1))), RuntimeError)


async def test_many_calls_at_once_of_a_function_that_awaits_itself_all_end() -> None:
    async def body(items: list[int]) -> list[int]:
        return list(await asyncio.gather(*(one(item) for item in items)))

    async def one(item: int) -> int:
        return 0 if item == 0 else 1 + await function(item - 1)

    function = carpool.batched(body, max_batch_size=2)
    async with asyncio.timeout(2 * PATIENCE):
        found = await asyncio.gather(*(function(item % 5) for item in range(100)), return_exceptions=True)
    assert all(each == item % 5 or isinstance(each, RuntimeError) for item, each in enumerate(found))
    assert await function(0) == 0


async def test_a_function_that_others_wait_for_keeps_making_batches() -> None:
    """Only a batch that waits for a call behind it is not waited for."""
    sizes: list[int] = []
    gate, begun = asyncio.Event(), asyncio.Event()

    async def inner_body(items: list[int]) -> list[int]:
        sizes.append(len(items))
        begun.set()
        await gate.wait()
        return items

    inner = carpool.batched(inner_body)

    async def outer_body(items: list[int]) -> list[int]:
        return [await inner(item) for item in items]

    outer = carpool.batched(outer_body, max_batch_size=1, max_latency=0.0)
    calls = [outer(0)]
    await begun.wait()
    calls += [outer(item) for item in range(1, 10)]
    for _ in range(20):
        await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*calls) == list(range(10))
    assert sizes == [1, 9]


def test_a_program_ends_whose_functions_wait_for_each_other() -> None:
    said = run_program(
        """
        @carpool.batched
        def p(items): return [q(item).result() for item in items]
        @carpool.batched
        def q(items): return [p(item).result() for item in items]
        future = p(1)
        say(type(future.exception()).__name__)
        """
    )
    assert said == ["RuntimeError"]


async def test_many_calls_that_wait_for_themselves_fail_without_being_tried_again_at_each_depth() -> None:
    calls: list[int] = []

    async def body(items: list[int]) -> list[int]:
        calls.append(len(items))
        return list(await asyncio.gather(*(function(item) if item else asyncio.sleep(0, 0) for item in items)))

    function: Any = carpool.batched(body, max_in_flight=6)
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(*(function(item) for item in range(8)), return_exceptions=True)
    assert {type(each) for each in found[1:]} <= {RuntimeError, carpool.NotIsolated}
    assert len(calls) < 200


@pytest.mark.parametrize("number", [1, 10])
async def test_many_calls_of_functions_that_await_each_other_for_ever_all_end(number: int) -> None:
    async def one_body(items: list[int]) -> list[int]:
        return list(await asyncio.gather(*(other(item) for item in items)))

    async def other_body(items: list[int]) -> list[int]:
        return list(await asyncio.gather(*(one(item) for item in items)))

    one: Any = carpool.batched(one_body)
    other: Any = carpool.batched(other_body)
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(*(one(item) for item in range(number)), return_exceptions=True)
    assert set(kinds(found)) <= {RuntimeError, carpool.NotIsolated}


@pytest.mark.parametrize("fault", ["length", "exit"])
@every_way
async def test_what_an_inner_function_fails_with_as_a_whole_is_told_to_the_item_that_is_at_fault(
    way: Way, fault: str
) -> None:
    @carpool.batched
    def inner(items: list[int]) -> list[int]:
        if 13 in items and fault == "exit":
            raise SystemExit(1)
        return [] if 13 in items else items

    def outer(items: list[int]) -> list[int]:
        return [inner(item).result(timeout=PATIENCE) for item in items]

    async def outer_async(items: list[int]) -> list[int]:
        return [await inner(item) for item in items]

    function: Any = carpool.batched(outer if way.kind == "def" else outer_async, max_batch_size=3, max_latency=1.0)
    error = carpool.WrongLength if fault == "length" else carpool.BatchFailed
    assert kinds(await way.call_all(function, [1, 13, 2])) == [1, error, 2]
