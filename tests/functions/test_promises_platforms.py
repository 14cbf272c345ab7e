"""Calls end wherever Python runs: among greenlets, in subinterpreters, and where a process cannot fork."""

from __future__ import annotations

import sys

import pytest

from tests.functions.programs import run_program

DOUBLE = """
@carpool.batched
def double(items):
    time.sleep(0.01)
    return [2 * item for item in items]
"""
PATCH = "from gevent import monkey; monkey.patch_all()\n"


@pytest.mark.parametrize(
    "before", [PATCH + DOUBLE, DOUBLE + PATCH, DOUBLE + "double(1).result()\n" + PATCH], ids=["first", "late", "in use"]
)
def test_greenlets_are_answered_whenever_gevent_came(before: str) -> None:
    pytest.importorskip("gevent")
    said = run_program(
        before
        + """
import gevent
jobs = [gevent.spawn(lambda item=item: double(item).result(timeout=5)) for item in range(10)]
gevent.joinall(jobs, timeout=10)
say([job.value for job in jobs])
""",
        errors=None,  # Python itself complains of threads from before
        checks=False,
    )
    assert said == [str([2 * item for item in range(10)])]


def test_a_coroutine_function_among_greenlets_is_refused_with_words_and_keeps_no_program_from_its_end() -> None:
    pytest.importorskip("gevent")
    said = run_program(
        PATCH
        + """
@carpool.batched
async def double(items):
    return [2 * item for item in items]

try: double(1)
except RuntimeError as error: say(error)
""",
        checks=False,
        seconds=8,
    )
    assert len(said) == 1
    assert said[0].startswith("gevent made all threads greenlets")


def test_no_thread_is_left_when_the_interpreter_has_told_functions_of_its_end() -> None:
    said = run_program(
        "atexit.register(lambda: say([thread.name for thread in threading.enumerate()]))  # after what is loaded later"
        + DOUBLE
        + """
@carpool.batched(timeout=5, max_in_flight=1)
async def double_async(items):
    return [2 * item for item in items]

say(double(1).result(), double_async(2).result(), double.using(timeout=5)(3).result())
"""
    )
    assert said == ["2 4 6", "['MainThread']"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there, ending one that ever had a second thread is fatal")
def test_a_subinterpreter_that_batched_ends_without_taking_the_process_along() -> None:
    said = run_program(
        """
try:
    import _interpreters as interpreters
    made = interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    made = interpreters.create(isolated=False)
interpreters.run_string(made, '''
import carpool
@carpool.batched
def double(items):
    return [2 * item for item in items]
@carpool.batched
async def double_async(items):
    return [2 * item for item in items]
assert double.using(timeout=5)(2).result() == double_async(2).result() == 4
''')
interpreters.destroy(made)
say("ended")
"""
    )
    assert said == ["ended"]


def test_batching_needs_nothing_that_only_posix_has_and_worker_processes_say_what_they_need() -> None:
    said = run_program(
        """
import select, socket
for module, names in {os: "fork register_at_fork sysconf", select: "poll", socket: "MSG_DONTWAIT socketpair"}.items():
    for name in names.split(): delattr(module, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
"""
        + DOUBLE
        + """
say(double(2).result())
try: carpool.processes(double)
except RuntimeError as error: say(error)
""",
        checks=False,
    )
    assert said[0] == "4"
    assert said[1].startswith("worker processes need a system such as Linux or macOS")
