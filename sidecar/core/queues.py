"""Requests of one batch key in the order in which they travel, and the age of many such queues.

Inside a queue small requests go before larger ones, for a while; otherwise first in, first out.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator

from sidecar.core import packing
from sidecar.core.limits import Limits
from sidecar.core.model import Request

_SLACK = 64


class Lane:
    """Requests of one key and one priority, in order of arrival. Once emptied it is never filled again."""

    __slots__ = ("queue", "requests")

    def __init__(self, queue: Queue | None) -> None:
        self.queue = queue
        # An OrderedDict because callers that leave are removed from the middle.
        self.requests: OrderedDict[Request, None] = OrderedDict()

    @property
    def head(self) -> Request:
        """The oldest request; the lane must not be empty."""
        return next(iter(self.requests))


_EMPTY = Lane(None)


class Queue:
    """Requests of one key. `rows`, `size` and `cost` sum up the instances that still wait, their bytes, their cost."""

    __slots__ = ("_limits", "cost", "key", "large", "rows", "size", "small")

    def __init__(self, key: Hashable, limits: Limits) -> None:
        self._limits = limits
        self.key = key
        self.rows = 0
        self.size = 0
        self.cost = 0
        self.small = _EMPTY  # requests that may overtake
        self.large = _EMPTY  # all others

    @property
    def head(self) -> Request:
        """The request that came first, whatever its priority; the queue must not be empty."""
        if not self.small.requests:
            return next(iter(self.large.requests))
        if not self.large.requests:
            return self.small.head
        return min(self.small.head, self.large.head, key=lambda request: request.sequence)

    @property
    def first(self) -> Request:
        """The request that travels first; the queue must not be empty."""
        return next(iter(self))

    @property
    def is_full(self) -> bool:
        """Whether the next batch is as large as it can get: waiting would not let it carry more."""
        limits = self._limits
        return (
            self.rows >= limits.max_batch_size
            or self.size >= limits.max_batch_bytes
            or self.cost >= limits.max_batch_cost
        )

    @property
    def next_rows(self) -> int:
        """How many instances the next batch would carry; takes as long as cutting it if the queue is full."""
        if not self.is_full:
            return self.rows
        return sum([part.stop - part.start for part in packing.pack(self, self._limits.max_batch_size, self._limits)])

    def __iter__(self) -> Iterator[Request]:
        """All requests in the order in which they travel; the queue must not change meanwhile."""
        if not self.small.requests:
            return iter(self.large.requests)
        if not self.large.requests:
            return iter(self.small.requests)
        ageing = self._limits.priority_ageing
        return (request for *_, request in heapq.merge(_ranked(self.small, 0.0), _ranked(self.large, ageing)))

    def discard(self, request: Request) -> None:
        """Take a request out of its lane; the sums are the caller's business."""
        try:
            del self.large.requests[request]
        except KeyError:
            del self.small.requests[request]

    def __contains__(self, request: Request) -> bool:
        return request in self.large.requests or request in self.small.requests


class Ages:
    """Lanes of one priority, the one with the oldest head first."""

    # One entry for each lane, whose sequence may lag behind the lane's real head.
    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: list[tuple[int, Lane]] = []

    def new_lane(self, queue: Queue, sequence: int, lanes: int) -> Lane:
        """A lane that starts with the request `sequence`; there are at most `lanes` that are not empty."""
        # Emptied lanes leave when they surface; behind an old head that can take long.
        if len(self.heap) > 2 * lanes + _SLACK:
            self.heap = [(lane.head.sequence, lane) for _, lane in self.heap if lane.requests]
            heapq.heapify(self.heap)
        lane = Lane(queue)
        heapq.heappush(self.heap, (sequence, lane))
        return lane

    def oldest(self) -> Lane | None:
        """The lane whose head came first, or None."""
        heap = self.heap
        while heap:
            sequence, lane = heap[0]
            if not lane.requests:
                heapq.heappop(heap)
            elif (head := next(iter(lane.requests)).sequence) != sequence:
                heapq.heapreplace(heap, (head, lane))
            else:
                return lane
        return None


def _ranked(lane: Lane, ageing: float) -> Iterator[tuple[float, int, Request]]:
    """A lane in ascending order; a request whose first rows already travel stays in front, whatever came since."""
    for request in lane.requests:
        yield (-math.inf if request.rows_taken else request.arrived + ageing), request.sequence, request
