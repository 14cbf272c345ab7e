"""What is done again and again goes on whatever happens, and is tried again later and later while it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from carpool_injector import rounds


class Ended(BaseException):
    """The script is at its end."""


async def paused(script: Iterator[float | Exception], first: float, longest: float) -> tuple[list[float], list[str]]:
    """The pauses after steps that return or raise what the script says, and what was told of failures."""
    pauses: list[float] = []
    told: list[str] = []

    async def step() -> float:
        outcome = next(script, None)
        if outcome is None:
            raise Ended
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    with pytest.raises(Ended):
        await rounds.repeat(
            step,
            lambda error, again: told.append(f"{error}, again in {again:g} s"),
            first=first,
            longest=longest,
            sleep=sleep,
        )
    return pauses, told


async def test_a_step_says_when_it_is_due_again() -> None:
    assert await paused(iter([5.0, 0.0, 7.0]), 1.0, 60.0) == ([5.0, 0.0, 7.0], [])


async def test_after_each_failure_in_a_row_the_pause_is_twice_as_long_up_to_the_longest() -> None:
    failures = [OSError("down") for _ in range(8)]
    pauses, told = await paused(iter([*failures, 5.0, OSError("again")]), 0.5, 30.0)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 5.0, 0.5]
    assert (told[0], told[-1]) == ("down, again in 0.5 s", "again, again in 0.5 s")


async def test_a_year_of_failures_is_no_overflow() -> None:
    pauses, _ = await paused((OSError() for _ in range(5000)), 1.0, 60.0)
    assert pauses[-1] == 60.0


async def test_cancellation_ends_it() -> None:
    async def step() -> float:
        await asyncio.Event().wait()
        return 0.0

    task = asyncio.create_task(rounds.repeat(step, lambda error, again: None, first=1.0, longest=1.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
