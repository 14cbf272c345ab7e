"""Callers in an open loop: calls are made when they are due, answered or not, and latency counts from then."""

from __future__ import annotations

import asyncio
import collections
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import arrivals

SETTLE = 0.5  # seconds of arrivals that nothing is counted of
AFTER = 0.5  # seconds after the last arrival in which answers are still taken, beyond the objective


class Outcome:
    """When each call was due, made and answered, in seconds from the start. None: not answered (yet), or refused."""

    def __init__(self, times: Sequence[float]) -> None:
        self.times = times
        self.made: list[float] = [0.0] * len(times)
        self.answered: list[float | None] = [None] * len(times)
        self.errors: collections.Counter[str] = collections.Counter()

    def figures(self, seconds: float, within: float) -> dict[str, Any]:
        """Of the calls that were due after SETTLE. `goodput`: answers no later than `within` after they were due."""
        counted = [index for index, due in enumerate(self.times) if due >= SETTLE]
        waits = [end - self.times[index] for index in counted if (end := self.answered[index]) is not None]
        lags = [self.made[index] - self.times[index] for index in counted]
        return {
            "calls": len(counted),
            "answers": len(waits),
            "p50": arrivals.percentile(waits, 0.5),
            "p99": arrivals.percentile(waits, 0.99),
            "lag_p99": arrivals.percentile(lags, 0.99),
            "goodput": sum(wait <= within for wait in waits) / (seconds - SETTLE),
            "errors": dict(self.errors),
        }


async def on_loop(acall: Any, times: Sequence[float], patience: float) -> Outcome:
    """Make each call in a task of its own; waits for answers until `patience` seconds after the last was due."""
    outcome, tasks = Outcome(times), set()
    clock = time.perf_counter
    begin = clock() + 0.02

    async def one(index: int) -> None:
        try:
            answer = await acall(index)
        except Exception as error:
            outcome.errors[type(error).__name__] += 1
            return
        outcome.answered[index] = clock() - begin
        if answer != index:
            outcome.errors["wrong answer"] += 1

    for index, due in enumerate(times):
        if (left := begin + due - clock()) > 0:
            await asyncio.sleep(left)
        outcome.made[index] = clock() - begin
        task = asyncio.create_task(one(index))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if not index % 64:  # many at once must not keep the loop from its other work
            await asyncio.sleep(0)
    if tasks:
        await asyncio.wait(set(tasks), timeout=patience)
    return outcome


def by_submitting(submit: Any, times: Sequence[float], patience: float) -> Outcome:
    """The same for what has no coroutine: one thread submits, another takes the answers in the order of the calls,
    which is the order in which a system of one worker gives them."""
    outcome, sent = Outcome(times), queue.SimpleQueue[Any]()
    clock = time.perf_counter
    begin = clock() + 0.02

    def take() -> None:
        while (call := sent.get()) is not None:
            index, future = call
            try:
                future.result(60)
            except Exception as error:
                outcome.errors[type(error).__name__] += 1
                continue
            outcome.answered[index] = clock() - begin

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    for index, due in enumerate(times):
        while (left := begin + due - clock()) > 0:
            time.sleep(left)
        outcome.made[index] = clock() - begin
        sent.put((index, submit(index)))
    sent.put(None)
    taker.join(patience)
    return outcome
