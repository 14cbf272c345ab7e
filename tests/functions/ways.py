"""Who calls, and what is called: the four ways through the library that a promise must hold on.

A batched function is a `def` (in a thread of its own) or an `async def` (on the callers' loop, or on one of the
library's for callers without a loop); its callers are tasks of a loop, or threads. A test that takes a `way` runs on
all four.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pytest

import carpool

PATIENCE = 10.0
"""Seconds after which a promise counts as broken. Nothing that is kept takes a tenth of it."""


class Gate:
    """Where a function waits until the test lets it pass, in a thread or on a loop. Once open it stays open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._arrivals = threading.Semaphore(0)

    def pass_through(self) -> None:
        self._arrivals.release()
        assert self._open.wait(PATIENCE), "nobody opened the gate"

    async def pass_through_async(self) -> None:
        opened = asyncio.Event()
        with self._lock:
            if not self._open.is_set():
                self._waiting.append((asyncio.get_running_loop(), opened))
            else:
                opened.set()
        self._arrivals.release()
        async with asyncio.timeout(PATIENCE):
            await opened.wait()

    def open(self) -> None:
        with self._lock:
            self._open.set()
            for loop, opened in self._waiting:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(opened.set)

    def wait_until_reached(self) -> None:
        """Until a function waits here; one more each time. Not from the loop that the function is to run on."""
        assert self._arrivals.acquire(timeout=PATIENCE), "nobody reached the gate"

    async def reached(self) -> None:
        """The same, from a loop."""
        for _ in range(int(PATIENCE * 1000)):
            if self._arrivals.acquire(blocking=False):
                return
            await asyncio.sleep(0.001)
        raise AssertionError("nobody reached the gate")


Body = Callable[..., Any]
"""Maps a list of items to a list of results."""


@dataclasses.dataclass(frozen=True)
class Way:
    """One of the four ways. `calls` of what `function` returned has the items of each call, in order."""

    kind: Literal["def", "async def"]
    caller: Literal["task", "thread"]

    def __str__(self) -> str:
        return f"{self.kind} called by a {self.caller}"

    def batched(self, body: Body, *, gate: Gate | None = None, **options: Any) -> carpool.Batched[..., Any, Any]:
        """`body` as a batched function of this kind. With a `gate`, each call passes it before `body` is called."""
        if self.kind == "def":

            def function(items: list[Any], **arguments: Any) -> Any:
                if gate is not None:
                    gate.pass_through()
                return body(items, **arguments)

            return carpool.batched(function, **options)

        async def async_function(items: list[Any], **arguments: Any) -> Any:
            if gate is None:
                await asyncio.sleep(0)
            else:
                await gate.pass_through_async()
            return body(items, **arguments)

        return carpool.batched(async_function, **options)

    async def run(self, action: Callable[[], Any]) -> Any:
        """Do this where the callers are: in the running loop, or in a thread without one."""
        return action() if self.caller == "task" else await asyncio.to_thread(action)

    async def outcome(self, future: carpool.Future[Any]) -> Any:
        """The result of a future, or the exception that came instead, waited for as these callers do."""
        if self.caller == "thread":
            return await asyncio.to_thread(outcome, future)
        async with asyncio.timeout(PATIENCE):
            try:
                return await future
            except Exception as error:
                return error.with_traceback(None)  # which leads to this frame, and that to the future

    async def call_all(self, function: Callable[..., Any], items: Sequence[Any], **arguments: Any) -> list[Any]:
        """The outcomes of one call for each item, all made before any is waited for."""
        futures = await self.run(lambda: [function(item, **arguments) for item in items])
        return [await self.outcome(future) for future in futures]


WAYS = [Way("def", "task"), Way("def", "thread"), Way("async def", "task"), Way("async def", "thread")]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)


def outcome(future: carpool.Future[Any]) -> Any:
    """The result of a future or the exception that came instead, waited for in this thread."""
    try:
        return future.result(timeout=PATIENCE)
    except TimeoutError as error:
        assert future.done(), "a call was never answered"
        return error.with_traceback(None)
    except Exception as error:
        return error.with_traceback(None)  # which leads to this frame, and that to the future


def kinds(outcomes: Sequence[Any]) -> list[Any]:
    """Outcomes with each exception replaced by its type."""
    return [type(each) if isinstance(each, BaseException) else each for each in outcomes]


class Recorded:
    """A body that keeps the items of each call. Called from one thread at a time."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self.calls: list[list[Any]] = []
        self.__name__ = getattr(body, "__name__", "body")

    def __call__(self, items: list[Any], **arguments: Any) -> Any:
        self.calls.append(list(items))
        return self._body(items, **arguments)

    @property
    def items(self) -> Iterator[Any]:
        """All items that it was ever called with."""
        return itertools.chain.from_iterable(self.calls)


def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]
