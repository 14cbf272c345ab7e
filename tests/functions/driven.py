"""A batcher driven by hand: a clock that is set, and a host whose batches are answered by the test."""

from __future__ import annotations

import collections
import contextvars
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from carpool.functions import batcher, calls, collected, futures, hosts, options, running, work
from carpool.runtime import driver


class Item:
    """What can be watched: `text` says whose it is."""

    def __init__(self, text: str) -> None:
        self.text = text


class Out:
    """A batch that the function works on."""

    def __init__(self, begun: work.Work, done: Callable[[driver.Outcome], None]) -> None:
        self.work: work.Work | None = begun
        self.done: Callable[[driver.Outcome], None] | None = done
        self.texts: list[str] = [item.text for item in begun.items]
        self.key: str = begun.arguments[1]["key"]
        self.rows = begun.batch.rows

    def cancel(self) -> bool:
        return False


class Loop:
    """Stands for an event loop on which nobody awaits anything."""

    def call_soon_threadsafe(self, function: Callable[..., object], *args: Any) -> None: ...


class DrivenHost(hosts.Host):
    """Keeps batches and deadlines, and does nothing by itself."""

    patience: float | None = 0.0
    due_at = math.inf

    def __init__(self) -> None:
        self.out: list[Out] = []
        self.sent: list[Out] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.soon: list[Callable[[], None]] | None = None
        self.has_ended = False

    def begin(self, batch: work.Work, done: Callable[[driver.Outcome], None]) -> driver.Execution:
        assert not self.has_ended
        out = Out(batch, done)
        self.out.append(out)
        self.sent.append(out)
        return out

    def look_by(self, when: float) -> None:
        self.due_at = min(self.due_at, when)

    def stop(self) -> None:
        self.due_at = math.inf

    def call_soon(self, function: Callable[[], None]) -> bool:
        if self.soon is not None:
            self.soon.append(function)
        return self.soon is not None

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        self.later.append((when, function))

    def end(self) -> None:
        self.has_ended = True

    def is_running(self) -> bool:
        return False


class DrivenFunction:
    """A batcher on such a host, with calls as `Batched` makes them."""

    def __init__(self, **chosen: Any) -> None:
        self.now = 1000.0
        self.options = options.Options(**chosen)
        self.host = DrivenHost()
        self.batcher = batcher.Batcher(
            "driven", self.options, lambda _: self.host, lambda _: None, clock=lambda: self.now
        )
        self._closings: list[Any] = []

    @property
    def timeout(self) -> float:
        return self.options.timeout or math.inf

    @property
    def out(self) -> Sequence[Out]:
        return self.host.out

    @property
    def sent(self) -> Sequence[Out]:
        return self.host.sent

    @property
    def is_closed(self) -> bool:
        return self.host.has_ended and all(each.done() for each in self._closings)

    def call(self, items: Any, is_map: bool, key: str, timeout: float | None, priority: int) -> futures.Future[Any]:
        payload = tuple(items) if is_map else (items,)
        future: futures.Future[Any] = collected.MapFuture(len(payload)) if is_map else futures.Future()
        call = calls.Call((key,), len(payload), 0, payload, future, timeout or self.options.timeout, priority=priority)
        call.callers, call.futures = 1, None if is_map else [future]
        call.replier = self.batcher
        future.source = call
        call.arguments = ((), {"key": key})
        call.contexts = [contextvars.copy_context()]
        call.owner = None
        self.batcher.submit(call, None)
        return future

    def call_in_one_turn(
        self, items: Sequence[Any], key: str, timeout: float | None, priority: int
    ) -> list[futures.Future[Any]]:
        """As so many calls in one turn of an event loop."""
        made: list[futures.Future[Any]] = []
        arrived: list[calls.Turn] = []
        for item in items:
            future = arrived[-1].join(item) if arrived else None
            if future is None:
                arrived.append(self.turn(key, timeout, priority))
                future = arrived[-1].join(item)
            assert future is not None
            made.append(future)
        self.batcher.post(self.batcher._submit, arrived, collections.deque())
        return made

    def turn(
        self, key: str, timeout: float | None, priority: int, on_close: Callable[[], object] = lambda: None
    ) -> calls.Turn:
        """Of an event loop, for calls that are not put in yet."""
        turn = calls.Turn(
            (key,),
            timeout or self.options.timeout,
            priority,
            Loop(),  # type: ignore[arg-type]
            self.batcher.room(0),
            threading.RLock(),
            on_close,
        )
        turn.arguments, turn.owner, turn.replier = ((), {"key": key}), None, self.batcher
        return turn

    def answer(self, batch: Out, returned: Any) -> None:
        """The function returns."""
        self._end(batch, lambda _: returned)

    def fail(self, batch: Out, error: BaseException) -> None:
        """The function raises."""

        def raises(_: Any, **__: Any) -> Any:
            raise error

        self._end(batch, raises)

    def _end(self, batch: Out, function: Callable[..., Any]) -> None:
        self.host.out.remove(batch)
        assert batch.work is not None
        outcome = running.compute(lambda items, **_: function(items), batch.work)
        done, batch.work, batch.done = batch.done, None, None
        assert done is not None
        self.batcher.post(done, outcome)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and look at each deadline on the way."""
        end = self.now + seconds
        while (when := min([self.host.due_at, *(at for at, _ in self.host.later)])) <= end:
            self.now = max(self.now, when)
            for due in [each for each in self.host.later if each[0] <= self.now]:
                self.host.later.remove(due)
                due[1]()
            if self.host.due_at <= self.now:
                self.host.due_at = math.inf
                self.batcher.post(self.batcher.poll)
        self.now = end

    def configure(self, **changes: Any) -> None:
        self.options = self.options.changed(changes)
        self.batcher.configure(self.options)

    def close(self, timeout: float | None) -> None:
        self._closings.append(self.batcher.close(timeout))
