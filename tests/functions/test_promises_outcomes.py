"""Every call has one outcome of its own: its result, or its own exception."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import gc
import inspect
import pickle
import queue
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import carpool
from carpool.functions import futures
from tests.functions.ways import PATIENCE, Gate, Recorded, Way, double, every_way, kinds, outcome

pytestmark = pytest.mark.both_loops

TOGETHER = {"max_batch_size": 3, "max_latency": PATIENCE}
"""Options with which three calls make one batch."""


def raising(error: BaseException | type[BaseException]) -> Recorded:
    def body(items: list[Any]) -> Any:
        raise error

    return Recorded(body)


def raising_for(bad: Any, error: Callable[[], BaseException]) -> Recorded:
    def body(items: list[Any]) -> list[Any]:
        if bad in items:
            raise error()
        return list(items)

    return Recorded(body)


class Picky(Exception):
    """It takes other arguments than it hands on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Single(Exception):
    """Cannot be copied: there is one of it."""

    def __reduce__(self) -> Any:
        raise TypeError("there is one of it")

    def __new__(cls, code: int, *, made: bool = False) -> Single:
        if not made:
            raise TypeError("there is one of it")
        return super().__new__(cls, code)

    def __init__(self, code: int, *, made: bool = False) -> None:
        super().__init__(f"{code}: no")


class Stateful(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.code = code


# --- results ------------------------------------------------------------------------------------------------------


@every_way
async def test_each_call_has_its_own_result(way: Way) -> None:
    recorded = Recorded(double)
    function = way.batched(recorded, **TOGETHER)
    assert await way.call_all(function, [1, 2, 3, 4, 5, 6]) == [2, 4, 6, 8, 10, 12]
    assert recorded.calls == [[1, 2, 3], [4, 5, 6]]


@every_way
async def test_results_may_be_of_types_that_have_no_hash(way: Way) -> None:
    class Odd(type):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(cls, other: object) -> bool:
            raise ValueError("types are not compared")

    class Result(metaclass=Odd):
        pass

    def body(items: list[Any]) -> list[Any]:
        return [Result() if item else ValueError("an item's own") for item in items]

    found = await way.call_all(way.batched(body, **TOGETHER), [1, 2, 3, 0, 1, 0])
    assert [type(each) is Result for each in found] == [True, True, True, False, True, False]
    assert [type(each) is ValueError for each in found] == [False, False, False, True, False, True]


async def test_calls_whose_results_cannot_be_handed_out_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settle, failed = futures.settle, threading.Event()

    def fail_at_first(*args: Any) -> bool:
        if not failed.is_set():
            failed.set()
            raise LookupError("a bug")
        return settle(*args)

    function = carpool.batched(double)
    monkeypatch.setattr(futures, "settle", fail_at_first)
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(function(1), function(2), function.map([3]), return_exceptions=True)
    assert kinds(found) == [carpool.Closed, carpool.Closed, carpool.Closed]
    assert "results could not be handed out for a reason that is a bug" in str(found[0])
    assert function.stats().internal_errors == 1
    assert "a bug" in caplog.text


@every_way
async def test_no_callback_runs_before_all_calls_of_the_batch_have_their_results(way: Way) -> None:
    function = way.batched(Recorded(double), **TOGETHER)
    seen: queue.SimpleQueue[list[bool]] = queue.SimpleQueue()
    several = [function(1), function.using(timeout=PATIENCE)(2), function.map([3])]
    for future in several:
        future.add_done_callback(lambda _: seen.put([each.done() for each in several]))
    assert [await each for each in several] == [2, 4, [6]]
    assert [await asyncio.to_thread(seen.get, timeout=PATIENCE) for _ in several] == [[True] * 3] * 3


@every_way
async def test_a_map_has_its_results_in_order_however_it_is_cut(way: Way) -> None:
    function = way.batched(double, max_batch_size=4)
    future = await way.run(lambda: function.map(range(23)))
    assert await way.outcome(future) == [2 * item for item in range(23)]


@every_way
async def test_the_map_of_nothing_is_done_at_once_and_calls_nothing(way: Way) -> None:
    recorded = Recorded(double)
    future = await way.run(lambda: way.batched(recorded).map([]))
    assert future.done()
    assert await way.outcome(future) == []
    assert recorded.calls == []


@every_way
@pytest.mark.parametrize("kind", [list, tuple, range, "array", collections.UserList])
async def test_results_may_be_any_sequence_that_can_be_cut(way: Way, kind: Any) -> None:
    def body(items: list[int]) -> Any:
        if kind == "array":
            return pytest.importorskip("numpy").array(items)
        return range(items[0], items[-1] + 1) if kind is range else kind(items)

    assert await way.call_all(way.batched(body, **TOGETHER), [1, 2, 3]) == [1, 2, 3]


@every_way
async def test_none_is_a_result(way: Way) -> None:
    assert await way.call_all(way.batched(lambda items: [None] * len(items)), [1, 2]) == [None, None]


# --- exceptions in the list ---------------------------------------------------------------------------------------


@every_way
async def test_an_exception_in_the_list_belongs_to_its_item_alone(way: Way) -> None:
    recorded = Recorded(lambda items: [ValueError(f"no {item}") if item % 2 else item for item in items])
    outcomes = await way.call_all(way.batched(recorded, **TOGETHER), [1, 2, 3])
    assert kinds(outcomes) == [ValueError, 2, ValueError]
    assert [str(outcomes[0]), str(outcomes[2])] == ["no 1", "no 3"]
    assert recorded.calls == [[1, 2, 3]]


@every_way
async def test_one_exception_object_in_the_list_for_several_items_is_each_ones_own(way: Way) -> None:
    def body(items: list[int]) -> list[Any]:
        return [ValueError("shared")] * len(items)

    outcomes = await way.call_all(way.batched(body, **TOGETHER), [1, 2, 3])
    assert kinds(outcomes) == [ValueError] * 3
    assert len({id(error) for error in outcomes}) == 3


@every_way
async def test_an_exception_in_the_list_fails_the_map_that_its_item_is_of_and_no_other(way: Way) -> None:
    function = way.batched(
        lambda items: [KeyError(item) if item == 2 else item for item in items], max_batch_size=6, max_latency=PATIENCE
    )
    first, second = await way.run(lambda: (function.map([1, 2, 3]), function.map([4, 5, 6])))
    assert kinds([await way.outcome(first), await way.outcome(second)]) == [KeyError, [4, 5, 6]]


@every_way
async def test_a_map_that_wants_its_exceptions_returned_has_each_in_its_place(way: Way) -> None:
    function = way.batched(lambda items: [KeyError(item) if item == 2 else item for item in items])
    future = await way.run(lambda: function.using(return_exceptions=True).map([1, 2, 3]))
    assert kinds(await way.outcome(future)) == [1, KeyError, 3]


@pytest.mark.parametrize("stop", [StopIteration("end"), StopAsyncIteration("end")], ids=["sync", "async"])
@every_way
async def test_an_exception_that_means_something_to_loops_and_generators_reaches_its_caller(
    way: Way, stop: Exception
) -> None:
    """A future of asyncio's cannot hold a StopIteration, and a coroutine cannot raise it."""
    function = way.batched(lambda items: [stop if item == 1 else item for item in items], **TOGETHER)
    futures = await way.run(lambda: [function(item) for item in (1, 2, 3)])
    outcomes = await asyncio.to_thread(lambda: [outcome(future) for future in futures])
    assert isinstance(outcomes[0], Exception)
    assert outcomes[1:] == [2, 3]
    if way.caller == "task":
        with pytest.raises((RuntimeError, StopIteration, StopAsyncIteration, carpool.BatchFailed)):
            await futures[0]


# --- exceptions raised --------------------------------------------------------------------------------------------


@every_way
async def test_every_caller_has_an_exception_object_of_its_own_with_the_original_as_its_cause(way: Way) -> None:
    original = Stateful("all bad", 7)
    outcomes = await way.call_all(way.batched(raising(original), isolate=False, **TOGETHER), [1, 2, 3])
    assert kinds(outcomes) == [Stateful] * 3
    assert len({id(error) for error in outcomes} | {id(original)}) == 4
    assert [error.__cause__ for error in outcomes] == [original] * 3
    assert [(error.args, error.code) for error in outcomes] == [(("all bad", 7), 7)] * 3


@every_way
async def test_the_caller_alone_in_its_batch_has_the_original_as_its_cause_too(way: Way) -> None:
    original = ValueError("bad")
    [error] = await way.call_all(way.batched(raising(original), max_batch_size=1), [1])
    assert type(error) is ValueError
    assert error is not original
    assert error.__cause__ is original


@every_way
async def test_the_cause_tells_the_line_of_the_function_that_raised(way: Way) -> None:
    [error] = await way.call_all(way.batched(lambda items: [1 // 0 for _ in items]), [1])
    lines = []
    trace = error.__cause__.__traceback__
    while trace is not None:
        lines.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert lines[-1] == __file__


@every_way
async def test_an_exception_that_cannot_be_copied_becomes_batch_failed(way: Way) -> None:
    original = Single(3, made=True)
    outcomes = await way.call_all(way.batched(raising(original), isolate=False, **TOGETHER), [1, 2, 3])
    assert kinds(outcomes) == [carpool.BatchFailed] * 3
    assert len({id(error) for error in outcomes}) == 3
    assert [error.__cause__ for error in outcomes] == [original] * 3
    assert all("Single" in str(error) and "3: no" in str(error) for error in outcomes)


@every_way
async def test_an_exception_that_takes_other_arguments_than_it_keeps_is_copied_all_the_same(way: Way) -> None:
    original = Picky(3, "no")
    outcomes = await way.call_all(way.batched(raising(original), isolate=False, **TOGETHER), [1, 2, 3])
    assert [(type(error), str(error)) for error in outcomes] == [(Picky, "3: no")] * 3
    assert [error.__cause__ for error in outcomes] == [original] * 3


@every_way
async def test_raising_one_callers_exception_again_changes_no_others(way: Way) -> None:
    outcomes = await way.call_all(way.batched(raising(ValueError("x")), isolate=False, **TOGETHER), [1, 2, 3])
    outcomes[0].add_note("mine")
    with pytest.raises(ValueError, match="x"):
        raise outcomes[0]
    assert not hasattr(outcomes[1], "__notes__")
    assert outcomes[1].__traceback__ is not outcomes[0].__traceback__ or outcomes[1].__traceback__ is None


@every_way
async def test_the_item_that_makes_the_function_raise_is_found_and_its_mates_are_answered(way: Way) -> None:
    recorded = raising_for(3, lambda: ValueError("three"))
    outcomes = await way.call_all(way.batched(recorded, max_batch_size=8, max_latency=PATIENCE), range(8))
    assert kinds(outcomes) == [0, 1, 2, ValueError, 4, 5, 6, 7]
    assert recorded.calls[0] == list(range(8))


@every_way
async def test_a_batch_is_not_tried_again_where_isolation_is_off(way: Way) -> None:
    recorded = raising_for(3, lambda: ValueError("three"))
    outcomes = await way.call_all(way.batched(recorded, isolate=False, **TOGETHER), [1, 2, 3])
    assert kinds(outcomes) == [ValueError] * 3
    assert recorded.calls == [[1, 2, 3]]


@every_way
@pytest.mark.parametrize(("error", "calls"), [(KeyError("three"), "several"), (OSError("three"), "one")])
async def test_only_the_named_exceptions_are_isolated(way: Way, error: Exception, calls: str) -> None:
    recorded = raising_for(3, lambda: error)
    outcomes = await way.call_all(way.batched(recorded, isolate=(LookupError, ValueError), **TOGETHER), [1, 2, 3])
    if calls == "several":
        assert kinds(outcomes) == [1, 2, KeyError]
        assert len(recorded.calls) > 1
    else:
        assert kinds(outcomes) == [OSError] * 3
        assert recorded.calls == [[1, 2, 3]]


# --- BaseException and dying threads ------------------------------------------------------------------------------

GRAVE = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), BaseException("odd")]


@every_way
@pytest.mark.parametrize("original", GRAVE, ids=lambda error: type(error).__name__)
async def test_a_base_exception_answers_every_caller_and_the_function_goes_on(
    way: Way, original: BaseException
) -> None:
    failures = [original]

    def body(items: list[int]) -> list[int]:
        if failures:
            raise failures.pop()
        return items

    recorded = Recorded(body)
    function = way.batched(recorded, **TOGETHER)
    outcomes = await way.call_all(function, [1, 2, 3])
    assert kinds(outcomes) == [carpool.BatchFailed] * 3
    assert [error.__cause__ for error in outcomes] == [original] * 3
    assert len({id(error) for error in outcomes}) == 3
    assert all(type(original).__name__ in str(error) for error in outcomes)
    assert await way.call_all(function, [4, 5, 6]) == [4, 5, 6]
    assert recorded.calls == [[1, 2, 3], [4, 5, 6]]


@every_way
async def test_a_base_exception_in_the_list_is_refused_as_a_result(way: Way) -> None:
    """Only an `Exception` belongs to an item: what is a `BaseException` would end a caller's thread or loop."""
    function = way.batched(lambda items: [SystemExit(1) if item == 2 else item for item in items], **TOGETHER)
    outcomes = await way.call_all(function, [1, 2, 3])
    assert [outcomes[0], outcomes[2]] == [1, 3]
    assert isinstance(outcomes[1], (SystemExit, carpool.CarpoolError))


def kill(thread: int) -> None:
    """Raise `SystemExit` in another thread, as debuggers and timeout tools do."""
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit)) == 1


THREADED = pytest.mark.parametrize(
    "way", [Way("def", "task"), Way("def", "thread"), Way("async def", "thread")], ids=str
)
"""The ways on which the function runs in a thread of the library's."""


@THREADED
async def test_a_function_whose_thread_is_killed_in_its_midst_answers_every_caller(way: Way) -> None:
    deaths = [True]

    def body(items: list[int]) -> list[int]:
        if deaths:
            deaths.pop()
            kill(threading.get_ident())
            for _ in range(1000):
                pass  # the interpreter raises it here
        return items

    function = way.batched(body, **TOGETHER)
    assert kinds(await way.call_all(function, [1, 2, 3])) == [carpool.BatchFailed] * 3
    assert await way.call_all(function, [4, 5, 6]) == [4, 5, 6]


# --- what a function returns --------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("surplus", [-3, -1, 1, 5])
async def test_a_wrong_length_is_told_to_the_whole_batch_and_never_isolated(way: Way, surplus: int) -> None:
    returned = [True]

    def body(items: list[int]) -> list[int]:
        return [0] * (len(items) + surplus) if returned and returned.pop() else items

    recorded = Recorded(body)
    function = way.batched(recorded, **TOGETHER)
    outcomes = await way.call_all(function, [1, 2, 3])
    assert kinds(outcomes) == [carpool.WrongLength] * 3
    assert all(isinstance(error, carpool.WrongResult) for error in outcomes)
    assert all(str(3 + surplus) in str(error) and "3" in str(error) for error in outcomes)
    assert len({id(error) for error in outcomes}) == 3
    assert recorded.calls == [[1, 2, 3]]
    assert await way.call_all(function, [4, 5, 6]) == [4, 5, 6]


class Unsized:
    def __getitem__(self, which: Any) -> Any:
        return which


NO_LISTS = {
    "dict": {1: 1, 2: 2, 3: 3},
    "str": "abc",
    "bytes": b"abc",
    "bytearray": bytearray(b"abc"),
    "set": {1, 2, 3},
    "frozenset": frozenset((1, 2, 3)),
    "None": None,
    "int": 3,
    "list_iterator": iter([1, 2, 3]),
    "generator": (each for each in (1, 2, 3)),
    "dict_values": {1: 1, 2: 2, 3: 3}.values(),
    "Unsized": Unsized(),
    "type": list,
}


@every_way
@pytest.mark.parametrize("named", NO_LISTS)
async def test_a_function_that_returns_no_list_is_told_what_it_returned(way: Way, named: str) -> None:
    recorded = Recorded(lambda items: NO_LISTS[named])
    outcomes = await way.call_all(way.batched(recorded, **TOGETHER), [1, 2, 3])
    assert kinds(outcomes) == [carpool.WrongResult] * 3
    assert all(named in str(error) for error in outcomes), str(outcomes[0])
    assert len({id(error) for error in outcomes}) == 3
    assert recorded.calls == [[1, 2, 3]]


async def test_a_def_that_returns_a_coroutine_is_told_so() -> None:
    async def forgotten(items: list[int]) -> list[int]:
        return items

    coroutines = []

    def body(items: list[int]) -> Any:
        coroutines.append(forgotten(items))
        return coroutines[-1]

    error = await asyncio.to_thread(lambda: outcome(carpool.batched(body)(1)))
    [coroutine] = coroutines
    coroutine.close()
    assert type(error) is carpool.WrongResult
    assert "coroutine" in str(error)


# --- more than one outcome is impossible --------------------------------------------------------------------------


@every_way
async def test_nobody_else_can_settle_a_future_of_the_librarys_twice(way: Way) -> None:
    function = way.batched(double)
    future = await way.run(lambda: function(1))
    assert await way.outcome(future) == 2
    assert not future.cancel()
    assert not future.cancelled()
    assert await way.outcome(future) == 2


async def test_looking_at_all_attributes_of_a_future_changes_nothing() -> None:
    gate = Gate()
    held = carpool.batched(lambda items: gate.pass_through() or items, max_in_flight=1)
    first = held(0)
    await gate.reached()
    future = held(1)
    inspect.getmembers(future)
    assert "_state" not in dir(future)
    task = asyncio.ensure_future(asyncio.wait_for(future, PATIENCE))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert future.cancelled(), "its only task has left"
    gate.open()
    assert await first == 0


async def test_a_future_cannot_be_pickled() -> None:
    future = carpool.batched(double)(1)
    assert await future == 2
    with pytest.raises(TypeError, match="cannot pickle a future"):
        pickle.dumps(future)


@every_way
async def test_a_callback_runs_once_also_if_it_raises_and_the_next_one_runs_too(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    gate, called, loop = Gate(), [], asyncio.get_running_loop()
    function = way.batched(double, gate=gate)
    future = await way.run(lambda: function(1))

    def bad(done: Any) -> None:
        called.append("bad")
        raise RuntimeError("a callback of the user's")

    future.add_done_callback(bad)
    future.add_done_callback(lambda done: called.append(done.result()))
    both_ran = asyncio.Event()
    future.add_done_callback(lambda done: loop.call_soon_threadsafe(both_ran.set))
    gate.open()
    assert await way.outcome(future) == 2
    await both_ran.wait()
    future.add_done_callback(lambda done: called.append("late"))
    assert called == ["bad", 2, "late"]
    assert await way.outcome(await way.run(lambda: function(2))) == 4


# --- failures that are handed on, and failures that are kept ------------------------------------------------------


def _too_short(items: list[Any]) -> list[Any]:
    return [] if 13 in items else items


def _exits(items: list[Any]) -> list[Any]:
    if 13 in items:
        raise SystemExit(1)
    return items


@every_way
@pytest.mark.parametrize(("body", "error"), [(_too_short, carpool.WrongLength), (_exits, carpool.BatchFailed)])
async def test_what_an_inner_function_failed_with_is_one_items_fault_and_not_everybodys(
    way: Way, body: Callable[..., Any], error: type[Exception]
) -> None:
    inner = carpool.batched(body, max_batch_size=1)

    def ask(items: list[Any]) -> list[Any]:
        return [inner(item).result(PATIENCE) for item in items]

    outer = Way("def", way.caller).batched(ask, **TOGETHER)
    if way.kind == "async def":

        async def ask_async(items: list[Any]) -> list[Any]:
            return [await inner(item) for item in items]

        outer = carpool.batched(ask_async, **TOGETHER)
    assert kinds(await way.call_all(outer, [1, 13, 2])) == [1, error, 2]


@every_way
async def test_an_exception_that_is_raised_again_and_again_does_not_grow(way: Way) -> None:
    future = await way.run(lambda: way.batched(raising(ValueError("no")))(1))

    async def ask() -> weakref.ref[Any]:
        mine = Recorded(double)  # what a frame keeps that the traceback leads to
        with contextlib.suppress(ValueError):
            if way.caller == "task":
                await future
            else:
                await asyncio.to_thread(future.result, PATIENCE)
        return weakref.ref(mine)

    kept = [await ask() for _ in range(20)]
    assert isinstance(future.exception(), ValueError)
    depth = len(list(traceback.walk_tb(future.exception().__traceback__)))  # type: ignore[union-attr]
    await ask()
    assert len(list(traceback.walk_tb(future.exception().__traceback__))) == depth  # type: ignore[union-attr]
    gc.collect()
    assert sum(each() is not None for each in kept) <= 1


class Frame:
    """As a table of pandas: its rows are looked up by `iloc`, and as a list it is the names of its columns."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    @property
    def iloc(self) -> list[Any]:
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, column: str) -> Any:
        raise KeyError(column)

    def __iter__(self) -> Any:
        return iter(["column"])

    def keys(self) -> list[str]:
        return ["column"]


@every_way
async def test_a_table_is_the_list_of_its_rows(way: Way) -> None:
    function = way.batched(lambda items: Frame(double(items)), **TOGETHER)
    assert await way.call_all(function, [1, 2, 3]) == [2, 4, 6]
