"""Which of the first requests of a queue travel together, where a batch takes as long as its rows times the longest.

A model that pads its rows computes on padding: a short row beside a long one costs as much as that. So rows of like
length share a batch. A small batch costs a call of its own, and so the price of a call, beside that of what is computed
in it, decides how much padding is worth it; both are learned.

The request that goes first always travels, and is overtaken only by those that came less than the ageing bound after
the one that has waited longest: nobody waits for ever.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Final

from carpool.scheduling import packing, tuning
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Batch, Request
from carpool.scheduling.predictor_model import LatencyModel
from carpool.scheduling.queues import Queue

# A row that costs as much as those before is one that makes them no dearer, whatever becomes of the last digits.
_ROUNDING: Final = 1 + 1e-12


class Groups:
    """Picks who travels, and learns what a call costs beside what is computed in it."""

    # State: seconds of a batch by rows times the longest, and whether they ever told a call from padding; when the last
    # one came back; how long the longest row of a batch mostly is.
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seconds = LatencyModel()
        self._is_known = False
        self._back_at = float("-inf")
        self._usual = 0.0

    def pick(self, queue: Queue, most: int) -> Sequence[Request] | None:
        """Who of a queue shares the next batch, of at most so many rows, the first one first; None: all in turn."""
        first = queue.first
        if first.rows_taken or first.rows > most or first.rows == queue.rows:
            return None
        waiting = self._candidates(queue, first, most)
        waiting.sort(key=_by_length)
        place = next(place for place, request in enumerate(waiting) if request is first)
        start, stop = self._cheapest(waiting, place, most)
        chosen = [first, *[request for request in waiting[start:stop] if request is not first]]
        if stop - start == len(waiting):
            self._fill(chosen, queue, waiting[-1].length, most)
        return chosen

    def weigh(self, batch: Batch) -> int:
        """As how many rows of the usual length the batch counts."""
        longest = _longest(batch)
        weight = batch.rows * longest / self._usual if self._usual and longest else float(batch.rows)
        self._usual += (tuning.EWMA if self._usual else 1.0) * (longest - self._usual)
        return max(1, round(weight))

    def completed(self, batch: Batch, now: float) -> None:
        """A batch was answered: it took the time since the one before, or since it left."""
        self._seconds.observe(self._padded(batch.rows) * _longest(batch), now - max(batch.dispatched, self._back_at))
        self._back_at = now
        self._is_known = self._is_known or (self._seconds.is_trusted and self._seconds.is_varied)

    def _candidates(self, queue: Queue, first: Request, most: int) -> list[Request]:
        """The first ones, as long as they may overtake each other."""
        until = queue.oldest.arrived + self._limits.priority_ageing
        found: list[Request] = []
        rows = 0
        for request in queue:
            if rows > tuning.LOOK_AHEAD * most or len(found) >= tuning.MOST_LOOKED_AT:
                break
            if request.priority != first.priority:
                break
            if request.rows_taken or request.rows > most:
                break
            if request is first or request.arrived < until:
                found.append(request)
                rows += request.rows
        return found

    def _cheapest(self, waiting: Sequence[Request], place: int, most: int) -> tuple[int, int]:
        """Of all stretches with the request at this place: where one begins and ends that costs least for each row.

        Of ends and beginnings that are far away only some are tried: those between cost nearly the same.
        """
        price = self._price
        rows, own = [0], [0]  # of all before a place
        for request in waiting:
            rows.append(rows[-1] + request.rows)
            own.append(own[-1] + request.rows * request.length)
        last = bisect.bisect_right(rows, rows[place] + most) - 1
        first = bisect.bisect_left(rows, rows[place + 1] - most)
        starts = _near(place, first)
        best, found = float("inf"), (place, place + 1)
        for stop in _near(place + 1, last):
            longest = waiting[stop - 1].length
            for start in starts:
                count = rows[stop] - rows[start]
                if count > most:
                    break
                cost = self._per_row(price, count, longest, own[stop] - own[start])
                if cost <= best:
                    best, found = cost, (start, stop)
        return found

    def _fill(self, chosen: list[Request], queue: Queue, longest: int, most: int) -> None:
        """Add those that follow in turn, whom nobody may overtake, as long as that makes rows cheaper."""
        price = self._price
        are_in = set(chosen)
        rows = sum([request.rows for request in chosen])
        own = sum([request.rows * request.length for request in chosen])
        cost = self._per_row(price, rows, longest, own)
        for request in queue:
            if request in are_in:
                continue
            rows += request.rows
            own += request.rows * request.length
            with_it = self._per_row(price, rows, longest, own)
            if request.length > longest or rows > most or with_it > cost * _ROUNDING:
                return
            chosen.append(request)
            cost = with_it

    def _per_row(self, price: tuple[float, float], rows: int, longest: int, own: int) -> float:
        """A row's share of the call and of all padding; what is computed for it otherwise is the same in any batch."""
        call, padding = price
        return (call + padding * (self._padded(rows) * longest - own)) / rows

    def _padded(self, rows: int) -> int:
        """As how many rows so many are computed."""
        return packing.padded(rows, self._limits.allowed_sizes)

    @property
    def _price(self) -> tuple[float, float]:
        """Of a call, and of one unit of padding.

        As long as all batches were too much alike to tell them apart, a call is taken to cost as much as a row of the
        usual length: then they differ, and tell.
        """
        model = self._seconds
        return (model.fixed, model.slope) if self._is_known else (max(1.0, self._usual), 1.0)


def _by_length(request: Request) -> int:
    return request.length


def _near(place: int, last: int) -> list[int]:
    """Places from one to another, both of them: each of the nearest, and fewer and fewer with the distance."""
    step, found = 1 if last > place else -1, [place]
    distance, most = 1, abs(last - place)
    while distance < most:
        found.append(place + step * distance)
        distance += max(1, distance // tuning.TRIED_NEARBY)
    if most:
        found.append(last)
    return found


def _longest(batch: Batch) -> int:
    return max([part.request.length for part in batch.parts])
