"""One future for the results of several items: of a `map`, of a merged item that was cut, or of other futures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from carpool.functions import errors, futures, merging, waiting

R = TypeVar("R")


class MapFuture(futures.Future[list[Any]]):
    """The results for many items, some of which may be `known` already, by their places."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.known: dict[int, Any] = {}
        self._count = count

    def answered(self, parts: Sequence[Sequence[Any]]) -> futures.Settling:
        """What the function returned for those that were not known, in parts."""
        results: list[Any] = []
        for part in parts:
            results.extend(part)
        if self.known:
            found = iter(results)
            results = [self.known[place] if place in self.known else next(found) for place in range(self._count)]
        return _together(self, results, returns_exceptions=False)

    def refused(self, error: Exception) -> futures.Settling:
        """Why there are none."""
        return self, None, error


class MergedFuture(futures.Future[Any]):
    """The share of one merged item; one larger than a batch has it in parts, which `merge` puts together."""

    def __init__(self, merge: merging.Merge[Any, Any, Any, Any]) -> None:
        super().__init__()
        self._merge = merge

    def answered(self, parts: Sequence[Sequence[Any]]) -> futures.Settling:
        """Its share, in parts."""
        if len(parts) == 1:
            return self, parts[0][0], None
        return self, merging.rejoin(self._merge, [part[0] for part in parts]), None

    def refused(self, error: Exception) -> futures.Settling:
        """Why there is none."""
        return self, None, error


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


class _Parts:
    """Futures that are one future's source."""

    def __init__(self, parts: Sequence[futures.Future[Any]], *, are_cancelled: bool) -> None:
        self._parts = parts
        self._are_cancelled = are_cancelled

    @property
    def is_under_way(self) -> bool:
        return any(part.running() for part in self._parts)

    def flush(self) -> None:
        for part in self._parts:
            part.done()

    def check_may_block(self) -> None:
        for source in self._sources():
            source.check_may_block()

    def needs(self) -> Iterable[waiting.Need]:
        for source in self._sources():
            yield from source.needs()

    def withdraw(self, future: Any) -> None:
        if self._are_cancelled:
            for part in self._parts:
                part.cancel()

    def _sources(self) -> Sequence[futures.Source]:
        return [source for part in self._parts if (source := part.source) is not None]


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
