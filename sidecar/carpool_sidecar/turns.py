"""Lets work on large messages take one step in each turn of the event loop, whoever it is for.

However many large messages there are at once, no turn of the loop takes longer for them: they take turns, and between
two steps everybody's small requests and answers are dealt with.
"""

from __future__ import annotations

import asyncio
import collections
import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from carpool_sidecar import errors
from carpool_sidecar.protocols import steps

T = TypeVar("T")

Report = Callable[[Exception], None]
"""Logs and counts a bug that was caught; it does not raise."""


class Worker(Protocol):
    """Somebody with work to do."""

    def work(self) -> bool:
        """Take a step; returns whether there is more to do."""
        ...


class Work:
    """Steps that were started, until their outcome was told or nobody wants it."""

    # State: the steps, until they are over and _outcome has what came of them; _then until it is told.
    __slots__ = ("_outcome", "_steps", "_then")

    def __init__(self, work: steps.Steps[Any], then: Callable[[Any], None]) -> None:
        self._steps: steps.Steps[Any] | None = work
        self._then: Callable[[Any], None] | None = then
        self._outcome: Any = None

    def cancel(self) -> None:
        """Nobody wants the outcome any more: take no more steps, and keep nothing. Does nothing once it was told."""
        work, self._steps = self._steps, None
        self._then = self._outcome = None
        if work is not None:
            work.close()

    def work(self) -> bool:
        """Implements `Worker`."""
        if self._then is None:
            return False
        work = self._steps
        if work is None:  # what is done with the outcome may take as long as a step
            self._hand_over(self._then)
            return False
        try:
            next(work)
            return True
        except StopIteration as end:
            self._outcome = end.value
        except Exception as error:
            # The frames of one that is handed on would keep the message; a bug is logged with them.
            is_told = isinstance(error, (errors.CarpoolError, errors.Unbatchable))
            self._outcome = errors.bare(error) if is_told else error
        self._steps = None
        return True

    def _hand_over(self, then: Callable[[Any], None]) -> None:
        # Not in a frame of `work`: a bug keeps those, and who is told may keep the bug.
        outcome, self._outcome, self._then = self._outcome, None, None
        then(outcome)


class Turns:
    """One worker works in each turn of the event loop, one after another. To be used within a running loop.

    `report` gets the bugs of workers, which must not stop the others; without it they go to the loop's handler of
    exceptions.
    """

    # State: the workers with work left, and the next turn, if it is due.
    def __init__(self, report: Report | None = None) -> None:
        self._report = report
        self._workers: collections.deque[Worker] = collections.deque()
        self._next: asyncio.Handle | None = None

    def add(self, worker: Worker) -> None:
        """The worker has work until its `work` returns False."""
        self._workers.append(worker)
        self._await_turn()

    def start(self, work: steps.Steps[T], then: Callable[[T | Exception], None]) -> Work:
        """Take these steps, from the next turn on; `then` is called once with what they return or raise.

        It is called by the loop, never before this returns, and not at all if the work is cancelled.
        """
        started = Work(work, then)
        self.add(started)
        return started

    async def run(self, work: steps.Steps[T]) -> T:
        """What these steps return or raise. Cancelling this cancels them."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        started = self.start(work, functools.partial(_tell, waiter))
        try:
            return await waiter
        finally:
            started.cancel()
            del waiter  # it keeps what is raised here, whose frames keep this one

    def close(self) -> None:
        """No worker works any more."""
        self._workers.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def report(self, error: Exception) -> None:
        """Tell of a bug that was caught."""
        if self._report is not None:
            self._report(error)
        else:
            told = {"message": "work on a large message failed for a reason that is a bug", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)

    def _turn(self) -> None:
        self._next = None
        if self._workers:
            worker = self._workers.popleft()
            try:
                if worker.work():
                    self._workers.append(worker)
            except Exception as error:
                self.report(error)
            finally:
                self._await_turn()

    def _await_turn(self) -> None:
        if self._workers and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)


def _tell(waiter: asyncio.Future[T], outcome: T | Exception) -> None:
    if waiter.done():
        return
    if isinstance(outcome, Exception):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)
