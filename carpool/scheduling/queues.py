"""Requests in order: of one batch key as they travel, many such queues by age, and all by deadline.

Inside a queue small requests go before larger ones, for a while; otherwise first in, first out.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterator

from carpool.scheduling import packing
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Request

_SLACK = 64


class PriorityFifo:
    """Requests of one key and one priority, in order of arrival. Once emptied it is never filled again.

    Callers leave from the middle, where a deque cannot be cut: such requests stay until they surface. The first of
    `requests` always waits.
    """

    __slots__ = ("queue", "requests")

    def __init__(self, queue: Queue | None) -> None:
        self.queue = queue
        self.requests: deque[Request] = deque()

    @property
    def oldest(self) -> Request:
        """The oldest request; the fifo must not be empty."""
        return self.requests[0]

    def waiting(self) -> Iterator[Request]:
        """Those that wait, without those that do not any more."""
        return (request for request in self.requests if request.rows_taken < request.rows)

    def shed(self) -> None:
        """Drop those in front that do not wait any more. To be called whenever some left."""
        requests = self.requests
        while requests and requests[0].rows_taken == requests[0].rows:
            requests.popleft()


_EMPTY = PriorityFifo(None)


class Queue:
    """Requests of one key. `rows`, `size` and `cost` sum up the instances that still wait, their bytes, their cost.

    `max_batch_size` is what one batch of them may carry.
    """

    __slots__ = ("_limits", "_most", "_stale", "cost", "key", "large", "max_batch_size", "rows", "size", "small")

    def __init__(self, key: Hashable, limits: Limits, most: float = math.inf) -> None:
        """`most` is how many rows the predictor takes in one call of this key."""
        self._limits = limits
        self._most = most
        self.refresh()
        self._stale = 0  # requests in the fifos that do not wait any more, at most
        self.key = key
        self.rows = 0
        self.size = 0
        self.cost = 0
        self.small = _EMPTY  # requests that may overtake
        self.large = _EMPTY  # all others

    def refresh(self) -> None:
        """Adapt to changed limits."""
        self.max_batch_size = int(min(self._limits.max_batch_size, self._most))

    @property
    def oldest(self) -> Request:
        """The request that came first, whatever its priority; the queue must not be empty."""
        small, large = self.small.requests, self.large.requests
        if not small or (large and large[0].sequence < small[0].sequence):
            return large[0]
        return small[0]

    @property
    def first(self) -> Request:
        """The request that travels first; the queue must not be empty."""
        small, large = self.small.requests, self.large.requests
        if not small or (large and _rank(large[0], self._limits.priority_ageing) < _rank(small[0], 0.0)):
            return large[0]
        return small[0]

    @property
    def is_full(self) -> bool:
        """Whether the next batch is as large as it can get: waiting would not let it carry more."""
        limits = self._limits
        return (
            self.rows >= self.max_batch_size
            or self.size >= limits.max_batch_bytes
            or self.cost >= limits.max_batch_cost
        )

    @property
    def is_partly_sent(self) -> bool:
        """Whether the request that travels first was cut: its first rows travel, or were answered, already."""
        return bool(self.rows) and bool(self.first.rows_taken)

    @property
    def next_rows(self) -> int:
        """How many instances the next batch would carry; takes as long as cutting it if the queue is full."""
        if not self.is_full:
            return self.rows
        return sum([part.stop - part.start for part in packing.pack(self, self.max_batch_size, self._limits)])

    def __iter__(self) -> Iterator[Request]:
        """All requests in the order in which they travel; the queue must not change meanwhile."""
        if not self.small.requests or not self.large.requests:
            fifo = self.small if self.small.requests else self.large
            return fifo.waiting() if self._stale else iter(fifo.requests)
        ageing = self._limits.priority_ageing
        return (request for *_, request in heapq.merge(_ranked(self.small, 0.0), _ranked(self.large, ageing)))

    def close(self) -> None:
        """Let go of the fifos, once emptied: with these two knowing each other a key, which may be large, would stay
        until the garbage collector comes round.
        """
        self.small = self.large = _EMPTY

    def shed(self) -> None:
        """Let those go from the front that do not wait any more; the sums are the caller's business."""
        self.small.shed()
        self.large.shed()

    def withdraw(self, request: Request) -> None:
        """Take an uncut request out that waits, to be put elsewhere; the sums are the caller's business."""
        fifo = self.small if request in self.small.requests else self.large
        fifo.requests.remove(request)
        self.shed()

    def discard(self, request: Request) -> None:
        """Let a request go that stands anywhere; the sums are the caller's business."""
        request.rows_taken = request.rows
        self.shed()
        self._stale += 1
        if self._stale > _SLACK + (len(self.small.requests) + len(self.large.requests)) // 2:
            self._clean()

    def _clean(self) -> None:
        for fifo in (self.small, self.large):
            if fifo.requests:
                fifo.requests = deque(fifo.waiting())
        self._stale = 0


class OldestFirst:
    """Fifos of one priority, the one with the oldest request first."""

    # One entry for each fifo, whose sequence may lag behind its oldest request.
    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: list[tuple[int, PriorityFifo]] = []

    def new_fifo(self, queue: Queue, sequence: int, fifos: int) -> PriorityFifo:
        """A fifo that starts with the request `sequence`; there are at most `fifos` that are not empty."""
        # Emptied fifos leave when they surface; behind an old request that can take long.
        if len(self.heap) > 2 * fifos + _SLACK:
            self.heap = [(fifo.oldest.sequence, fifo) for _, fifo in self.heap if fifo.requests]
            heapq.heapify(self.heap)
        fifo = PriorityFifo(queue)
        heapq.heappush(self.heap, (sequence, fifo))
        return fifo

    def oldest(self) -> PriorityFifo | None:
        """The fifo whose oldest request came first, or None."""
        heap = self.heap
        while heap:
            sequence, fifo = heap[0]
            if not fifo.requests:
                heapq.heappop(heap)
            elif (oldest := fifo.requests[0].sequence) != sequence:
                heapq.heapreplace(heap, (oldest, fifo))
            else:
                return fifo
        return None


def _ranked(fifo: PriorityFifo, ageing: float) -> Iterator[tuple[float, int, Request]]:
    """A fifo in ascending order; a request whose first rows already travel stays in front, whatever came since."""
    for request in fifo.waiting():
        yield *_rank(request, ageing), request


def _rank(request: Request, ageing: float) -> tuple[float, int]:
    return (-math.inf if request.rows_taken else request.arrived + ageing), request.sequence


class Deadlines:
    """A queue of those that came in ascending order, nearly all, and a heap of the others.

    Callers seldom name a timeout of their own, and with equal timeouts whoever comes later has the later deadline.
    Answered requests stay until they surface or all are cleaned out, which is when more than half are stale: memory
    stays within twice the open requests, and the work per request constant.
    """

    # Mutable state: the two, `_latest`, the last deadline in the queue, and `_open`, how many in both are open.
    def __init__(self) -> None:
        self._queue: deque[Request] = deque()
        self._heap: list[tuple[float, int, Request]] = []
        self._latest = -math.inf
        self._open = 0

    def add(self, request: Request) -> None:
        """Watch an open request. Sequences must ascend."""
        self._open += 1
        deadline = request.deadline
        if deadline >= self._latest:
            self._latest = deadline
            self._queue.append(request)
        else:
            heapq.heappush(self._heap, (deadline, request.sequence, request))

    def forget(self, count: int = 1) -> None:
        """So many of the watched requests were answered."""
        self._open -= count
        watched = len(self._queue) + len(self._heap)
        if watched - self._open > _SLACK + watched // 2:
            self._queue = deque([request for request in self._queue if request.open])
            self._heap = [entry for entry in self._heap if entry[2].open]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline of an open request, or None."""
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
        yield from (request for request in self._queue if request.open)
        yield from (request for _, _, request in self._heap if request.open)

    def __len__(self) -> int:
        return len(self._queue) + len(self._heap)
