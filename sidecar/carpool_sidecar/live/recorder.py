"""What became of the latest batches, in the form in which viewers are told.

A recorder exists only while somebody looks. It reads what it needs when a batch leaves, since all of that is in the
processor's caches then, and keeps no request: a request that was cut holds on to predictions, and every request to its
caller's connection.

What is told of a request is its id, how long it waited and how many rows it had. Of the batch key viewers get the path,
and a short digest that is another one in every process. Bodies, queries and headers stay here.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence

import msgspec

from carpool.scheduling import limits, messages
from carpool_sidecar import errors

LATEST = 200
"""Batches that are kept, and told at once at most."""

MOST_MEMBERS = 64
"""Members of a batch that are told; its `requests` counts all of them."""

_MOST_MEMBERS_AT_ONCE = 4096  # of all batches told at once: it bounds the work and the bytes at any rate of requests
_MOST_CHARACTERS = 200
_MILLISECONDS, _MICROSECONDS = 1e3, 1e6


class Members(msgspec.Struct, omit_defaults=True):
    """The requests of a batch, in the order of its rows: three lists, since lists of triples took twice the time.

    `ids` are the request ids (None where there is none), `waited` how long each had waited, in microseconds, and `rows`
    how many rows of each travelled; left out where that is one of each.
    """

    ids: Sequence[str | None]
    waited: Sequence[int]
    rows: Sequence[int] | None = None


class Told(msgspec.Struct, omit_defaults=True):
    """A batch that came back. Moments are seconds since 1970 (UTC), durations milliseconds.

    `first` is when its first request came, `left` when it left, `took` how long the call lasted. `members` are the
    first of its requests, or None. `error` is the reason by which a failure is counted, None for a batch that was
    answered.
    """

    id: str
    reason: str
    path: str
    key: str
    first: float
    left: float
    took: float
    rows: int
    cap: int
    requests: int
    members: Members | None = None
    error: str | None = None


class Batches(msgspec.Struct):
    """Batches that came back since the last message, the oldest first. `seen` counts all of this recorder's.

    Where `seen` grew by more than there are batches, there were too many to tell, or the viewer was too slow.
    """

    seen: int
    batches: Sequence[Told]


class Keys:
    """Names batch keys: a path, and a digest that tells keys apart and nothing else."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)

    def digest(self, key: Hashable) -> str:
        """Six hexadecimal digits, the same for equal keys as long as this process lives.

        Python's hash of strings is a keyed one (SipHash) and is kept in the string, so that long keys cost nothing; the
        salt makes it safe where PYTHONHASHSEED is set.
        """
        return f"{hash((self._salt, key)) & 0xFFFFFF:06x}"


class Recorder:
    """Implements `executor.Recorder`. `clock` is the scheduler's, and `epoch` the Unix time at its zero."""

    # State: what will be told of batches that are out; what is not told yet, and what was, as far as it is kept; how
    # many came back.
    def __init__(self, bounds: limits.Limits, clock: Callable[[], float], epoch: float, keys: Keys) -> None:
        self._limits = bounds
        self._clock = clock
        self._epoch = epoch
        self._keys = keys
        self._out: dict[messages.Batch, _Record] = {}
        self._fresh: deque[_Record] = deque(maxlen=LATEST)
        self._told: deque[Told] = deque(maxlen=LATEST)
        self._seen = 0

    def sent(self, batch: messages.Batch, waited: Sequence[float] | None) -> None:
        """It leaves; `waited` is how long each of its parts did, in seconds, if that is known already."""
        parts = batch.parts
        if waited is None or len(waited) != len(parts):
            left = batch.dispatched
            waited = [left - request.arrived for request, _, _ in parts]
        shown = parts if len(parts) <= MOST_MEMBERS else parts[:MOST_MEMBERS]
        ids = [request.tag.request_id for request, _, _ in shown]
        rows = None if batch.rows == len(parts) else [stop - start for _, start, stop in shown]
        first = parts[0].request
        self._out[batch] = _Record(first.tag.target, cap_of(first, self._limits), waited, ids, rows)

    def answered(self, batch: messages.Batch, seconds: float) -> None:
        """It came back with predictions after so many seconds."""
        self._keep(batch, seconds, None)

    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        """It came back without, or was broken off."""
        self._keep(batch, self._clock() - batch.dispatched, error.reason)

    def take(self) -> Batches:
        """What came since this was asked last."""
        told: list[Told] = []
        left = _MOST_MEMBERS_AT_ONCE
        for record in reversed(self._fresh):  # if some have to go without their members, then the oldest
            left -= len(record.ids)
            told.append(self._tell(record, with_members=left >= 0))
        told.reverse()
        self._fresh.clear()
        self._told.extend(told)
        return Batches(self._seen, told)

    def latest(self) -> Batches:
        """The latest of those that were told, for somebody who comes later than others."""
        return Batches(self._seen - len(self._fresh), _bounded(self._told))

    def _keep(self, batch: messages.Batch, seconds: float, error: str | None) -> None:
        record = self._out.pop(batch, None)
        if record is None:  # it left before somebody looked
            return
        record.id, record.reason, record.key, record.rows = batch.id, batch.reason, batch.key, batch.rows
        record.left, record.took, record.error, record.requests = batch.dispatched, seconds, error, len(batch.parts)
        self._seen += 1
        self._fresh.append(record)

    def _tell(self, record: _Record, with_members: bool) -> Told:
        waited, left = record.waited, self._epoch + record.left
        members = None
        if with_members:
            shown = waited if len(waited) <= MOST_MEMBERS else waited[:MOST_MEMBERS]
            members = Members(
                _shortened(record.ids), [int(seconds * _MICROSECONDS) for seconds in shown], record.row_counts
            )
        return Told(
            record.id, record.reason, path_of(record.target), self._keys.digest(record.key),
            round(left - max(waited), 4), round(left, 4), round(record.took * _MILLISECONDS, 2), record.rows,
            record.cap, record.requests, members, record.error,
        )  # fmt: skip


class _Record:
    """What is kept of a batch until it is told: what the batch knows itself, and of its requests only values.

    Reading and writing this is all that happens for each batch; the rest waits for the next message.
    """

    __slots__ = (
        "cap", "error", "id", "ids", "key", "left", "reason", "requests", "row_counts", "rows", "target", "took",
        "waited",
    )  # fmt: skip
    id: str
    reason: messages.Reason
    key: Hashable
    rows: int
    requests: int
    left: float
    took: float
    error: str | None

    def __init__(
        self,
        target: str,
        cap: int,
        waited: Sequence[float],
        ids: Sequence[str | None],
        row_counts: Sequence[int] | None,
    ) -> None:
        self.target = target
        self.cap = cap
        self.waited = waited
        self.ids = ids
        self.row_counts = row_counts


def path_of(target: str) -> str:
    """The path of a request's target without its query, at most 200 characters of it."""
    return target.partition("?")[0][:_MOST_CHARACTERS]


def _shortened(ids: Sequence[str | None]) -> Sequence[str | None]:
    if max(map(len, filter(None, ids)), default=0) <= _MOST_CHARACTERS:
        return ids
    return [name and name[:_MOST_CHARACTERS] for name in ids]


def _bounded(batches: Iterable[Told]) -> list[Told]:
    """The same, without the members of the oldest where there are too many in all."""
    told = list(batches)
    left = _MOST_MEMBERS_AT_ONCE
    for index in reversed(range(len(told))):
        members = told[index].members
        left -= len(members.ids) if members is not None else 0
        if left < 0 and members is not None:
            told[index] = msgspec.structs.replace(told[index], members=None)
    return told


def cap_of(request: messages.Request, bounds: limits.Limits) -> int:
    """Most rows that a batch with this request may carry."""
    return int(min(bounds.max_batch_size, request.max_batch_size))


def milliseconds(seconds: float) -> float | None:
    """Rounded to a hundredth, None for what is infinite."""
    return round(seconds * _MILLISECONDS, 2) if math.isfinite(seconds) else None
