"""Which batches wait for which calls, so that a wait that would never end fails at once, or ends.

A function may call batched functions and wait for their answers, itself among them. What it waits for is noted with its
batch, which the context of whoever waits leads to: tasks take that along, and so does `asyncio.to_thread`. A batch ends
once all that it waits for is answered; a call is answered once its batch ends, or, before it has one, if there is room
for one more batch or one of those under way ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

from carpool import errors
from carpool.functions import current
from carpool.scheduling import limits, messages, scheduler


class Batcher(Protocol):
    """What answers calls."""

    name: str
    core: scheduler.Scheduler
    limits: limits.Limits

    def thread_of(self, batch: messages.Batch) -> int | None:
        """The identifier of the thread that works on a batch, if that has one of its own."""
        ...

    def come_to_rest(self) -> None:
        """Return once what happens to it now has happened."""
        ...

    def hasten(self) -> None:
        """Ask the policy again, as a batch that is under way waits for one that is not."""
        ...


Need = tuple[Batcher, "messages.Request | None"]
"""A call that is to be answered, or None for all that the batcher has."""


class Origin(Protocol):
    """Where what one waits for comes from."""

    def needs(self, call: Any) -> Iterable[Need]:
        """What has to be answered for that."""
        ...


class Awaited(Protocol):
    """A future or a stream; it has an origin for as long as it is open."""

    origin: Any
    call: Any


_CIRCLE = "waits_for_itself"
_HOMES = ("threading", "concurrent.futures._base", "concurrent.futures.thread")

# Held while a wait is noted and looked at: of several that wait for each other the last one sees the others.
_noting = threading.RLock()


def begin(awaited: Awaited, batch: messages.Batch | None = None) -> list[Awaited] | None:
    """The code that runs now waits for this from here on: until it is removed from the list that this returns.

    None outside of batched functions. `batch` is the one for which it runs, if its context does not tell.
    Raises RuntimeError if that would never be answered, as all that could answer it waits for this very batch.
    """
    batch = batch or current.running()
    if batch is None or batch.about is None:
        return None
    waits: list[Awaited] = batch.about
    with _noting:
        waits.append(awaited)
        has_room = all(call is not None and _has_room(batcher) for batcher, call in _needs(awaited))
        stuck = set() if has_room else _stuck([batch])
    if batch in stuck:
        # As far as it can be seen while other threads are at it: an answer may be on its way.
        for batcher, _ in [need for each in stuck for other in list(each.about or ()) for need in _needs(other)]:
            batcher.come_to_rest()
        with _noting:
            if batch in _stuck([batch]):
                waits.remove(awaited)
                raise _circle(_needs(awaited))
    for batcher, call in _needs(awaited):
        if call is not None and call.rows_taken < call.rows and is_stuck(batcher):
            batcher.hasten()
    return waits


def may_be_behind() -> bool:
    """Whether a function may have started the running thread, which is then a daemon, or given it work."""
    thread = threading.current_thread()
    return thread is not threading.main_thread() and (thread.daemon or bool(_computed_here()))


def batch_behind(awaited: Awaited) -> messages.Batch | None:
    """The batch for which the running thread waits for this, if that is one that could answer it.

    A thread that a function started has no context that tells. But then the function's own thread waits for it: until
    it ends, or for the future that it computes in an executor.
    """
    mine: list[Any] = [threading.current_thread(), *_computed_here()]
    frames = sys._current_frames()
    for batch in _reached([other for batcher, _ in _needs(awaited) for other in batcher.core.in_flight.copy()])[0]:
        thread = batch.parts[0].request.replier.thread_of(batch)  # type: ignore[attr-defined] # all of them are calls
        if thread is not None and any(
            value is each
            for frame in _frames_of(frames.get(thread), "join", "result", "exception", "wait")
            for name in ("self", "fs")
            for value in _listed(frame.f_locals.get(name))
            for each in mine
        ):
            return batch
    return None


def _computed_here() -> list[Any]:
    """The futures of executors that the running thread computes."""
    found = [getattr(frame.f_locals["self"], "future", None) for frame in _frames_of(sys._getframe(), "run")]
    return [future for future in found if future is not None]


def _frames_of(frame: FrameType | None, *names: str) -> Iterator[FrameType]:
    """This frame and its callers, where they run functions of these names that make threads and executors."""
    while frame is not None:
        if frame.f_code.co_name in names and frame.f_globals.get("__name__") in _HOMES:
            yield frame
        frame = frame.f_back


def _listed(value: Any) -> Sequence[Any]:
    return list(value) if isinstance(value, list | set) else [value]


def is_stuck(batcher: Batcher) -> bool:
    """Whether no batch under way ends before a call is answered that waits for the next one."""
    under_way = batcher.core.in_flight.copy()
    return any(batch.about for batch in under_way) and under_way <= _stuck(under_way, if_policies_wait=True)


_Needs = dict[messages.Batch, list[Need]]
_Travelling = dict[Batcher, dict[messages.Request, set[messages.Batch]]]


def _reached(begun: Iterable[messages.Batch]) -> tuple[_Needs, _Travelling]:
    """What these batches need, and all on which they depend; and in which batches the calls of each batcher are."""
    needs = {batch: [need for awaited in list(batch.about or ()) for need in _needs(awaited)] for batch in begun}
    travelling: _Travelling = {}
    left = list(needs)
    for batch in left:
        for batcher in {batcher for batcher, _ in needs[batch]} - travelling.keys():
            calls = travelling[batcher] = {}
            for other in batcher.core.in_flight.copy():
                for part in other.parts:
                    calls.setdefault(part.request, set()).add(other)
                if other not in needs:
                    needs[other] = [need for awaited in list(other.about or ()) for need in _needs(awaited)]
                    left.append(other)
    return needs, travelling


def _stuck(begun: Iterable[messages.Batch], *, if_policies_wait: bool = False) -> set[messages.Batch]:
    """Those of these batches, and of all that they depend on, that never end.

    Or do not `if_policies_wait` for what is under way, also where there is room for more.
    """
    needs, travelling = _reached(begun)

    def is_answered(batcher: Batcher, call: messages.Request | None) -> bool:
        under_way = travelling[batcher]
        if call is None:
            return stuck.isdisjoint(*under_way.values()) if under_way else True
        if call in under_way:
            return stuck.isdisjoint(under_way[call])
        if not call.open and hasattr(call, "sequence"):
            return True  # it was accepted once, so it has an answer
        has_room = not under_way if if_policies_wait else _has_room(batcher)
        return has_room or any(not each <= stuck for each in under_way.values())

    stuck = set(needs)  # unless it is found to end; what begins from here on does
    while ending := [batch for batch in stuck if all(is_answered(*need) for need in needs[batch])]:
        stuck.difference_update(ending)
    return stuck


def _has_room(batcher: Batcher) -> bool:
    """Whether one more batch may be under way."""
    return len(batcher.core.in_flight) < batcher.limits.max_in_flight


def _needs(awaited: Awaited) -> list[Need]:
    origin: Origin | None = awaited.origin
    return [] if origin is None else list(origin.needs(awaited.call))


def is_circle(error: BaseException) -> bool:
    """Whether an exception, or one of a group, is what `begin` raised, or a copy of that."""
    if issubclass(type(error), BaseExceptionGroup):
        return any(is_circle(each) for each in vars(BaseExceptionGroup)["exceptions"].__get__(error))
    return _CIRCLE in errors.raw(error, "__dict__")


def _circle(needs: Sequence[Need]) -> RuntimeError:
    names = " and ".join(dict.fromkeys(batcher.name for batcher, _ in needs))
    most = " and ".join(dict.fromkeys(f"{batcher.limits.max_in_flight:.0f}" for batcher, _ in needs))
    error = RuntimeError(
        f"{names} would never answer: as many batches as may run at once ({most}) wait for this answer themselves; "
        "call the plain function (__wrapped__), or allow more batches at once with max_in_flight"
    )
    setattr(error, _CIRCLE, True)
    return error
