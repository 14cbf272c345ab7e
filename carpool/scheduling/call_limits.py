"""A limit on what one call may carry, in rows or in bytes, as what was refused and what was answered tell it.

It is raised again: now and then one larger batch is tried, half-way to what was refused, then that, then twice as much.
A trial has three states, and what is learned meanwhile begins it anew:

    state     until                                              then
    RESTING   its time has come                                  DUE
    DUE       a batch leaves that is large enough                OUT
    OUT       that is answered, which begins it anew, or fails   RESTING, for twice as long
"""

from __future__ import annotations

import enum
import math

from carpool.scheduling.messages import Batch

# Seconds from a refusal, or from a larger batch that was answered, to the next larger one; after a limit that the
# predictor said as a number; and at most.
_FIRST_PAUSE = 5.0
TOLD_PAUSE = 60.0
_LONGEST_PAUSE = 600.0

# So many refusals in a row, of batches no larger than some that were answered, mean that the predictor takes less now.
_ENOUGH_DOUBTS = 3


class State(enum.Enum):
    """Of a trial, as told above."""

    RESTING = enum.auto()
    DUE = enum.auto()
    OUT = enum.auto()


class Trial:
    """When what was refused is tried again, by one `batch` at a time; it rests until `at`."""

    __slots__ = ("at", "batch", "pause", "state")

    def __init__(self) -> None:
        self.state = State.RESTING
        self.pause = _FIRST_PAUSE
        self.at = math.inf
        self.batch: Batch | None = None

    @property
    def is_due(self) -> bool:
        """Whether the next batch may be larger than the limit."""
        return self.state is State.DUE

    def begin(self, now: float, pause: float = _FIRST_PAUSE) -> None:
        """Something else is known, since now."""
        self.state, self.batch = State.RESTING, None
        self.pause, self.at = pause, now + pause

    def left(self, batch: Batch, is_one: bool, now: float) -> None:
        """A regular batch left, which is one if it was due."""
        if self.state is State.RESTING and now >= self.at:
            self.state = State.DUE
        elif self.state is State.DUE and is_one:
            self.state, self.batch = State.OUT, batch

    def failed(self, batch: Batch, now: float) -> bool:
        """A batch was refused, or failed. Returns whether it was the one that was tried."""
        if self.state is not State.OUT or self.batch is not batch:
            return False
        self.begin(now, min(_LONGEST_PAUSE, self.pause * 2))
        return True


class Limit:
    """On rows, or on bytes: `size` may be sent. `answered` is the most that was answered.

    `refused` is the least that is known to be too much. `doubts` counts refusals in a row that `answered` speaks
    against, of `doubted` and more.
    """

    __slots__ = ("answered", "doubted", "doubts", "refused", "size", "trial")

    def __init__(self) -> None:
        self.size = self.refused = self.doubted = math.inf
        self.answered = self.doubts = 0
        self.trial = Trial()

    def lower(self, size: int, refused: float, now: float) -> None:
        self.size, self.refused = float(size), float(refused)
        self.answered = min(self.answered, size)
        self.doubts, self.doubted = 0, math.inf
        self.trial.begin(now)

    def note(self, refused: int, answered: int) -> None:
        """So much was refused and, in parts of at most so much, answered."""
        self.refused = min(self.refused, refused)
        self.answered = max(self.answered, answered)

    def doubt(self, weight: int) -> bool:
        """So much was refused, although as much was answered before. Whether that has happened often enough."""
        self.doubts += 1
        self.doubted = min(self.doubted, weight)
        return self.doubts >= _ENOUGH_DOUBTS

    def took(self, batch: Batch, weight: int, now: float) -> None:
        """So much was answered."""
        self.answered = max(self.answered, weight)
        if weight >= self.doubted:
            self.doubts, self.doubted = 0, math.inf
        if self.trial.batch is batch:
            self.trial.begin(now)
        if weight > self.size:
            self.size = float(weight)
            if self.trial.is_due:
                self.trial.state = State.RESTING
        if weight >= self.refused:
            self.refused = math.inf

    def too_much(self, batch: Batch, weight: int, now: float) -> None:
        """So much was refused, if it was tried."""
        if self.trial.failed(batch, now):
            self.refused = min(self.refused, weight)

    @property
    def larger(self) -> float:
        """What is tried next."""
        return self.size * 2 if self.refused == math.inf else max(self.size + 1, (self.size + self.refused) // 2)


class RowLimit(Limit):
    """The limit on rows, which words tell of: `told` is the number that the predictor said last.

    `since` is the most that was answered since a batch was last refused that was no retry, when `size` was `before`;
    `alone` is the smallest lone request that was refused since then.
    """

    __slots__ = ("alone", "before", "since", "told")

    def __init__(self) -> None:
        super().__init__()
        self.before = self.alone = math.inf
        self.since = 0
        self.told: int | None = None

    def lower(self, size: int, refused: float, now: float) -> None:
        super().lower(size, refused, now)
        self.told = None

    def took(self, batch: Batch, weight: int, now: float) -> None:
        self.since = max(self.since, weight)
        super().took(batch, weight, now)
        self.restore()

    def restore(self) -> None:
        """Undo what was learned from a batch if a request was refused alone while as much of the others was answered.

        To be called when either happened.
        """
        if self.told is None and self.since >= self.alone and self.before > self.size:
            self.size = self.before
            self.refused = math.inf
