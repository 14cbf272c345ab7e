"""Requests in order: of one batch key as they travel, many such queues by age, and all by deadline.

Inside a queue higher levels of priority go before lower ones, and small requests before larger ones, both for a while;
otherwise first in, first out. A request's rank is when it came, plus the delay of its tier: whoever came before that
long is not overtaken.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import NamedTuple

from carpool.scheduling import packing
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Request

_SLACK = 64


class Sums(NamedTuple):
    """What waits: instances, their bytes, and what they cost."""

    rows: int
    size: int
    cost: float


def tier_of(request: Request, limits: Limits) -> int:
    """With which requests it goes in order of arrival: those of its level that are small, or large, as it is."""
    return (request.rows > limits.small_batch_threshold) - 2 * request.priority


def delay_of(tier: int, limits: Limits) -> float:
    """By how many seconds later than it did a request of this tier counts as having come; negative for earlier."""
    delay = limits.priority_ageing if tier & 1 else 0.0
    return delay + (tier >> 1) * limits.level_ageing if tier >> 1 else delay


class Queue:
    """Requests of one key. `rows`, `size` and `cost` sum up the instances that still wait; only `change` writes them.

    `known_goal` is the earliest goal of those that wait, minus infinity where that has to be looked up. `fifos` has
    those of each tier in order of arrival, of which the first always waits; callers leave from the middle, where a
    deque cannot be cut, so they stay until they surface. `max_batch_size` and `max_batch_bytes` are what one batch may
    carry.
    """

    __slots__ = (
        "_cost", "_limits", "_rows", "_size", "_stale", "fifos", "is_full", "key", "known_goal", "max_batch_bytes",
        "max_batch_size",
    )  # fmt: skip

    def __init__(self, key: Hashable, limits: Limits, most: float = math.inf, most_bytes: float = math.inf) -> None:
        """`most` and `most_bytes` are how many rows and bytes the predictor takes in one call of this key."""
        self._limits = limits
        self.is_full = False
        """Whether the next batch is as large as it can get: waiting would not let it carry more."""
        self.resize(most, most_bytes)
        self._stale = 0  # requests in the fifos that do not wait any more, at most
        self.key = key
        self.known_goal = math.inf
        self._rows = 0
        self._size = 0
        self._cost = 0.0
        self.fifos: dict[int, deque[Request]] = {}

    def resize(self, most: float, most_bytes: float) -> None:
        """Adapt to changed limits, and to how many rows and bytes the predictor takes; `is_full` does not yet."""
        limits = self._limits
        self.max_batch_size = limits.max_batch_size if most >= limits.max_batch_size else int(most)
        self.max_batch_bytes = min(limits.max_batch_bytes, most_bytes)

    @property
    def rows(self) -> int:
        """Instances that still wait."""
        return self._rows

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._size

    @property
    def sums(self) -> Sums:
        """All that waits."""
        return Sums(self._rows, self._size, self._cost)

    def change(self, rows: int, size: int, cost: float) -> bool:
        """So much more waits, or less where that is negative. Returns whether the queue is full."""
        self._rows = rows = self._rows + rows
        self._size = size = self._size + size
        self._cost = cost = self._cost + cost
        self.is_full = rows > 0 and (
            rows >= self.max_batch_size or size >= self.max_batch_bytes or cost >= self._limits.max_batch_cost
        )
        return self.is_full

    @property
    def oldest(self) -> Request:
        """The request that came first, whatever its priority; the queue must not be empty."""
        if len(self.fifos) > 1:
            return min([fifo[0] for fifo in self.fifos.values()], key=lambda request: request.sequence)
        (fifo,) = self.fifos.values()
        return fifo[0]

    @property
    def first(self) -> Request:
        """The request that travels first; the queue must not be empty."""
        if len(self.fifos) > 1:
            return min([next(self._ranked(tier)) for tier in self.fifos])[-1]
        (fifo,) = self.fifos.values()
        return fifo[0]

    @property
    def soonest_goal(self) -> float:
        """The earliest goal of those that wait; the queue must not be empty. It looks at all if some left before."""
        if self.known_goal == -math.inf:
            self.known_goal = min([request.goal for request in self])
        return self.known_goal

    @property
    def is_partly_sent(self) -> bool:
        """Whether the request that travels first was cut: its first rows travel, or were answered, already."""
        return bool(self._rows) and bool(self.first.rows_taken)

    @property
    def next_rows(self) -> int:
        """How many instances the next batch would carry; takes as long as cutting it if the queue is full."""
        if not self.is_full:
            return self.rows
        most = self.max_batch_size
        parts = packing.pack(self, most, self._limits, most, self.max_batch_bytes)
        return sum([stop - start for _, start, stop in parts])

    def __iter__(self) -> Iterator[Request]:
        """All requests in the order in which they travel; the queue must not change meanwhile."""
        if len(self.fifos) == 1:
            (fifo,) = self.fifos.values()
            return (request for request in fifo if request.is_queued) if self._stale else iter(fifo)
        return (request for *_, request in heapq.merge(*map(self._ranked, self.fifos)))

    def drop_finished(self) -> None:
        """Let those go from the front that do not wait any more; the sums are the caller's business."""
        self.known_goal = -math.inf
        for tier, fifo in list(self.fifos.items()):
            while fifo and not fifo[0].is_queued:
                fifo.popleft()
            if not fifo:
                del self.fifos[tier]

    def withdraw(self, requests: Sequence[Request]) -> None:
        """Take requests out that stand anywhere, and may wait again; the sums are the caller's business."""
        for request in requests:
            next(fifo for fifo in self.fifos.values() if request in fifo).remove(request)
        self.drop_finished()

    def left(self, anywhere: int) -> None:
        """Requests do not wait any more; so many stood anywhere, and have ended. The sums are the caller's business."""
        self.drop_finished()
        self._stale += anywhere
        if self._stale > _SLACK and self._stale > _SLACK + sum(map(len, self.fifos.values())) // 2:
            self.fifos = {tier: deque([each for each in fifo if each.is_queued]) for tier, fifo in self.fifos.items()}
            self._stale = 0

    def _ranked(self, tier: int) -> Iterator[tuple[float, int, Request]]:
        """A fifo in ascending order; a request whose first rows already travel stays in front, whatever came since."""
        delay = delay_of(tier, self._limits)
        for request in self.fifos[tier]:
            if request.is_queued:
                yield (-math.inf if request.rows_taken else request.arrived + delay), request.sequence, request


class OldestFirst:
    """Queues that have requests of one tier, the one with the oldest of these first."""

    # An entry for each queue, whose sequence may lag behind the oldest request, and more for those that were refilled.
    __slots__ = ("_tier", "heap")

    def __init__(self, tier: int) -> None:
        self._tier = tier
        self.heap: list[tuple[int, Queue]] = []

    def add(self, queue: Queue, sequence: int, queues: int) -> None:
        """A queue begins to have such requests, with this one; there are at most so many queues that are not empty."""
        # Entries without a request leave when they surface; behind an old request that can take long.
        if len(self.heap) > 2 * queues + _SLACK:
            left = {each for _, each in self.heap if self._tier in each.fifos}
            self.heap = [(each.fifos[self._tier][0].sequence, each) for each in left]
            heapq.heapify(self.heap)
        heapq.heappush(self.heap, (sequence, queue))

    def oldest(self) -> Queue | None:
        """The queue whose oldest request of this tier came first, or None."""
        heap = self.heap
        while heap:
            sequence, queue = heap[0]
            fifo = queue.fifos.get(self._tier)
            if not fifo:
                heapq.heappop(heap)
            elif fifo[0].sequence != sequence:
                heapq.heapreplace(heap, (fifo[0].sequence, queue))
            else:
                return queue
        return None


class Deadlines:
    """A queue of those that came in ascending order, nearly all, and a heap of the others; a set of those without end.

    Callers seldom name a timeout of their own, and with equal timeouts whoever comes later has the later deadline.
    Answered requests stay until they surface or all are cleaned out, which is when more than half are stale: memory
    stays within twice the open requests, and the work per request constant.
    """

    # Mutable state: the three, `_latest`, the last deadline in the queue, and `_open`, how many in queue and heap are
    # open. The set has no others.
    def __init__(self) -> None:
        self._queue: deque[Request] = deque()
        self._heap: list[tuple[float, int, Request]] = []
        self._endless: set[Request] = set()
        self._latest = -math.inf
        self._open = 0

    def add_all(self, requests: Sequence[Request]) -> None:
        """Watch open requests. Sequences must ascend."""
        for request in requests:
            deadline = request.deadline
            if deadline == math.inf:
                self._endless.add(request)
                continue
            self._open += 1
            if deadline >= self._latest:
                self._latest = deadline
                self._queue.append(request)
            else:
                heapq.heappush(self._heap, (deadline, request.sequence, request))

    def forget(self, closed: Collection[Request]) -> None:
        """These were watched, and are not open any more."""
        count = len(closed)
        if self._endless:
            count -= len(self._endless)
            self._endless.difference_update(closed)
            count += len(self._endless)
            if not count:
                return
        self._open -= count
        watched = len(self._queue) + len(self._heap)
        if watched - self._open > _SLACK + watched // 2:
            self._queue = deque([request for request in self._queue if request.open])
            self._heap = [entry for entry in self._heap if entry[2].open]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline of an open request, or None if none has an end."""
        queue, heap = self._queue, self._heap
        while queue and not queue[0].open:
            queue.popleft()
        if queue and not heap:
            return queue[0].deadline
        while heap and not heap[0][2].open:
            heapq.heappop(heap)
        if not queue:
            self._latest = -math.inf
            return heap[0][0] if heap else None
        deadline = queue[0].deadline
        return min(deadline, heap[0][0]) if heap else deadline

    def pop_expired(self, now: float) -> Iterator[Request]:
        """Yield and drop the open requests whose deadline is not after `now`; the caller must answer each."""
        while (deadline := self.next()) is not None and deadline <= now:
            queue, heap = self._queue, self._heap
            if heap and (not queue or heap[0][:2] < (queue[0].deadline, queue[0].sequence)):
                yield heapq.heappop(heap)[2]
            else:
                yield queue.popleft()

    def __iter__(self) -> Iterator[Request]:
        """All open requests, in no particular order."""
        yield from self._endless
        yield from (request for request in self._queue if request.open)
        yield from (request for _, _, request in self._heap if request.open)

    def __len__(self) -> int:
        return len(self._queue) + len(self._heap) + len(self._endless)
