"""Callers in a closed loop: each makes its next call when the one before is answered. Every answer is checked."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
import time
from typing import Any

import usage

STACK = 256 * 1024  # bytes a thread: there can be a thousand
HUNG_AFTER = 5.0  # seconds without an answer after the end


class Callers:
    """What callers have got so far. Each writes its own count only, so that threads need no lock."""

    def __init__(self, number: int) -> None:
        self.counts = [0] * number
        self.finished = [False] * number
        self.errors: collections.Counter[str] = collections.Counter()
        self.running = True
        self.may_begin = threading.Event()

    async def ask(self, acall: Any, index: int) -> None:
        """One caller on the loop."""
        item = index * 1_000_000_000
        while self.running:
            item += 1
            try:
                answer = await acall(item)
            except Exception as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.001)
                continue
            if answer != item:
                self.errors["wrong answer"] += 1
            self.counts[index] += 1
        self.finished[index] = True

    def ask_blocking(self, call: Any, index: int) -> None:
        """One caller in a thread, from when all may begin."""
        self.may_begin.wait()
        item = index * 1_000_000_000
        while self.running:
            item += 1
            try:
                answer = call(item)
            except Exception as error:
                self.errors[type(error).__name__] += 1
                time.sleep(0.001)
                continue
            if answer != item:
                self.errors["wrong answer"] += 1
            self.counts[index] += 1
        self.finished[index] = True


class Span:
    """Answers, time, CPU and wake-ups from its making to `end`."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._count, self._cpu, self._wakeups = sum(callers.counts), usage.cpu_seconds(), usage.wakeups()
        self._time = time.perf_counter()

    def end(self) -> dict[str, Any]:
        count = sum(self._callers.counts) - self._count
        seconds, cpu = time.perf_counter() - self._time, usage.cpu_seconds() - self._cpu
        wakeups = usage.wakeups() - self._wakeups
        per_item = {"cpu": cpu / count, "wakeups": wakeups / count} if count else {"cpu": None, "wakeups": None}
        return {"rate": count / seconds, "busy": cpu / seconds, **per_item}


async def on_loop(acall: Any, number: int, warm_up: float, seconds: float) -> dict[str, Any]:
    """The figures of `number` tasks, over `seconds` after a warm-up."""
    with contextlib.suppress(Exception):  # the first call may have a worker process started, and a model loaded
        await acall(-1)
    callers = Callers(number)
    tasks = [asyncio.create_task(callers.ask(acall, index)) for index in range(number)]
    await asyncio.sleep(warm_up)
    span = Span(callers)
    await asyncio.sleep(seconds)
    found = span.end()
    callers.running = False
    await asyncio.wait(tasks, timeout=HUNG_AFTER)
    return found | {"errors": dict(callers.errors), "hung": callers.finished.count(False)}


def in_threads(call: Any, number: int, warm_up: float, seconds: float) -> dict[str, Any]:
    """The same of `number` threads."""
    with contextlib.suppress(Exception):
        call(-1)
    callers = Callers(number)
    threading.stack_size(STACK)
    threads = [
        threading.Thread(target=callers.ask_blocking, args=(call, index), daemon=True) for index in range(number)
    ]
    for thread in threads:
        thread.start()
    threading.stack_size(0)
    # Not before: on one core, those that call already would keep the interpreter from starting the others for minutes.
    callers.may_begin.set()
    time.sleep(warm_up)
    span = Span(callers)
    time.sleep(seconds)
    found = span.end()
    callers.running = False
    give_up = time.monotonic() + HUNG_AFTER
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
    return found | {"errors": dict(callers.errors), "hung": callers.finished.count(False)}
