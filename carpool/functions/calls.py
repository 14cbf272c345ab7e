"""Calls on their way. What comes in one turn of an event loop and may share a batch is one call of many items.

Nearly all that a scheduler does costs the same for one item as for many, and callers come in crowds. So items join a
call for as long as the turn lasts, each with a future and a context of its own, and go to the scheduler as one request.
They are told apart as soon as something is not the same for all of them: one leaves, there is room for some, or the
function failed. Then there is a call for each, as if they had come alone. What the library's scheduler and policy do
in another way than others stands here too.
"""

from __future__ import annotations

import contextvars
import math
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

from carpool import errors
from carpool.compiled import mypyc_attr
from carpool.functions import errors as failures
from carpool.functions import futures, waiting
from carpool.functions.futures import PENDING, Future, Settling
from carpool.scheduling import adaptive, messages, policy, scheduler
from carpool.scheduling.backlog import Backlog
from carpool.scheduling.limits import Limits

Key = tuple[Hashable, ...]
"""The arguments of a call beside its items: positional ones as (type, value), others as (name, type, value)."""

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The arguments of a call beside its items."""


_new_future = object.__new__
_copy_context = contextvars.copy_context


@mypyc_attr(native_class=False)  # no native class inherits from a tuple
class WarmUp(tuple[Any, ...]):
    """The key of a call that nobody else's joins, and whose equal items are not one."""


class Call(messages.Request):
    """A call of one or more items: a request of the scheduler, and the source of its futures.

    Its payload has the items. Each has one of the `futures`, and one of the `contexts`: the context variables of who
    called. If `futures` is None, the `tag` takes the outcome of all, a future or a stream, and there is one context.
    `owner` is the instance whose method was called, or None. `cached_under` is what a cache's keys have beside the
    item, or None for results that are not kept. `callers` is how many called, without those who left since. The
    `replier` is the batcher that was called.
    """

    __slots__ = ("arguments", "cached_under", "callers", "contexts", "futures", "owner")
    # Set by whoever makes it; there are as many as there are calls of threads, so no `__init__` does that.
    arguments: Arguments
    cached_under: Key | None
    callers: int
    contexts: list[contextvars.Context]
    futures: list[futures.Future[Any]] | None
    owner: Any

    def close(self) -> bool:
        """It is put in, or was already. Returns whether anybody waits for it."""
        return (self.tag if self.futures is None else self.futures[0]).source is not None

    def end(self) -> None:
        """In a child process, where it is nobody's: it is not put in any more."""

    def leave(self) -> int:
        """Let those go who do not wait any more; returns how many."""
        every = self.futures or []
        staying = [place for place, future in enumerate(every) if future.source is self]
        gone = len(every) - len(staying)
        if gone:
            self.payload = [self.payload[place] for place in staying]
            self.futures = [every[place] for place in staying]
            self.contexts = [self.contexts[place] for place in staying]
            self.rows = self.callers = len(staying)
        return gone

    def apart(self) -> list[Call]:
        """A call for each who waits, in its place; itself if there is one at most."""
        if self.futures is None or len(self.futures) < 2:
            return [self]
        made: list[Call] = []
        for item, future, context in zip(self.payload, self.futures, self.contexts, strict=True):
            if future.source is self:
                call = Call(self.key, 1, 0, [item], timeout=self.timeout, priority=self.priority)
                call.callers, call.futures, call.contexts = 1, [future], [context]
                call.arguments, call.owner, call.replier = self.arguments, self.owner, self.replier
                future.source = call
                made.append(call)
        return made

    def tags(self) -> list[Any]:
        """Who takes its outcome."""
        return [self.tag] if self.futures is None else list(self.futures)

    def answers(self, pieces: Sequence[messages.Piece]) -> Iterable[Settling]:
        """A result, or an exception of its own, for each who called, to be settled; a stream ends at once."""
        if self.futures is None:
            try:
                return cast(list[Settling], self.tag.answered([piece.predictions for piece in pieces]))
            except BaseException as error:  # of a merge, when it joins parts
                return self.refusals(error)
        results = pieces[0][2]
        if _has_exceptions(results):
            return [_settling(*each) for each in zip(self.futures, results, strict=True)]
        return zip(self.futures, results, [None] * len(results), strict=True)

    def answer(self, pieces: Sequence[messages.Piece]) -> None:
        """Settle its futures by `answers`."""
        results = None if self.futures is None else pieces[0][2]
        if results is None or _has_exceptions(results):
            futures.settle(self.answers(pieces))
        else:
            futures.settle_with(results, cast(list[futures.Future[Any]], self.futures))

    def refusals(self, error: BaseException) -> list[Settling]:
        """An exception of its own for each who called, to be settled; a stream has it at once."""
        if self.futures is None and not isinstance(self.tag, futures.Future):
            self.tag.end(failures.own(error))
            return []
        return [(future, None, failures.own(error)) for future in self.tags()]

    # --- the source of its futures -----------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether its batch has left."""
        return bool(self.rows_taken)

    def flush(self, running: AbstractEventLoop | None = None) -> None:
        """Let it begin, unless it does so at the end of a turn of this loop."""
        self.replier.flush(running)

    def withdraw(self, future: Any) -> None:
        """Nobody waits for this outcome any more."""
        self.replier.withdraw(self)

    def check_may_block(self) -> None:
        """Raises RuntimeError if the running thread would wait for itself."""
        self.replier.host.check_may_block(self.replier.name)

    def needs(self) -> Sequence[waiting.Need]:
        """Itself."""
        return ((self.replier, self),)


def _has_exceptions(results: Iterable[Any]) -> bool:
    kinds: Iterable[type] = map(type, results)
    try:
        kinds = set(kinds)
    except Exception:  # a type may have no hash
        kinds = list(map(type, results))
    return bool([kind for kind in kinds if issubclass(kind, BaseException)])


def _settling(future: futures.Future[Any], result: Any) -> Settling:
    return (future, None, failures.own(result)) if failures.is_exception(result) else (future, result, None)


class Turn(Call):
    """What is called in one turn of `loop`: up to `room` items join, until somebody ends the turn.

    The `hook` is what the loop has set in its thread for as long as it runs there, and no other loop within it; for
    loops that set none it is nothing that anybody has set.
    Other threads may end it, under a `lock`, for which nobody who joins has to wait: who joins looks afterwards whether
    it has ended meanwhile. `on_close` is called once nobody joins any more. So many items came `before` it by the same
    plan, in the same turn of the loop.
    """

    __slots__ = ("_joined", "_lock", "_on_close", "_room", "_some_left", "before", "hook", "loop")

    # Mutable state, beside the scheduler's: those who joined, until it ends, and how many may.
    def __init__(
        self,
        key: Hashable,
        timeout: float | None,
        priority: int,
        loop: AbstractEventLoop,
        room: int,
        lock: threading.RLock,
        on_close: Callable[[], object],
    ) -> None:
        super().__init__(key, 0, 0, [], timeout=timeout, priority=priority)
        self.callers = 0
        self.futures = []
        self.contexts = []
        self.loop = loop
        hook: object = sys.get_asyncgen_hooks()[0]
        self.hook = hook if getattr(hook, "__self__", None) is loop else loop
        self.before = 0
        self._joined: list[tuple[Any, futures.Future[Any], contextvars.Context]] = []
        self._room = room
        self._lock = lock
        self._on_close = on_close
        self._some_left = False

    @property
    def count(self) -> int:
        """How many have joined."""
        return len(self.futures or ()) + len(self._joined)

    @property
    def is_full(self) -> bool:
        """Whether nobody may join any more."""
        return len(self._joined) >= self._room

    def join(self, item: Any) -> futures.Future[Any] | None:
        """One more item, of who calls now: its future; None if no more may join."""
        joined = self._joined
        if len(joined) >= self._room:
            return None
        # Not by its `__init__`, which would take a third of all this.
        future: futures.Future[Any] = _new_future(Future)
        future.source = self
        future._status = PENDING
        future._waiting = []
        joined.append((item, future, _copy_context()))
        if self._room:
            return future
        with self._lock:  # another thread is ending it, or has just done so
            return future if future in self.tags() else None

    def close(self) -> bool:
        """Nobody joins any more; those who left meanwhile are gone. Whether anybody waits for it."""
        if self.rows:  # it was put in: they are the scheduler's now
            return True
        with self._lock:
            self.end()
        self.rows = self.callers = len(self.payload)
        if self._some_left:
            self.replier.recorder.abandoned += self.leave()  # nobody else counts them: they are never put in
        return bool(self.rows)

    def end(self) -> None:
        """Nobody joins any more. In a child process without the lock, which a thread may have that is not there."""
        self._room = 0
        joined = self._joined
        if joined:
            self.payload, self.futures, self.contexts = map(list, zip(*joined, strict=True))
        self._joined = []  # not before: after an interrupt it is ended again
        self._on_close()

    def withdraw(self, future: Any) -> None:
        """One who joined does not wait any more."""
        self._some_left = True
        super().withdraw(future)


class Turns(scheduler.Scheduler):
    """A scheduler of calls with members. Where one of them fares otherwise than the others, it tells them apart."""

    def submit_all(self, requests: Sequence[messages.Request]) -> Sequence[messages.Effect]:
        """As that of any scheduler; of members that do not all have room, some are refused."""
        if len(requests) == 1 and requests[0].rows == 1:  # of a thread, one by one
            return super().submit_all(requests)
        several = [call.rows for call in requests if call.rows > 1 and cast(Call, call).futures is not None]
        if several:
            most = 1 if self.learned_limits.now else self.limits.max_batch_size
            if max(several) > most or not self.has_room(requests):
                requests = [each for call in requests for each in cast(Call, call).apart()]
        return super().submit_all(requests)

    def leave(self, call: Call) -> int | None:
        """Let members go who do not wait any more. Returns how many went, or None if nobody stays."""
        every = call.futures if call.open else None
        staying = sum([future.source is call for future in every or ()])
        if not staying:
            return None
        if call.rows_taken:  # it travels: who left is left out of the answers
            gone, call.callers = call.callers - staying, staying
            return gone
        waiting = list(self.backlog.of_key(call.queue_key))
        behind = waiting[waiting.index(call) :]
        for each in behind:
            self.backlog.withdraw(each)
        gone = call.leave()
        self._wait_again(behind)
        return gone

    def part_waiting(self) -> None:
        """Tell all apart that wait: how many of them fit a batch may have changed."""
        for queue in list(self.backlog.queues()):
            waiting = cast(Sequence[Call], self.backlog.of_key(queue.key))
            several = [place for place, call in enumerate(waiting) if call.futures is not None and call.rows > 1]
            behind = waiting[several[0] :] if several else ()
            for call in behind:
                self.backlog.withdraw(call)
            self._wait_again([each for call in behind for each in self._parted(call)])

    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> Sequence[messages.Effect]:
        """As that of any scheduler: each member's fault is its own."""
        parts: list[messages.Part] = []
        for part in batch.parts:
            calls = self._parted(cast(Call, part.request)) if part.request.open else [part.request]
            if calls != [part.request]:
                for call in calls:
                    call.take(1)
                parts += [messages.Part(call, 0, 1) for call in calls]
            else:
                parts.append(part)
        batch.parts = parts
        return super().failed(batch, error)

    def _resize(self, batch: messages.Batch) -> None:
        """As that of any scheduler, which may mean smaller batches: a call with members is never cut."""
        self.part_waiting()
        super()._resize(batch)

    def _parted(self, call: Call) -> list[Call]:
        """An open call, told apart: each is what it was."""
        calls = call.apart()
        if calls == [call]:
            return calls
        for each in calls:
            self._sequence += 1
            each.accept(self._sequence)
            each.arrived, each.deadline, each.goal = call.arrived, call.deadline, call.goal
        call.finish()
        self._forget([call])
        if calls:
            self._deadlines.add_all(calls)
        return calls

    def _wait_again(self, calls: Iterable[messages.Request]) -> None:
        """Put calls back, in this order and behind all others of their key."""
        for call in calls:
            self._sequence = call.sequence = self._sequence + 1
            self.backlog.add(call)


class Adaptive(adaptive.Adaptive):
    """When a batch of a function leaves, where that function's batches may wait for each other.

    It waits for no batch that waits for a call behind it: while it `is_stuck`, the next batch leaves at once.
    """

    def __init__(self, bounds: Limits, tick: float, is_stuck: Callable[[], bool]) -> None:
        super().__init__(bounds, tick)
        self._most = bounds
        self._is_stuck = is_stuck

    @property
    def max_in_flight(self) -> float:
        return self._most.max_in_flight if self._is_stuck() else self.wanted_in_flight()

    def choose(self, backlog: Backlog, now: float) -> policy.Decision:
        decision = super().choose(backlog, now)
        if not isinstance(decision, policy.Wait) or not self._is_stuck():
            return decision
        queue = backlog.due(math.inf, 0.0)
        return decision if queue is None else policy.Release(queue, messages.Reason.IDLE)
