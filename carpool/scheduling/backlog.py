"""What waits for a batch: one queue for each batch key, small requests before larger ones, else first in, first out.

The questions policies ask (which queue has waited longest, which goes first, which is full) are answered in constant
or logarithmic time, because clients choose the keys: with an Authorization header in the key there may be thousands
of queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

from carpool.scheduling import packing
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Part, Request
from carpool.scheduling.queues import OldestFirst, PriorityFifo, Queue

__all__ = ["Backlog", "Queue"]


class Backlog:
    """All queues, with totals in instances (`rows`) and bytes (`size`)."""

    # Mutable state, the last two in the order in which queues got there:
    # _queues         by batch key
    # _small, _large  their fifos by age, apart by priority
    # _full           those with at least a batch of rows, bytes or cost
    # _partly_sent    those with a request of which some rows have left
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queues: dict[Hashable, Queue] = {}
        self._small = OldestFirst()
        self._large = OldestFirst()
        self._full: OrderedDict[Queue, None] = OrderedDict()
        self._partly_sent: OrderedDict[Queue, None] = OrderedDict()
        self.rows = 0
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, those of one key together; nothing may change meanwhile."""
        for queue in self._queues.values():
            yield from queue

    def of_key(self, key: Hashable) -> Sequence[Request]:
        """The waiting requests of one key, in the order in which they travel."""
        queue = self._queues.get(key)
        return () if queue is None else list(queue)

    def add(self, request: Request) -> bool:
        """Put a request, of at least one row, at the end of its fifo. Sequences must ascend.

        Returns False if that changed only some sums: it is not the first of its fifo, and the queue is not full.
        """
        limits, rows = self._limits, request.rows
        queue = self._queues.get(request.key)
        if queue is None:
            queue = self._queues[request.key] = Queue(request.key, limits, request.max_batch_size)
        fifo = queue.large if rows > limits.small_batch_threshold else queue.small
        is_first = not fifo.requests
        if is_first:
            fifo = self._new_fifo(queue, request)
        fifo.requests.append(request)
        if limits.row_costs is not None:
            request.cost_queued = sum(limits.row_costs(request.payload, 0, rows))
            queue.cost += request.cost_queued
        queue.rows += rows
        queue.size += request.size
        self.rows += rows
        self.size += request.size
        # As `queue.is_full` tells, without a call for each request.
        if (
            queue.rows < queue.max_batch_size
            and queue.size < limits.max_batch_bytes
            and queue.cost < limits.max_batch_cost
        ):
            return is_first
        self._full[queue] = None
        return True

    def remove(self, request: Request) -> None:
        """Take a request out that waits, wherever it stands."""
        queue = self._queues[request.key]
        self._subtract(queue, request.rows_queued, request.size_queued, request.cost_queued)
        queue.discard(request)
        self._update(queue)

    def withdraw(self, request: Request) -> None:
        """As `remove`, for an uncut request that goes on waiting in another backlog."""
        queue = self._queues[request.key]
        self._subtract(queue, request.rows, request.size, request.cost_queued)
        queue.withdraw(request)
        self._update(queue)

    def oldest(self) -> Queue | None:
        """The queue with the request that came first, whatever its priority, or None if nothing waits."""
        fifo = self._large.oldest()
        if self._small.heap:
            small = self._small.oldest()
            if fifo is None or (small is not None and small.oldest.sequence < fifo.oldest.sequence):
                fifo = small
        return None if fifo is None else fifo.queue

    def due(self, now: float, latency: float) -> Queue | None:
        """The queue with the request that should travel first of those that have waited `latency` seconds, or None.

        With `now` infinity, that is of all.
        """
        small, large = self._small.oldest(), self._large.oldest()
        if small is None or small.oldest.arrived + latency > now:
            small = None
        if large is None or large.oldest.arrived + latency > now:
            large = None
        if small is not None and large is not None:
            is_large_first = _rank(large.oldest, self._limits.priority_ageing) < _rank(small.oldest, 0.0)
            return large.queue if is_large_first else small.queue
        fifo = small or large
        return None if fifo is None else fifo.queue

    def full(self) -> Queue | None:
        """A queue that holds a whole batch, the one that has done so for longest, or None."""
        return next(iter(self._full), None)

    def partly_sent(self) -> Queue | None:
        """A queue with a request whose first rows travel already, the one for longest, or None."""
        return next(iter(self._partly_sent), None)

    def take(self, queue: Queue, rows: int | None = None) -> list[Part]:
        """Cut one batch from the front of a queue: as many rows as the limits allow, and at most `rows`.

        It may be fewer, as requests are not cut without need, and more if the first one alone has more.
        """
        limits = self._limits
        room = queue.max_batch_size if rows is None else max(1, min(rows, queue.max_batch_size))
        if queue.rows <= room and queue.size <= limits.max_batch_bytes and queue.cost <= limits.max_batch_cost:
            return self._take_all(queue)
        parts = packing.pack(queue, room, limits)
        rows = size = cost = 0
        for request, start, stop in parts:
            rows += stop - start
            size += request.size_queued
            cost += request.cost_queued
            request.rows_taken = stop
            if stop < request.rows:
                request.size_queued, request.cost_queued = packing.rest(request, start, stop, limits)
                size -= request.size_queued
                cost -= request.cost_queued
                if not start:
                    request.pieces, request.rows_answered = [], 0
        queue.shed()
        self._subtract(queue, rows, size, cost)
        if queue.is_partly_sent:
            self._partly_sent[queue] = None
        self._update(queue)
        return parts

    def refresh(self) -> None:
        """Adapt to changed limits. Who waits already keeps the priority it came with."""
        costs = self._limits.row_costs
        for queue in self._queues.values():
            queue.refresh()
            for request in queue:
                payload, start, stop = request.payload, request.rows_taken, request.rows
                request.cost_queued = 0 if costs is None else sum(costs(payload, start, stop))
            queue.cost = sum(request.cost_queued for request in queue)
        self._full = OrderedDict.fromkeys(queue for queue in self._queues.values() if queue.is_full)

    def _new_fifo(self, queue: Queue, request: Request) -> PriorityFifo:
        if request.rows > self._limits.small_batch_threshold:
            queue.large = self._large.new_fifo(queue, request.sequence, len(self._queues))
            return queue.large
        queue.small = self._small.new_fifo(queue, request.sequence, len(self._queues))
        return queue.small

    def _take_all(self, queue: Queue) -> list[Part]:
        # Past the constructor of the named tuple, which costs more than all the rest of this line.
        parts = [tuple.__new__(Part, (request, request.rows_taken, request.rows)) for request in queue]
        for request, _, stop in parts:
            request.rows_taken = stop
        queue.small.requests.clear()
        queue.large.requests.clear()
        self.rows -= queue.rows
        self.size -= queue.size
        queue.rows = queue.size = queue.cost = 0
        self._full.pop(queue, None)
        self._partly_sent.pop(queue, None)
        self._drop(queue)
        return parts

    def _subtract(self, queue: Queue, rows: int, size: int, cost: int) -> None:
        queue.rows -= rows
        queue.size -= size
        queue.cost -= cost
        self.rows -= rows
        self.size -= size

    def _update(self, queue: Queue) -> None:
        if not queue.is_full:
            self._full.pop(queue, None)
        if not queue.is_partly_sent:
            self._partly_sent.pop(queue, None)
        if not queue.rows:
            self._drop(queue)

    def _drop(self, queue: Queue) -> None:
        del self._queues[queue.key]
        queue.close()


def _rank(request: Request, ageing: float) -> tuple[float, int]:
    return request.arrived + ageing, request.sequence
