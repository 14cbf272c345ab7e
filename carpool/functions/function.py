"""A batched function: of which kind it is, what a call of it may look like, and its batchers.

A function in threads has one batcher; a coroutine function has one for each event loop that calls it, as what it awaits
belongs to a loop. Methods have those for each instance, which are gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import inspect
import itertools
import sys
import threading
import weakref
from asyncio import AbstractEventLoop, events
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from carpool import errors as carpool_errors
from carpool.functions import batcher, calls, futures, hosts, options, stats, streams, work
from carpool.functions import errors as failures
from carpool.runtime import driver
from carpool.workers import errors as worker_errors
from carpool.workers import pool

# So many combinations of arguments are remembered as checked; those with other values would keep these.
_MOST_KNOWN = 1024
_PLAIN = (str, bytes, int, float, bool, type(None))
_LARGEST_KNOWN = 512  # bytes of each
# As many batches of a coroutine function as the policy may find useful at once.
_MOST_TASKS = 16


_numbers = itertools.count(1)


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

    # Mutable state: the options; the binding, until the class body that it stands in has ended; what calls looked like,
    # _known; the sites of instances by id.
    def __init__(self, function: Callable[..., Any], chosen: options.Options, binding: Binding = Binding.FREE) -> None:
        self.plain = function
        self.kind = kind_of(function)
        self.name = chosen.name or str(getattr(function, "__qualname__", type(function).__name__))
        self.options = chosen
        self.binding = binding
        self._signature: inspect.Signature | None = None
        with contextlib.suppress(TypeError, ValueError):  # some callables written in C have none
            self._signature = inspect.signature(function)
        if self._signature is not None and binding is Binding.FREE and _names_its_owner(self._signature):
            self.binding = Binding.INSTANCE
        self.has_simple_options = chosen.merge is chosen.cost is chosen.length is None and chosen.cache is None
        self._known: dict[Hashable, tuple[calls.Key, calls.Arguments]] = {}
        self._no_arguments: dict[bool, tuple[calls.Key, calls.Arguments]] = {}
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
        """Whether Python would call it on the instance through which it is looked up."""
        return self.binding is Binding.INSTANCE or (self.binding is Binding.FREE and inspect.isroutine(self.plain))

    # --- calls -------------------------------------------------------------------------------------------------

    def no_arguments(self, *, has_owner: bool) -> tuple[calls.Key, calls.Arguments]:
        """As `arguments` for a call without any."""
        found = self._no_arguments.get(has_owner)
        if found is None:
            found = self._no_arguments[has_owner] = self.arguments((), {}, has_owner=has_owner)
        return found

    def arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, has_owner: bool
    ) -> tuple[calls.Key, calls.Arguments]:
        """The batch key of a call's other arguments, and these with defaults filled in.

        `has_owner` says that it is called on an instance or a class.

        Raises TypeError for arguments that the function does not take, and for those without a hash.
        """
        given = work.key_of(args, kwargs)
        known = self._known.get((has_owner, given))
        if known is None:
            signature = self._signature
            known = (
                (given, (args, dict(kwargs)))
                if signature is None
                else self._checked(signature, args, kwargs, has_owner)
            )
            if len(self._known) < _MOST_KNOWN and all(map(_is_small, (*args, *kwargs.values()))):
                self._known[has_owner, given] = known
        return known

    def _checked(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], has_owner: bool
    ) -> tuple[calls.Key, calls.Arguments]:
        before = (None,) * (1 + has_owner)
        try:
            bound = signature.bind(*before, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        bound.apply_defaults()
        every = bound.args[len(before) :], bound.kwargs
        with contextlib.suppress(TypeError):  # a default without a hash is the same for all calls that leave it out
            return work.key_of(*every), every
        return work.key_of(args, kwargs), (args, dict(kwargs))

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


def _is_small(value: object) -> bool:
    return type(value) in _PLAIN and sys.getsizeof(value) <= _LARGEST_KNOWN


def _names_its_owner(signature: inspect.Signature) -> bool:
    """Whether this is a method by the names of its arguments.

    Python 3.13's classmethod does not tell what it holds that it stands in a class.
    """
    positional = [each for each in signature.parameters.values() if each.kind <= each.POSITIONAL_OR_KEYWORD]
    return len(positional) > 1 and positional[0].name in ("self", "cls")


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
        if recent is not None and (not self._is_async or self._recent_loop is events._get_running_loop()):
            return recent
        loop = (events._get_running_loop() or hosts.background.loop()) if self._is_async else None
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
            futures.end_of(closing).add_done_callback(lambda _: self._plain.release())  # type: ignore[attr-defined]
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


# --- how a function is run with a batch -------------------------------------------------------------------------


def compute(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """Call a function that returns a list."""
    try:
        returned = batch.context().run(batch.call, function)
        return batch.outcome(returned)
    except BaseException as error:
        return batch.raised(error)
    finally:
        batch.forget()


def compute_there(function: pool.Processes[..., Any], batch: work.Work) -> driver.Outcome:
    """As `compute`, in another process."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except worker_errors.WorkerDied as error:
            if carpool_errors.raw(error, "__cause__") is None:  # else the model raised it, of another pool
                batch.own_error = error
            raise

    return compute(call, batch)


async def compute_async(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """Await a function that returns a list. Raises CancelledError only if its task was cancelled."""
    try:
        returned = batch.call(function)
        if inspect.isawaitable(returned):  # a plain function may wrap a coroutine function and await it itself
            returned = await returned
        return batch.outcome(returned)
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return batch.raised(error)
    except BaseException as error:
        return batch.raised(error)
    finally:
        batch.forget()


def generate(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """Run a function that yields lists, and hand each list out. It is closed early if nobody reads any more."""
    context, tags, rows = batch.context(), batch.tags, batch.batch.rows
    pace = streams.Pace(tags, batch.most_ahead)
    has_begun = False
    try:
        steps: Iterator[Any] = context.run(batch.call, function)
        while any(tag.is_open for tag in tags):
            try:
                step = context.run(next, steps)
            except StopIteration:
                break
            _hand_out(tags, batch.shares(step))
            has_begun = True
            pace.wait()
        else:
            context.run(steps.close)  # type: ignore[attr-defined]
        return [None] * rows
    except BaseException as error:
        return _raised(batch, error, has_begun)
    finally:
        batch.forget()
        tags = []


async def generate_async(function: Callable[..., Any], batch: work.Work) -> driver.Outcome:
    """As `generate`, for an async generator."""
    tags, rows = batch.tags, batch.batch.rows
    pace = streams.Pace(tags, batch.most_ahead)
    has_begun = False
    try:
        steps: AsyncGenerator[Any, None] = batch.call(function)
        async with contextlib.aclosing(steps):
            async for step in steps:
                _hand_out(tags, batch.shares(step))
                has_begun = True
                await pace.wait_async()
                if not any(tag.is_open for tag in tags):
                    break
        return [None] * rows
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return _raised(batch, error, has_begun)
    except BaseException as error:
        return _raised(batch, error, has_begun)
    finally:
        batch.forget()
        tags = []


def _hand_out(tags: Sequence[Any], results: Sequence[Any]) -> None:
    for tag, result in zip(tags, results, strict=True):
        tag.push(result)


def _raised(batch: work.Work, error: BaseException, has_begun: bool) -> driver.Outcome:
    """Once results were handed out, nothing can be tried again."""
    outcome = batch.raised(error)
    if has_begun and isinstance(outcome, failures.RaisedForOne):
        return failures.Raised(outcome.original)
    return outcome


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_COMPUTES: Mapping[Kind, Callable[..., Any]] = {
    Kind.PLAIN: compute,
    Kind.PROCESSES: compute_there,
    Kind.GENERATOR: generate,
    Kind.COROUTINE: compute_async,
    Kind.ASYNC_GENERATOR: generate_async,
}
