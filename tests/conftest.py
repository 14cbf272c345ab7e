"""What every test gets without asking: no task may outlive it, and hypothesis runs the same way everywhere.

Also offered: `@pytest.mark.uvloop` runs a test on uvloop's loop, `@pytest.mark.both_loops` on asyncio's and on that,
`@pytest.mark.looptime` (from looptime) on asyncio's with virtual time.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Mapping

import pytest
import uvloop

from tests import examples

examples.use_profile()

# Turns of the loop a cancelled task gets to finish its clean-up before it counts as leaked.
_TURNS_TO_FINISH = 20
_GUARD = "no_task_outlives_the_test"


def pytest_configure(config: pytest.Config) -> None:
    # Else the first test that needs no loop gets one made by looptime's question for the current one, never closed.
    asyncio.set_event_loop(None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is collected is garbage: looking through it again and again took a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # hypothesis marks its tests first
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(inspect.unwrap(item.obj))
        if is_async and _GUARD not in item.fixturenames:
            # Only where a loop runs: the core's tests must pass without one, and pay for none.
            item.fixturenames.insert(0, _GUARD)
        if item.get_closest_marker("uvloop") or item.get_closest_marker("both_loops"):
            # The default method raises from a signal handler, which uvloop does not let through.
            item.add_marker(pytest.mark.timeout(method="thread"))
        if examples.IS_DEEP and item.get_closest_marker("hypothesis"):
            item.add_marker(pytest.mark.timeout(0), append=False)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("uvloop"):
        return {"uvloop": uvloop.new_event_loop}
    if item.get_closest_marker("both_loops"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="module", autouse=True)
def _spare_the_garbage_collector() -> None:
    """What lives between modules (imports, collected tests, schemas) stays: collections need not walk through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
async def no_task_outlives_the_test() -> AsyncIterator[None]:
    """Fails a test that leaves an asyncio task pending, with the task's name and coroutine.

    Set up before and torn down after the test's other fixtures, so servers and clients are closed by then.
    Real time is back too: a task that slept in virtual time is overdue and ends, one that waits does not.
    """
    before = asyncio.all_tasks()
    yield
    leaked = asyncio.all_tasks() - before - {asyncio.current_task()}
    for _ in range(_TURNS_TO_FINISH):
        if all(task.done() for task in leaked):
            return
        await asyncio.sleep(0)
    names = sorted(f"{task.get_name()} ({task.get_coro()!r})" for task in leaked if not task.done())
    for task in leaked:
        task.cancel()
    await asyncio.gather(*leaked, return_exceptions=True)
    pytest.fail("tasks still pending after the test: " + "; ".join(names), pytrace=False)
