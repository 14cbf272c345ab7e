"""What the code that runs now can know: the event loop it runs in, and of its batch, `carpool.batch()`.

The function runs in a context of its own, as its items come from many callers, each with context variables of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from carpool.scheduling import messages

V = TypeVar("V")

loop = asyncio._get_running_loop
"""The event loop that runs in this thread, or None. Of those that `asyncio` exports, the one that does not raise: that
would take threads as long as half a call."""


class Member(NamedTuple):
    """A call whose items are in the batch: so many `items`, from `start` on in the list that the function is given.

    `context` holds the context variables as they were when the call was made: `member.context[variable]`, or
    `member.context.run(opentelemetry.trace.get_current_span)`. `waited` is seconds from the call until the batch left.
    """

    context: contextvars.Context
    start: int
    items: int
    waited: float


class Batch:
    """The batch that a function is working on."""

    __slots__ = ("_batch",)

    def __init__(self, batch: messages.Batch) -> None:
        self._batch = batch

    @property
    def id(self) -> str:
        """Its id, as metrics and logs have it."""
        return self._batch.id

    @property
    def reason(self) -> str:
        """Why it left when it did: one of `carpool.scheduling.messages.Reason`."""
        return self._batch.reason

    @property
    def members(self) -> Sequence[Member]:
        """The calls in it, in the order of their items."""
        left, end = self._batch.dispatched, 0
        found: list[Member] = []
        for request, start, stop in self._batch.parts:
            contexts: list[contextvars.Context] = request.contexts  # type: ignore[attr-defined] # they are calls
            items = 1 if len(contexts) > 1 else stop - start
            for context in contexts:
                found.append(Member(context, end, items, max(0.0, left - request.arrived)))
                end += items
        return found

    def values(self, variable: contextvars.ContextVar[V], default: V) -> list[V]:
        """What a context variable was at each member's call."""
        return [member.context.get(variable, default) for member in self.members]

    def __repr__(self) -> str:
        return f"<carpool.Batch {self.id} of {self._batch.rows}, {self.reason}>"


variable: contextvars.ContextVar[Batch] = contextvars.ContextVar("carpool.batch")
"""In the context of code that belongs to a batch."""

retried: contextvars.ContextVar[str] = contextvars.ContextVar("carpool.retried", default="")
"""The id of the batch that the running code belongs to, if that is tried again.

What such a batch calls shares no batch with others, or those that it was parted from would fail it once more.
"""

# Mutable: whether any batch was ever tried again, or any call made inline. Until then nobody needs to ask for either.
may_be_apart = False


def batch() -> Batch:
    """The batch that the running function was called with. Raises RuntimeError outside of a batched function."""
    found = variable.get(None)
    if found is None:
        raise RuntimeError("carpool.batch() works in a batched function only, in the thread or task that it runs in")
    return found


def running() -> messages.Batch | None:
    """The batch that the running code belongs to, if any: that of a batched function, or of a task that it started."""
    found = variable.get(None)
    return None if found is None else found._batch


def context_of(running: messages.Batch) -> contextvars.Context:
    """A context in which `batch()` is this one."""
    global may_be_apart
    context = contextvars.Context()
    context.run(variable.set, Batch(running))
    if running.reason in messages.RETRIES:
        may_be_apart = True
        context.run(retried.set, running.id)
    return context
