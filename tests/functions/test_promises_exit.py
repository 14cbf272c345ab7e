"""When the interpreter ends, what was accepted is answered; nothing hangs and nothing is printed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.functions.programs import run_program

SLOW = """
@carpool.batched(max_batch_size=2, max_latency=0.0, max_in_flight=1)
def slow(items):
    time.sleep(0.02)
    return [2 * item for item in items]

@carpool.batched(max_batch_size=2, max_latency=0.0, max_in_flight=1)
async def slow_async(items):
    await asyncio.sleep(0.02)
    return [2 * item for item in items]

def told(future):
    if future.cancelled(): say("cancelled")
    else: say(type(future.exception()).__name__ if future.exception() else future.result())
"""

both = pytest.mark.parametrize("name", ["slow", "slow_async"])
needs_late_threads = pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3),
    reason="this Python starts no thread once its main thread has ended (python/cpython#113964)",
)


@both
def test_pending_calls_are_answered_at_exit(name: str) -> None:
    said = run_program(SLOW + f"for item in range(7): {name}(item).add_done_callback(told)")
    assert sorted(map(int, said)) == [0, 2, 4, 6, 8, 10, 12]


@both
def test_calls_in_an_open_window_are_answered_at_exit_without_waiting_for_its_end(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
{name}.configure(max_batch_size=100, max_latency=1000.0)
for item in range(7): {name}(item).add_done_callback(told)
"""
    )
    assert sorted(map(int, said)) == [0, 2, 4, 6, 8, 10, 12]


@both
def test_a_program_that_ends_by_an_exception_still_answers(name: str) -> None:
    said = run_program(SLOW + f"{name}(1).add_done_callback(told)\nsys.exit(3)", status=3)
    assert said == ["2"]
    said = run_program(SLOW + f"{name}(1).add_done_callback(told)\nraise ValueError", status=1, errors=None)
    assert said == ["2"]


@both
def test_a_thread_that_waits_is_answered_though_the_main_thread_has_ended(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
started = threading.Event()
def wait():
    future = {name}(1)
    started.set()
    say(future.result())
threading.Thread(target=wait).start()
started.wait()
"""
    )
    assert said == ["2"]


@both
def test_a_thread_that_calls_once_the_main_thread_has_ended_is_answered_or_refused(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
def late():
    threading.main_thread().join()
    for item in range(3):
        time.sleep(0.05)
        try:
            say({name}(item).result())
        except carpool.Closed:
            say("closed")
threading.Thread(target=late).start()
say({name}(1).result())
"""
    )
    assert said[0] == "2"
    assert len(said) == 4
    assert all(line in (str(2 * item), "closed") for item, line in enumerate(said[1:]))


@both
@needs_late_threads
def test_the_first_call_ever_may_come_when_the_main_thread_has_ended(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
def late():
    threading.main_thread().join()
    time.sleep(0.05)
    try:
        say({name}(1).result())
    except carpool.Closed:
        say("closed")
threading.Thread(target=late).start()
"""
    )
    assert said in (["2"], ["closed"])


@both
def test_daemon_threads_that_call_do_not_keep_the_process(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
started = threading.Event()
def forever():
    while True:
        try:
            {name}(1).result()
        except carpool.Closed:
            time.sleep(1000)
        started.set()
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
started.wait()
{name}(21).add_done_callback(told)
"""
    )
    assert said == ["42"]


@both
@needs_late_threads
@pytest.mark.parametrize("when", ["before the import", "after it", "after the first call"])
def test_exit_handlers_that_call_are_answered_or_refused(name: str, when: str) -> None:
    """Handlers run in reverse order, so that some run before the library's own and some after it."""
    handler = f"""
def at_exit():
    try:
        say({name}(21).result(10))
    except carpool.Closed:
        say("closed")
"""
    if when == "before the import":
        program = f"{handler}\natexit.register(at_exit)\n{SLOW}"
    else:
        program = f"{SLOW}\n{handler}\n"
        program += f"{name}(0).result()\n" if when == "after the first call" else ""
        program += "atexit.register(at_exit)\n"
    assert run_program(program) in (["42"], ["closed"])


@both
def test_an_exit_handler_that_waits_for_a_pending_call_has_its_answer(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
futures = []
atexit.register(lambda: say([future.result(10) for future in futures]))
futures += [{name}(item) for item in range(5)]
"""
    )
    assert said == ["[0, 2, 4, 6, 8]"]


@pytest.mark.parametrize("end", ["return", "sys.exit(0)", "asyncio.current_task().cancel(); await asyncio.sleep(1)"])
def test_a_loop_that_ends_with_calls_to_a_def_still_has_them_answered(end: str) -> None:
    said = run_program(
        SLOW
        + f"""
async def main():
    for item in range(5): slow(item).add_done_callback(told)
    {end}
try:
    asyncio.run(main())
except asyncio.CancelledError:
    pass
"""
    )
    assert sorted(map(int, said)) == [0, 2, 4, 6, 8]


@both
def test_exit_while_tasks_wait_for_calls(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
async def caller(item):
    try:
        say(await {name}(item))
    except asyncio.CancelledError:
        say("cancelled")
        raise
async def main():
    tasks = [asyncio.create_task(caller(item)) for item in range(5)]
    await asyncio.sleep(0.001)
    sys.exit(0)
asyncio.run(main())
"""
    )
    assert len(said) == 5
    assert set(said) <= {"cancelled", "0", "2"}


@both
def test_exit_while_a_function_tries_a_failed_batch_again(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
def body(items):
    time.sleep(0.01)
    if 2 in items: raise ValueError(2)
    return items
async def async_body(items):
    return body(items)
f = carpool.batched({"body" if name == "slow" else "async_body"}, max_batch_size=4, max_latency=10.0)
for item in range(4): f(item).add_done_callback(told)
"""
    )
    assert sorted(said) == ["0", "1", "3", "ValueError"]


@both
def test_exit_after_closing_prints_nothing(name: str) -> None:
    assert run_program(SLOW + f"{name}(1).result()\n{name}.close().result()\n") == []


def test_exit_with_methods_and_local_functions_that_still_have_calls() -> None:
    said = run_program(
        SLOW
        + """
class Model:
    @carpool.batched
    def double(self, items):
        time.sleep(0.02)
        return [2 * item for item in items]
def work():
    for item in range(3): Model().double(item).add_done_callback(told)
    local = carpool.batched(lambda items: [item + 100 for item in items])
    local(1).add_done_callback(told)
work()
"""
    )
    assert sorted(map(int, said)) == [0, 2, 4, 101]


def test_exit_with_streams_that_are_still_being_read() -> None:
    said = run_program(
        SLOW
        + """
@carpool.batched
def count(items):
    for step in range(3):
        time.sleep(0.01)
        yield [(item, step) for item in items]
def read(stream):
    for value in stream: say(value)
threading.Thread(target=read, args=(count("a"),)).start()
abandoned = count("b")
"""
    )
    assert said == ["('a', 0)", "('a', 1)", "('a', 2)"]


def test_an_interrupt_while_waiting_ends_the_program_as_usual() -> None:
    said = run_program(
        SLOW
        + """
future = slow(1)
future.add_done_callback(told)
pending = slow(2)
pending.add_done_callback(told)
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.005)
try:
    pending.result()
    say("answered")
except KeyboardInterrupt:
    say("interrupted")
"""
    )
    assert sorted(said) in (["2", "4", "interrupted"], ["2", "4", "answered"])


def test_a_function_that_is_imported_by_another_thread_while_the_interpreter_ends() -> None:
    """Modules are torn down with functions in them; nothing is said of it."""
    assert run_program(
        """
        import types
        module = types.ModuleType("late")
        sys.modules["late"] = module
        exec("import carpool\\n@carpool.batched\\ndef f(items): return items\\n", module.__dict__)
        say(module.f(1).result())
        module.keep = module
        """
    ) == ["1"]


# --- what is stuck ------------------------------------------------------------------------------------------------

STUCK = """
import carpool.functions.hosts as hosts
hosts.PATIENCE = hosts.GRACE = 0.2
started = threading.Event()

@carpool.batched(max_latency=0.0, max_batch_size=1, max_in_flight=2)
def stuck(items):
    if items[0] == "ok": return items
    started.set()
    time.sleep(3600)

@carpool.batched(max_latency=0.0, max_batch_size=1, max_in_flight=2)
async def stuck_async(items):
    if items[0] == "ok": return items
    started.set()
    if items[0] == "blocks": time.sleep(3600)
    await asyncio.sleep(3600)

def told(future): say(type(future.exception()).__name__ if future.exception() else future.result())
"""
stuck_both = pytest.mark.parametrize("name", ["stuck", "stuck_async"])


@stuck_both
def test_the_interpreter_exits_though_a_function_is_stuck_and_who_waits_gets_closed(name: str) -> None:
    said = run_program(
        STUCK
        + f"""
{name}("ok").result()
for _ in range(3): {name}(1).add_done_callback(told)
started.wait()
""",
        errors=f"the interpreter exits, and there was no answer of {name} for 0.2 s\n",
    )
    assert said == ["Closed"] * 3


@stuck_both
def test_the_interpreter_exits_at_once_though_a_batch_is_stuck_that_nobody_waits_for(name: str) -> None:
    """Not even `PATIENCE` is waited for."""
    said = run_program(
        STUCK
        + f"""
hosts.PATIENCE = 3600.0
say(type({name}.using(timeout=0.2)(1).exception()).__name__)
{name}("ok").add_done_callback(told)
"""
    )
    assert said == ["DeadlineExceeded", "ok"]


def test_the_interpreter_exits_though_the_loop_for_callers_without_one_is_blocked() -> None:
    said = run_program(STUCK + "stuck_async('blocks').add_done_callback(told)\nstarted.wait()", errors=None)
    assert said == ["Closed"]


@both
def test_exit_waits_for_as_long_as_answers_come(name: str) -> None:
    said = run_program(
        SLOW
        + f"""
import carpool.functions.hosts as hosts
hosts.PATIENCE = 0.5
{name}.map(range(100)).add_done_callback(lambda future: say(len(future.result())))
"""
    )
    assert said == ["100"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells whether a process is there")
@pytest.mark.parametrize(
    "end", ["pass", "function.close(0.1).result()", "function.close(0.1)", "os.kill(os.getpid(), 9)"]
)
def test_no_worker_process_outlives_the_program_though_it_is_stopped(end: str) -> None:
    [one, other, answered] = run_program(
        f"""
        import carpool.functions.hosts as hosts
        from tests.workers import models
        hosts.PATIENCE = 0.2
        function = carpool.batched(carpool.processes(models.Telling).on("cpu", "cpu"), max_batch_size=1)
        futures = [function(("about",)) for _ in range(50)]
        pids = set()
        while len(pids) < 2: pids |= {{each.result()[0] for each in [function(("about",)) for _ in range(10)]}}
        held = function(("signalled", signal.SIGSTOP))
        while not any(" T " in open(f"/proc/{{pid}}/stat").read() for pid in pids): time.sleep(0.01)
        for pid in pids: say(pid)
        say("up")
        {end}
        """,
        status=-9 if "kill" in end else 0,
        errors=None,
    )
    assert answered == "up"
    give_up = time.monotonic() + 10
    while any(_is_there(int(pid)) for pid in (one, other)):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def _is_there(pid: int) -> bool:
    """Whether a process is there and has not ended; one that nobody waits for stays in the table."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_callback_at_exit_may_wait_for_another_thread_that_calls() -> None:
    said = run_program(
        """
import queue
from carpool.functions import hosts

hosts.PATIENCE = 0.5
todo, done = queue.Queue(), queue.Queue()

@carpool.batched
def stuck(items):
    time.sleep(1000)

def call_again():
    try:
        done.put(stuck(todo.get()).result())
    except carpool.Closed:
        done.put("closed")

def again(future):
    todo.put("again")
    say(type(future.exception()).__name__, done.get())

threading.Thread(target=call_again, daemon=True).start()
stuck("first").add_done_callback(again)
""",
        errors=None,
    )
    assert said == ["Closed closed"]
