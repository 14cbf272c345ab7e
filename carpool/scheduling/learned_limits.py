"""What may share a call of a key, as the predictor's refusals tell: how many rows or bytes, and of what lengths.

A predictor refuses a batch that is too large for it: by a number that it says or keeps to itself, by the bytes or the
tokens of the body, or because its memory is full. Or it refuses rows of several lengths, which are no array for it.

Where its words are known to speak of a size, the largest batch of that key is halved at once, or becomes what was said.
Whatever the words: if all rows of a refused batch were answered in smaller pieces, none of them was bad. Three times
that, and nothing as large answered in between, is a limit: on rows where fewer rows explain what was refused and what
was answered, else on bytes. If what was refused had rows of several lengths, and no piece that was answered had, rows
are kept apart by their lengths.

What the predictor refuses today it may take tomorrow, so now and then one batch is sent that is larger, or of several
lengths, see `call_limits`.

Not every refusal for a size is about the number of rows: one row may be a giant. So a batch no larger than one that was
answered lowers nothing, unless that happens again and again; and once a request was refused alone while as much was
answered of the others, the limit is again what it was before. So it is once words with a number were said of one row
alone: they quote what its caller sent.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from carpool.scheduling import call_limits, packing
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import RETRIES, Apart, Batch, Learned, Lesson, Part, Reason, Request

# So many refused batches whose rows were all answered, with nothing in between that speaks against it, are no chance;
# and so many of several lengths, as first two rows are tried.
_ENOUGH_PROOFS = 3
_ENOUGH_APART = 2

# What is sent where as much was answered before as is refused now: tokens do not go quite with bytes.
_SOMEWHAT_LESS = 0.9

# For so long rows of several lengths that were answered together speak for them, and two that were not against them.
_TRUST_SECONDS = 60.0

# Callers choose the keys. A key that is not used for so long is forgotten.
_MOST_KEYS = 1000
_MEMORY_SECONDS = 3600.0


class Search:
    """A batch that was refused, until all its rows were answered in parts; then none of them was to blame.

    `largest` and `largest_size` are the most rows and bytes of a part that was answered. `is_mixed` is whether it had
    rows of several lengths, `was_mixed` whether a part had that was answered. `parent` is the search that it is a part
    of, if any.
    """

    __slots__ = (
        "is_mixed", "key", "largest", "largest_size", "parent", "rows", "size", "unanswered", "was_mixed"
    )  # fmt: skip

    def __init__(self, batch: Batch, size: int, is_mixed: bool) -> None:
        self.key = batch.key
        self.rows = self.unanswered = batch.rows
        self.size = size
        self.is_mixed = is_mixed
        self.was_mixed = False
        self.largest = self.largest_size = 0
        self.parent: Search | None = batch.search


class Holds(NamedTuple):
    """Of the next batch of a key: the most rows, the most bytes, and whether rows are kept apart by their lengths."""

    rows: float = math.inf
    size: float = math.inf
    is_apart: bool = False


ANYTHING: Final = Holds()


class _Key:
    """Of one key: limits, of `most` rows that the caller of the core allows, and whether lengths mix.

    `proofs` and `apart` count refused batches whose rows were all answered: in pieces, or apart by their lengths.
    Lengths are trusted until `trusted_until`. `holds` is what comes of all that.
    """

    __slots__ = ("apart", "holds", "lengths", "most", "proofs", "rows", "size", "trusted_until", "used_at")

    def __init__(self, most: float) -> None:
        self.most = most
        self.rows = call_limits.RowLimit()
        self.size = call_limits.Limit()
        self.lengths = call_limits.Trial()
        self.proofs = self.apart = 0
        self.holds = ANYTHING
        self.trusted_until = self.used_at = -math.inf

    @property
    def is_apart(self) -> bool:
        return self.apart >= _ENOUGH_APART


class LearnedLimits:
    """What was learned, by key. Times are seconds on the scheduler's clock.

    Sizes are in rows as the predictor counts them: padded, where it has `allowed_sizes`. `lessons` are to be told and
    cleared by whoever asks for them.
    """

    # Mutable state: _keys, by the hash of a key, as keys may be large; `is_empty`, of those; `lessons`.
    # Equal hashes of different keys do no harm: a limit that is too low is raised again.
    def __init__(self, limits: Limits) -> None:
        self.is_empty = True
        """Whether nothing is known of any key: then only refusals need telling."""
        self.lessons: list[Learned] = []
        self._limits = limits
        self._keys: OrderedDict[int, _Key] = OrderedDict()

    # --- questions ---------------------------------------------------------------------------------------------

    def of(self, key: Hashable) -> Holds:
        """What holds for the next batch of a key."""
        known = self._keys.get(hash(key))
        return ANYTHING if known is None else known.holds

    @property
    def now(self) -> dict[int, float]:
        """The most rows of the next batch, by the hash of its key, where there is such a limit."""
        return {place: known.holds.rows for place, known in self._keys.items() if known.holds.rows < math.inf}

    def smallest(self, now: float) -> float:
        """The smallest limit on rows of any key that is in use; 0 if there is none."""
        return min([known.rows.size for known in self._used(now) if known.rows.size < math.inf], default=0)

    def smallest_bytes(self, now: float) -> float:
        """The smallest limit on bytes, likewise."""
        return min([known.size.size for known in self._used(now) if known.size.size < math.inf], default=0)

    def kept_apart(self, now: float) -> int:
        """How many keys that are in use have their requests kept apart by the lengths of their rows."""
        return sum([known.is_apart for known in self._used(now)])

    def _used(self, now: float) -> Sequence[_Key]:
        return [known for known in list(self._keys.values()) if now - known.used_at < _MEMORY_SECONDS]

    def queue_of(self, request: Request) -> Hashable:
        """With whom an accepted request may share a batch, as far as that is learned."""
        key, row_shape = request.key, self._limits.row_shape
        if row_shape is None or not self.of(key).is_apart:
            return key
        shape = row_shape(request.payload)
        return Apart(key, shape, request.sequence if shape is None else 0)

    def separates(self, key: Hashable, *, is_sure: bool) -> bool:
        """Whether requests of a key that were refused together are to be sent apart by the lengths of their rows."""
        known = self._keys.get(hash(key))
        return known is not None and (known.is_apart if is_sure else known.apart > 0)

    def trusts(self, key: Hashable, now: float) -> bool:
        """Whether rows of several lengths were answered together lately."""
        known = self._keys.get(hash(key))
        return known is not None and now < known.trusted_until

    def by_length(self, parts: Sequence[Part]) -> Sequence[Sequence[Part]]:
        """Parts in groups that may share a call if lengths do not mix, in the order of their first ones."""
        row_shape = self._limits.row_shape
        if row_shape is None or len(parts) < 2:
            return [parts]
        groups: dict[Hashable, list[Part]] = {}
        for part in parts:
            shape = None if part.request.payload is None else row_shape(part.request.payload)
            groups.setdefault(part.request if shape is None else shape, []).append(part)
        return list(groups.values())

    def is_over(self, batch: Batch) -> bool:
        """Whether a batch is larger than what is known to be answered, and can be cut."""
        known = self._keys.get(hash(batch.key))
        if known is None or batch.rows < 2:
            return False
        return self._padded(batch.rows) > known.rows.size or self._bytes(known, batch.parts) > known.size.size

    # --- events ------------------------------------------------------------------------------------------------

    def refused(self, batch: Batch, told: int | None, is_whole: bool, now: float) -> tuple[int, float] | None:
        """A batch was refused for its size. Returns how many rows and bytes to send instead, or None if not to.

        `told` is how many rows the predictor says it takes, if it does. `is_whole` says that the batch was one request
        as its caller sent it: that is sent in smaller pieces only if it was known to be too large before.
        """
        known = self._known(batch)
        learned = known.rows
        rows = self._padded(batch.rows)
        is_over = self.is_over(batch)
        learned.too_much(batch, rows, now)
        known.size.too_much(batch, self._bytes(known, batch.parts), now)
        if told is not None and 0 < told < batch.rows:
            size = self._usable(told)
            if learned.size != size:
                learned.before = learned.size if learned.told is None else learned.before
                learned.lower(size, told + 1, now)
                learned.told, learned.since, learned.alone = told, 0, math.inf
                learned.trial.begin(now, call_limits.TOLD_PAUSE)
        elif is_whole or batch.rows == 1:
            if told is not None and told == learned.told and batch.rows == 1:
                learned.size, learned.refused, learned.told = learned.before, math.inf, None
            elif batch.reason is Reason.SMALLER:
                learned.alone = min(learned.alone, rows)
                learned.restore()
        elif not is_over:
            self._learn(learned, batch, rows, now)
        self._keep(known, batch.key, now)
        if batch.rows == 1 or (is_whole and not is_over):
            return None
        if learned.size < batch.rows:
            return int(learned.size), known.size.size
        is_over = self._bytes(known, batch.parts) > known.size.size
        return batch.rows if is_over else (batch.rows + 1) // 2, known.size.size

    def answered(self, batch: Batch, now: float) -> bool:
        """A batch came back with predictions. Returns whether something else holds for its key."""
        known = self._keys.get(hash(batch.key))
        if known is not None and not known.is_apart and now > known.lengths.at + _TRUST_SECONDS:
            known.apart = 0  # nothing came that confirmed it
        may_be_mixed = batch.search is not None or (known is not None and known.apart > 0)
        is_mixed = may_be_mixed and len(self.by_length(batch.parts)) > 1
        if known is None:
            if not is_mixed:
                return False
            known = self._known(batch)
        if is_mixed:
            known.trusted_until = now + _TRUST_SECONDS
            if known.is_apart:
                self.lessons.append(Learned(batch, Lesson.TOGETHER, 0))
            known.apart = 0
            known.lengths.begin(now)
        known.rows.took(batch, self._padded(batch.rows), now)
        known.size.took(batch, self._bytes(known, batch.parts), now)
        if known.rows.refused == known.size.refused == math.inf:
            known.proofs = 0
            if batch.rows >= self._limits.max_batch_size:
                known.size.size = math.inf  # rows are what bounds batches
        return self._keep(known, batch.key, now)

    def proved(self, search: Search, batch: Batch, now: float) -> bool:
        """All rows of a refused batch were answered, with this batch the last. Returns as `answered` does."""
        known = self._known(batch)
        if search.is_mixed and not search.was_mixed:
            known.apart += 1
            if known.apart <= _ENOUGH_APART:
                known.lengths.begin(now)
            if known.apart == _ENOUGH_APART:
                self.lessons.append(Learned(batch, Lesson.APART, 0))
        else:
            known.proofs += 1
            self._explain(known, search, batch, now)
        return self._keep(known, batch.key, now)

    def failed(self, batch: Batch, is_refusal: bool, now: float) -> None:
        """A batch failed for a reason that is not known to be its size, be it a refusal.

        Without one it may have been the end of the predictor, if it was larger than others.
        """
        known = self._keys.get(hash(batch.key))
        if known is None:
            return
        if is_refusal:
            known.rows.too_much(batch, self._padded(batch.rows), now)
            known.size.too_much(batch, self._bytes(known, batch.parts), now)
        for trial in (known.rows.trial, known.size.trial, known.lengths):
            trial.failed(batch, now)

    def left(self, batch: Batch, now: float) -> bool:
        """A batch left. Returns as `answered` does: there is to be a larger batch, or one of several lengths, or none
        any more."""
        known = self._keys.get(hash(batch.key))
        if known is None:
            return False
        if batch.reason not in RETRIES:
            known.rows.trial.left(batch, self._padded(batch.rows) > known.rows.size, now)
            known.size.trial.left(batch, self._bytes(known, batch.parts) > known.size.size, now)
            if known.is_apart:
                known.lengths.left(batch, known.lengths.is_due and len(self.by_length(batch.parts)) > 1, now)
        return self._keep(known, batch.key, now)

    # --- internals ---------------------------------------------------------------------------------------------

    def _known(self, batch: Batch) -> _Key:
        return self._keys.get(hash(batch.key)) or _Key(batch.parts[0].request.max_batch_size)

    def _learn(self, learned: call_limits.RowLimit, batch: Batch, rows: int, now: float) -> None:
        """A batch that was not known to be too large is."""
        is_retry = batch.reason is Reason.SMALLER
        if not is_retry:
            learned.before, learned.since, learned.alone = learned.size, 0, math.inf
        if rows <= learned.answered:
            if is_retry or not learned.doubt(rows):
                return
            learned.answered = 0
        lower = self._usable(max(1, (rows + 1) // 2))
        learned.lower(max(lower, learned.answered), rows, now)

    def _explain(self, known: _Key, search: Search, batch: Batch, now: float) -> None:
        """Lower the limit that explains what was refused and what was answered: that on rows, else that on bytes.

        Where neither does, again and again, the one that is nearest to it becomes less: the rows that were answered
        this time, or somewhat fewer bytes than were refused.
        """
        rows, size = known.rows, known.size
        rows.note(self._padded(search.rows), self._padded(search.largest))
        size.note(search.size, search.largest_size)
        is_known = self._padded(search.rows) > rows.size or search.size > size.size
        if is_known or known.proofs < _ENOUGH_PROOFS:
            return
        explains_rows, explains_size = rows.answered < rows.refused, size.answered < size.refused and search.size > 0
        is_near = not search.size or rows.answered * search.size <= size.answered * search.rows
        on_rows = explains_rows or (not explains_size and is_near)
        limit: call_limits.Limit = rows if on_rows else size
        weight = search.rows if on_rows else search.size
        if explains_rows or explains_size:
            most, refused = limit.answered, limit.refused
        elif limit.doubt(weight):
            most, refused = (search.largest if on_rows else int(weight * _SOMEWHAT_LESS)), float(weight)
        else:
            return
        most = self._usable(max(1, most)) if on_rows else most
        if most >= limit.size:
            return
        limit.lower(most, refused, now)
        if on_rows:
            rows.before = rows.size
        elif explains_size and rows.told is None:
            rows.size = rows.before = math.inf
        self.lessons.append(Learned(batch, Lesson.ROWS if on_rows else Lesson.BYTES, most))

    def _keep(self, known: _Key, key: Hashable, now: float) -> bool:
        """Note what is known of a key, if that is worth anything. Returns whether something else holds for it."""
        place, rows, size, before = hash(key), known.rows, known.size, known.holds
        if rows.size >= min(known.most, self._limits.max_batch_size):
            rows.size = math.inf
        known.holds = Holds(
            self._raised(rows) if rows.size < math.inf and rows.trial.is_due else rows.size,
            size.larger if size.size < math.inf and size.trial.is_due else size.size,
            known.is_apart and not known.lengths.is_due,
        )
        self._keys.pop(place, None)
        if known.holds != ANYTHING or known.proofs or known.apart or known.trusted_until > now:
            known.used_at = now
            self._keys[place] = known
            self._forget_old(now)
        self.is_empty = not self._keys
        return known.holds != before

    def _raised(self, rows: call_limits.RowLimit) -> float:
        """The size of the next larger batch."""
        larger, allowed = rows.larger, self._limits.allowed_sizes
        if not allowed:
            return larger
        held = [each for each in allowed if rows.size < each <= larger]
        return max(held) if held else self._padded(int(rows.size) + 1)

    def _forget_old(self, now: float) -> None:
        while self._keys:
            place, oldest = next(iter(self._keys.items()))
            if len(self._keys) <= _MOST_KEYS and now - oldest.used_at < _MEMORY_SECONDS:
                return
            del self._keys[place]

    def _bytes(self, known: _Key, parts: Sequence[Part]) -> int:
        """Bytes of these, where they matter."""
        if not known.proofs and known.size.size == math.inf:
            return 0
        return self.size_of(parts)

    def size_of(self, parts: Sequence[Part]) -> int:
        """Bytes of these."""
        return sum([packing.part_size(part, self._limits) for part in parts])

    def _padded(self, rows: int) -> int:
        return packing.padded(rows, self._limits.allowed_sizes)

    def _usable(self, rows: int) -> int:
        return packing.usable(rows, self._limits.allowed_sizes)
