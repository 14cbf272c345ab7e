"""Which waiting rows the next batch carries, and how many.

As many as its limits hold, in order, without needless cuts. Compiled models and captured graphs exist for some batch
sizes; a batch of another size is padded up to the next one, and the padding costs as much as real work. There the rule
is TensorFlow Serving's MINIMIZE_TPU_COST_PER_REQUEST: pad up, or send a smaller batch that needs no padding and leave
the rest, whichever costs less per instance.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Part, Request


def pack(waiting: Iterable[Request], rows: int, limits: Limits, most: int, most_bytes: float) -> list[Part]:
    """The parts of the next batch, of at most `rows` rows, from requests in the order they should travel.

    A request travels whole unless no batch could carry it whole, as `most` and `most_bytes` are how many rows and bytes
    one of theirs could have; then it fills what room there is and is the last part. The first request always travels:
    whole if a batch could carry it, even if it has more than `rows` rows, and with one row if that row is over a limit
    by itself. Nothing is changed.
    """
    parts: list[Part] = []
    size, cost = most_bytes, limits.max_batch_cost
    for request in waiting:
        start, stop = request.rows_taken, request.rows
        if stop - start > rows or request.size_queued > size or request.cost_queued > cost:
            if _travels_whole(request, limits, most, most_bytes):
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


def rest(request: Request, start: int, stop: int, limits: Limits, most_bytes: float) -> tuple[int, float]:
    """Bytes and cost of what still waits of a request once its rows `start` to `stop` have left.

    What is not limited is not measured, so it stays what it was.
    """
    size, cost = request.size_queued, request.cost_queued
    if most_bytes < math.inf:
        size -= sum(limits.row_sizes(request.payload, start, stop))
    if limits.row_costs is not None:
        cost -= sum(limits.row_costs(request.payload, start, stop))
    return size, cost


def part_size(part: Part, limits: Limits) -> int:
    """Bytes of rows that travel; a share of their request's where its payload is gone."""
    request, start, stop = part
    rows = stop - start
    if rows == request.rows or not request.size or request.payload is None:
        return request.size * rows // request.rows
    return sum(limits.row_sizes(request.payload, start, stop))


def pieces(parts: Iterable[Part], most: int, most_bytes: float, limits: Limits) -> list[list[Part]]:
    """Parts that have left, in groups of at most `most` rows and `most_bytes`, in order.

    They are cut only where one has more than that.
    """
    groups: list[list[Part]] = []
    room, room_bytes = 0, most_bytes
    for part in parts:
        request, start, stop = part
        size = 0 if most_bytes == math.inf else part_size(part, limits)
        at_most = most if size <= most_bytes else max(1, min(most, int((stop - start) * most_bytes / size)))
        is_large = stop - start > at_most
        if is_large and stop - start == request.rows:
            request.cut()
        while start < stop:
            has_room = stop - start <= room and size <= room_bytes
            if not room or (not has_room and (size or not is_large)):
                groups.append([])
                room, room_bytes = at_most if is_large else most, most_bytes
            end = min(stop, start + room)
            groups[-1].append(Part(request, start, end))
            room -= end - start
            start = end
        room_bytes -= size
    return groups


def _travels_whole(request: Request, limits: Limits, most: int, most_bytes: float) -> bool:
    return not request.rows_taken and (
        request.rows <= most and request.size_queued <= most_bytes and request.cost_queued <= limits.max_batch_cost
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


def _count(weights: Sequence[float], room: float) -> int:
    """How many weights, from the first on, fit the room together."""
    for count, weight in enumerate(weights):
        room -= weight
        if room < 0:
            return count
    return len(weights)


# --- allowed sizes ----------------------------------------------------------------------------------------------


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes like `1,2,4,8`; empty means any size.

    Raises `ValueError` that says what is allowed.
    """
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    found = tuple(int(item) for item in items if item.isascii() and item.isdigit() and len(item) <= 9)
    if len(found) != len(items) or any(small >= large for small, large in zip((0, *found), found, strict=False)):
        raise ValueError(f"{text!r} is not a list of ascending whole numbers from 1, like 1,2,4,8")
    return found


def padded(n: int, allowed: Sequence[int]) -> int:
    """The smallest allowed size that holds `n` instances; `n` itself if there is none."""
    at = bisect_left(allowed, n)
    return allowed[at] if at < len(allowed) else n


def usable(n: int, allowed: Sequence[int]) -> int:
    """The largest allowed size that `n` waiting instances fill; `n` itself if there is none."""
    at = bisect_right(allowed, n)
    return allowed[at - 1] if at else n


def best_size(n: int, allowed: Sequence[int], cost: Callable[[int], float] | None = None) -> int:
    """How many of `n` waiting instances to send now: all of them, or as many as fill an allowed size.

    The size that costs less per instance wins, all of them in a tie. `cost(b)` is the price of a batch padded to the
    allowed size `b`, in any unit; without one it is `b`. More than the largest allowed size is never sent.
    """
    down = usable(n, allowed)
    if down == n or n > allowed[-1]:
        return down
    up = padded(n, allowed)
    price_up, price_down = (up, down) if cost is None else (cost(up), cost(down))
    return n if price_up * down <= price_down * n else down
