"""What people hold once a function is batched.

A batched function is called with one item, or `map`ped over many. Both forms of the class, for functions that return a
list and for those that yield lists, are views: of the function, one instance, and how this caller wants to be served.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import itertools
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from carpool.functions import (
    batcher,
    calls,
    collected,
    current,
    futures,
    merging,
    options,
    parameters,
    running,
    stats,
    streams,
)
from carpool.functions import cache as caches
from carpool.functions import function as functions

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V", bound="View")

_numbers = itertools.count()
# Python 3.11 makes a system call to tell which loop runs here, which takes longer than all else of a call.
_IS_LOOP_KNOWN = sys.version_info >= (3, 12)
_loop = current.loop
_hooks = sys.get_asyncgen_hooks
_retried = current.retried.get


class View:
    """What both kinds have in common."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]
    """The function as it was written, which is not batched."""

    def __init__(self, function: functions.Function) -> None:
        functools.update_wrapper(cast(Any, self), function.plain, updated=())
        if getattr(function.plain, "__isabstractmethod__", False) is True:
            self.__isabstractmethod__ = True  # which a class of `abc` asks its attributes for
        self._function = function
        self._site = function.site()
        self._parameters = function.parameters
        self._owner: object = None
        self._timeout: float | None = None
        self._priority = 0
        self._returns_exceptions = False
        self._is_simple = function.is_simple
        self._turn: calls.Turn | None = None

    def _with(self, **changes: object) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._turn = None
        made.__dict__.update(changes)
        return made

    @overload
    def using(  # type: ignore[misc] # only lists have exceptions among their results
        self: Batched[P, T, R],
        *,
        timeout: float | None = None,
        priority: int | None = None,
        return_exceptions: Literal[True],
    ) -> WithExceptions[P, T, R]: ...
    @overload
    def using(
        self, *, timeout: float | None = None, priority: int | None = None, return_exceptions: bool | None = None
    ) -> Self: ...
    def using(
        self, *, timeout: float | None = None, priority: int | None = None, return_exceptions: bool | None = None
    ) -> Any:
        """The same function for calls with another timeout in seconds, or of another priority.

        Calls of a higher `priority` (-1, 0 or 1) go before those of a lower one that came up to a minute earlier. With
        `return_exceptions` the items of a `map` are as many calls, and an exception stands in place of the result of
        each that failed.
        """
        seconds = options.seconds("timeout", timeout)
        return self._with(
            _timeout=self._timeout if seconds is None else seconds,
            _priority=self._priority if priority is None else options.whole("priority", priority, -1, 1),
            _returns_exceptions=self._returns_exceptions if return_exceptions is None else return_exceptions,
        )

    def configure(self, **changes: Unpack[options.Changes]) -> None:
        """Change options while it runs, for all instances: all but those that say what is computed.

        Raises TypeError or ValueError that names the option and what is allowed.
        """
        self._function.configure(cast(dict[str, Any], changes))

    def stats(self) -> stats.Stats:
        """What happened so far, and how things are."""
        return self._site.stats()

    def close(self, timeout: float | None = None) -> futures.Future[None]:
        """Take nothing new; the future is done once everything accepted was answered.

        What is not within `timeout` seconds is refused as `Closed`. Of a method: for this instance.
        """
        timeout = options.seconds("timeout", timeout, allows_zero=True)
        if self._owner is not None and self._site.is_for_all:
            raise TypeError(
                f"{type(self._owner).__name__} has no __weakref__ slot, so all its instances share the batches of "
                f"{self._function.name}: close it on the class"
            )
        return collected.end_of(self._site.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close().result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        whose = "" if self._owner is None else f" of {self._owner!r}"
        return f"<carpool.{type(self).__name__} {self._function.name}{whose}>"

    @property
    def returns_exceptions(self) -> bool:
        """Whether exceptions stand in the list of a `map`, see `using`."""
        return self._returns_exceptions

    def _identity(self) -> tuple[Any, ...]:
        return id(self._function), id(self._owner), self._timeout, self._priority, self._returns_exceptions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    # --- copies ------------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Of a method whose object is copied, that of the copy; else the same."""
        owner, plain = copy.deepcopy((self._owner, self._function.plain), memo)
        if owner is not self._owner:
            return self._bound(owner)
        if plain is self._function.plain:
            return self
        return _made_of(type(self), plain, self._function.options, self._function.binding)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By its name if a module has it; of an instance, by that; else as the parts that it is made of."""
        state = {name: getattr(self, name) for name in ("_timeout", "_priority", "_returns_exceptions")}
        name = getattr(self, "__qualname__", "")
        if self._owner is not None:
            return getattr, (self._owner, name.rpartition(".")[-1]), state
        named: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            named = getattr(named, part, None)
        if not isinstance(named, View) or named._function is not self._function:
            parts = type(self), self._function.plain, self._function.options, self._function.binding
            return _made_of, parts, state
        return name if named == self else (View._with, (named,), state)

    # --- methods -----------------------------------------------------------------------------------------------

    def __set_name__(self, owner: type, name: str) -> None:
        self._function.stands_in_class(owner, name)
        self._is_simple = self._function.is_simple

    def __get__(self, instance: Any, owner: Any = None) -> Self:
        binding = self._function.binding
        if binding is functions.Binding.CLASS:
            return self._bound(type(instance) if owner is None else owner)
        if instance is None or not self._function.may_be_bound:
            return self
        return self._bound(instance)

    def _bound(self, owner: object) -> Self:
        site = self._function.site(owner)
        return self._with(
            _owner=owner,
            _site=site,
            _parameters=self._function.bound_parameters,
            _is_simple=self._function.has_simple_options and not site.is_for_all,
        )

    # --- calls -------------------------------------------------------------------------------------------------

    def _submit(
        self,
        by: batcher.Batcher,
        tag: Any,
        payload: Sequence[Any],
        shared: parameters.Shared,
        *,
        is_warm_up: bool = False,
    ) -> None:
        """Put in a call of some items, each with what it has of its own, or of one that is merged."""
        chosen = by.options
        key, arguments = shared
        rows = len(payload)
        cached_under = self._cached_under(key)
        queue_key: Hashable = key
        if self._owner is not None and self._site.is_for_all:
            queue_key = id(self._owner), key
        if apart := _retried():
            queue_key = apart, queue_key
        if is_warm_up:
            queue_key, cached_under = calls.WarmUp((next(_numbers), queue_key)), None
        if chosen.merge is not None:
            rows, merge_key, item = merging.taken(chosen.merge, payload[0])
            queue_key, payload = (queue_key, merge_key), (item,)
        payload = chosen.measured(payload, rows)
        call = calls.Call(queue_key, rows, 0, payload, tag, self._timeout or chosen.timeout, priority=self._priority)
        call.arguments, call.owner, call.replier = arguments, self._owner, by
        call.cached_under = cached_under
        call.callers, call.contexts = 1, [contextvars.copy_context()]
        call.futures = [tag] if type(tag) is futures.Future else None
        tag.source = call
        by.submit(call, current.loop())

    def _cached_under(self, key: calls.Key) -> calls.Key | None:
        """What a cache's keys have beside the item; None if instances cannot be told apart for long enough."""
        if self._owner is None:
            return key
        return None if self._site.is_for_all else (self._site.cache_key, key)

    def _cache_key(self, chosen: options.Options, item: Any, shared: parameters.Shared) -> Hashable | None:
        """What a cache has an item's result under, and what equal calls have in common; None if there is no such."""
        return caches.key(chosen, item, self._cached_under(shared[0]))

    def _is_method_itself(self) -> bool:
        """Whether this is a method, and no instance's."""
        return self._owner is None and self._function.binding.takes_owner

    def _check_on_instance(self, what: str) -> None:
        if self._is_method_itself():
            raise TypeError(f"{self._function.name} is a method: {what} it on an instance")


def _made_of(kind: type[V], plain: Any, chosen: options.Options, binding: functions.Binding) -> V:
    return kind(functions.Function(plain, chosen, binding))


class Batched(View, Generic[P, T, R]):
    """A batched function that returns a list: call it with one item, or `map` it over many."""

    def __call__(self, item: T, /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[R]:
        """Have one item computed, in a batch with those of other calls that agree in the other arguments.

        Raises TypeError for arguments that the function does not take, for those that have no hash, and for an item
        that `merge`, `cost` or `length` cannot take; all else that can happen comes by the future.
        """
        # The usual case: others called in this turn of the loop, and most items come through here.
        turn = self._turn
        if (
            turn is not None
            and not (args or kwargs or (current.may_be_apart and (running.inline_depth or _retried())))
            and (turn.loop is _loop() if _IS_LOOP_KNOWN else _hooks()[0] is turn.hook)
        ):
            future: futures.Future[R] | None = turn.join(item)
            if future is not None:
                return future
        by = self._site.for_caller()
        if not self._is_simple:
            if self._is_method_itself():
                return cast(Any, self._bound(item))(*args, **kwargs)  # type: ignore[no-any-return]
            return self._call_one(by, *self._parameters.of_item(item, args, kwargs))
        key, arguments = self._parameters.shared(args, kwargs)
        apart = _retried()
        if apart:
            key = apart, key
        timeout = self._timeout or by.options.timeout
        loop = None if running.inline_depth else current.loop()
        while loop is not None:
            turn = by.turn(loop, (key, timeout, self._priority), arguments, self._owner, self._forget)
            if (future := turn.join(item)) is not None:  # else another thread has just ended it
                self._turn = None if args or kwargs or apart else turn
                return future
        future = futures.Future()
        call = calls.Call(key, 1, 0, (item,), None, timeout)
        call.priority = self._priority
        call.arguments, call.owner, call.replier = arguments, self._owner, by
        call.callers, call.contexts, call.futures = 1, [contextvars.copy_context()], [future]
        future.source = call
        by.submit(call, loop)
        return future

    def map(self, items: Iterable[T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[list[R]]:
        """Have many items computed; the result has one for each, in their order. More than fit a batch are split up.

        It fails with the first item that fails. Raises as a call of one item does.
        """
        self._check_on_instance("map")
        by = self._site.for_caller()
        chosen = by.options
        payload, shared = self._parameters.of_items(items, args, kwargs)
        if chosen.merge is not None or chosen.shares_in_flight or self._returns_exceptions:
            return self._map_apart(by, payload, shared)
        future = collected.MapFuture(len(payload))
        if self._function.asks_cache_at_calls:
            for place, item in enumerate(payload):
                if (found := self._kept(chosen, item, shared)) is not None:
                    future.known[place] = found
            by.recorder.cache_hits += len(future.known)
            payload = [item for place, item in enumerate(payload) if place not in future.known]
        if payload:
            self._submit(by, future, payload, shared)
        else:
            futures.settle(future.answered([]))
        return cast(futures.Future[list[R]], future)

    def warm_up(self, item: T, /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[list[Any]]:
        """Have the function called with batches of this item before callers come; done once it was, or failed.

        One batch has one item and one `max_batch_size`; or there is one of each of `allowed_batch_sizes`. Each worker
        process gets as many. Nothing is deduplicated or cached. An item that is merged is computed once, as it is.
        Raises as a call does.
        """
        self._check_on_instance("warm up")
        by = self._site.for_caller()
        own, shared = self._parameters.of_item(item, args, kwargs)
        chosen = by.options
        sizes = chosen.allowed_batch_sizes or sorted({1, chosen.max_batch_size})
        found: list[futures.Future[Any]] = []
        for size in (1,) if chosen.merge is not None else sizes:
            for _ in range(self._function.copies):
                merged = chosen.merge is not None
                found.append(collected.MergedFuture(chosen.merge) if merged else collected.MapFuture(size))
                self._submit(by, found[-1], [own] * size, shared, is_warm_up=True)
        return collected.all_of(found)

    def prime(self, item: T, result: R, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Have the cache keep a result for a call with this item; what its `set` returns, to be awaited if it is async.

        Raises TypeError if there is no cache, or if nothing can be kept for this item.
        """
        cache, under = self._in_cache("prime", item, args, kwargs)
        if under is None:
            raise TypeError(
                f"{self._function.name} cannot keep a result for {item!r}, which has no key that is hashable"
            )
        return caches.put(cache, under, result)

    def forget(self, item: T, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Have the cache forget the result of a call with this item; what its `delete` returns, as `prime` does.

        Raises TypeError if there is no cache, or if it has no `delete(key)`.
        """
        cache, under = self._in_cache("forget", item, args, kwargs)
        delete = getattr(cache, "delete", None)
        if not callable(delete):
            raise TypeError(f"{self._function.name} cannot forget: its cache {type(cache).__name__} has no delete(key)")
        return None if under is None else delete(under)

    def _in_cache(
        self, what: str, item: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[options.Cache, Hashable | None]:
        self._check_on_instance(what)
        chosen = self._function.options
        if chosen.cache is None:
            raise TypeError(f"{self._function.name} has no cache to {what}")
        return chosen.cache, self._cache_key(chosen, *self._parameters.of_item(item, args, kwargs))

    def _kept(self, chosen: options.Options, item: Any, shared: parameters.Shared) -> Any:
        return caches.get(cast(options.Cache, chosen.cache), self._cache_key(chosen, item, shared))

    def _forget(self) -> None:
        self._turn = None

    def _call_one(self, by: batcher.Batcher, item: Any, shared: parameters.Shared) -> futures.Future[R]:
        chosen = by.options
        future: futures.Future[R] = futures.Future() if chosen.merge is None else collected.MergedFuture(chosen.merge)
        if self._function.asks_cache_at_calls and (found := self._kept(chosen, item, shared)) is not None:
            by.recorder.cache_hits += 1
            future.set_result(found)
            return future
        # A call that is made in a batch may be what the other one waits for; as one of its own it ends with an error.
        shares = chosen.shares_in_flight and current.running() is None
        if shares and (same := self._cache_key(chosen, item, shared)) is not None:
            return by.under_way.join(
                (same, self._timeout, self._priority, current.retried.get()),
                lambda leader: self._submit(by, leader, (item,), shared),
            )
        self._submit(by, future, (item,), shared)
        return future

    def _map_apart(
        self, by: batcher.Batcher, items: Sequence[Any], shared: parameters.Shared
    ) -> futures.Future[list[R]]:
        """Call with each item by itself: those that are merged have rows of their own, others may fail alone."""
        merge = by.options.merge
        if merge is not None:
            for item in items:  # all of them, before any is queued
                merging.rows(merge, item)
        results = [self._call_one(by, item, shared) for item in items]
        return collected.all_of(results, returns_exceptions=self._returns_exceptions)


if TYPE_CHECKING:

    class WithExceptions(Batched[P, T, R]):
        """A view whose `map` has exceptions among its results."""

        def map(  # type: ignore[override]
            self, items: Iterable[T], /, *args: P.args, **kwargs: P.kwargs
        ) -> futures.Future[list[R | BaseException]]:
            raise NotImplementedError


class BatchedStream(View, Generic[P, T, R]):
    """A batched function that yields lists: call it with one item for a stream of results, or `map` it over many."""

    def __call__(self, item: T, /, *args: P.args, **kwargs: P.kwargs) -> streams.Stream[R]:
        """Have results for one item come as a stream. Raises as a call of `Batched` does."""
        if self._is_method_itself():
            return cast(Any, self._bound(item))(*args, **kwargs)  # type: ignore[no-any-return]
        return self._call_one(*self._parameters.of_item(item, args, kwargs))

    def _call_one(self, item: Any, shared: parameters.Shared) -> streams.Stream[R]:
        by = self._site.for_caller()
        merge, size = by.options.merge, by.options.max_batch_size
        if merge is not None and (rows := merging.rows(merge, item)) > size:
            raise ValueError(f"the item has {rows} rows; an item with a stream has at most max_batch_size, {size}")
        channel = streams.Channel()
        self._submit(by, channel, (item,), shared)
        return streams.Stream(channel)

    def map(self, items: Iterable[T], /, *args: P.args, **kwargs: P.kwargs) -> list[streams.Stream[R]]:
        """A stream for each item."""
        self._check_on_instance("map")
        every, shared = self._parameters.of_items(items, args, kwargs)
        return [self._call_one(item, shared) for item in every]
