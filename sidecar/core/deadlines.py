"""The deadlines of all requests in the house, cheapest where it matters: adding one, and asking for the next."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from sidecar.core.model import Request

_SLACK = 64


class Deadlines:
    """A heap of (deadline, sequence, request). Answered requests stay in it until they surface or it is cleaned.

    Cleaning runs when more than half of the heap is stale, so memory stays within twice the open requests and the
    work per request stays constant.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._closed = 0  # answered requests still in the heap, at most

    def add(self, request: Request) -> None:
        """Watch an open request."""
        heapq.heappush(self._heap, (request.deadline, request.sequence, request))

    def forget(self) -> None:
        """One of the watched requests was answered."""
        self._closed += 1
        if self._closed > _SLACK + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].open]
            heapq.heapify(self._heap)
            self._closed = 0

    def next(self) -> float | None:
        """The earliest deadline of an open request, or None."""
        heap = self._heap
        while heap and not heap[0][2].open:
            heapq.heappop(heap)
            self._closed -= 1
        return heap[0][0] if heap else None

    def pop_expired(self, now: float) -> Iterator[Request]:
        """Yield and drop the open requests whose deadline is not after `now`; the caller must answer each."""
        while (deadline := self.next()) is not None and deadline <= now:
            yield heapq.heappop(self._heap)[2]
            self._closed -= 1  # the caller's `forget` speaks of a request that is no longer here

    def __iter__(self) -> Iterator[Request]:
        """All open requests, in no particular order."""
        return (request for _, _, request in self._heap if request.open)

    def __len__(self) -> int:
        return len(self._heap)
