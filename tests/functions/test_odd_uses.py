"""What careless or hostile users do with batched functions, and nobody else may suffer from."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import carpool
from carpool.runtime import timer_thread
from tests.functions.programs import run_program


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What a call returns or raises; fails if it takes longer."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append((call(), None))
        except BaseException as error:
            got.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert got, "it hangs"
    result, error = got[0]
    if error is not None:
        raise error
    return result


class ByLabel:
    """As a pandas.Series: a slice keeps its labels."""

    def __init__(self, values: list[Any], first: int = 0) -> None:
        self.values, self.first = values, first

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            start, stop, _ = which.indices(len(self.values))
            return ByLabel(self.values[start:stop], self.first + start)
        if not self.first <= which < self.first + len(self.values):
            raise KeyError(which)
        return self.values[which - self.first]

    def __iter__(self) -> Any:
        return iter(self.values)


def test_results_that_are_looked_up_by_labels_leave_nobody_waiting() -> None:
    function = carpool.batched(lambda items: ByLabel(items), max_latency=0.02)
    futures = [function(number) for number in range(3)]
    with contextlib.suppress(carpool.WrongResult):
        assert [future.result(timeout=2) for future in futures] == [0, 1, 2]


# In a process of its own: a dead batcher also keeps the interpreter from exiting.
INTERRUPTED = """
import carpool, os, random, signal
f = carpool.batched(lambda items: items)
f(1).result()
random.seed(1)
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(2000):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 1e-3))
        while True:
            f(1).result()
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        f(1).result(timeout=2)
    except TimeoutError:
        os._exit(7)
"""


def test_interrupts_leave_no_lock_behind() -> None:
    assert subprocess.run([sys.executable, "-c", INTERRUPTED], timeout=60).returncode == 0


HUGE = """
import carpool, sys, threading
f = carpool.batched(lambda items: items, timeout=sys.maxsize)
threading.Timer(5, lambda: __import__("os")._exit(7)).start()
assert f(1).result() == 1
__import__("os")._exit(0)
"""


def test_a_huge_timeout_is_as_good_as_none() -> None:
    assert subprocess.run([sys.executable, "-c", HUGE], timeout=20).returncode == 0


def test_a_huge_timeout_of_close_leaves_the_timer_thread_alive() -> None:
    function = carpool.batched(lambda items: items)
    function(1).result()
    function.close(timeout=float(sys.maxsize)).result(timeout=2)
    time.sleep(0.1)
    thread = timer_thread.shared._thread
    assert thread is None or thread.is_alive()


def test_a_callback_that_exits_harms_no_other_caller() -> None:
    function = carpool.batched(lambda items: items, max_latency=0.1)
    futures = [function(number) for number in range(3)]
    futures[0].add_done_callback(lambda _: sys.exit(1))
    assert within(2, futures[2].result) == 2


def test_a_cache_knows_whose_method_it_is() -> None:
    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @carpool.batched(cache=carpool.LRU(10))
        def predict(self, numbers: list[int]) -> list[int]:
            return [self.factor * number for number in numbers]

    two, three = Model(2), Model(3)
    assert (two.predict(1).result(), three.predict(1).result()) == (2, 3)


def test_batchers_go_with_their_instances() -> None:
    class Model:
        @carpool.batched
        def predict(self, numbers: list[int]) -> list[int]:
            return numbers

    model = Model()
    model.predict(1).result()
    kept = weakref.ref(model.predict._site.batchers[0])
    del model
    for _ in range(50):
        gc.collect()
        if kept() is None:
            break
        time.sleep(0.02)
    assert kept() is None


def test_with_in_a_coroutine_raises_where_it_would_wait_for_itself() -> None:
    @carpool.batched
    async def double(numbers: list[int]) -> list[int]:
        return numbers

    async def main() -> None:
        with pytest.raises(RuntimeError), double:
            double(1)

    within(3, lambda: asyncio.run(main()))


def test_waiting_for_the_end_within_the_function_raises() -> None:
    @carpool.batched
    def double(numbers: list[int]) -> list[int]:
        double.close().result()
        return numbers

    assert isinstance(double(1).exception(timeout=2), RuntimeError)


def test_an_instance_without_weak_references_cannot_close_for_others() -> None:
    class Model:
        __slots__ = ()

        @carpool.batched
        def predict(self, numbers: list[int]) -> list[int]:
            return numbers

    one, other = Model(), Model()
    one.predict(1).result()
    with pytest.raises(TypeError, match="close it on the class"):
        one.predict.close()
    assert other.predict(2).result() == 2


class Coded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def test_a_callers_exception_says_what_the_functions_said() -> None:
    def fail(items: list[int]) -> list[int]:
        raise Coded(items[0])

    assert str(carpool.batched(fail)(5).exception()) == "code 5"


def test_a_function_as_an_attribute_stays_a_function() -> None:
    double = carpool.batched(lambda numbers: [2 * number for number in numbers])

    @dataclasses.dataclass
    class Settings:
        function: Any = double

    assert Settings().function(1).result() == 2
    assert double(1).result() == 2


def test_a_callable_in_a_class_is_no_method() -> None:
    class Service:
        predict = carpool.batched(functools.partial(lambda factor, numbers: [factor * each for each in numbers], 2))

    assert Service().predict(1).result() == 2


def test_waiting_in_the_thread_of_a_loop_that_does_not_run_raises() -> None:
    @carpool.batched
    async def double(numbers: list[int]) -> list[int]:
        return numbers

    async def call() -> Any:
        return double(1)

    loop = asyncio.new_event_loop()
    future = loop.run_until_complete(call())
    try:
        with pytest.raises(RuntimeError):
            future.result(timeout=1)

        async def wait() -> int:
            return await future

        assert loop.run_until_complete(wait()) == 1
    finally:
        loop.close()


def test_deadlines_do_not_pile_up() -> None:
    function = carpool.batched(lambda items: items, timeout=3600, max_batch_size=1)
    before = len(timer_thread.shared._heap)
    for future in [function(number) for number in range(1000)]:
        future.result()
    assert len(timer_thread.shared._heap) - before < 100


def test_a_key_that_fails_harms_no_other() -> None:
    class Odd:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise ValueError

    function = carpool.batched(lambda items, key: items, max_latency=0.1)
    fine = function(1, "fine")
    for _ in range(2):
        with pytest.raises(TypeError, match="comparable"):
            function(1, Odd())
    assert fine.result(timeout=2) == 1


def test_loops_may_have_futures_of_their_own() -> None:
    class Loop(asyncio.SelectorEventLoop):
        def create_future(self) -> Any:
            return asyncio.futures._PyFuture(loop=self)  # type: ignore[attr-defined]

    function = carpool.batched(lambda items: items)

    async def main() -> Any:
        async with asyncio.timeout(2):
            return await function(1)

    loop = Loop()
    try:
        assert loop.run_until_complete(main()) == 1
    finally:
        loop.close()


def test_a_cache_tells_types_apart() -> None:
    function = carpool.batched(lambda items: [repr(item) for item in items], cache=carpool.LRU(10))
    assert (function(1).result(), function(True).result()) == ("1", "True")


def test_a_result_that_was_being_handed_in_is_no_call_when_all_is_refused() -> None:
    said = run_program("""
    from carpool.functions import batcher
    f = carpool.batched(lambda items: items, max_latency=0.0)
    f(1).result(5)
    (by,) = list(batcher.live)
    by.post(lambda *_: (_ for _ in ()).throw(RuntimeError("odd")), ("no", "calls"), [1, 2])
    say(f(2).result(5))
    """, errors=None)  # fmt: skip
    assert said == ["2"]
