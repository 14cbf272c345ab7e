"""The driver with an executor that calls a plain Python function: no protocol, no bytes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from carpool import errors
from carpool.runtime import driver
from carpool.scheduling import limits, messages, scheduler, window

pytestmark = pytest.mark.looptime


class Raised(errors.UpstreamError):
    """The function raised: because of one of its arguments, or always."""

    remedy = errors.Remedy.HALVES_WHILE_WELL
    is_doubtful = True


class Functions:
    """Calls a function with all rows of a batch, in a later turn of the loop."""

    def __init__(self, function: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._function = function
        self.calls: list[list[Any]] = []

    def start(self, batch: messages.Batch, done: Callable[[driver.Outcome], None]) -> driver.Execution:
        rows = [row for request, start, stop in batch.parts for row in request.payload[start:stop]]
        return asyncio.get_running_loop().call_soon(self._run, rows, done)

    def _run(self, rows: list[Any], done: Callable[[driver.Outcome], None]) -> None:
        self.calls.append(rows)
        try:
            done(self._function(rows))
        except Exception as error:
            told = Raised()
            told.__cause__ = error
            done(told)


class Futures:
    """Hands outcomes over to those who wait for a future, the request's `tag`."""

    def answer(self, answers: Sequence[messages.Answer], about: Any) -> None:
        for request, pieces in answers:
            request.tag.set_result([row for piece in pieces for row in piece.predictions])

    def refuse(self, request: messages.Request, error: errors.CarpoolError) -> None:
        request.tag.set_exception(error)


class Batched:
    """A function of a list that many callers may call with a few rows each."""

    def __init__(self, function: Callable[[list[Any]], Sequence[Any]], **bounds: Any) -> None:
        loop = asyncio.get_running_loop()
        chosen = limits.Limits(**{"max_batch_size": 4, "max_latency": 0.1} | bounds)
        ids = map(str, range(1000))
        core = scheduler.Scheduler(chosen, window.Window(chosen), loop.time, lambda: next(ids))
        self.functions = Functions(function)
        self.driver = driver.Driver(core, self.functions, clock=loop.time)
        self._replier = Futures()

    def __call__(self, *rows: Any) -> asyncio.Future[list[Any]]:
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        call = messages.Request("function", len(rows), payload=rows, tag=future)
        call.replier = self._replier
        self.driver.submit(call)
        return future


async def test_calls_share_a_batch_and_each_has_its_own_results() -> None:
    double = Batched(lambda rows: [2 * row for row in rows])
    assert await asyncio.gather(double(1), double(2, 3)) == [[2], [4, 6]]
    assert double.functions.calls == [[1, 2, 3]]


async def test_an_argument_that_makes_the_function_raise_fails_its_own_caller_alone() -> None:
    invert = Batched(lambda rows: [1 / row for row in rows])
    outcomes = await asyncio.gather(invert(1), invert(2), invert(0), invert(4), return_exceptions=True)
    assert [outcomes[index] for index in (0, 1, 3)] == [[1.0], [0.5], [0.25]]
    assert isinstance(outcomes[2], Raised)


async def test_a_function_that_gives_too_few_results_is_no_reason_to_mix_them_up() -> None:
    broken = Batched(lambda rows: [row for row in rows if row != "odd"])
    outcomes = await asyncio.gather(*map(broken, ("a", "odd", "c")), return_exceptions=True)
    assert [outcomes[0], outcomes[2]] == [["a"], ["c"]]
    assert isinstance(outcomes[1], errors.UpstreamBroken)


async def test_an_idle_driver_has_no_timer() -> None:
    double = Batched(lambda rows: [2 * row for row in rows])
    await double(1)
    await asyncio.sleep(120)
    assert double.driver._timer.due_at == math.inf
