"""One batch of a function's items: what the function is called with, and what its result means for each caller.

Values in, values out: who runs the function, and where, is the business of hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import math
import traceback
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, cast

from carpool import errors
from carpool.functions import cache as caches
from carpool.functions import calls, current, merging, options, parameters, stats, waiting
from carpool.functions import errors as failures
from carpool.runtime import driver
from carpool.scheduling import messages

_NO_LISTS = (str, bytes, bytearray, memoryview, dict, set, frozenset)


class Work:
    """A batch with its items, as they were when it left."""

    __slots__ = (
        "_first",
        "_given",
        "_has_begun",
        "_index",
        "_known",
        "_new",
        "_options",
        "_padding",
        "_recorder",
        "batch",
        "counts",
        "items",
        "most_ahead",
        "own_error",
    )

    def __init__(
        self,
        batch: messages.Batch,
        chosen: options.Options,
        recorder: stats.Recorder,
        most_ahead: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`most_ahead` tells by how many steps a function that yields may be ahead of its readers."""
        self.batch = batch
        self.most_ahead = most_ahead
        batch.about = waiting.Waits()
        self._options = chosen
        self._recorder = recorder
        self._first: calls.Call = batch.parts[0].request  # type: ignore[assignment] # what a driver is given are calls
        self._has_begun = False  # to hand out what the function yields
        self._index: list[int] | None = None  # where each item stands among those that differ
        self._given = self._padding = 0  # items that the function is given, and how many of these fill the batch
        self._known: dict[int, Any] = {}  # results of a cache with coroutine methods, by the items' places
        self._new: list[tuple[Hashable | None, Any]] = []  # results for it
        self.own_error: errors.UpstreamError | None = None
        """What this batch failed with, if nobody's item can be at fault; set it before it is raised."""
        self.counts: list[int] = []
        self.items: list[Any] = []
        if chosen.merge is None:
            for request, start, stop in batch.parts:
                self.items += request.payload if stop - start == request.rows else request.payload[start:stop]
        else:
            self.counts = [stop - start for _, start, stop in batch.parts]

    def context(self) -> contextvars.Context:
        """The context to call the function in."""
        made = current.context_of(self.batch)
        if self._recorder.tracing is not None:
            self._recorder.tracing.enter(self.batch, made)
        return made

    def call(self, function: Callable[..., Any]) -> Any:
        """Call the function with the items, or those that differ, and the calls' other arguments."""
        args, kwargs = self.arguments
        owner = self._first.owner
        given = self.joined()
        if self._options.each:
            given, kwargs = parameters.spread(self._options.each, given, kwargs)
        if owner is not None:
            return function(owner, given, *args, **kwargs)
        return function(given, *args, **kwargs)

    @property
    def arguments(self) -> calls.Arguments:
        """The other arguments, which are those of all calls in it."""
        return self._first.arguments

    @property
    def tags(self) -> list[Any]:
        """Who takes the outcome of each part."""
        return [part.request.tag for part in self.batch.parts]

    def joined(self) -> Any:
        """The items as the function is given them."""
        if self._options.merge is not None:
            # Here, where what it raises fails the batch as if the function had: its members are told apart.
            self.items = [_cut(self._options.merge, part) for part in self.batch.parts]
            return self._options.merge.join(self.items)
        chosen, given = self._options, self.items
        if chosen.dedupe and type(self._first.key) is not calls.WarmUp:
            given, self._index = _different(chosen, self.items)
            self._recorder.deduplicated += len(self._index) - len(given)
        elif chosen.cache is not None:
            given = list(given)  # the function may change its list; the cache asks for the items afterwards
        if chosen.pad_with is not None:
            sizes = chosen.allowed_batch_sizes or (chosen.max_batch_size,)
            self._padding = next((size for size in sizes if size >= len(given)), len(given)) - len(given)
            given = [*given, *[chosen.pad_with] * self._padding]
        self._given = len(given)
        return given

    def outcome(self, returned: Any) -> driver.Outcome:
        """One result for each row, or why there are none."""
        try:
            results = self.shares(returned)
        except Exception as error:
            return self.raised(error)
        if self._options.cache is not None:
            self._keep(self._options.cache, results)
        if self._known:
            known, computed = self._known, iter(results)
            results = [known[place] if place in known else next(computed) for place in range(self.batch.rows)]
        if self._options.merge is None:
            return results
        # The scheduler asks by rows: the first of an item has the share of all.
        shares: list[Any] = []
        for count, share in zip(self.counts, results, strict=True):
            shares += [share, *[None] * (count - 1)]
        return shares

    def shares(self, returned: Any) -> Sequence[Any]:
        """One result for each item. Raises `WrongResult`."""
        index = self._index
        try:
            if self._options.merge is not None:
                return merging.split(self._options.merge, returned, self.counts, self.items)
            results = check_list(returned, self._given)
        except failures.WrongResult as error:
            self.own_error = error
            raise
        if self._padding:
            results = results[: -self._padding]
        return results if index is None else [results[place] for place in index]

    def hand_out(self, yielded: Any) -> None:
        """One more result for each item, which goes to whoever reads them. Raises `WrongResult`."""
        for tag, result in zip(self.tags, self.shares(yielded), strict=True):
            tag.push(result)
        self._has_begun = True

    def forget(self) -> None:
        """Let go of everything: the frames of a traceback lead here."""
        self.items = self.counts = []
        self._known, self._new = {}, []
        self.own_error = None
        del self.batch, self._first

    def raised(self, error: BaseException) -> errors.CarpoolError:
        """What it means that the function raised."""
        if error is self.own_error:
            return self.own_error
        trace = _of_the_function(errors.raw(error, "__traceback__"))
        errors.put(error, "__traceback__", trace)
        if failures.is_out_of_memory(error) and self._options.isolates(error):
            # The function's variables hold the memory that smaller batches need, as long as the exception is there.
            traceback.clear_frames(trace)
            kind: type[failures.Raised] = failures.RaisedForSize
        else:
            kind = failures.RaisedForOne if self._isolates(error) else failures.Raised
        # Once results were handed out, nothing can be tried again.
        return failures.Raised(error) if self._has_begun else kind(error)

    def _isolates(self, error: BaseException) -> bool:
        """Whether smaller batches may do better.

        Of a function that waits for itself only the outermost are tried: at each depth there would be twice as many.
        """
        if waiting.is_circle(error):
            contexts = [each for part in self.batch.parts for each in cast(calls.Call, part.request).contexts]
            if all(current.variable in each for each in contexts):
                return False
        return self._options.isolates(error)

    # --- caches ------------------------------------------------------------------------------------------------

    @property
    def cache_is_async(self) -> bool:
        """Whether there is a cache with coroutine methods, which is asked here and not at the call."""
        return self._options.cache_is_async

    async def ask_cache(self) -> bool:
        """Ask that cache for all items; whether any is left to be computed."""
        cache = cast(options.Cache, self._options.cache)
        asked = [caches.waited(caches.get(cache, self._cache_key(item)), "get") for item in self.items]
        found = await asyncio.gather(*asked)
        self._known = {place: result for place, result in enumerate(found) if result is not None}
        self._recorder.cache_hits += len(self._known)
        self.items = [item for place, item in enumerate(self.items) if place not in self._known]
        return bool(self.items)

    async def tell_cache(self) -> None:
        """Have that cache keep what was computed."""
        cache = cast(options.Cache, self._options.cache)
        await asyncio.gather(*[caches.waited(caches.put(cache, key, result), "keep") for key, result in self._new])

    def _keep(self, cache: options.Cache, results: Sequence[Any]) -> None:
        for item, result in zip(self.items, results, strict=True):
            if result is None or failures.is_exception(result):
                continue
            if self._options.cache_is_async:
                self._new.append((self._cache_key(item), result))
            else:
                caches.put(cache, self._cache_key(item), result)

    def _cache_key(self, item: Any) -> Hashable | None:
        with contextlib.suppress(Exception):  # whoever called was told, or has no cache
            return caches.key(self._options, item, self._first.cached_under)
        return None


def _of_the_function(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without this package's frames at its begin.

    Their variables lead to the callers' futures, which lead to the exception: a cycle, and nothing a reader needs.
    """
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("carpool.functions."):
        trace = trace.tb_next
    return trace


def check_list(returned: Any, wanted: int) -> Sequence[Any]:
    """What a function returned, if it is a list of so many results. Raises `WrongResult` that says what it is."""
    if type(returned) is list and len(returned) == wanted:
        return returned.copy()  # a function may use its list again, while another thread still hands out the results
    if hasattr(type(returned), "iloc"):  # of pandas; as a list, a DataFrame is its columns
        returned = [returned.iloc[place] for place in range(len(returned))]
    is_listlike = hasattr(returned, "__len__") and hasattr(returned, "__getitem__") and not hasattr(returned, "keys")
    if isinstance(returned, _NO_LISTS) or not is_listlike:
        hint = ""
        if inspect.iscoroutine(returned):
            returned.close()
            hint = "; decorate the coroutine function itself"
        raise failures.WrongResult(
            f"the batched function returned {failures.named(returned)}, not a list with one result for each item, "
            f"of which there were {wanted}{hint}"
        )
    try:
        got = len(returned)
        results = list(returned)
    except TypeError:  # such as an array without dimensions
        raise failures.WrongResult(
            f"the batched function returned {failures.named(returned)}, which is no list; "
            "return a list with one result for each item"
        ) from None
    if got != wanted or len(results) != wanted:
        raise failures.WrongLength(f"the batched function returned {got} results; the items were {wanted}")
    return results


def _cut(merge: merging.Merge[Any, Any, Any, Any], part: messages.Part) -> Any:
    """The rows of a merged item that travel in this part."""
    request, start, stop = part
    item = request.payload[0]
    if stop - start == request.rows:
        return item
    counts = [count for count in (start, stop - start, request.rows - stop) if count]
    return merge.split(item, counts)[1 if start else 0]


def _different(chosen: options.Options, items: Iterable[Any]) -> tuple[list[Any], list[int]]:
    """Items without those that equal an earlier one, and where each of all stands among them."""
    places: dict[Any, int] = {}
    different: list[Any] = []
    index: list[int] = []
    for item in items:
        try:
            place = places.setdefault(caches.identity(chosen, item), len(different))
        except Exception:  # without a hash nothing is equal, nor if it cannot be compared
            place = len(different)
        if place == len(different):
            different.append(item)
        index.append(place)
    return different, index
