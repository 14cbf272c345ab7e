"""Which waiting rows the next batch carries: as many as its limits hold, in order, without needless cuts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Part, Request


def pack(waiting: Iterable[Request], rows: int, limits: Limits) -> list[Part]:
    """The parts of the next batch, of at most `rows` rows, from requests in the order they should travel.

    A request travels whole unless no batch could carry it whole; then it fills what room there is and is the last
    part. The first request always travels: whole if a batch could carry it, even if it has more than `rows` rows, and
    with one row if that row is over a limit by itself. Nothing is changed.
    """
    parts: list[Part] = []
    size, cost = limits.max_batch_bytes, limits.max_batch_cost
    for request in waiting:
        start, stop = request.rows_taken, request.rows
        if stop - start > rows or request.size_queued > size or request.cost_queued > cost:
            if _travels_whole(request, limits):
                return parts or [Part(request, start, stop)]
            stop = _last_fitting(request, rows, size, cost, limits)
            stop = stop if parts else max(stop, start + 1)
        if stop > start:
            parts.append(Part(request, start, stop))
        if stop < request.rows:
            break
        rows -= stop - start
        size -= request.size_queued
        cost -= request.cost_queued
    return parts


def rest(request: Request, start: int, stop: int, limits: Limits) -> tuple[int, int]:
    """Bytes and cost of what still waits of a request once its rows `start` to `stop` have left.

    What is not limited is not measured, so it stays what it was.
    """
    size, cost = request.size_queued, request.cost_queued
    if limits.max_batch_bytes < math.inf:
        size -= sum(limits.row_sizes(request.payload, start, stop))
    if limits.row_costs is not None:
        cost -= sum(limits.row_costs(request.payload, start, stop))
    return size, cost


def _travels_whole(request: Request, limits: Limits) -> bool:
    return not request.rows_taken and (
        request.rows <= min(limits.max_batch_size, request.max_batch_size)
        and request.size_queued <= limits.max_batch_bytes
        and request.cost_queued <= limits.max_batch_cost
    )


def _last_fitting(request: Request, rows: int, size: float, cost: float, limits: Limits) -> int:
    """Where to cut a request so that its first waiting rows fit; rows are measured only where a measure is short."""
    start = request.rows_taken
    stop = min(request.rows, start + rows)
    if request.size_queued > size:
        stop = start + _count(limits.row_sizes(request.payload, start, stop), size)
    if request.cost_queued > cost and limits.row_costs is not None:
        stop = start + _count(limits.row_costs(request.payload, start, stop), cost)
    return stop


def _count(weights: Sequence[int], room: float) -> int:
    """How many weights, from the first on, fit the room together."""
    for count, weight in enumerate(weights):
        room -= weight
        if room < 0:
            return count
    return len(weights)
