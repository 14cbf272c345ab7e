"""A batched function: its options, what a call of it may look like, its batchers, and what becomes of them at the end.

A function in threads has one batcher; a coroutine function has one for each event loop that calls it, as what it awaits
belongs to a loop. Methods have those for each instance, which are gone with it. When the process ends or forks, what
was accepted is answered, or refused where that cannot be.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import functools
import inspect
import itertools
import logging
import os
import threading
import time
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from carpool.functions import (
    batcher,
    calls,
    collected,
    current,
    futures,
    hosts,
    options,
    parameters,
    running,
    stats,
)
from carpool.runtime import timer_thread
from carpool.scheduling import messages
from carpool.workers import pool, worker

log = logging.getLogger("carpool.functions")

# As many batches of a coroutine function as the policy may find useful at once.
_MOST_TASKS = 16
# Seconds between looks, at exit, whether everything was answered.
_STEP = 0.002

_numbers = itertools.count(1)

# Held while a site or a batcher is made. Reentrant, as the garbage collector may come round and call.
_making = threading.RLock()


class Binding(enum.Enum):
    """What a function is called on."""

    FREE = "nothing"
    STATIC = "nothing, though it stands in a class"
    CLASS = "a class"
    INSTANCE = "an instance"

    @property
    def takes_owner(self) -> bool:
        """Whether its first argument is what it is called on."""
        return self in (Binding.CLASS, Binding.INSTANCE)


class Function:
    """A function and its options."""

    # Mutable state: the options; the binding, until the class body that it stands in has ended; the sites of instances
    # by id.
    def __init__(self, function: Callable[..., Any], chosen: options.Options, binding: Binding = Binding.FREE) -> None:
        self.plain = function
        self.kind = running.kind_of(function)
        self.name = chosen.name or str(getattr(function, "__qualname__", type(function).__name__))
        self.options = chosen
        self.binding = binding
        self.parameters = parameters.Parameters(function, self.name, chosen.each)
        self.bound_parameters = self.parameters.bound()
        if binding is Binding.FREE and self.parameters.name_an_owner:
            self.binding = Binding.INSTANCE
        chosen.check_goes_with(self.name, is_async=self.kind.is_async, is_stream=self.kind.is_stream)
        self.has_simple_options = chosen.has_nothing_at_calls
        self.asks_cache_at_calls = chosen.cache is not None and not chosen.cache_is_async
        self.copies = len(function.workers) if isinstance(function, pool.Processes) else 1
        """How many models it has, each of which is to be warmed up."""
        self._sites: dict[int, tuple[Callable[[], object], Site, weakref.finalize[Any, Any]]] = {}

    @property
    def is_simple(self) -> bool:
        """Whether a call on nothing has nothing to do but to be put in."""
        return self.has_simple_options and not self.binding.takes_owner

    def stands_in_class(self, owner: type, name: str) -> None:
        """It is an attribute of a class: if it was defined there, it is a method."""
        is_defined_there = getattr(self.plain, "__qualname__", "") == f"{owner.__qualname__}.{name}"
        if self.binding is Binding.FREE and is_defined_there:
            self.binding = Binding.INSTANCE

    @property
    def may_be_bound(self) -> bool:
        """Whether it is called on the instance through which it is looked up.

        A partial is not, in any Python: one made for older ones would be called with an argument too many by 3.14.
        """
        is_plain = inspect.isroutine(self.plain) and not isinstance(self.plain, functools.partial)
        return self.binding is Binding.INSTANCE or (self.binding is Binding.FREE and is_plain)

    # --- batchers ----------------------------------------------------------------------------------------------

    def site(self, owner: object = None) -> Site:
        """The batchers for one instance, or for a plain function.

        Instances that cannot be weakly referenced share those of the plain function.
        """
        found = self._sites.get(id(owner))
        if found is not None and found[0]() is owner:
            return found[1]
        reference: Callable[[], object] = type(None)
        if owner is not None:
            try:
                reference = weakref.ref(owner, functools.partial(_gone, weakref.ref(self), id(owner)))
            except TypeError:
                return self.site()
        with _making:
            found = self._sites.get(id(owner))
            if found is None or found[0]() is not owner:
                site = Site(self.name, self.kind, self.plain, self.options, is_for_all=owner is None)
                finalizer = weakref.finalize(self, site.close)
                finalizer.atexit = False
                found = self._sites[id(owner)] = reference, site, finalizer
            return found[1]

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Put changed options in force for all instances."""
        self.options = self.options.changed(changes)
        for _, site, _ in list(self._sites.values()):
            site.configure(self.options)


def _gone(function: weakref.ref[Function], place: int, _: object) -> None:
    """An instance is."""
    known = function()
    found = None if known is None else known._sites.pop(place, None)
    if found is not None:
        found[2].detach()
        found[1].close()


class Site:
    """The batchers of a function for one instance: one, or one for each event loop."""

    # Mutable state: the batchers by event loop (None: in threads), the one used last, what those
    # of ended loops did, whether it is closed.
    def __init__(
        self, name: str, kind: running.Kind, plain: Callable[..., Any], chosen: options.Options, *, is_for_all: bool
    ) -> None:
        self.options = chosen
        self.is_for_all = is_for_all
        self.cache_key: calls.Key = () if is_for_all else (next(_numbers),)
        """What tells its results in a cache from those of other instances."""
        self._name = name
        self._is_async = kind.is_async
        self._models = plain if isinstance(plain, pool.Processes) else None
        self._compute = functools.partial(kind.run, plain)
        self._batchers: dict[AbstractEventLoop | None, batcher.Batcher] = {}
        self._recent: batcher.Batcher | None = None
        self._recent_loop: AbstractEventLoop | None = None
        self._is_closed = False
        self._retired: list[stats.Stats] = []
        if self._models is not None:
            self._models.acquire()

    def for_caller(self) -> batcher.Batcher:
        """The one for the running thread or event loop."""
        recent = self._recent
        if recent is not None and (not self._is_async or self._recent_loop is current.loop()):
            return recent
        loop = (current.loop() or hosts.background.loop()) if self._is_async else None
        found = self._batchers.get(loop)
        if found is None:
            found = self._made(loop)
        self._recent, self._recent_loop = found, loop
        return found

    @property
    def batchers(self) -> Sequence[batcher.Batcher]:
        """All of them."""
        return list(self._batchers.values())

    def configure(self, chosen: options.Options) -> None:
        """Put other options in force."""
        self.options = chosen
        for each in self.batchers:
            each.configure(chosen)

    def stats(self) -> stats.Stats:
        """Of all of them together."""
        every = [*self._retired, *(each.stats() for each in self.batchers)]
        return stats.Stats.merged(every or [stats.Stats(name=self._name, settings=stats.settings_of(self.options))])

    def close(self, timeout: float | None = None) -> Sequence[futures.Future[None]]:
        """Take nothing new; each future is done once what a batcher accepted was answered."""
        was_closed, self._is_closed = self._is_closed, True
        closing = [each.close(timeout) for each in self.batchers]
        if self._models is not None and not was_closed:
            release = self._models.release
            collected.end_of(closing).add_done_callback(lambda _: release())
        return closing

    def _made(self, loop: AbstractEventLoop | None) -> batcher.Batcher:
        with _making:
            found = self._batchers.get(loop)
            if found is not None:
                return found
            self._prune()
            make_host = functools.partial(_host, loop)
            made = batcher.Batcher(self._name, self.options, make_host, self._compute, self._most(), self._is_async)
            made.on_loop_end = weakref.WeakMethod(self._prune)
            if self._is_closed:
                made.close()
            return self._batchers.setdefault(loop, made)

    def _most(self) -> int:
        if self._models is not None:
            return len(self._models.workers)
        return _MOST_TASKS if self._is_async else 1

    def _prune(self) -> None:
        """Let go of loops that are closed."""
        for loop in list(self._batchers):
            if loop is not None and loop.is_closed() and (gone := self._batchers.pop(loop, None)) is not None:
                gone.retire()
                self._retired = [stats.Stats.merged([*self._retired, stats.counted(self._name, gone.recorder)])]
                if self._recent is gone:
                    self._recent = self._recent_loop = None


def _host(loop: AbstractEventLoop | None, made: batcher.Batcher) -> hosts.Host:
    """By a function, and not a site's method: whoever calls it must not keep the function that is decorated."""
    if loop is None:
        return hosts.Threads(made.name, made.compute, made.post, made.poll)
    return hosts.EventLoop(loop, made.compute, made.post, made.poll, made.lose_loop)


# --- when the process ends or forks -----------------------------------------------------------------------------------


def _answer_everything() -> None:
    """At exit, as executors of the standard library do: what was accepted is still computed, where it can be.

    Functions may call each other until that is done; only then they are closed. What is stuck keeps nobody for long.
    """
    busy = [each for each in list(batcher.live) if each.host.is_running()]
    for each in busy:
        each.hurry()
    try:
        are_answered = _wait_for_answers(busy)
        ends = [each.close() for each in busy]
        if are_answered and _wait_for_answers(busy):  # that were accepted meanwhile
            give_up = time.monotonic() + hosts.GRACE
            for end in ends:
                with contextlib.suppress(TimeoutError):  # a batch that nobody waits for
                    end.result(max(0.0, give_up - time.monotonic()))
    finally:
        used = [each.host for each in list(batcher.live)]
        for each in list(batcher.live):
            each.give_up("the interpreter exits")
        hosts.background.stop()
        worker.end_all()
        # A subinterpreter that ends before its threads takes the whole process with it.
        give_up = time.monotonic() + hosts.GRACE
        for host in used:
            host.join(give_up)
        timer_thread.shared.stop(max(0.0, give_up - time.monotonic()))


def _wait_for_answers(busy: Sequence[batcher.Batcher]) -> bool:
    """Whether all that these have accepted by now was answered. Gives up once nothing has moved for `PATIENCE`."""
    marks = [(each, each.mark()) for each in busy]
    open_calls: dict[batcher.Batcher, Sequence[messages.Request]] = {}
    before, give_up = -1, 0.0
    while True:
        open_calls.update((each, each.open_calls()) for each, mark in marks if mark.is_set() and each not in open_calls)
        open_calls = {each: [call for call in those if call.open] for each, those in open_calls.items()}
        waiting = [each for each in busy if open_calls.get(each, True) and each.host.is_running()]
        if not waiting:
            return True
        left = sum(call.rows - call.rows_taken + 1 for those in open_calls.values() for call in those)
        if left != before:
            before, give_up = left, time.monotonic() + hosts.PATIENCE
        elif time.monotonic() > give_up:
            names = ", ".join(each.name for each in waiting)
            log.warning("the interpreter exits, and there was no answer of %s for %g s", names, hosts.PATIENCE)
            return False
        time.sleep(max(_STEP, left * 1e-6))


def _after_fork() -> None:
    global _making
    _making = threading.RLock()  # a thread that is not in this process may have had it
    for each in list(batcher.live):
        each.after_fork()


atexit.register(_answer_everything)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
