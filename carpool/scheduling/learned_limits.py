"""How many rows the predictor takes in one call of a key, as its refusals tell.

A predictor refuses a batch that is too large for it: by a number that it says or keeps to itself, by the bytes of the
body, or because its memory is full. The largest batch of that key is halved then, or becomes what was said. What the
predictor refuses today it may take tomorrow, so now and then one batch is sent that is larger: half-way to what was
refused, then that, then twice as much. After each that is refused the pause before the next one doubles.

Not every refusal is about the number of rows: one row may be a giant. So a batch no larger than one that was answered
lowers nothing, unless that happens again and again; and once a request was refused alone while as much was answered of
the others, the limit is again what it was before. So it is once words with a number were said of one row alone:
they quote what its caller sent.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

from carpool.scheduling import packing
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import RETRIES, Batch, Reason, batch_key

# Seconds from a refusal, or from a larger batch that was answered, to the next larger one; after a limit that the
# predictor said as a number; and at most.
_FIRST_PAUSE = 5.0
_TOLD_PAUSE = 60.0
_LONGEST_PAUSE = 600.0

# So many refusals in a row, of batches no larger than some that were answered, mean that the predictor takes less now.
_ENOUGH_DOUBTS = 3

# Callers choose the keys. A key that is not used for so long is forgotten.
_MOST_KEYS = 1000
_MEMORY_SECONDS = 3600.0


class _Learned:
    """Of one key, in rows: `size` may be sent, of `most` that the caller of the core allows.

    `answered` is the largest batch that was answered, and `since` that since a batch was last refused that was no
    retry, when `size` was `before`; `alone` is the smallest lone request that was refused since then. `refused` is the
    smallest batch that is known to be too large. A batch of more than `size` may leave at `probe_at`, or as soon as
    there is one if `is_raised`; `probe` is the one that is out. `doubts` counts refusals in a row that `answered`
    speaks against. `told` is the number that the predictor said last.
    """

    __slots__ = (
        "alone", "answered", "before", "doubts", "is_raised", "most", "pause", "probe", "probe_at", "refused", "since",
        "size", "told", "used_at",
    )  # fmt: skip

    def __init__(self, most: float) -> None:
        self.size = self.before = self.refused = self.alone = math.inf
        self.most = most
        self.answered = self.since = self.doubts = 0
        self.pause = _FIRST_PAUSE
        self.probe_at = math.inf
        self.is_raised = False
        self.probe: Batch | None = None
        self.told: int | None = None
        self.used_at = -math.inf


class LearnedLimits:
    """What was learned, by key. Times are seconds on the scheduler's clock.

    Sizes are in rows as the predictor counts them: padded, where it has `allowed_sizes`.
    """

    # Mutable state: `now` and _keys, both by the hash of a key, as keys may be large. Equal hashes of different keys
    # do no harm: a limit that is too low is raised again.
    def __init__(self, limits: Limits) -> None:
        self.now: dict[int, float] = {}
        """The most rows of the next batch, by the hash of its key. Empty while nothing was refused for its size."""
        self._limits = limits
        self._keys: OrderedDict[int, _Learned] = OrderedDict()

    def most(self, key: Hashable) -> float:
        """Rows that the next batch of a key may have; infinity if nothing was learned of it."""
        return self.now.get(hash(batch_key(key)), math.inf)

    def smallest(self, now: float) -> float:
        """The smallest limit of any key that is in use; 0 if there is none."""
        used = [learned.size for learned in list(self._keys.values()) if now - learned.used_at < _MEMORY_SECONDS]
        return min(used, default=0)

    def refused(self, batch: Batch, told: int | None, is_whole: bool, now: float) -> int | None:
        """A batch was refused for its size. Returns how many rows to send at once instead, or None if not to.

        `told` is how many rows the predictor says it takes, if it does. `is_whole` says that the batch was one request
        as its caller sent it: that is sent in smaller pieces only if it was known to be too large before.
        """
        place = hash(batch_key(batch.key))
        learned = self._keys.get(place) or _Learned(batch.parts[0].request.max_batch_size)
        rows = self._padded(batch.rows)
        is_over = rows > learned.size
        if learned.probe is batch:
            learned.probe = None
            learned.refused = min(learned.refused, rows)
            self._postpone(learned, now)
        if told is not None and 0 < told < batch.rows:
            size = self._usable(told)
            if learned.size != size:
                learned.before = learned.size if learned.told is None else learned.before
                self._lower(learned, size, told + 1, now)
                learned.told, learned.since, learned.alone = told, 0, math.inf
                learned.pause = _TOLD_PAUSE
                learned.probe_at = now + _TOLD_PAUSE
        elif is_whole or batch.rows == 1:
            if told is not None and told == learned.told and batch.rows == 1:
                learned.size, learned.refused, learned.told = learned.before, math.inf, None
            elif batch.reason is Reason.SMALLER:
                learned.alone = min(learned.alone, rows)
                self._restore(learned)
        elif not is_over:
            self._learn(learned, batch, rows, now)
        self._keep(place, learned, now)
        if batch.rows == 1 or (is_whole and not is_over):
            return None
        return int(learned.size) if learned.size < batch.rows else (batch.rows + 1) // 2

    def answered(self, batch: Batch, now: float) -> bool:
        """A batch came back with predictions. Returns whether its key's limit is another one."""
        place = hash(batch_key(batch.key))
        learned = self._keys.get(place)
        if learned is None:
            return False
        rows = self._padded(batch.rows)
        learned.since = max(learned.since, rows)
        if rows >= learned.answered:
            learned.answered, learned.doubts = rows, 0
        if learned.probe is batch:
            learned.probe = None
            learned.pause = _FIRST_PAUSE
            learned.probe_at = now + _FIRST_PAUSE
        if rows > learned.size:
            learned.size = float(rows)
            learned.is_raised = False
            if rows >= learned.refused:
                learned.refused = math.inf
        self._restore(learned)
        return self._keep(place, learned, now)

    def failed(self, batch: Batch, now: float) -> None:
        """A batch failed for another reason. One that was larger than others may have been the end of the predictor."""
        learned = self._keys.get(hash(batch_key(batch.key)))
        if learned is not None and learned.probe is batch:
            learned.probe = None
            self._postpone(learned, now)

    def left(self, batch: Batch, now: float) -> bool:
        """A batch left. Returns whether its key's limit is another one: there is to be a larger batch, or no more."""
        place = hash(batch_key(batch.key))
        learned = self._keys.get(place)
        if learned is None:
            return False
        if batch.reason not in RETRIES and learned.probe is None:
            if not learned.is_raised:
                learned.is_raised = now >= learned.probe_at
            elif self._padded(batch.rows) > learned.size:
                learned.probe = batch
                learned.is_raised = False
        return self._keep(place, learned, now)

    # --- internals ---------------------------------------------------------------------------------------------

    def _learn(self, learned: _Learned, batch: Batch, rows: int, now: float) -> None:
        """A batch that was not known to be too large is."""
        is_retry = batch.reason is Reason.SMALLER
        if not is_retry:
            learned.before, learned.since, learned.alone = learned.size, 0, math.inf
        if rows <= learned.answered:
            learned.doubts += not is_retry
            if is_retry or learned.doubts < _ENOUGH_DOUBTS:
                return
            learned.answered = 0
        lower = self._usable(max(1, (rows + 1) // 2))
        self._lower(learned, max(lower, learned.answered), rows, now)

    def _lower(self, learned: _Learned, size: int, refused: int, now: float) -> None:
        learned.size, learned.refused, learned.told = float(size), float(refused), None
        learned.answered = min(learned.answered, size)
        learned.doubts = 0
        learned.probe, learned.is_raised = None, False
        learned.pause = _FIRST_PAUSE
        learned.probe_at = now + _FIRST_PAUSE

    def _restore(self, learned: _Learned) -> None:
        """Undo what was learned from a batch if a request was refused alone while as much of the others was answered.

        To be called when either happened.
        """
        if learned.told is None and learned.since >= learned.alone and learned.before > learned.size:
            learned.size = learned.before
            learned.refused = math.inf

    def _postpone(self, learned: _Learned, now: float) -> None:
        learned.pause = min(_LONGEST_PAUSE, learned.pause * 2)
        learned.probe_at = now + learned.pause

    def _raised(self, learned: _Learned) -> float:
        """The size of the next larger batch."""
        size, refused = learned.size, learned.refused
        larger = size * 2 if refused == math.inf else max(size + 1, (size + refused) // 2)
        allowed = self._limits.allowed_sizes
        if not allowed:
            return larger
        return max([each for each in allowed if each <= larger and each > size] or [self._padded(int(size) + 1)])

    def _keep(self, place: int, learned: _Learned, now: float) -> bool:
        """Note what is known of a key, if that is worth anything. Returns whether its limit is another one."""
        before = self.now.pop(place, math.inf)
        self._keys.pop(place, None)
        if learned.size >= min(learned.most, self._limits.max_batch_size):
            return before != math.inf
        learned.used_at = now
        self._keys[place] = learned
        self.now[place] = self._raised(learned) if learned.is_raised else learned.size
        self._forget_old(now)
        return self.now[place] != before

    def _forget_old(self, now: float) -> None:
        while self._keys:
            place, oldest = next(iter(self._keys.items()))
            if len(self._keys) <= _MOST_KEYS and now - oldest.used_at < _MEMORY_SECONDS:
                return
            del self._keys[place], self.now[place]

    def _padded(self, rows: int) -> int:
        return packing.padded(rows, self._limits.allowed_sizes)

    def _usable(self, rows: int) -> int:
        return packing.usable(rows, self._limits.allowed_sizes)
