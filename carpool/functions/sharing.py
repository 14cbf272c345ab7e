"""Equal calls that are under way at once are one call: `dedupe="in_flight"`.

The first one is put in; who calls until it has its answer joins. Each caller has a future and an exception of its own,
and may leave: the call is cancelled once all have.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from carpool import errors as carpool_errors
from carpool.functions import errors, futures, waiting


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
                raise
            if joined is not None:
                return joined

    def forget_locks(self) -> None:
        """After a fork: whoever held them is not there any more."""
        for shared in self._calls.values():
            shared.forget_locks()

    def _forget(self, same: Hashable, shared: _Shared, _: object) -> None:
        if self._calls.get(same) is shared:
            del self._calls[same]


class _Shared:
    """One call and those who wait for it: the source of their futures."""

    # Mutable state, under the lock: the callers that are left, and whether more may join.
    def __init__(self) -> None:
        self.leader: futures.Future[Any] = futures.Future()
        self._callers: set[futures.Future[Any]] = set()
        self._is_open = True
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may come round and let one go

    def forget_locks(self) -> None:
        """After a fork."""
        self._begin()
        for future in self._callers:
            future.forget_locks()

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
            self.leader.cancel()

    @property
    def is_under_way(self) -> bool:
        return self.leader.running()

    def flush(self) -> None:
        self.leader.done()

    def check_may_block(self) -> None:
        source = self.leader.source
        if source is not None:
            source.check_may_block()

    def needs(self) -> Iterable[waiting.Need]:
        source = self.leader.source
        return () if source is None else source.needs()


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
