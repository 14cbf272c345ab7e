"""How far apart batches leave while others are out: found by measuring what callers get.

What two batches at the predictor take from each other cannot be told from their times: stages that share an
interpreter, memory or a network slow each other down by as much as they happen to meet. Batches that leave close
together meet for longest, and come back together, so that the next ones leave together as well. So a few distances are
tried in turns, beside the present one, and the one under which callers are answered sooner is kept.
"""

from __future__ import annotations

import math
from typing import Final

from carpool.scheduling import tuning
from carpool.scheduling.messages import Batch, Reason

# Shares of the time that the batch before takes alone. Narrower ones are about as good as none, and wider ones keep the
# predictor waiting.
_SHARES: Final[list[float]] = [0.0, 0.4, 0.55, 0.7]


class _Answered:
    """Requests, and the seconds that passed from their arrival to their answer."""

    def __init__(self) -> None:
        self.requests = 0
        self.seconds = 0.0
        self._batches = 0
        self._means = self._squares = 0.0  # sums of the batches' means, and of the squares of these

    def add(self, batch: Batch, now: float) -> None:
        """A batch came back."""
        seconds = 0.0
        for part in batch.parts:
            seconds += now - part.request.arrived
        self.requests += len(batch.parts)
        self.seconds += seconds
        mean = seconds / len(batch.parts)
        self._batches += 1
        self._means += mean
        self._squares += mean * mean

    def is_below(self, factor: float, other: _Answered) -> bool:
        """Whether the mean is less than so many times the other's."""
        return self.seconds * other.requests < factor * other.seconds * self.requests

    def is_clearly_below(self, other: _Answered) -> bool:
        """Whether the mean is less than the other's by more than batches that vary by themselves let expect."""
        difference = other.seconds / other.requests - self.seconds / self.requests
        return difference > tuning.Z * math.sqrt(self._error() + other._error())

    def _error(self) -> float:
        """The square of the mean's standard error."""
        count = self._batches
        return max(0.0, self._squares - self._means * self._means / count) / (count * max(1, count - 1))


class Spacing:
    """A hill climb over a few distances, with hysteresis: another one has to be clearly better.

    A trial compares one of them with the present one, in turns, so that both see the same load. It begins after so many
    batches that left beside others and were not full, for only those can be held back. No distance is tried that is
    wider than batches are apart anyway: the predictor would wait for them.
    """

    # State: places in _SHARES of the distance that is settled on and of the one that was tried last; what callers got
    # with either in the trial, and which of the two is in use; how many turns of it are left, none while there is no
    # trial; after how many batches the turn ends, or the next trial begins, and how many of the turn do not count yet;
    # how far apart trials are. Running means: requests in a batch, with their variance and as the last trial ended, and
    # how far apart batches left beside others, as a share of the time of the one before, which left at a moment and
    # takes so long.
    def __init__(self) -> None:
        self.next_at = -math.inf
        """When the next batch may leave beside others, if it is not full."""
        self._settled = self._tried = 0
        self._of_settled, self._of_tried = _Answered(), _Answered()
        self._is_trying = False
        self._turns = 0
        self._every = self._left = tuning.SPACING_FIRST
        self._skipped = 0
        self._size = self._variance = self._usual_size = 0.0
        self._apart = 0.0
        self._sent_at = self._alone = 0.0

    @property
    def share(self) -> float:
        """The distance that is best for all that is known: of the time that the batch before takes alone."""
        return _SHARES[self._settled]

    def sent(self, batch: Batch, now: float, alone: float, beside: int) -> None:
        """A batch left beside so many others. It takes `alone` seconds by itself, as far as is known."""
        if beside and self._alone and not self._is_trying:
            self._apart += tuning.SPACING_APART_WEIGHT * ((now - self._sent_at) / self._alone - self._apart)
        self._sent_at, self._alone = now, alone
        if beside and batch.reason is not Reason.FULL and not self._turns:
            self._left -= 1
            if not self._left:
                self._begin(beside)
        self.next_at = now + _SHARES[self._tried if self._is_trying else self._settled] * alone

    def completed(self, batch: Batch, now: float, out: int) -> None:
        """A batch came back, and so many others are still out."""
        deviation = len(batch.parts) - self._size
        self._size += tuning.SPACING_SIZE_WEIGHT * deviation
        self._variance += tuning.SPACING_SIZE_WEIGHT * (deviation * deviation - self._variance)
        if not self._turns:
            self._watch_for_change()
        elif self._skipped:
            self._skipped -= 1
        else:
            (self._of_tried if self._is_trying else self._of_settled).add(batch, now)
            self._left -= 1
            if not self._left:
                self._end_turn(out)

    def failed(self) -> None:
        """A batch failed. What callers get while batches do tells nothing about distances, so no trial goes on."""
        if self._turns:
            self._end_trial()
            self.next_at = min(self.next_at, self._sent_at + self.share * self._alone)

    def _begin(self, out: int) -> None:
        self._left = self._every
        for further in range(1, len(_SHARES) + 1):
            place = (self._tried + further) % len(_SHARES)
            if place != self._settled and _SHARES[place] <= tuning.SPACING_WIDEST * self._apart:
                self._tried = place
                self._of_settled, self._of_tried = _Answered(), _Answered()
                self._turns = tuning.SPACING_TURNS
                self._take_turn(True, out)
                return

    def _take_turn(self, is_trying: bool, out: int) -> None:
        self._is_trying = is_trying
        # Those that are out left at the other distance, and the first ones after them still feel it.
        self._left, self._skipped = tuning.SPACING_TURN, out + 2

    def _end_turn(self, out: int) -> None:
        self._turns -= 1
        is_ahead = not self._of_settled.requests or self._of_tried.is_below(1.0, self._of_settled)
        if self._turns and is_ahead:
            self._take_turn(not self._is_trying, out)
            return
        is_better = not self._turns and self._of_tried.is_below(tuning.SPACING_GAIN, self._of_settled)
        if is_better and self._of_tried.is_clearly_below(self._of_settled):
            self._settled = self._tried
            self._every = tuning.SPACING_FIRST
        else:
            self._every = min(tuning.SPACING_SELDOM, self._every * 2)
        self._end_trial()

    def _end_trial(self) -> None:
        self._turns, self._left = 0, self._every
        self._is_trying = False
        self._usual_size = self._size

    def _watch_for_change(self) -> None:
        """Batches of another size than at the last trial are another load, for which something else may be best.

        Both means wander by chance, those of small batches by more than the factor: a change has to be clear of that.
        """
        usual, change = self._usual_size, tuning.SPACING_CHANGE
        chance = tuning.SPACING_CLEAR * math.sqrt(tuning.SPACING_SIZE_WEIGHT * self._variance)
        if usual and abs(self._size - usual) > chance and not usual / change < self._size < usual * change:
            self._usual_size = self._size
            self._every = tuning.SPACING_FIRST
            self._left = min(self._left, self._every)
