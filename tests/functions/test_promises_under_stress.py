"""Threads, several loops, random cancels, failures and changes: every call is settled once, with what is its own."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

import carpool
from tests.functions.ways import PATIENCE, WAYS, Way

ROUNDS = 40
CALLS = 25


class Failing(Exception):
    pass


class Callers:
    """Calls with random numbers, cancels some of the calls, and checks what comes of the others."""

    def __init__(self, function: Any, seed: int) -> None:
        self._function = function
        self._random = random.Random(seed)
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.made = 0
        self.expected = 0
        self.found = 0

    def plan(self) -> list[tuple[str, list[int]]]:
        """For each call, what becomes of it and its numbers: one for a single call, several for a map."""
        draw = self._random
        return [
            (
                draw.choice(["wait", "wait", "wait", "cancel", "late"]),
                [draw.randrange(1, 10**6) for _ in range(draw.choice([1, 1, 1, 3, 20]))],
            )
            for _ in range(CALLS)
        ]

    def start(self, what: str, numbers: list[int]) -> carpool.Future[Any]:
        self.made += 1
        view = self._function.using(timeout=0.001) if what == "late" else self._function
        return view(numbers[0]) if len(numbers) == 1 else view.map(numbers)

    def check(self, what: str, numbers: list[int], future: carpool.Future[Any]) -> None:
        assert future.done()
        if future.cancelled():
            assert what == "cancel"
            self.outcomes["cancelled"] += 1
            return
        error = future.exception()
        if error is not None:
            assert isinstance(error, (Failing, carpool.NotIsolated, carpool.DeadlineExceeded, carpool.Closed)), error
            assert not isinstance(error, carpool.DeadlineExceeded) or what == "late"
            assert not isinstance(error, Failing) or any(number % 97 == 0 for number in numbers)
            self.outcomes[type(error).__name__] += 1
            return
        result = future.result()
        self.found += result if len(numbers) == 1 else sum(result)
        self.expected += sum(3 * number for number in numbers)
        self.outcomes["answered"] += 1

    def in_thread(self) -> None:
        for _ in range(ROUNDS):
            made = [(what, numbers, self.start(what, numbers)) for what, numbers in self.plan()]
            for what, _, future in made:
                if what == "cancel" and self._random.random() < 0.7:
                    future.cancel()
            concurrent.futures.wait([future for *_, future in made], PATIENCE)
            for what, numbers, future in made:
                self.check(what, numbers, future)

    async def in_loop(self) -> None:
        for _ in range(ROUNDS):
            made = [(what, numbers, self.start(what, numbers)) for what, numbers in self.plan()]
            tasks = [(what, asyncio.ensure_future(future)) for what, _, future in made]
            await asyncio.sleep(0)
            for what, task in tasks:
                if what == "cancel" and self._random.random() < 0.7:
                    task.cancel()
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait([task for _, task in tasks])
            for _, task in tasks:
                assert task.cancelled() or task.exception() is not None or task.result() is not None
            for what, numbers, future in made:
                self.check(what, numbers, future)

    def in_own_loop(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self.in_loop())


def triple(items: list[int]) -> list[Any]:
    """Three times each number. A multiple of 97 makes it raise."""
    if any(item % 97 == 0 for item in items):
        raise Failing("97")
    return [3 * item for item in items]


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda way: way.kind)
@pytest.mark.parametrize("max_in_flight", [1, 4])
def test_sums_are_right_whoever_calls_cancels_and_fails(way: Way, max_in_flight: int) -> None:
    running: set[int] = set()
    most = [0]
    lock = threading.Lock()

    def body(items: list[int]) -> list[Any]:
        assert 0 < len(items) <= 32
        with lock:
            running.add(id(items))
            most[0] = max(most[0], len(running))
        try:
            return triple(items)
        finally:
            with lock:
                running.discard(id(items))

    function = way.batched(body, max_batch_size=32, max_latency=0.001, max_in_flight=max_in_flight)
    callers = [Callers(function, seed) for seed in range(6)]
    actions = [
        callers[0].in_thread, callers[1].in_thread, callers[2].in_thread,
        lambda: callers[3].in_own_loop(asyncio.new_event_loop),
        lambda: callers[4].in_own_loop(uvloop.new_event_loop),
        lambda: callers[5].in_own_loop(asyncio.new_event_loop),
    ]  # fmt: skip
    stop = threading.Event()

    def change() -> None:
        draw = random.Random(7)
        while not stop.wait(0.005):
            function.configure(max_batch_size=draw.choice([4, 8, 32]), max_latency=draw.choice([0.0, 0.002]))
            assert function.stats() is not None

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(len(actions)) as pool:
            for done in [pool.submit(action) for action in actions]:
                done.result(100)
    finally:
        stop.set()
        changing.join()
    if way.kind == "def":
        assert function.close().result(PATIENCE) is None
    assert sum(each.found for each in callers) == sum(each.expected for each in callers)
    outcomes = sum((each.outcomes for each in callers), collections.Counter[str]())
    assert outcomes.total() == sum(each.made for each in callers) == len(callers) * ROUNDS * CALLS
    assert outcomes["answered"] > 0.4 * outcomes.total()
    if way.kind == "def":
        assert most[0] <= max_in_flight


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda way: way.kind)
def test_functions_that_are_closed_and_dropped_while_they_are_called_leave_nobody_waiting(way: Way) -> None:
    def use(seed: int) -> int:
        draw, settled = random.Random(seed), 0
        for _ in range(60):
            function = way.batched(triple, max_batch_size=4, max_latency=draw.choice([0.0, 0.001]))
            futures = [function(draw.randrange(1, 97)) for _ in range(draw.randrange(12))]
            if draw.random() < 0.5:
                function.close(draw.choice([None, 0.0001, 0.001]))
            del function
            done, waiting = concurrent.futures.wait(futures, PATIENCE)
            assert not waiting
            settled += len(done)
        return settled

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(4)))
