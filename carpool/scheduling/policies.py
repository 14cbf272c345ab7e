"""When a batch leaves.

A policy is asked only while it allows one more batch in flight and something waits; it names the queue to cut the next
batch from, or says until when to wait. It never seals a batch: requests keep joining until the moment it goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from carpool import errors
from carpool.scheduling import sizes
from carpool.scheduling.backlog import Backlog, Queue
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Batch, Request


class Release(NamedTuple):
    """Cut a batch from `queue` now, of at most `rows` instances (None: as many as fit); `reason` says why it goes."""

    queue: Queue
    reason: str
    rows: int | None = None


class Wait(NamedTuple):
    """Nothing goes yet. Ask again at `until` or at the next event, whichever is first.

    Before `settled_until` mere arrivals need no asking: neither a request behind others that leaves its queue short of
    full nor the time that passes would change this decision.
    """

    until: float | None
    settled_until: float = -math.inf


class Drop(NamedTuple):
    """Refuse this waiting request with this error, then ask again."""

    request: Request
    error: errors.CarpoolError


Decision = Release | Wait | Drop


class Policy(Protocol):
    """The seat of a dispatch rule. The scheduler tells it what happened and asks what to do; times are in seconds."""

    @property
    def max_in_flight(self) -> int:
        """How many batches may be at the predictor now. Arrivals do not change it, nor does time."""
        ...

    def arrived(self, request: Request, backlog: Backlog, now: float) -> errors.CarpoolError | None:
        """A request came that would fit. Why it should be refused at once, or None: it goes into the backlog now."""
        ...

    def choose(self, backlog: Backlog, now: float) -> Decision:
        """What to do with a free slot; the backlog is not empty."""
        ...

    def sent(self, batch: Batch, now: float) -> None:
        """A batch left, by this policy's choice or as a retry."""
        ...

    def completed(self, batch: Batch, now: float) -> None:
        """A batch came back with predictions."""
        ...

    def troubled(self, batch: Batch, error: errors.CarpoolError, now: float) -> None:
        """A batch failed."""
        ...

    def learned(self, backlog: Backlog, now: float) -> Mapping[str, float]:
        """What the policy knows about the predictor and its callers, by name, in base units."""
        ...


class Window:
    """Full or old enough: KServe's maxBatchSize and maxLatency, made safe.

    A batch is due when its queue holds `max_batch_size` instances or its oldest request has waited `max_latency`
    since it arrived. With `max_latency` 0 nothing ever waits for a free predictor. Among queues that are due the one
    with the oldest head goes first, so that a busy key cannot starve a quiet one. The rest of a request that is larger
    than a batch waits for no company: with its caller's rows it was a full batch. It learns nothing.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    @property
    def max_in_flight(self) -> int:
        return self._limits.max_in_flight

    def arrived(self, request: Request, backlog: Backlog, now: float) -> errors.CarpoolError | None:
        return None

    def choose(self, backlog: Backlog, now: float) -> Decision:
        oldest = backlog.oldest()
        if oldest is None:
            return Wait(None)
        due_at = oldest.head.arrived + self._limits.max_latency
        if now >= due_at:
            queue = backlog.due(now, self._limits.max_latency) or oldest
            return self._release(queue, "due" if self._limits.max_latency else "idle")
        ready = backlog.full() or backlog.begun()
        return Wait(due_at, due_at) if ready is None else self._release(ready, "rest")

    def sent(self, batch: Batch, now: float) -> None:
        pass

    def completed(self, batch: Batch, now: float) -> None:
        pass

    def troubled(self, batch: Batch, error: errors.CarpoolError, now: float) -> None:
        pass

    def learned(self, backlog: Backlog, now: float) -> Mapping[str, float]:
        return {}

    def _release(self, queue: Queue, reason: str) -> Release:
        allowed = self._limits.allowed_sizes
        rows = sizes.best_size(queue.next_rows, allowed) if allowed else None
        return Release(queue, "full" if queue.is_full else reason, rows)
