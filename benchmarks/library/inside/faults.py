"""Ordinary faults, each tried on a system in a process of its own: what happens to its callers.

A finding is `{"fine": whether nobody is harmed, "what": what happened, in a few words}`. `fine` is None where a system
has nothing to try it on.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import adapters
import functions
import methods

PATIENCE = 3.0  # seconds after which a caller counts as left waiting for ever
SLOW = functions.SLOW
WAITING, ANSWERED, WRONG = "waiting", "answered", "wrong answer"
OUTSIDE = "fast_dynamic_batcher"  # its function runs in another process: nothing here can look into it

Finding = dict[str, Any]


def find(adapter: str, fault: str, settings: adapters.Settings) -> Finding:
    """Try a fault, a name in `FAULTS`, on a system."""
    return FAULTS[fault](adapter, settings)


def shutdown(adapter: str, settings: adapters.Settings) -> Finding:
    """It is shut down while 80 callers wait, most of them in the queue."""
    system = _build(adapter, settings, "nothing")
    if system.close is None:
        return {"fine": None, "what": "cannot be shut down"}
    ends = Ends(system, range(80), beside=system.close, after=SLOW / 2, warm=True).ends
    return {"fine": WAITING not in ends, "what": _kinds(ends)}


def system_exit(adapter: str, settings: adapters.Settings) -> Finding:
    """The function raises SystemExit once; a call after that has to be answered."""
    system = _build(adapter, settings, "exits")
    first = Ends(system, range(8))
    ended = ", and their event loop is ended" if first.loop_ended else ""
    if first.loop_ended and adapter != "carpool_def":
        return {"fine": False, "what": f"{_kinds(first.ends)}{ended}"}
    (later,) = Ends(system, [100]).ends
    return {
        "fine": WAITING not in first.ends and later == ANSWERED,
        "what": f"{_kinds(first.ends)}; a later call: {later}",
    }


def one_bad_item(adapter: str, settings: adapters.Settings) -> Finding:
    """The function raises for one item of eight: are the other seven answered?"""
    ends = Ends(_build(adapter, settings, "dislikes"), range(8)).ends
    return {"fine": ends.count(ANSWERED) == 7 and WAITING not in ends, "what": _kinds(ends)}


def shared_exception(adapter: str, settings: adapters.Settings) -> Finding:
    """The function fails for a batch of four: has each caller an exception object of its own?"""
    found = Ends(_build(adapter, settings, "raises"), range(4))
    if WAITING in found.ends:
        return {"fine": False, "what": _kinds(found.ends)}
    distinct = len({id(each) for each in found.errors})
    return {"fine": distinct == 4, "what": f"{distinct} {'object' if distinct == 1 else 'objects'} for 4 callers"}


def wrong_length(adapter: str, settings: adapters.Settings) -> Finding:
    """One result too few: every caller has to be told, and nobody may get another's."""
    ends = Ends(_build(adapter, settings, "shortens"), range(8)).ends
    return {"fine": not {WAITING, WRONG, ANSWERED} & set(ends), "what": _kinds(ends)}


def cancelled_caller(adapter: str, settings: adapters.Settings) -> Finding:
    """One of eight callers is cancelled while the function runs, one of eight more while it is queued behind those."""
    system = _build(adapter, settings, "nothing")
    if system.acall is None:
        return {"fine": None, "what": "its callers cannot be cancelled"}
    seen: list[Any] = []
    functions.watchers.append(seen.extend)

    async def all_of_it() -> tuple[set[Any], set[Any]]:
        _prepare(system)
        running = [asyncio.create_task(_one(system.acall, index, [])) for index in range(8)]
        await asyncio.sleep(SLOW / 2)
        queued = [asyncio.create_task(_one(system.acall, index, [])) for index in range(8, 16)]
        await asyncio.sleep(SLOW / 5)
        running[0].cancel()
        queued[0].cancel()
        return await asyncio.wait(running[1:] + queued[1:], timeout=PATIENCE)

    done, pending = _run_and_leave(all_of_it())
    ends = [task.result() for task in done if not task.cancelled()] + [WAITING] * len(pending)
    unharmed = ends.count(ANSWERED) == 14
    if not unharmed or adapter == OUTSIDE:
        return {"fine": unharmed, "what": f"the others: {_kinds(ends)}"}
    computed = "all the same" if 8 in seen else "not"
    return {"fine": 8 not in seen, "what": f"the others: {_kinds(ends)}; what was queued is {computed} computed"}


def second_loop(adapter: str, settings: adapters.Settings) -> Finding:
    """Calls on one event loop and, after that has ended, on another."""
    system = _build(adapter, settings, "nothing")
    if system.acall is None:
        return {"fine": None, "what": "has no coroutines"}
    Ends(system, range(4))
    second = Ends(system, range(4)).ends
    return {"fine": second.count(ANSWERED) == 4, "what": _kinds(second)}


def instances(adapter: str, settings: adapters.Settings) -> Finding:
    """Twenty objects with a batched method, each called once and forgotten: how many are freed?"""
    adapters.build(adapter, settings)
    make = methods.make(adapter)
    if make is None:
        return {"fine": None, "what": "has no methods"}
    references, before = [], threading.active_count()

    async def one() -> None:
        thing = make()
        references.append(weakref.ref(thing))
        await thing.acall(1)

    async def all_of_it() -> tuple[int, int]:
        for _ in range(20):
            await asyncio.wait_for(one(), PATIENCE)
        for _ in range(10):
            gc.collect()
            await asyncio.sleep(0.1)
        return sum(each() is None for each in references), threading.active_count() - before

    freed, threads = _run_and_leave(all_of_it())
    left = f", {threads} threads left" if threads > 2 else ""
    # The last one may still be known to a task that has just ended.
    return {"fine": freed >= 19 and not left, "what": f"{freed} of 20 freed{left}"}


def context_variables(adapter: str, settings: adapters.Settings) -> Finding:
    """Each of four callers has its own value in a context variable: can the function read all of them?"""
    if adapter == OUTSIDE:
        return {"fine": False, "what": "the function runs in another process"}
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="")
    seen: list[str] = []

    def watch(items: list[Any]) -> None:
        if adapter.startswith("carpool"):
            import carpool

            seen.extend(member.context.get(who, "") for member in carpool.batch().members)
        else:
            seen.extend([who.get()] * len(items))

    functions.watchers.append(watch)
    system = _build(adapter, settings, "nothing")
    Ends(system, [f"caller {index}" for index in range(4)], first=who.set)
    if len(set(seen)) == 4:
        return {"fine": True, "what": "reads those of every caller"}
    found = sorted(set(seen) - {""})
    return {"fine": False, "what": f"sees {found[0]}'s for all" if found else "sees none"}


FAULTS: dict[str, Callable[[str, adapters.Settings], Finding]] = {
    each.__name__: each
    for each in (
        shutdown,
        system_exit,
        one_bad_item,
        shared_exception,
        wrong_length,
        cancelled_caller,
        second_loop,
        instances,
        context_variables,
    )
}


class Ends:
    """Calls with each item, all made at once, and how each ended: "answered", "wrong answer", "waiting" after PATIENCE,
    or the name of an exception. Tasks where the system has coroutines, else threads.

    `first` is called by each caller with its item, `beside` once, `after` so many seconds; with `warm` a call is made
    and answered before.
    """

    def __init__(
        self,
        system: adapters.System,
        items: Iterable[Any],
        beside: Callable[[], Any] | None = None,
        after: float = 0.0,
        first: Callable[[Any], Any] | None = None,
        warm: bool = False,
    ) -> None:
        self._system, self._beside, self._after, self._first = system, beside, after, first
        self._warm, self._found = warm, dict.fromkeys(items, WAITING)
        self.errors: list[BaseException] = []
        self.loop_ended = False
        if system.acall is None:
            self._in_threads()
        else:
            _run_and_leave(self._on_loop(), self._end_of_loop)

    @property
    def ends(self) -> list[str]:
        return list(self._found.values())

    async def _on_loop(self) -> None:
        _prepare(self._system)
        if self._warm:
            await self._system.acall(-1)  # type: ignore[misc]
        tasks = [asyncio.create_task(self._task(item)) for item in self._found]
        beside = asyncio.create_task(self._beside_task()) if self._beside else None
        await asyncio.wait(tasks, timeout=PATIENCE)
        if beside is not None:
            beside.cancel()

    async def _task(self, item: Any) -> None:
        if self._first is not None:
            self._first(item)
        self._found[item] = await _one(self._system.acall, item, self.errors)

    async def _beside_task(self) -> None:
        await asyncio.sleep(self._after)
        if self._system.closes_on_loop:
            await self._beside()  # type: ignore[misc]
        else:
            threading.Thread(target=self._beside, daemon=True).start()  # it may block for ever

    def _end_of_loop(self) -> None:
        self.loop_ended = True

    def _in_threads(self) -> None:
        if self._warm:
            self._system.call(-1)  # type: ignore[misc]
        threads = [threading.Thread(target=self._thread, args=(item,), daemon=True) for item in self._found]
        for thread in threads:
            thread.start()
        if self._beside is not None:
            time.sleep(self._after)
            threading.Thread(target=self._beside, daemon=True).start()
        give_up = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))

    def _thread(self, item: Any) -> None:
        if self._first is not None:
            self._first(item)
        try:
            self._found[item] = ANSWERED if self._system.call(item) == item else WRONG  # type: ignore[misc]
        except BaseException as error:
            self.errors.append(error)
            self._found[item] = type(error).__name__


async def _one(acall: Any, item: Any, errors: list[BaseException]) -> str:
    try:
        answer = await acall(item)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
        errors.append(error)
        return type(error).__name__
    return ANSWERED if answer == item else WRONG


def _build(adapter: str, settings: adapters.Settings, fault: str) -> adapters.System:
    return adapters.build(adapter, dataclasses.replace(settings, fault=fault))


def _prepare(system: adapters.System) -> None:
    if system.prepare is not None:
        system.prepare()


def _run_and_leave(work: Coroutine[Any, Any, Any], on_end: Callable[[], Any] | None = None) -> Any:
    """As `asyncio.run`, but nothing is waited for that hangs, and a SystemExit that ends the loop ends no program:
    `on_end` is called and the loop goes on."""
    loop = asyncio.new_event_loop()
    main: Awaitable[Any] = loop.create_task(work)
    while True:
        try:
            result = loop.run_until_complete(main)
            break
        except SystemExit:
            if on_end is not None:
                on_end()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=0.2))
    loop.close()
    return result


def _kinds(ends: list[str]) -> str:
    return ", ".join(f"{ends.count(kind)} {kind}" for kind in dict.fromkeys(ends))
