"""Futures that are not one item's: of a `map`, of a merged item that was cut, of other futures, of equal calls.

Equal calls that are under way at once are one call (`dedupe="in_flight"`): the first one is put in, and who calls until
it has its answer joins. Each caller has a future and an exception of its own, and may leave: the call is cancelled once
all have.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from carpool import errors as carpool_errors
from carpool.functions import errors, futures, merging, waiting

R = TypeVar("R")


class MapFuture(futures.Future[list[Any]]):
    """The results for many items, some of which may be `known` already, by their places."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.known: dict[int, Any] = {}
        self._count = count

    def answered(self, parts: Sequence[Sequence[Any]]) -> list[futures.Settling]:
        """What it is settled with, as the function returned this for those that were not known, in parts."""
        results: list[Any] = []
        for part in parts:
            results.extend(part)
        if self.known:
            found = iter(results)
            results = [self.known[place] if place in self.known else next(found) for place in range(self._count)]
        return [_together(self, results, returns_exceptions=False)]


class MergedFuture(futures.Future[Any]):
    """The share of one merged item; one larger than a batch has it in parts, which `merge` puts together."""

    def __init__(self, merge: merging.Merge[Any, Any, Any, Any]) -> None:
        super().__init__()
        self._merge = merge

    def answered(self, parts: Sequence[Sequence[Any]]) -> list[futures.Settling]:
        """What it is settled with, as this is its share, in parts. Raises what `merge` raises."""
        share = parts[0][0] if len(parts) == 1 else merging.rejoin(self._merge, [part[0] for part in parts])
        return [(self, share, None)]


def all_of(
    parts: Sequence[futures.Future[R]], *, returns_exceptions: bool = False, are_cancelled: bool = True
) -> futures.Future[list[R]]:
    """The results of all, in their order, or the exception of the first that has one.

    Cancelling it cancels all, unless they are others' too and not to be cancelled.
    """
    future: futures.Future[list[R]] = futures.Future(_Parts(parts, are_cancelled=are_cancelled))

    def end() -> None:
        if any(part.cancelled() for part in parts):
            future.cancel()
            return
        results = [part._value if part._error is None else part._error for part in parts]
        futures.settle([_together(future, results, returns_exceptions=returns_exceptions)])

    _follow(parts, end)
    return future


def end_of(parts: Sequence[futures.Future[Any]]) -> futures.Future[None]:
    """Done with None once all are done, whatever came of them. Cancelling it does nothing to them."""
    future: futures.Future[None] = futures.Future(_Parts(parts, are_cancelled=False))
    _follow(parts, lambda: futures.settle([(future, None, None)]))
    return future


def _follow(parts: Sequence[futures.Future[Any]], end: Callable[[], object]) -> None:
    """Call `end` once all parts are done, at least once."""
    done: list[None] = []

    def one_is_done(part: futures.Future[Any]) -> None:
        done.append(None)  # the last two may both see all of them, which does no harm
        if len(done) == len(parts):
            end()

    for part in parts:
        part.add_done_callback(one_is_done)
    if not parts:
        end()


class _Parts(waiting.Source):
    """Futures that are one future's source."""

    def __init__(self, parts: Sequence[futures.Future[Any]], *, are_cancelled: bool) -> None:
        self._parts = parts
        self._are_cancelled = are_cancelled

    def needs(self) -> Iterable[waiting.Need]:
        for part in self._parts:
            source: waiting.Source | None = part.source
            if source is not None:
                yield from source.needs()

    def withdraw(self, future: Any) -> None:
        if self._are_cancelled:
            for part in self._parts:
                part.cancel()


def _together(future: futures.Future[Any], results: list[Any], *, returns_exceptions: bool) -> futures.Settling:
    """Several results as one, unless one of them is an exception."""
    for place, result in enumerate(results):
        if errors.is_exception(result):
            results[place] = mine = errors.own(result)
            if not returns_exceptions:
                with contextlib.suppress(BaseException):  # one that takes no notes goes without
                    mine.add_note(f"item {place} of {len(results)} failed")
                return future, None, mine
    return future, results, None


# --- equal calls ------------------------------------------------------------------------------------------------


class UnderWay:
    """The calls of one batcher that may be joined."""

    # Mutable state: the calls, by what makes others equal to them.
    def __init__(self) -> None:
        self._calls: dict[Hashable, _Shared] = {}

    def join(self, same: Hashable, begin: Callable[[futures.Future[Any]], object]) -> futures.Future[Any]:
        """A future for the caller, of the call under way or of one that `begin` puts in. Raises what that raises."""
        while True:
            shared = self._calls.get(same)
            if shared is not None and (joined := shared.join()) is not None:
                return joined
            made = _Shared()
            if shared is None and self._calls.setdefault(same, made) is not made:
                continue  # another thread was first
            self._calls[same] = made
            made.leader.add_done_callback(functools.partial(self._forget, same, made))
            joined = made.join()
            try:
                begin(made.leader)
            except BaseException as error:
                futures.settle([(made.leader, None, error)])  # of others who have joined meanwhile
                if joined is not None:
                    joined.exception()  # asked for: this caller is told by what is raised
                raise
            if joined is not None:
                return joined

    def _forget(self, same: Hashable, shared: _Shared, _: object) -> None:
        if self._calls.get(same) is shared:
            del self._calls[same]


class _Shared(_Parts):
    """One call and those who wait for it: the source of their futures."""

    # Mutable state, under the lock: the callers that are left, and whether more may join.
    def __init__(self) -> None:
        self.leader: futures.Future[Any] = futures.Future()
        super().__init__([self.leader], are_cancelled=True)
        self._callers: set[futures.Future[Any]] = set()
        self._is_open = True
        self._lock = threading.RLock()  # the garbage collector may come round and let one go

    def join(self) -> futures.Future[Any] | None:
        """One caller more, or None if all have left."""
        future: futures.Future[Any] = futures.Future(self)
        with self._lock:
            if not self._is_open:
                return None
            self._callers.add(future)
        self.leader.add_done_callback(lambda leader: _pass_on(leader, future))
        return future

    def withdraw(self, future: Any) -> None:
        """One caller less."""
        with self._lock:
            self._callers.discard(future)
            self._is_open = bool(self._callers)
        if not self._is_open:
            super().withdraw(future)


def _pass_on(leader: futures.Future[Any], future: futures.Future[Any]) -> None:
    if leader.cancelled():
        future.cancel()
        return
    error = leader.exception()
    if error is None:
        futures.settle([(future, leader.result(), None)])
        return
    mine = errors.own(error)
    cause = carpool_errors.raw(error, "__cause__")
    if cause is not None:
        carpool_errors.put(mine, "__cause__", cause)
    futures.settle([(future, None, mine)])
