"""One cell of one system, in a process and an environment of its own: `python child.py '{"system": …, "cell": …}'`.

The last line that it prints is the figures, as JSON. It then ends at once: some systems leave threads that never end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

import adapters
import arrivals
import closed
import paced
import usage

WARM_UP = 0.4  # seconds under the load of the cell
WARM_CALLERS = 64


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The figures of the cell that the job describes."""
    fields = {field.name for field in dataclasses.fields(adapters.Settings)}
    settings = adapters.Settings(**{key: value for key, value in job.items() if key in fields})
    sys.path += job.get("path", [])  # last: what the environment itself has comes first
    if job["cell"] == "fault":
        import faults

        return faults.find(job["system"], job["trial"], settings)
    return CELLS[job["cell"]](job, settings)


def run(work: Coroutine[Any, Any, Any], job: dict[str, Any]) -> Any:
    """On a loop that waits with select(), or on uvloop's. epoll's timers, asyncio's default, are in whole milliseconds:
    a function of 13.2 ms would take 14, and callers would be late."""
    if job.get("loop") == "uvloop":
        import uvloop

        return asyncio.Runner(loop_factory=uvloop.new_event_loop).run(work)
    return asyncio.Runner(loop_factory=_exact_loop if job.get("exact") else None).run(work)


def _exact_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def closed_loop(job: dict[str, Any], settings: adapters.Settings) -> dict[str, Any]:
    """`callers` tasks, or threads, that call one after another."""
    system = adapters.build(job["system"], settings)
    if job["by"] == "threads":
        return closed.in_threads(system.call, job["callers"], WARM_UP, job["seconds"])

    async def all_of_it() -> dict[str, Any]:
        if system.prepare is not None:
            system.prepare()
        return await closed.on_loop(system.acall, job["callers"], WARM_UP, job["seconds"])

    return run(all_of_it(), job)


def open_loop(job: dict[str, Any], settings: adapters.Settings) -> dict[str, Any]:
    """Poisson arrivals of `rate` a second, from `seed`, after a warm-up in a closed loop."""
    system = adapters.build(job["system"], settings)
    times = arrivals.poisson(job["rate"], job["seconds"], job["seed"])
    within = job.get("within") or float("inf")
    patience = job.get("within") or paced.AFTER + 2

    async def all_of_it() -> paced.Outcome:
        if system.prepare is not None:
            system.prepare()
        await closed.on_loop(system.acall, WARM_CALLERS, WARM_UP, 0.1)
        return await paced.on_loop(system.acall, times, patience)

    if system.acall is not None:
        return run(all_of_it(), job).figures(job["seconds"], within)
    closed.in_threads(system.call, WARM_CALLERS, WARM_UP, 0.1)
    return paced.by_submitting(system.submit, times, patience).figures(job["seconds"], within)


def idle(job: dict[str, Any], settings: adapters.Settings) -> dict[str, Any]:
    """What is used in `seconds` after load, and what was there before the first call."""
    before = usage.threads()
    system = adapters.build(job["system"], settings)
    made = usage.threads() - before

    async def all_of_it() -> dict[str, Any]:
        if system.prepare is not None:
            system.prepare()
        await closed.on_loop(system.acall, WARM_CALLERS, WARM_UP, 0.1)
        await asyncio.sleep(1)
        start = _used()
        await asyncio.sleep(job["seconds"])
        return _since(start)

    if system.acall is not None:
        return run(all_of_it(), job) | {"threads": made}
    closed.in_threads(system.call, WARM_CALLERS, WARM_UP, 0.1)
    time.sleep(1)
    start = _used()
    time.sleep(job["seconds"])
    return _since(start) | {"threads": made}


def _used() -> tuple[int, float, float]:
    """What was used so far. To ask costs half a millisecond, which must fall before the time that is measured."""
    return usage.wakeups(), usage.cpu_of_children(), time.process_time()


def _since(start: tuple[int, float, float]) -> dict[str, Any]:
    own = time.process_time() - start[2]
    children, wakeups = usage.cpu_of_children() - start[1], usage.wakeups() - start[0]
    return {"cpu_seconds": own + children, "wakeups": wakeups - 1}  # one is this program's own


def alone(job: dict[str, Any], settings: adapters.Settings) -> dict[str, Any]:
    """What the function itself can do on this machine: batches of the largest size one after another."""
    import functions

    function, async_function = functions.make(settings.fixed, settings.per_item)
    items = list(range(adapters.MAX_BATCH))

    async def all_of_it() -> float:
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < job["seconds"]:
            answer = async_function(items) if job["by"] == "async def" else function(items)
            count += len(await answer if inspect.isawaitable(answer) else answer)
        return count / (time.perf_counter() - begin)

    return {"rate": run(all_of_it(), job)}


CELLS = {"closed": closed_loop, "open": open_loop, "idle": idle, "alone": alone}


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    for pid in usage.descendants():
        os.kill(pid, signal.SIGKILL)
    os._exit(0)
