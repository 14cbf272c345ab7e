"""What waits for a batch: one queue for each batch key, first in, first out.

The questions policies ask (which queue has the oldest head, which is full) are answered in constant or logarithmic
time, because clients choose the keys: with an Authorization header in the key there may be thousands of queues.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable

from sidecar.core.limits import Limits
from sidecar.core.model import Part, Request

_SLACK = 64


class Queue:
    """Requests of one key in order of arrival. `rows` counts the instances that still wait."""

    __slots__ = ("key", "requests", "rows")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.rows = 0
        # Ordered by arrival; an OrderedDict because callers that leave are removed from the middle.
        self.requests: OrderedDict[Request, None] = OrderedDict()

    @property
    def head(self) -> Request:
        """The oldest request; the queue must not be empty."""
        return next(iter(self.requests))

    def cut(self, room: int) -> list[Part]:
        """Take parts of at most `room` rows in all, oldest first.

        A request travels whole unless it has more rows than any batch can carry: then it fills what room there is
        and the rest stays at the head.
        """
        parts = []
        capacity = room
        while room and self.requests:
            request = self.head
            if request.rows_queued > room and request.rows <= capacity:
                break
            start = request.rows_taken
            stop = min(request.rows, start + room)
            parts.append(Part(request, start, stop))
            room -= stop - start
            self.rows -= stop - start
            request.rows_taken = stop
            if stop == request.rows:
                del self.requests[request]
        return parts


class Backlog:
    """All queues, with totals in instances (`rows`) and bytes (`size`)."""

    # Mutable state: _queues by key; _by_age, a heap with exactly one entry for each queue, whose sequence may lag
    # behind its real head; _full, the queues with at least a batch of rows, in the order they got there.
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queues: dict[Hashable, Queue] = {}
        self._by_age: list[tuple[int, Queue]] = []
        self._full: OrderedDict[Queue, None] = OrderedDict()
        self.rows = 0
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, request: Request) -> None:
        """Put a request at the end of its key's queue."""
        queue = self._queues.get(request.key)
        if queue is None:
            queue = self._queues[request.key] = Queue(request.key)
            self._forget_emptied()
            heapq.heappush(self._by_age, (request.sequence, queue))
        queue.requests[request] = None
        queue.rows += request.rows
        self.rows += request.rows
        self.size += request.size
        if queue.rows >= self._limits.max_batch_size:
            self._full[queue] = None

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands; harmless if it is not waiting."""
        queue = self._queues.get(request.key)
        if queue is None or request not in queue.requests:
            return
        del queue.requests[request]
        queue.rows -= request.rows_queued
        self.rows -= request.rows_queued
        self.size -= request.size
        self._settle(queue)

    def oldest(self) -> Queue | None:
        """The queue whose head came first, or None if nothing waits."""
        heap = self._by_age
        while heap:
            sequence, queue = heap[0]
            if not queue.requests:
                heapq.heappop(heap)
            elif queue.head.sequence != sequence:
                heapq.heapreplace(heap, (queue.head.sequence, queue))
            else:
                return queue
        return None

    def full(self) -> Queue | None:
        """A queue that holds a whole batch, the one that has done so for longest, or None."""
        return next(iter(self._full), None)

    def take(self, queue: Queue) -> list[Part]:
        """Cut one batch from the front of a queue."""
        parts = queue.cut(self._limits.max_batch_size)
        for request, start, stop in parts:
            self.rows -= stop - start
            if stop == request.rows:
                self.size -= request.size
        self._settle(queue)
        return parts

    def refresh(self) -> None:
        """Adapt to a changed `max_batch_size`."""
        size = self._limits.max_batch_size
        self._full = OrderedDict.fromkeys(queue for queue in self._queues.values() if queue.rows >= size)

    def _forget_emptied(self) -> None:
        # Emptied queues leave the heap when they surface; behind an old head that can take long.
        if len(self._by_age) > 2 * len(self._queues) + _SLACK:
            self._by_age = [(queue.head.sequence, queue) for queue in self._queues.values() if queue.requests]
            heapq.heapify(self._by_age)

    def _settle(self, queue: Queue) -> None:
        if queue.rows < self._limits.max_batch_size:
            self._full.pop(queue, None)
        if not queue.requests:
            del self._queues[queue.key]
