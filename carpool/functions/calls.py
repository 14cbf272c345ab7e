"""Calls on their way. What comes in one turn of an event loop and may share a batch is one call of many items.

Nearly all that a scheduler does costs the same for one item as for many, and callers come in crowds. So items join a
call for as long as the turn lasts, each with a future and a context of its own, and go to the scheduler as one request.
They are told apart as soon as something is not the same for all of them: one leaves, there is room for some, or the
function failed. Then there is a call for each, as if they had come alone.
"""

from __future__ import annotations

import contextvars
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from carpool import errors
from carpool.functions import futures, waiting
from carpool.runtime import driver
from carpool.scheduling import messages, scheduler

Key = tuple[Hashable, ...]
"""The arguments of a call beside its items: positional ones as (type, value), others as (name, type, value)."""

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The arguments of a call beside its items."""

Member = tuple[Any, "futures.Future[Any]", contextvars.Context]
"""One item of a call, with the future and the context variables of who called."""


class WarmUp(tuple[Any, ...]):
    """The key of a call that nobody else's joins, and whose equal items are not one."""


class Batcher(waiting.Batcher, driver.Replier, Protocol):
    """What answers calls."""

    def flush(self) -> None:
        """Put in what was called in this turn of an event loop."""
        ...

    def withdraw(self, call: Call) -> None:
        """Somebody does not wait for a call any more; if it has members, others may."""
        ...

    def check_may_block(self) -> None:
        """Raises RuntimeError if the running thread would wait for itself."""
        ...


class Call(messages.Request):
    """A call of one or more items: a request of the scheduler, and the source of its futures.

    Its `members` have a future each; if they are None, its `tag` takes the outcome of all, a future or a stream.
    `context` holds the caller's context variables where there are no members; `owner` is the instance whose method was
    called, or None. `cached_under` is what a cache's keys have beside the item, or None for results that are not kept.
    `callers` is how many called, without those who left since.
    """

    __slots__ = ("arguments", "cached_under", "callers", "context", "members", "owner")
    # Set by whoever makes it; there are as many as there are calls of threads, so no `__init__` does that.
    arguments: Arguments
    cached_under: Key | None
    callers: int
    context: contextvars.Context
    members: list[Member] | None
    owner: Any
    replier: Batcher

    def have(self, item: Any, future: futures.Future[Any]) -> None:
        """Have one item, of who calls now, and this future for it."""
        self.callers = 1
        self.members = [(item, future, contextvars.copy_context())]
        future.source = self

    def close(self) -> bool:
        """It is put in, or was already. Returns whether anybody waits for it."""
        return (self.tag if self.members is None else self.members[0][1]).source is not None

    def end(self) -> None:
        """In a child process, where it is nobody's: it is not put in any more."""

    def leave(self) -> int:
        """Let members go who do not wait any more; returns how many."""
        members = self.members or []
        staying = [member for member in members if member[1].source is self]
        gone = len(members) - len(staying)
        if gone:
            members[:] = staying
            self.rows = self.callers = len(staying)
        return gone

    def apart(self) -> list[Call]:
        """A call for each member that waits, in its place; itself if there is one at most."""
        if self.members is None or len(self.members) < 2:
            return [self]
        made: list[Call] = []
        for member in self.members:
            if member[1].source is self:
                call = Call(self.key, 1, timeout=self.timeout, priority=self.priority)
                call.callers, call.members = 1, [member]
                call.arguments, call.owner, call.replier = self.arguments, self.owner, self.replier
                member[1].source = call
                made.append(call)
        return made

    def tags(self) -> list[Any]:
        """Who takes its outcome."""
        return [self.tag] if self.members is None else [future for _, future, _ in self.members]

    def contexts(self) -> list[contextvars.Context]:
        """The context variables of those who called, one for each item or one for all."""
        return [self.context] if self.members is None else [context for _, _, context in self.members]

    # --- the source of its futures -----------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether its batch has left."""
        return bool(self.rows_taken)

    def flush(self) -> None:
        """Let it begin."""
        self.replier.flush()

    def withdraw(self, future: Any) -> None:
        """Nobody waits for this outcome any more."""
        self.replier.withdraw(self)

    def check_may_block(self) -> None:
        """Raises RuntimeError if the running thread would wait for itself."""
        self.replier.check_may_block()

    def needs(self) -> Sequence[waiting.Need]:
        """Itself."""
        return ((self.replier, self),)


class Turn(Call):
    """What is called in one turn of `loop`: up to so many items join, as long as nobody ends the turn.

    Other threads may end it, so there is a `lock`. `on_close` is called once nobody joins any more.
    """

    __slots__ = ("_lock", "_on_close", "_room", "_some_left", "loop")

    # Mutable state, beside the scheduler's: the members, and how many may still join, under the lock until it ends.
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
        super().__init__(key, 0, timeout=timeout, priority=priority)
        self.callers = 0
        self.members = []
        self.loop = loop
        self._room = room
        self._lock = lock
        self._on_close = on_close
        self._some_left = False

    @property
    def is_full(self) -> bool:
        """Whether nobody may join any more."""
        return not self._room

    def join(self, item: Any) -> futures.Future[Any] | None:
        """One more item, of who calls now: its future; None if no more may join."""
        if not self._room:
            return None
        future: futures.Future[Any] = futures.Future(self, self.loop)
        with self._lock:
            if not self._room:  # another thread has just ended it
                return None
            self._room -= 1
            self.members.append((item, future, contextvars.copy_context()))  # type: ignore[union-attr] # there is a list
        return future

    def close(self) -> bool:
        """Nobody joins any more; those who left meanwhile are gone. Whether anybody waits for it."""
        if self.rows:  # it was put in: they are the scheduler's now
            return True
        with self._lock:
            self._room = 0
        self._on_close()
        self.rows = self.callers = len(cast(list[Member], self.members))
        if self._some_left:
            self.leave()
        return bool(self.rows)

    def end(self) -> None:
        """Nobody joins any more. Without the lock, which a thread may have that is not in this process."""
        self._room = 0
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
            return self.submit(requests[0])
        several = [call.rows for call in requests if call.rows > 1 and cast(Call, call).members is not None]
        if several:
            most = 1 if self.learned_limits.now else self.limits.max_batch_size
            if max(several) > most or not self.has_room(requests):
                requests = [each for call in requests for each in cast(Call, call).apart()]
        return super().submit_all(requests)

    def leave(self, call: Call) -> int | None:
        """Let members go who do not wait any more. Returns how many went, or None if nobody stays."""
        members = call.members if call.open else None
        staying = sum([member[1].source is call for member in members or ()])
        if not staying:
            return None
        if call.rows_taken:  # it travels: who left is left out of the answers
            gone, call.callers = call.callers - staying, staying
            return gone
        behind = self._from(call)
        for each in behind:
            self.backlog.withdraw(each)
        gone = call.leave()
        self._wait_again(behind)
        return gone

    def part_waiting(self) -> None:
        """Tell all apart that wait: how many of them fit a batch may have changed."""
        for queue in list(self.backlog.queues()):
            waiting = cast(Sequence[Call], self.backlog.of_key(queue.key))
            several = [place for place, call in enumerate(waiting) if call.members is not None and call.rows > 1]
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
                    call.rows_taken, call.was_sent = 1, True
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
            self._sequence = each.sequence = self._sequence + 1
            each.arrived, each.deadline, each.goal, each.open = call.arrived, call.deadline, call.goal, True
        call.open = False
        call.payload = None
        self._forget([call])
        if calls:
            self._deadlines.add_all(calls)
        return calls

    def _from(self, call: Call) -> list[messages.Request]:
        """This one that waits, and those behind it."""
        waiting = list(self.backlog.of_key(call.place))
        return waiting[waiting.index(call) :]

    def _wait_again(self, calls: Iterable[messages.Request]) -> None:
        """Put calls back, in this order and behind all others of their key."""
        for call in calls:
            self._sequence = call.sequence = self._sequence + 1
            self.backlog.add(call)
