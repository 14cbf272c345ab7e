"""Callers as the adaptive policy sees them: how many arrive, and whether those who were just answered come back.

Callers of a closed loop (hey, wrk, a pool of workers) send again at once. Sending as soon as the predictor is idle
splits a few such callers into two groups that take turns, each in half a batch. Waiting a moment for those who were
just answered keeps them together; `ReturningCallers` tells how many to expect.
"""

from __future__ import annotations

import math

from carpool.scheduling import tuning
from carpool.scheduling.messages import Batch

# What comes within so many seconds counts as one event: it makes the rate too low by a ten-thousandth at most.
_GRAIN = tuning.RATE_SECONDS / 10_000


class ArrivalRate:
    """An exponentially decaying count: what came `tuning.RATE_SECONDS` ago counts a third."""

    def __init__(self) -> None:
        self._count = 0.0
        self._at = float("-inf")

    def add(self, count: int, now: float) -> None:
        """So many came."""
        if now - self._at > _GRAIN:
            self._count = self._faded(now)
            self._at = now
        self._count += count

    def per_second(self, now: float) -> float:
        """The rate now."""
        return self._faded(now) / tuning.RATE_SECONDS

    def _faded(self, now: float) -> float:
        return self._count * math.exp(min(0.0, self._at - now) / tuning.RATE_SECONDS)


class LevelsInUse:
    """Of which levels of priority requests left lately, and the `highest` of them."""

    def __init__(self) -> None:
        self.highest = 0
        self._lowest = 0
        self._high_at = self._low_at = float("-inf")

    def is_mixed(self, now: float) -> bool:
        """Whether requests of several levels left within the last `tuning.LEVEL_SECONDS`."""
        return self.highest > self._lowest and now - min(self._high_at, self._low_at) < tuning.LEVEL_SECONDS

    def sent(self, batch: Batch, now: float) -> None:
        """A batch left, whose members go by their levels."""
        high, low = batch.parts[0].request.priority, batch.parts[-1].request.priority
        if high >= self.highest or now - self._high_at >= tuning.LEVEL_SECONDS:
            self.highest, self._high_at = high, now
        if low <= self._lowest or now - self._low_at >= tuning.LEVEL_SECONDS:
            self._lowest, self._low_at = low, now


class ReturningCallers:
    """`fraction` of a batch's callers that send again within the span, and `offset`, seconds until the last did.

    Where batches take little longer than the shortest span that can be told, many come within it who would have come
    anyway, and those do not count. Chance may take `fraction` a little below zero then.
    """

    # State: the running means, and what happened since the last completion; what came within the span is apart.
    def __init__(self) -> None:
        self.fraction = 0.0
        self.offset = tuning.RETURN_SPAN
        self._cycle = 0.0  # seconds from one completion to the next
        self._is_short = False  # whether the span is a large part of that
        self._span = tuning.RETURN_SPAN
        self._completed_at = float("-inf")
        self._batch_size = 0
        self._back = 0
        self._back_in_span = 0
        self._last_in_span = 0.0
        self._has_missed = False
        self._last_at = float("-inf")  # when something last came or was answered

    def arrived(self, rows: int, now: float) -> None:
        """Instances arrived: a return, as far as anybody can tell. Only soon after a completion it teaches."""
        since = now - self._completed_at
        self._back += rows
        self._last_at = now
        if since <= self._span:
            self._back_in_span = self._back
            self._last_in_span = since

    def completed(self, batch_size: int, now: float, span: float) -> None:
        """A batch was answered; returns are looked for within `span` seconds from now."""
        since = now - self._completed_at
        if self._batch_size:
            self._cycle += tuning.EWMA * (since - self._cycle)
            if since >= self._span / 2:
                self._learn(since)
        self._batch_size, self._back, self._back_in_span, self._last_in_span = batch_size, 0, 0, 0.0
        self._completed_at = self._last_at = now
        self._is_short = span < tuning.RETURN_SPAN
        half = self._cycle / 2 if self._cycle else tuning.RETURN_SPAN  # nothing is known of the first cycle
        if self._is_short:
            span = min(tuning.RETURN_SPAN, half if half > span else span)
        self._span = span

    def _learn(self, since: float) -> None:
        is_first_miss = not self._back_in_span and not self._has_missed
        self._has_missed = not self._back_in_span
        if is_first_miss and self.are_sure:
            return  # all of them are late at once: something held them up
        came = float(self._back_in_span)
        if self._is_short:
            by_chance = self._span / since if since > 2 * self._span else 0.5
            came = (came - by_chance * self._back) / (1 - by_chance)
        self.fraction += tuning.EWMA * (min(1.0, came / self._batch_size) - self.fraction)
        if self._back_in_span:
            self.offset += tuning.EWMA * (self._last_in_span - self.offset)

    @property
    def are_sure(self) -> bool:
        """Whether nearly all who are answered come back: who is late then is held up somewhere, and not gone."""
        return self.fraction >= tuning.SURE_RETURN

    def expected(self) -> float:
        """Instances of the last batch that are still expected back."""
        return self.fraction * self._batch_size - self._back

    def until_back(self, now: float, shortest: float, longest: float) -> float:
        """Seconds until they should be back; negative if they are late.

        That is `shortest` to `longest` seconds after the completion.
        """
        return min(max(tuning.HOLD_STRETCH * self.offset, shortest), longest) - (now - self._completed_at)

    def quiet(self, now: float) -> float:
        """Seconds since the last of them came back; since they were answered, if none has."""
        return now - self._last_at
