"""The size from which on larger batches do not pay: where a predictor is measured to do most rows a second.

Time grows faster than the batch where memory, caches or a stage are at their limit, so the largest batch that is
allowed may not be the one that serves most. Single batches do not tell, as those that follow each other overlap. So
now and then, while all batches are full, a few in a row are made smaller, or larger again, and the pace is compared.
"""

from __future__ import annotations

from typing import Final

from carpool.scheduling import tuning
from carpool.scheduling.predictor_model import PredictorModel

# Shares of the largest batch, each three quarters of the one before.
_SIZES: Final[tuple[float, ...]] = (1.0, 0.75, 0.5625, 0.421875)


class FullSize:
    """A hill climb over a few sizes, with hysteresis: a smaller one has to be clearly quicker."""

    # State: places in _SIZES of the size that is settled on, and of the one that is used, which is another in a trial;
    # seconds and rows of each size in batches that came back right after one of that size; how many batches of the
    # trial that were; after how many full batches a trial begins, and how many are left until it does, or ends.
    def __init__(self) -> None:
        self._settled = self._used = 0
        self._seconds = [0.0] * len(_SIZES)
        self._rows = [0.0] * len(_SIZES)
        self._samples = 0
        self._every = self._left = tuning.TRIAL_FIRST
        self._last = -1  # place of the size of the batch that came back last, -1 for none

    @property
    def is_smaller(self) -> bool:
        """Whether the next full batch is smaller than the largest that is allowed."""
        return self._used > 0

    def of(self, most: float) -> float:
        """How many rows the next full batch has, where `most` are allowed."""
        return most * _SIZES[self._used]

    def settled(self, most: float) -> float:
        """How many rows are best for all that is known."""
        return most * _SIZES[self._settled]

    def sent(self, most: float, predictor: PredictorModel) -> None:
        """A full batch left."""
        self._left -= 1
        if self._left > 0:
            return
        tried = self._next()
        if self._used != self._settled or self._is_hopeless(most * _SIZES[tried], self.settled(most), predictor):
            self._end(self._settled)
            return
        self._used, self._left = tried, tuning.TRIAL
        self._seconds[tried] = self._rows[tried] = 0.0
        self._samples = 0

    def completed(self, rows: int, most: float, seconds: float) -> None:
        """A batch came back `seconds` after the one before it, which was still out as this one left."""
        place = _place(rows, most)
        if place == self._last >= 0:
            self._seconds[place] = self._seconds[place] * tuning.TRIAL_KEPT + seconds
            self._rows[place] = self._rows[place] * tuning.TRIAL_KEPT + rows
            if place == self._used != self._settled:
                self._samples += 1
                if self._samples >= tuning.TRIAL_SAMPLES:
                    self._judge()
        self._last = place

    def interrupted(self) -> None:
        """A batch came back, but not right after the one before it."""
        self._last = -1

    def _next(self) -> int:
        """What to try: first what is smaller than a size that was just found, then what is larger."""
        is_new = self._every == tuning.TRIAL_FIRST
        is_smaller = not self._settled or (is_new and self._settled + 1 < len(_SIZES))
        return self._settled + (1 if is_smaller else -1)

    def _judge(self) -> None:
        used, settled = self._used, self._settled
        needed = tuning.TRIAL_GAIN if used > settled else 1.0
        is_better = self._rows[used] * self._seconds[settled] > needed * self._rows[settled] * self._seconds[used]
        self._end(used if is_better else settled)

    def _end(self, place: int) -> None:
        """No trial any more."""
        is_new = place != self._settled
        self._every = tuning.TRIAL_FIRST if is_new else min(tuning.TRIAL_SELDOM, self._every * 2)
        self._settled = self._used = place
        self._left = self._every

    def _is_hopeless(self, size: float, settled: float, predictor: PredictorModel) -> bool:
        """Whether so many rows cost far more each, by all that is known."""
        loss = tuning.TRIAL_HOPELESS * size * predictor.work(settled)
        return predictor.is_varied and predictor.work(size) * settled > loss


def _place(rows: int, most: float) -> int:
    """Of the size that a batch has, or nearly has."""
    for place, share in enumerate(_SIZES):
        if tuning.FULL <= rows / (share * most) <= 1:
            return place
    return -1
