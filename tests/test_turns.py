"""Work on large messages: a step in each turn of the loop for everybody in turn, and one outcome, or none."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

from carpool_sidecar import errors, turns
from carpool_sidecar.protocols import steps


class Message(bytearray):
    """One that can be watched."""


def unexpected(error: Exception) -> None:
    raise error


def counting(count: int, told: list[str], name: str = "") -> steps.Steps[str]:
    try:
        for number in range(count):
            told.append(f"{name}{number}")
            yield
    finally:
        told.append(f"{name}over")
    return f"{name}done"


def failing(error: Exception) -> steps.Steps[str]:
    yield
    raise error


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_step_is_taken_in_each_turn_of_the_loop_whoever_has_work() -> None:
    worked, told, outcomes = turns.Turns(unexpected), list[str](), list[object]()
    worked.start(counting(3, told, "a"), outcomes.append)
    worked.start(counting(1, told, "b"), outcomes.append)
    assert told == []
    seen = []
    while len(outcomes) < 2:
        before = len(told)
        await asyncio.sleep(0)
        seen.append(len(told) - before)
    assert told == ["a0", "b0", "a1", "bover", "a2", "aover"]
    assert max(seen) == 1
    assert outcomes == ["bdone", "adone"]


@pytest.mark.parametrize("error", [errors.BadRequest("wrong"), ValueError("a bug")])
async def test_what_steps_raise_is_their_outcome(error: Exception) -> None:
    worked, outcomes = turns.Turns(unexpected), list[object]()
    worked.start(failing(error), outcomes.append)
    await passes(5)
    assert outcomes == [error]
    with pytest.raises(type(error)) as raised:
        await worked.run(failing(error))
    assert raised.value is error
    with pytest.raises(type(error)):
        steps.at_once(failing(error))


async def test_cancelled_work_takes_no_more_steps_keeps_nothing_and_has_no_outcome() -> None:
    worked, told = turns.Turns(unexpected), list[str]()
    work = worked.start(counting(9, told), unexpected)
    await passes(2)
    work.cancel()
    assert told[-1] == "over"
    count = len(told)
    await passes(5)
    work.cancel()
    assert len(told) == count


async def test_work_that_was_done_may_be_cancelled() -> None:
    worked, told, outcomes = turns.Turns(unexpected), list[str](), list[object]()
    work = worked.start(counting(1, told), outcomes.append)
    await passes(5)
    work.cancel()
    assert outcomes == ["done"]


async def test_a_task_that_is_cancelled_cancels_its_work() -> None:
    worked, told = turns.Turns(unexpected), list[str]()
    task = asyncio.create_task(worked.run(counting(9, told)))
    await passes(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told[-1] == "over"


async def test_whose_outcome_cannot_be_taken_is_reported_and_the_others_go_on() -> None:
    caught: list[Exception] = []
    worked, told, outcomes = turns.Turns(caught.append), list[str](), list[object]()

    def refuse(_: object) -> None:
        raise ValueError("a bug")

    worked.start(counting(1, told), refuse)
    worked.start(counting(2, told), outcomes.append)
    await passes(9)
    assert [str(error) for error in caught] == ["a bug"]
    assert outcomes == ["done"]


async def test_without_anybody_to_report_to_a_bug_is_the_loops() -> None:
    worked, told, caught = turns.Turns(), list[str](), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context))
    worked.start(counting(1, told), unexpected)  # type: ignore[arg-type] # it raises whatever it gets
    await passes(5)
    assert len(caught) == 1


async def test_closed_turns_take_no_step() -> None:
    worked, told = turns.Turns(unexpected), list[str]()
    work = worked.start(counting(9, told), unexpected)
    await passes(2)
    count = len(told)
    worked.close()
    await passes(5)
    assert len(told) == count
    work.cancel()


def test_at_once_all_steps_are_taken() -> None:
    told: list[str] = []
    assert steps.at_once(counting(3, told)) == "done"
    assert told == ["0", "1", "2", "over"]


def test_steps_may_be_made_of_others() -> None:
    def both(told: list[str]) -> Iterator[None]:
        found = yield from counting(2, told, "a")
        return found + (yield from counting(1, told, "b"))

    assert steps.at_once(both([])) == "adonebdone"  # type: ignore[arg-type] # a generator


@pytest.fixture
def no_collector() -> Iterator[None]:
    """References alone have to free what is not needed any more."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


ENDS = [errors.Unbatchable(errors.NotBatched.COLUMNAR), errors.BadRequest("wrong"), ValueError("a bug")]


@pytest.mark.parametrize("error", ENDS, ids=["a verdict", "a failure", "a bug"])
async def test_nothing_of_a_message_is_kept_once_somebody_who_awaited_work_on_it_has_caught_what_it_raised(
    no_collector: None, error: Exception
) -> None:
    worked = turns.Turns(unexpected)

    def working(message: Message) -> steps.Steps[None]:
        yield
        raise type(error)(*error.args)

    async def handle() -> weakref.ref[Message]:
        message = Message(b"x")
        with contextlib.suppress(type(error)):
            await worked.run(working(message))
        return weakref.ref(message)

    message = await handle()
    await passes(1)
    assert message() is None


async def test_a_verdict_that_is_told_keeps_nothing_of_the_message_it_is_on() -> None:
    worked, outcomes = turns.Turns(unexpected), list[Exception]()
    verdict = errors.Unbatchable(errors.NotBatched.COLUMNAR)
    worked.start(failing(verdict), outcomes.append)
    await passes(3)
    assert outcomes == [verdict]
    assert outcomes[0].__traceback__ is None
