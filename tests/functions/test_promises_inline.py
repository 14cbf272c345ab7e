"""`carpool.inline()`: for the tests of people who use the library, each call runs at once, where it is made."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

import carpool
from tests.functions.ways import PATIENCE, Recorded, double, outcome

user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


def test_a_call_runs_at_once_in_the_thread_that_makes_it() -> None:
    threads: list[int] = []

    def body(items: list[int]) -> list[int]:
        threads.append(threading.get_ident())
        return double(items)

    recorded = Recorded(body)
    function = carpool.batched(recorded, max_latency=PATIENCE)
    before = threading.active_count()
    with carpool.inline():
        futures = [function(1), function(2)]
        assert all(future.done() for future in futures)
    assert [future.result() for future in futures] == [2, 4]
    assert recorded.calls == [[1], [2]]
    assert threads == [threading.get_ident()] * 2
    assert threading.active_count() == before


def test_a_map_is_one_batch_or_as_many_as_its_size_needs() -> None:
    recorded = Recorded(double)
    function = carpool.batched(recorded, max_batch_size=4)
    with carpool.inline():
        assert function.map(range(3)).result(0) == [0, 2, 4]
        assert function.map(range(10)).result(0) == [2 * item for item in range(10)]
        assert function.map([]).result(0) == []
    assert max(len(call) for call in recorded.calls) <= 4
    assert sum(len(call) for call in recorded.calls) == 13


def test_what_it_raises_comes_by_the_future_as_it_does_else() -> None:
    original = ValueError("bad")

    def body(items: list[int]) -> list[int]:
        raise original

    function = carpool.batched(body)
    with carpool.inline():
        error = outcome(function(1))
    assert type(error) is ValueError
    assert error is not original
    assert error.__cause__ is original


@pytest.mark.parametrize(
    ("returned", "error"), [({1: 1}, carpool.WrongResult), ([1, 2], carpool.WrongLength), ([], carpool.WrongLength)]
)
def test_wrong_results_are_told_as_they_are_else(returned: Any, error: type[Exception]) -> None:
    with carpool.inline():
        assert type(outcome(carpool.batched(lambda items: returned)(1))) is error


def test_a_base_exception_is_told_as_it_is_else() -> None:
    def body(items: list[int]) -> list[int]:
        raise SystemExit(1)

    with carpool.inline():
        error = outcome(carpool.batched(body)(1))
    assert type(error) is carpool.BatchFailed
    assert isinstance(error.__cause__, SystemExit)


def test_arguments_are_checked_as_they_are_else() -> None:
    def embed(items: list[int], *, normalize: bool = True) -> list[tuple[int, bool]]:
        return [(item, normalize) for item in items]

    function: Any = carpool.batched(embed)
    with carpool.inline():
        assert function(1).result(0) == (1, True)
        assert function(1, normalize=False).result(0) == (1, False)
        with pytest.raises(TypeError, match="normalise"):
            function(1, normalise=False)


def test_an_async_function_is_run_to_its_end_without_a_loop() -> None:
    async def body(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return double(items)

    function = carpool.batched(body)
    with carpool.inline():
        assert function(1).result(PATIENCE) == 2


async def test_an_async_function_is_awaited_on_a_loop() -> None:
    """It cannot run at once where a loop is running, so it runs as soon as its call is awaited, still by itself."""

    async def body(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return double(items)

    recorded: list[list[int]] = []

    async def recording(items: list[int]) -> list[int]:
        recorded.append(list(items))
        return await body(items)

    function = carpool.batched(recording, max_batch_size=8, max_latency=PATIENCE)
    with carpool.inline():
        assert await asyncio.gather(function(1), function(2)) == [2, 4]
        assert await function.map([3, 4]) == [6, 8]
    assert [1] in recorded
    assert [2] in recorded


def test_the_batch_is_told_as_it_is_else() -> None:
    def who(items: list[int]) -> list[str]:
        return [member.context[user] for member in carpool.batch().members]

    function = carpool.batched(who)
    user_context = contextvars.copy_context()
    user_context.run(user.set, "ann")
    with carpool.inline():
        assert user_context.run(function, 1).result(0) == "ann"


def test_streams_give_all_their_steps() -> None:
    def count(items: list[int]) -> Any:
        for step in range(3):
            yield [(item, step) for item in items]

    with carpool.inline():
        assert list(carpool.batched(count)("a")) == [("a", 0), ("a", 1), ("a", 2)]


def test_it_holds_for_every_thread_while_it_is_open_and_for_none_afterwards() -> None:
    recorded = Recorded(double)
    function = carpool.batched(recorded, max_batch_size=2, max_latency=PATIENCE)
    found: list[Any] = []
    with carpool.inline(), carpool.inline():
        thread = threading.Thread(target=lambda: found.append(function(1).result(0)))
        thread.start()
        thread.join()
    futures = [function(2), function(3)]
    assert [outcome(future) for future in futures] == [4, 6]
    assert found == [2]
    assert recorded.calls == [[1], [2, 3]]


def test_it_ends_with_an_exception_too() -> None:
    recorded = Recorded(double)
    function = carpool.batched(recorded, max_batch_size=2, max_latency=PATIENCE)
    with pytest.raises(KeyError), carpool.inline():
        raise KeyError("a test that fails")
    assert [outcome(future) for future in [function(2), function(3)]] == [4, 6]
    assert recorded.calls == [[2, 3]]


def test_calls_that_waited_before_are_answered_as_usual() -> None:
    function = carpool.batched(double, max_batch_size=2, max_latency=PATIENCE)
    waiting = function(1)
    with carpool.inline():
        assert function(2).result(0) == 4
        assert not waiting.done()
    assert outcome(function(3)) == 6
    assert outcome(waiting) == 2


def test_functions_may_call_each_other_and_themselves() -> None:
    def factorial(items: list[int]) -> list[int]:
        return [1 if item < 2 else item * function(item - 1).result(0) for item in items]

    function = carpool.batched(factorial)
    with carpool.inline():
        assert function(10).result(0) == 3628800


def test_a_closed_function_stays_closed() -> None:
    function = carpool.batched(double)
    function.close().result(PATIENCE)
    with carpool.inline():
        assert type(outcome(function(1))) is carpool.Closed


def test_a_method_runs_at_once_too_and_its_instance_is_freed() -> None:
    class Model:
        @carpool.batched
        def double(self, items: list[int]) -> list[int]:
            return double(items)

    with carpool.inline():
        assert Model().double(1).result(0) == 2
