"""No thread before the first call, none after the last, and no wake-up between: nothing is polled."""

from __future__ import annotations

import pytest

from tests.functions.programs import run_program

COUNTING = """
def threads():
    # All but the one that keeps the time for the whole process: it starts with the first timeout, and stays.
    return len(os.listdir("/proc/self/task")) - any(each.name == "carpool timer" for each in threading.enumerate())

def switches():
    '''How often each thread of this process has given up its core by itself, that is: has slept and woken.'''
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status") as status:
            for line in status:
                if line.startswith("voluntary_ctxt_switches"):
                    found[thread] = int(line.split()[1])
    return found

def woken(seconds=1.0):
    before = switches()
    time.sleep(seconds)
    after = switches()
    return {thread: after[thread] - before.get(thread, 0) for thread in after if thread != str(os.getpid())}

def settled():
    '''Once threads that were just used have gone to sleep.'''
    for _ in range(100):
        if not any(woken(0.02).values()): return
"""

FUNCTIONS = """
@carpool.batched(max_latency=0.01, timeout=60.0, slo=30.0, cache=carpool.LRU(10, 60.0))
def double(items):
    return [2 * item for item in items]

@carpool.batched(max_latency=0.01, timeout=60.0, slo=30.0)
async def double_async(items):
    return [2 * item for item in items]

@carpool.batched
def count(items):
    for step in range(3): yield [step for _ in items]

class Model:
    @carpool.batched
    def double(self, items):
        return [2 * item for item in items]
"""


def test_no_thread_before_the_first_call() -> None:
    said = run_program(
        COUNTING
        + """
before = threads()
"""
        + FUNCTIONS
        + """
model = Model()
model.double
model.double.using(timeout=1)
double.using(timeout=3, priority=1)
double.configure(max_batch_size=7)
double.stats()
double.map([])
say(threads() - before, threading.active_count())
double(1).result()
say(threads() - before)
"""
    )
    assert said == ["0 1", "1"]


def test_an_async_function_needs_no_thread_on_the_loop_of_its_callers() -> None:
    said = run_program(
        COUNTING
        + FUNCTIONS
        + """
async def main():
    before = threads()
    say(await double_async(1), await double_async.map([1, 2]))
    say(threads() - before)
asyncio.run(main())
"""
    )
    assert said == ["2 [2, 4]", "0"]


def test_one_thread_serves_a_function_however_many_call_it() -> None:
    said = run_program(
        COUNTING
        + FUNCTIONS
        + """
before = threads()
say(sum(each.result() for each in [double(item) for item in range(1000)]), threads() - before)
"""
    )
    assert said == ["999000 1"]


USES = ["double(1).result()", "double_async(1).result()", "list(count(1))", "model.double(1).result()"]


@pytest.mark.parametrize("use", USES)
def test_an_idle_function_wakes_nobody(use: str) -> None:
    said = run_program(
        COUNTING
        + FUNCTIONS
        + f"""
model = Model()
for _ in range(20): {use}
settled()
say(sum(woken().values()))
"""
    )
    assert said == ["0"]


def test_a_function_that_is_held_wakes_nobody_while_calls_wait_for_it() -> None:
    """Their time ends much later, and nothing is looked at before."""
    said = run_program(
        COUNTING
        + """
release = threading.Event()
@carpool.batched(max_latency=0.0, max_in_flight=1, max_batch_size=1, timeout=1000.0)
def held(items):
    release.wait()
    return items
futures = [held(item) for item in range(5)]
waiting = threading.Thread(target=futures[3].result)
waiting.start()
settled()
say(sum(woken().values()))
release.set()
say([each.result() for each in futures])
"""
    )
    assert said == ["0", "[0, 1, 2, 3, 4]"]


def test_calls_in_an_open_window_wake_nobody_before_its_end() -> None:
    said = run_program(
        COUNTING
        + """
@carpool.batched(max_latency=1000.0, max_batch_size=10)
def echo(items):
    return items
futures = [echo(item) for item in range(5)]
settled()
say(sum(woken().values()))
echo.close()
say([each.result() for each in futures])
"""
    )
    assert said == ["0", "[0, 1, 2, 3, 4]"]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_loop_sleeps_while_its_function_is_idle(loop: str) -> None:
    said = run_program(
        COUNTING
        + FUNCTIONS
        + f"""
import {loop}
async def main():
    for _ in range(20): await asyncio.gather(double_async(1), double(1))
    ready.set()
    await asyncio.Event().wait()
ready = threading.Event()
def run():
    try:
        with asyncio.Runner(loop_factory={loop}.new_event_loop) as runner: runner.run(main())
    except asyncio.CancelledError: pass
threading.Thread(target=run, daemon=True).start()
ready.wait()
settled()
say(sum(woken().values()))
os._exit(0)
"""
    )
    assert said == ["0"]


def test_calls_past_their_time_leave_no_timer_behind() -> None:
    said = run_program(
        COUNTING
        + """
release = threading.Event()
@carpool.batched(max_latency=0.0, max_in_flight=1, max_batch_size=1, timeout=0.01)
def held(items):
    release.wait()
    return items
futures = [held(item) for item in range(50)]
say({type(each.exception()).__name__ for each in futures})
settled()
say(sum(woken().values()))
release.set()
"""
    )
    assert said == ["{'DeadlineExceeded'}", "0"]


def test_the_thread_of_a_closed_or_forgotten_function_ends() -> None:
    said = run_program(
        COUNTING
        + FUNCTIONS
        + """
import gc
gc.disable()
before = threads()
def gone():
    for _ in range(100):
        if threads() == before: return True
        time.sleep(0.02)
    return threading.enumerate()
double(1).result(); double.close().result()
say(gone())
model = Model()
model.double(1).result()
del model
say(gone())
local = carpool.batched(lambda items: items)
local(1).result()
del local
say(gone())
for _ in range(50): Model().double(1).result()
say(gone())
"""
    )
    assert said == ["True"] * 4


def test_async_functions_share_one_loop_where_callers_have_none() -> None:
    said = run_program(
        COUNTING
        + """
before = threads()
functions = []
for number in range(20):
    @carpool.batched
    async def echo(items): return items
    functions.append(echo)
    echo(1).result()
say(threads() - before)
"""
    )
    assert said == ["1"]
