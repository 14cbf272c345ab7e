"""Calls of one turn of an event loop go to the scheduler as one, and nobody can tell but by the time that it takes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

import carpool
from carpool.functions import calls, futures, hosts
from tests.functions import driven
from tests.functions.driven import DrivenFunction, Item
from tests.functions.programs import run_program
from tests.functions.ways import PATIENCE, WAYS, Gate, Recorded, Way, double, kinds

pytestmark = pytest.mark.both_loops

by_tasks = pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda way: way.kind)


class Held:
    """A function that is held in its first call, so that others wait in the queue."""

    def __init__(self, way: Way, body: Any = double, **options: Any) -> None:
        self.gate, self.recorded = Gate(), Recorded(body)
        chosen = {"max_batch_size": 4, "max_latency": 0.0, "max_in_flight": 1} | options
        self.function = way.batched(self.recorded, gate=self.gate, **chosen)

    async def hold(self) -> None:
        self.first = self.function(0)
        await self.gate.reached()

    @property
    def core(self) -> Any:
        return self.function._site.batchers[0].core

    async def turn(self, *items: Any) -> list[carpool.Future[Any]]:
        """Calls of one turn, and then the next turn."""
        made = [self.function(item) for item in items]
        await asyncio.sleep(0)
        return made

    async def outcomes(self, *turns: list[carpool.Future[Any]]) -> list[Any]:
        self.gate.open()
        async with asyncio.timeout(PATIENCE):
            await self.first
            return await asyncio.gather(*[future for turn in turns for future in turn], return_exceptions=True)


@by_tasks
async def test_calls_of_one_turn_wait_as_one_request(way: Way) -> None:
    held = Held(way)
    await held.hold()
    calls = await held.turn(1, 2, 3)
    assert [request.rows for request in held.core.backlog] == [3]
    assert await held.outcomes(calls) == [2, 4, 6]
    assert held.recorded.calls == [[0], [1, 2, 3]]


@by_tasks
async def test_batches_are_as_full_as_if_each_had_come_alone(way: Way) -> None:
    held = Held(way)
    await held.hold()
    turns = [await held.turn(*range(1, 4)), await held.turn(*range(4, 10)), await held.turn(*range(10, 13))]
    assert await held.outcomes(*turns) == [2 * item for item in range(1, 13)]
    assert held.recorded.calls == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


@by_tasks
async def test_calls_of_one_turn_with_other_arguments_or_times_are_not_one(way: Way) -> None:
    held = Held(way, lambda items, by=2: [by * item for item in items])
    await held.hold()
    function = held.function
    turn = [function(1), function(2, by=3), function(3, by=3), function.using(priority=1)(4), function(5)]
    assert await held.outcomes(turn) == [2, 6, 9, 8, 10]
    assert sorted(map(sorted, held.recorded.calls[1:])) == [[1, 4, 5], [2, 3]]


@by_tasks
async def test_batches_are_as_full_whatever_others_call_with_other_arguments_in_the_same_turn(way: Way) -> None:
    held = Held(way, lambda items, by=2: [by * item for item in items])
    await held.hold()
    turn = [held.function(item, by=by) for item in range(8) for by in (2, 3)]
    assert await held.outcomes(turn) == [by * item for item in range(8) for by in (2, 3)]
    assert list(map(len, held.recorded.calls[1:])) == [4, 4, 4, 4]


async def test_a_call_takes_no_longer_however_many_others_call_with_other_arguments_in_the_same_turn() -> None:
    function = carpool.batched(lambda items, by: items)

    def seconds_a_call(count: int) -> float:
        start = time.thread_time()
        for by in range(count):
            function(0, by=by)
        return (time.thread_time() - start) / count

    few, many = [], []
    for _ in range(3):
        for count, measured in (100, few), (3000, many):
            measured.append(seconds_a_call(count))
            await asyncio.sleep(0)
    await function.close()
    assert min(many) < 5 * min(few)


@by_tasks
async def test_of_a_turn_for_which_there_is_no_room_as_many_are_taken_as_have_room(way: Way) -> None:
    held = Held(way, max_queue=3)
    await held.hold()
    turn = await held.turn(1, 2, 3, 4, 5)
    outcomes = await held.outcomes(turn)
    assert kinds(outcomes) == [2, 4, 6, carpool.Overloaded, carpool.Overloaded]
    assert str(outcomes[-1]).endswith(" has no room for more items; max_queue is 3")


@by_tasks
async def test_one_item_of_a_turn_fails_alone_after_as_many_calls_as_ever(way: Way) -> None:
    def body(items: list[int]) -> list[int]:
        if 3 in items:
            raise ValueError("3")
        return double(items)

    held = Held(way, body)
    await held.hold()
    turn = await held.turn(1, 2, 3, 4)
    assert kinds(await held.outcomes(turn)) == [2, 4, ValueError, 8]
    assert held.recorded.calls == [[0], [1, 2, 3, 4], [1, 2], [3, 4], [3], [4]]


@by_tasks
async def test_who_leaves_a_turn_that_travels_is_left_out_of_the_answers(way: Way) -> None:
    held = Held(way)
    held.first = held.function(0)
    others = [held.function(item) for item in (1, 2)]
    await held.gate.reached()
    assert others[0].cancel()
    assert kinds(await held.outcomes(others)) == [asyncio.CancelledError, 4]
    assert held.function.stats().abandoned == 1


@by_tasks
async def test_who_leaves_a_turn_that_travels_is_not_counted_as_answered(way: Way) -> None:
    held = Held(way)
    turn = [held.function(item) for item in (1, 2, 3)]
    await held.gate.reached()
    turn[1].cancel()
    held.first = turn[0]
    assert await held.outcomes(turn[2:]) == [6]
    await held.function.close()  # until all of it is counted
    stats = held.function.stats()
    assert (stats.abandoned, stats.request_seconds.count, stats.refused) == (1, 2, {})


@by_tasks
async def test_who_leaves_a_turn_that_travels_is_not_counted_as_late(way: Way) -> None:
    held = Held(way)
    turn = [held.function.using(timeout=0.05)(item) for item in (1, 2, 3)]
    await held.gate.reached()
    turn[1].cancel()
    late = await asyncio.wait_for(asyncio.gather(turn[0], turn[2], return_exceptions=True), PATIENCE)
    assert kinds(late) == [carpool.DeadlineExceeded] * 2
    held.gate.open()
    stats = held.function.stats()
    assert (stats.abandoned, stats.refused) == (1, {"deadline": 2})


def test_a_turn_that_travels_and_that_one_left_ends_with_its_function() -> None:
    driven = DrivenFunction(max_batch_size=2, max_latency=0.0)
    stays, leaves = driven.call_in_one_turn([Item("stays"), Item("leaves")], "key", None, 0)
    assert [out.texts for out in driven.out] == [["stays", "leaves"]]
    leaves.cancel()
    core = driven.batcher.core
    driven.close(None)
    assert type(stays.exception()) is carpool.Closed
    assert (core.bug, core.open_requests(), core.waiting_rows) == (None, [], 0)
    assert driven.batcher.stats().refused == {"draining": 1}


@by_tasks
async def test_a_turn_that_all_left_is_not_computed(way: Way) -> None:
    held = Held(way)
    await held.hold()
    turn = await held.turn(1, 2, 3)
    assert all(future.cancel() for future in turn)
    await held.outcomes()
    assert held.recorded.calls == [[0]]
    assert held.function.stats().abandoned == 3


@by_tasks
async def test_who_left_in_the_turn_itself_was_never_there(way: Way) -> None:
    held = Held(way)
    await held.hold()
    stays, leaves = held.function(1), held.function(2)
    leaves.cancel()
    assert await held.outcomes([stays]) == [2]
    assert held.recorded.calls == [[0], [1]]


@by_tasks
@pytest.mark.parametrize("count", [1, 2, 4])
async def test_all_who_left_in_the_turn_itself_are_counted(way: Way, count: int) -> None:
    held = Held(way)
    await held.hold()
    for future in [held.function(item) for item in range(count)]:
        future.cancel()
    stays, leaves = held.function(5), held.function(6)
    leaves.cancel()
    assert await held.outcomes([stays]) == [10]
    assert held.function.stats().abandoned == count + 1


@by_tasks
async def test_a_smaller_size_parts_the_turns_that_wait(way: Way) -> None:
    held = Held(way)
    await held.hold()
    turn = await held.turn(1, 2, 3, 4)
    held.function.configure(max_batch_size=3)
    assert await held.outcomes(turn) == [2, 4, 6, 8]
    assert held.recorded.calls == [[0], [1, 2, 3], [4]]


@by_tasks
async def test_turns_go_in_smaller_batches_once_memory_was_short(way: Way) -> None:
    def body(items: list[int]) -> list[int]:
        if len(items) > 2:
            raise MemoryError
        return double(items)

    held = Held(way, body)
    await held.hold()
    turns = [await held.turn(1, 2, 3, 4), await held.turn(5, 6, 7, 8)]
    assert await held.outcomes(*turns) == [2 * item for item in range(1, 9)]
    assert max(len(call) for call in held.recorded.calls[2:]) == 2


@by_tasks
async def test_turns_that_wait_are_parted_once_it_is_learned_how_many_items_a_call_may_have(way: Way) -> None:
    def body(items: list[int]) -> list[int]:
        if len(items) > 2:
            raise ValueError
        return double(items)

    held = Held(way, body)
    await held.hold()
    turns = [await held.turn(*range(start, start + 4)) for start in range(1, 25, 4)]
    assert await held.outcomes(*turns) == [2 * item for item in range(1, 25)]
    assert [len(call) for call in held.recorded.calls] == [1, *[4, 2, 2] * 3, *[2] * 6]


@by_tasks
async def test_each_call_of_a_turn_is_counted_and_has_a_context_of_its_own(way: Way) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    found: list[Any] = []

    def body(items: list[int]) -> list[int]:
        members = carpool.batch().members
        found.append([(member.start, member.items, member.context.get(variable)) for member in members])
        return items

    function = way.batched(body)

    def call(item: int) -> carpool.Future[int]:
        variable.set(item)
        return function(item)

    calls = [contextvars.copy_context().run(call, item) for item in (5, 6, 7)]
    assert await asyncio.gather(*calls) == [5, 6, 7]
    assert found == [[(0, 1, 5), (1, 1, 6), (2, 1, 7)]]
    await function.close()  # until all of it is counted
    stats = function.stats()
    assert (stats.answered, stats.sizes.count, stats.waits.count, stats.request_seconds.count) == (3, 1, 3, 3)


@by_tasks
async def test_all_calls_of_a_turn_that_is_late_are_counted_as_late(way: Way) -> None:
    held = Held(way)
    await held.hold()
    turn = [held.function.using(timeout=0.01)(item) for item in (1, 2, 3)]
    outcomes = await asyncio.wait_for(asyncio.gather(*turn, return_exceptions=True), PATIENCE)
    assert kinds(outcomes) == [carpool.DeadlineExceeded] * 3
    assert len({id(each) for each in outcomes}) == 3
    assert held.function.stats().refused["deadline"] == 3
    await held.outcomes()


async def test_another_thread_may_wait_for_a_call_of_a_turn_that_has_not_ended() -> None:
    """The loop is blocked by the very thread that waits."""
    found: list[int] = []
    future = carpool.batched(double)(1)
    thread = threading.Thread(target=lambda: found.append(future.result(PATIENCE)))
    thread.start()
    thread.join(PATIENCE)
    assert found == [2]


def test_a_fork_within_a_turn_leaves_the_child_nothing_of_it() -> None:
    said = run_program("""
    import asyncio, os

    f = carpool.batched(lambda items: [2 * item for item in items])

    async def main():
        inherited = f(1)
        child = os.fork()
        if not child:
            say(f(2).result(10))
            say(type(inherited.exception()).__name__)
            os._exit(0)
        os.waitpid(child, 0)
        say(await inherited)

    asyncio.run(main())
    """)
    assert said == ["4", "Closed", "2"]


def test_who_joins_a_turn_as_another_thread_ends_it_is_in_it_or_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = calls.Turn((), None, 0, driven.Loop(), 8, threading.RLock(), lambda: None)  # type: ignore[arg-type]
    first = turn.join("first")

    def act() -> contextvars.Context:  # just as somebody calls
        turn.close()
        return contextvars.copy_context()

    monkeypatch.setattr(calls, "_copy_context", act)
    assert turn.join("late") is None
    assert turn.payload == ["first"]
    assert turn.futures == [first]
    assert turn.join("later") is None


def test_a_turn_whose_end_was_interrupted_has_all_who_joined_once_it_is_ended_again() -> None:
    class Interrupt:
        def __iter__(self) -> Any:
            raise KeyboardInterrupt

    turn = calls.Turn((), None, 0, driven.Loop(), 8, threading.RLock(), lambda: None)  # type: ignore[arg-type]
    future = turn.join("item")
    turn._joined.append(Interrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        turn.end()
    del turn._joined[-1]
    turn.end()
    assert (turn.payload, turn.futures) == (["item"], [future])


def test_who_begins_to_wait_as_the_result_comes_is_told() -> None:
    told: list[Any] = []

    class Late(futures.Future[Any]):
        def __setattr__(self, name: str, value: Any) -> None:
            if value is futures.FINISHED:  # another thread adds a callback just before
                self._add_waiter(told.append)
            super().__setattr__(name, value)

    future = Late()
    futures.settle([(future, "result", None)])
    assert told == [future]
    assert future.result() == "result"


def test_calls_of_threads_until_an_idle_function_is_awake_share_a_batch() -> None:
    function = DrivenFunction(max_latency=0.0, max_batch_size=3)
    function.host.soon = []
    for text in ("a", "b", "c"):
        function.call(Item(text), False, "key", None, 0)
    assert not function.out
    (wake,) = function.host.soon
    wake()
    assert [out.texts for out in function.out] == [["a", "b", "c"]]


def test_calls_of_threads_are_put_in_as_soon_as_the_function_is_busy() -> None:
    """They may be too late, or too many, before it is idle again."""
    function = DrivenFunction(max_latency=1.0)
    function.host.soon = []
    function.call(Item("a"), False, "key", None, 0)
    function.host.soon.pop()()
    function.call(Item("b"), False, "key", None, 0)
    assert function.batcher.core.waiting_rows == 1
    function.pass_time(1.0)
    assert [out.texts for out in function.out] == [["a"]]
    assert function.batcher.core.waiting_rows == 1
    late = function.call(Item("c"), False, "key", 0.5, 0)
    function.host.soon.pop()()
    function.pass_time(0.5)
    assert isinstance(late.exception(), carpool.DeadlineExceeded)


async def test_a_task_of_another_loop_awaits_a_call_of_this_one() -> None:
    gate = threading.Event()

    @carpool.batched
    def held(items: list[int]) -> list[int]:
        gate.wait(PATIENCE)
        return items

    future = held(1)

    async def elsewhere() -> int:
        asyncio.get_running_loop().call_later(0.01, gate.set)
        return await future

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == 1
    assert await future == 1


@pytest.mark.parametrize("limit", ["timeout", "max_queue"])
def test_limits_hold_while_the_thread_of_a_function_runs_a_callback(limit: str) -> None:
    may_return, is_called, may_end = threading.Event(), threading.Event(), threading.Event()

    @carpool.batched(max_batch_size=1, max_queue=1 if limit == "max_queue" else None)
    def function(items: list[int]) -> list[int]:
        may_return.wait(PATIENCE)
        return items

    def callback(_: Any) -> None:
        is_called.set()
        may_end.wait(PATIENCE)

    function(1).add_done_callback(callback)
    may_return.set()
    try:
        assert is_called.wait(PATIENCE)
        limited = function.using(timeout=0.1) if limit == "timeout" else function
        those = [limited(item) for item in range(4)]
        with pytest.raises(carpool.CarpoolError):
            those[-1].result(PATIENCE / 2)
    finally:
        may_end.set()


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_a_batch_that_waits_goes_on_before_the_answers_of_the_last_are_handed_out(in_flight: int) -> None:
    told: list[tuple[str, int]] = []
    device = asyncio.Lock()

    @carpool.batched(max_batch_size=1, max_latency=0.0, max_in_flight=in_flight)
    async def echo(items: list[int]) -> list[int]:
        async with device:
            told.append(("begun", items[0]))
            await asyncio.sleep(0)
            return items

    made = [echo(0), echo(1)]
    for call in made:
        call.add_done_callback(lambda done: told.append(("answered", done.result())))
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*made) == [0, 1]
    assert told == [("begun", 0), ("begun", 1), ("answered", 0), ("answered", 1)]


def test_callbacks_of_a_slow_function_run_while_the_next_batch_does_in_its_one_thread() -> None:
    """Once the function has shown that it is slow, unless the machine is too busy just then."""
    begun = [threading.Event() for _ in range(100)]
    threads: set[int] = set()
    found: list[bool] = []

    @carpool.batched(max_batch_size=1, max_latency=0.0)
    def slow(items: list[int]) -> list[int]:
        begun[items[0]].set()
        threads.add(threading.get_ident())
        time.sleep(0.002)
        return items

    those = [slow(item) for item in range(100)]
    for item in range(99):
        those[item].add_done_callback(lambda _, item=item: found.append(begun[item + 1].wait(0.02)))
    assert [each.result(PATIENCE) for each in those] == list(range(100))
    assert any(found)
    assert len(threads) == 1


def test_a_slow_function_needs_no_second_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread)
        raise RuntimeError("can't start new thread")

    @carpool.batched(max_batch_size=1, max_latency=0.0)
    def slow(items: list[int]) -> list[int]:
        time.sleep(0.002)
        return items

    assert slow(0).result(PATIENCE) == 0
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert [each.result(PATIENCE) for each in [slow(item) for item in range(40)]] == list(range(40))
    assert refused
    assert slow(1).result(PATIENCE) == 1


def test_a_host_that_ends_leaves_no_answers_with_a_thread_that_is_gone() -> None:
    def post(function: Callable[..., None], *args: Any) -> None:
        function(*args)

    host = hosts.Threads("f", lambda batch: time.sleep(0.002), post, lambda: None)
    told: list[bool] = []

    def run(*then: Callable[[], None]) -> None:
        done = threading.Event()

        def finish(outcome: Any) -> None:
            for each in then:
                each()
            told.append(host.call_next(done.set, False))
            if not told[-1]:
                done.set()

        host.begin(cast(Any, object()), finish)
        assert done.wait(PATIENCE)

    for _ in range(40):
        run()
    assert True in told  # that it is slow is known
    run(host.end)
    assert not told[-1]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_a_callback_that_raises_an_interrupt_ends_nothing(raised: type[BaseException]) -> None:
    spare: list[str] = []

    @carpool.batched(max_batch_size=1, max_latency=0.0)
    def slow(items: list[int]) -> list[int]:
        time.sleep(0.002)
        return items

    def interrupt(_: object) -> None:
        if (name := threading.current_thread().name).endswith(" answers"):
            spare.append(name)
        raise raised

    those = [slow(item) for item in range(100)]
    for each in those:
        each.add_done_callback(interrupt)
    assert [each.result(PATIENCE) for each in those] == list(range(100))
    assert len(spare) > 1


def test_interrupts_out_of_callbacks_in_a_row_end_neither_the_host_nor_its_spare_thread() -> None:
    told = threading.Event()

    def post(function: Callable[..., None], *args: Any) -> None:
        """As when everything that is handed out ends in an interrupt."""
        function(*args)
        raise KeyboardInterrupt

    host = hosts.Threads("f", lambda batch: time.sleep(0.002), post, lambda: None)

    def interrupt() -> None:
        told.set()
        raise KeyboardInterrupt

    def run() -> bool:
        """Run a batch; returns whether it was left to the spare thread to interrupt."""
        done, is_told = threading.Event(), list[bool]()
        told.clear()

        def finish(outcome: Any) -> None:
            is_told.append(host.call_next(interrupt, False))
            done.set()

        host.begin(cast(Any, object()), finish)
        assert done.wait(PATIENCE)
        assert not is_told[0] or told.wait(PATIENCE)
        return is_told[0]

    assert sum(run() for _ in range(60)) > 1
    host.end()
    host.join(time.monotonic() + PATIENCE)
