"""What waits for a batch: one queue for each batch key, by priority, small requests first, else first in, first out.

The questions policies ask (which queue has waited longest, which goes first, which is full) are answered in constant
or logarithmic time, because clients choose the keys: with an Authorization header in the key there may be thousands
of queues. Of tiers (see `queues.tier_of`) there are two for each level of priority that waits.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterator, Sequence

from carpool.scheduling import packing
from carpool.scheduling.learned_limits import LearnedLimits
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import WAITING, Part, Place, Request, take_all, wait_all
from carpool.scheduling.queues import OldestFirst, Queue, Sums, delay_of, tier_of

__all__ = ["Backlog", "Queue"]


# So many tiers without a fifo cost less than making them again.
_FEW_TIERS = 4


class Backlog:
    """All queues, with totals in instances (`rows`) and bytes (`size`).

    `levels` has the instances of each level of priority but the usual one, as far as any wait. `learned` is how many
    rows the predictor takes in one call of a key, and `place` where its requests are while they wait.
    """

    # Mutable state: the totals, which `_change` alone writes, as it does those of queues and _full; and, the last two
    # in the order in which queues got there:
    # _queues       by batch key
    # _tiers        their fifos by age, apart by tier; where there are many, until nothing waits
    # _full         those with at least a batch of rows, bytes or cost
    # _partly_sent  those with a request of which some rows have left
    def __init__(self, limits: Limits, learned: LearnedLimits | None = None, place: Place = WAITING) -> None:
        self._limits = limits
        self._place = place
        self._learned = LearnedLimits(limits) if learned is None else learned
        self._queues: dict[Hashable, Queue] = {}
        self._tiers: dict[int, OldestFirst] = {}
        self._full: OrderedDict[Queue, None] = OrderedDict()
        self._partly_sent: OrderedDict[Queue, None] = OrderedDict()
        self._rows = 0
        self._size = 0
        self.levels: dict[int, int] = {}

    @property
    def rows(self) -> int:
        """Instances that wait."""
        return self._rows

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._size

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, those of one key together; nothing may change meanwhile."""
        for queue in self._queues.values():
            yield from queue

    def queues(self) -> Collection[Queue]:
        """Those that are not empty, one for each key; nothing may change meanwhile."""
        return self._queues.values()

    def of_key(self, key: Hashable) -> Sequence[Request]:
        """The waiting requests of one key, in the order in which they travel."""
        queue = self._queues.get(key)
        return () if queue is None else list(queue)

    def add(self, request: Request) -> bool:
        """As `add_all`, for one."""
        return self.add_all((request,))

    def add_all(self, requests: Sequence[Request]) -> bool:
        """Put requests, of at least one row each, at the ends of their fifos in this order. Sequences must ascend.

        Returns False if that changed only some sums: none is the first of its fifo, has a goal that is known to be the
        earliest of its queue, or fills it.
        """
        if self._place is WAITING and not self._learned.is_empty:
            for request in requests:
                request.queue_key = self._learned.queue_of(request)
        limits, threshold, count = self._limits, self._limits.small_batch_threshold, len(requests)
        is_measured = limits.row_costs is not None or limits.row_lengths is not None
        is_notable, at = False, 0
        while at < count:
            first = requests[at]
            is_notable |= self._add(first)
            if at + 1 == count:
                break
            # Those like it that follow go with it, as mostly all of them are alike.
            key, tier, queue = first.queue_key, tier_of(first, limits), self._queues[first.queue_key]
            rows, size, goal = 0, 0, queue.known_goal
            start = at = at + 1
            while at < count and not is_measured:
                request = requests[at]
                if request.queue_key != key or (request.rows > threshold) - 2 * request.priority != tier:
                    break
                rows += request.rows
                size += request.size
                if request.goal < goal:
                    goal = request.goal
                at += 1
            if at > start:
                those = requests[start:at]
                wait_all(those, self._place)
                queue.fifos[tier].extend(those)
                is_notable |= goal < queue.known_goal
                queue.known_goal = goal
                if first.priority:
                    self._count(first, rows)
                is_notable |= self._change(queue, rows, size, 0.0)
        return is_notable

    def remove(self, request: Request) -> None:
        """Let a request go that stands anywhere: it has ended, or what waits of it goes another way from now on."""
        queue = self._without(request)
        if request.is_queued:
            queue.withdraw((request,))
            request.take(request.rows)
        else:
            queue.left(1)
        self._update(queue)

    def withdraw(self, request: Request) -> None:
        """Take an uncut request out that goes on waiting elsewhere."""
        queue = self._without(request)
        queue.withdraw((request,))
        self._update(queue)

    def ahead_of(self, priority: int) -> int:
        """Instances of this level and those above it: what a request that comes now has to wait for at best."""
        above = sum([rows for level, rows in self.levels.items() if level >= priority])
        return above if priority > 0 else above + self.rows - sum(self.levels.values())

    def oldest(self) -> Queue | None:
        """The queue with the request that came first, whatever its priority, or None if nothing waits."""
        found = [queue for tier in self._tiers.values() if (queue := tier.oldest()) is not None]
        return min(found, key=lambda queue: queue.oldest.sequence) if len(found) > 1 else found[0] if found else None

    def due(self, now: float, latency: float) -> Queue | None:
        """The queue with the request that should travel first of those that have waited `latency` seconds, or None.

        With `now` infinity, that is of all.
        """
        if now == math.inf and len(self._queues) == 1:
            return next(iter(self._queues.values()))
        found: list[tuple[Request, int, Queue]] = []
        for tier, queues in self._tiers.items():
            queue = queues.oldest()
            if queue is not None and queue.fifos[tier][0].arrived + latency <= now:
                found.append((queue.fifos[tier][0], tier, queue))
        if len(found) > 1:
            ranks = [(first.arrived + delay_of(tier, self._limits), first.sequence) for first, tier, _ in found]
            return found[ranks.index(min(ranks))][-1]
        return found[0][-1] if found else None

    def full(self) -> Queue | None:
        """A queue that holds a whole batch, the one that has done so for longest, or None."""
        return next(iter(self._full), None)

    def partly_sent(self) -> Queue | None:
        """A queue with a request whose first rows travel already, the one for longest, or None."""
        return next(iter(self._partly_sent), None)

    def take(self, queue: Queue, rows: int | None = None, chosen: Sequence[Request] | None = None) -> list[Part]:
        """Cut one batch from the front of a queue: as many rows as the limits allow, and at most `rows`.

        It may be fewer, as requests are not cut without need, and more if the first one alone has more. Only those that
        were `chosen` travel, in that order, the first one first, where some were.
        """
        limits = self._limits
        room = queue.max_batch_size if rows is None else max(1, min(rows, queue.max_batch_size))
        waiting = queue.sums
        is_all = waiting.rows <= room and waiting.size <= queue.max_batch_bytes
        if is_all and waiting.cost <= limits.max_batch_cost and chosen is None:
            return self._take_all(queue, waiting)
        parts = packing.pack(chosen or queue, room, limits, queue.max_batch_size, queue.max_batch_bytes)
        rows, size, cost = 0, 0, 0.0
        for request, start, stop in parts:
            rows += stop - start
            if request.priority:
                self._count(request, start - stop)
            size += request.size_queued
            cost += request.cost_queued
            request.take(stop)
            if stop < request.rows:
                request.size_queued, request.cost_queued = packing.rest(
                    request, start, stop, limits, queue.max_batch_bytes
                )
                size -= request.size_queued
                cost -= request.cost_queued
                if not start:
                    request.cut()
        if chosen is None:
            queue.left(0)
        else:
            queue.withdraw([request for request, _, stop in parts if stop == request.rows])
        self._change(queue, -rows, -size, -cost)
        if queue.is_partly_sent:
            self._partly_sent[queue] = None
        self._update(queue)
        return parts

    def refresh(self) -> None:
        """Adapt to changed limits. Who waits already keeps the priority it came with."""
        costs = self._limits.row_costs
        for queue in self._queues.values():
            self._fit(queue, queue.oldest)
            for request in queue:
                payload, start, stop = request.payload, request.rows_taken, request.rows
                request.cost_queued = 0.0 if costs is None else sum(costs(payload, start, stop))
            self._change(queue, 0, 0, sum([request.cost_queued for request in queue]) - queue.sums.cost)

    def resize(self, key: Hashable) -> None:
        """Adapt to what was learned of a batch key, also where its requests are kept apart."""
        for queue in self._queues.values():
            if queue.oldest.key == key:
                self._fit(queue, queue.oldest)
                self._change(queue, 0, 0, 0.0)

    def withdraw_all(self, key: Hashable) -> Sequence[Request]:
        """As `withdraw` for all of a key but those of which some rows have left; returns them."""
        found = [request for request in self.of_key(key) if not request.rows_taken]
        for request in found:
            self.withdraw(request)
        return found

    def _add(self, request: Request) -> bool:
        limits, rows = self._limits, request.rows
        if limits.row_costs is not None or limits.row_lengths is not None:
            self._measure(request)  # first of all, as that may fail
        tier: int = rows > limits.small_batch_threshold  # as `tier_of` tells
        if request.priority:
            tier -= 2 * request.priority
            self._count(request, rows)
        queue = self._queues.get(request.queue_key) or self._new_queue(request)
        fifo = queue.fifos.get(tier)
        is_notable = fifo is None
        if fifo is None:
            if tier not in self._tiers:
                self._tiers[tier] = OldestFirst(tier)
            self._tiers[tier].add(queue, request.sequence, len(self._queues))
            fifo = queue.fifos[tier] = deque()
        fifo.append(request)
        request.wait(self._place)
        if request.goal < queue.known_goal:
            queue.known_goal = request.goal
            is_notable = True
        # As `_change` does, without one more call for each request.
        self._rows += rows
        self._size += request.size
        if queue.change(rows, request.size, request.cost_queued):
            self._full[queue] = None
            return True
        return is_notable

    def _fit(self, queue: Queue, request: Request) -> None:
        """Let a queue with this request have batches of as many rows and bytes as the predictor takes."""
        learned = self._learned.of(request.key)
        queue.resize(min(request.max_batch_size, learned.rows), learned.size)

    def _new_queue(self, first: Request) -> Queue:
        key = first.queue_key
        queue = self._queues[key] = Queue(key, self._limits, first.max_batch_size)
        if not self._learned.is_empty:
            self._fit(queue, first)
        return queue

    def _measure(self, request: Request) -> None:
        costs, lengths = self._limits.row_costs, self._limits.row_lengths
        if costs is not None:
            request.cost_queued = sum(costs(request.payload, 0, request.rows))
        if lengths is not None:
            request.length = max(lengths(request.payload, 0, request.rows))

    def _take_all(self, queue: Queue, waiting: Sums) -> list[Part]:
        parts = take_all(queue)
        if self.levels:
            for request, start, stop in parts:
                if request.priority:
                    self._count(request, start - stop)
        queue.fifos.clear()
        rows, size, cost = waiting
        self._change(queue, -rows, -size, -cost)
        if self._partly_sent:
            self._partly_sent.pop(queue, None)
        self._drop(queue)
        return parts

    def _without(self, request: Request) -> Queue:
        """The queue of a request that leaves it, whose sums are already without it."""
        queue = self._queues[request.queue_key]
        if request.priority:
            self._count(request, -request.rows_queued)
        self._change(queue, -request.rows_queued, -request.size_queued, -request.cost_queued)
        return queue

    def _change(self, queue: Queue, rows: int, size: int, cost: float) -> bool:
        """So much more waits, or less: nothing else writes sums, or knows who is full. Returns whether the queue is."""
        self._rows += rows
        self._size += size
        if queue.change(rows, size, cost):
            self._full[queue] = None
            return True
        if self._full:
            self._full.pop(queue, None)
        return False

    def _count(self, request: Request, rows: int) -> None:
        """So many instances of another level than the usual one wait now that did not, or fewer."""
        waiting = self.levels[request.priority] = self.levels.get(request.priority, 0) + rows
        if not waiting:
            del self.levels[request.priority]

    def _update(self, queue: Queue) -> None:
        if self._partly_sent and not queue.is_partly_sent:
            self._partly_sent.pop(queue, None)
        if not queue.rows:
            self._drop(queue)

    def _drop(self, queue: Queue) -> None:
        del self._queues[queue.key]
        queue.key = None  # the queue leaves when it surfaces among its tier's, and keys may be large
        if len(self._tiers) > _FEW_TIERS and not self._queues:
            self._tiers.clear()
