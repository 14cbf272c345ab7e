"""The deadlines of all requests in the house, cheapest where it matters: adding one, and asking for the next."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator

from carpool.scheduling.messages import Request

_SLACK = 64


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
