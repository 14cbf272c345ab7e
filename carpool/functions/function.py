"""A batched function: of which kind it is, what a call of it may look like, and its batchers.

A function in threads has one batcher; a coroutine function has one for each event loop that calls it, as what it awaits
belongs to a loop. Methods have those for each instance, which are gone with it.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import itertools
import sys
import threading
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
    process_end,
    running,
    stats,
)
from carpool.workers import pool

# As many batches of a coroutine function as the policy may find useful at once.
_MOST_TASKS = 16

_numbers = itertools.count(1)

process_end.begin()


class Kind(enum.Enum):
    """How a function is called."""

    PLAIN = "def"
    GENERATOR = "generator"
    COROUTINE = "async def"
    ASYNC_GENERATOR = "async generator"
    PROCESSES = "processes"

    @property
    def is_async(self) -> bool:
        """Whether it needs an event loop."""
        return self in (Kind.COROUTINE, Kind.ASYNC_GENERATOR)

    @property
    def is_stream(self) -> bool:
        """Whether it yields lists instead of returning one."""
        return self in (Kind.GENERATOR, Kind.ASYNC_GENERATOR)


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


def kind_of(function: Callable[..., Any]) -> Kind:
    """Of which kind a function is, as it tells itself: what it may wrap runs as it pleases."""
    if isinstance(function, pool.Processes):
        return Kind.PROCESSES
    plain: Any = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    own_call = None if inspect.isroutine(plain) or isinstance(plain, type) else type(plain).__call__
    for each in (plain, own_call):
        if inspect.isasyncgenfunction(each):
            return Kind.ASYNC_GENERATOR
        if inspect.iscoroutinefunction(each) or _is_marked(each):
            return Kind.COROUTINE
        if inspect.isgeneratorfunction(each):
            return Kind.GENERATOR
    return Kind.PLAIN


def _is_marked(function: Any) -> bool:
    """Whether something that is no coroutine function says that it acts like one; `inspect` knows from 3.12 on."""
    return sys.version_info < (3, 12) and asyncio.iscoroutinefunction(function)


class Function:
    """A function and its options."""

    # Mutable state: the options; the binding, until the class body that it stands in has ended; the sites of instances
    # by id.
    def __init__(self, function: Callable[..., Any], chosen: options.Options, binding: Binding = Binding.FREE) -> None:
        self.plain = function
        self.kind = kind_of(function)
        self.name = chosen.name or str(getattr(function, "__qualname__", type(function).__name__))
        self.options = chosen
        self.binding = binding
        self.parameters = parameters.Parameters(function, self.name, chosen.each)
        self.bound_parameters = self.parameters.bound()
        if binding is Binding.FREE and self.parameters.name_an_owner:
            self.binding = Binding.INSTANCE
        chosen.check_goes_with(self.name, is_coroutine=self.kind is Kind.COROUTINE, is_stream=self.kind.is_stream)
        self.has_simple_options = chosen.has_nothing_at_calls
        self.asks_cache_at_calls = chosen.cache is not None and not chosen.cache_is_async
        self.copies: int = len(function.workers) if self.kind is Kind.PROCESSES else 1  # type: ignore[attr-defined]
        """How many models it has, each of which is to be warmed up."""
        self._lock = threading.RLock()  # the garbage collector may come round and call
        self._sites: dict[int, tuple[weakref.ref[Any] | None, Site, weakref.finalize[Any, Any]]] = {}

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
        if found is not None and (found[0] is None or found[0]() is owner):
            return found[1]
        reference = None
        if owner is not None:
            try:
                reference = weakref.ref(owner, functools.partial(_gone, weakref.ref(self), id(owner)))
            except TypeError:
                return self.site()
        with self._lock:
            found = self._sites.get(id(owner))
            if found is None or (found[0] is not None and found[0]() is not owner):
                site = Site(self.name, self.kind, self.plain, self.options, is_for_all=owner is None)
                finalizer = weakref.finalize(self, site.close)
                finalizer.atexit = False
                found = self._sites[id(owner)] = reference, site, finalizer
            return found[1]

    def forget(self, place: int) -> None:
        """An instance is gone."""
        found = self._sites.pop(place, None)
        if found is not None:
            found[2].detach()
            found[1].close()

    @property
    def sites(self) -> Sequence[Site]:
        """Those of all instances."""
        return [site for _, site, _ in list(self._sites.values())]

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Put changed options in force for all instances."""
        self.options = self.options.changed(changes)
        for site in self.sites:
            site.configure(self.options)


def _gone(function: weakref.ref[Function], place: int, _: object) -> None:
    found = function()
    if found is not None:
        found.forget(place)


class Site:
    """The batchers of a function for one instance: one, or one for each event loop."""

    # Mutable state: the batchers by event loop (None: in threads), the one used last, what those
    # of ended loops did, whether it is closed.
    def __init__(
        self, name: str, kind: Kind, plain: Callable[..., Any], chosen: options.Options, *, is_for_all: bool
    ) -> None:
        self.options = chosen
        self.is_for_all = is_for_all
        self.cache_key: calls.Key = () if is_for_all else (next(_numbers),)
        """What tells its results in a cache from those of other instances."""
        self._name = name
        self._kind = kind
        self._is_async = kind.is_async
        self._plain = plain
        self._compute = functools.partial(_COMPUTES[kind], plain)
        self._lock = threading.RLock()  # the garbage collector may come round and call
        self._batchers: dict[AbstractEventLoop | None, batcher.Batcher] = {}
        self._recent: batcher.Batcher | None = None
        self._recent_loop: AbstractEventLoop | None = None
        self._is_closed = False
        self._retired: list[stats.Stats] = []
        if kind is Kind.PROCESSES:
            plain.acquire()  # type: ignore[attr-defined]

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
        if self._kind is Kind.PROCESSES and not was_closed:
            collected.end_of(closing).add_done_callback(lambda _: self._plain.release())  # type: ignore[attr-defined]
        return closing

    def _made(self, loop: AbstractEventLoop | None) -> batcher.Batcher:
        with self._lock:
            found = self._batchers.get(loop)
            if found is not None:
                return found
            self._prune()
            make_host = _in_threads if loop is None else functools.partial(_on_loop, loop)
            made = batcher.Batcher(self._name, self.options, make_host, self._compute, self._most(), self._is_async)
            made.on_loop_end = weakref.WeakMethod(self._prune)
            if self._is_closed:
                made.close()
            return self._batchers.setdefault(loop, made)

    def _most(self) -> int:
        if self._kind is Kind.PROCESSES:
            return len(self._plain.workers)  # type: ignore[attr-defined]
        return _MOST_TASKS if self._is_async else 1

    def _prune(self) -> None:
        """Let go of loops that are closed."""
        for loop in list(self._batchers):
            if loop is not None and loop.is_closed() and (gone := self._batchers.pop(loop, None)) is not None:
                gone.retire()
                self._retired = [stats.Stats.merged([*self._retired, stats.counted(self._name, gone.recorder)])]
                if self._recent is gone:
                    self._recent = self._recent_loop = None


# By functions, and not a site's methods: whoever calls them must not keep the function that is decorated.


def _in_threads(made: batcher.Batcher) -> hosts.Host:
    return hosts.Threads(made.name, made.compute, made.post, made.poll)


def _on_loop(loop: AbstractEventLoop, made: batcher.Batcher) -> hosts.Host:
    return hosts.EventLoop(loop, made.compute, made.post, made.poll, made.lose_loop)


_COMPUTES: Mapping[Kind, Callable[..., Any]] = {
    Kind.PLAIN: running.compute,
    Kind.PROCESSES: running.compute_there,
    Kind.GENERATOR: running.generate,
    Kind.COROUTINE: running.compute_async,
    Kind.ASYNC_GENERATOR: running.generate_async,
}
