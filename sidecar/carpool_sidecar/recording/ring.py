"""Keeps the arrivals of the last ten minutes: when, how many rows, how many bytes, which key. Nothing else of them.

So `carpool-sidecar advise` can tell what other settings would have done with the very traffic that came. Arrivals are
kept in blocks of arrays and written down for a whole batch at a time, because each request pays for it. A block also
knows when its batches left and how long the predictor took, and what the histograms counted meanwhile.

Times are seconds on the sidecar's clock. Everything is called by the event loop's thread; a sealed block is never
changed again, so any thread may read it.
"""

from __future__ import annotations

import array
import collections
import struct
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from carpool import errors, measures
from carpool.scheduling import messages

SECONDS = 600.0
"""How long arrivals are kept."""

MOST = 100_000
"""So many arrivals are kept, and so many batches; the oldest go first."""

BLOCK: Final = 4096
"""A block is sealed when it has so many arrivals or batches, or lasted `BLOCK_SECONDS`."""

BLOCK_SECONDS = 30.0

_FEW: Final = 8  # requests that are sooner written down one by one

_KEY_BITS: Final = 0xFFFF_FFFF

# Others are only for requests that were sent, or that go with the process.
_TURNED_AWAY = (errors.Overloaded, errors.PayloadTooLarge, errors.DeadlineExceeded)


class Measures(NamedTuple):
    """What was counted: seconds from arrival to the first batch, of calls to the predictor and from arrival to answer,
    and instances in a batch."""

    wait: measures.Distribution
    predictor: measures.Distribution
    request: measures.Distribution
    batch_size: measures.Distribution


class Block:
    """What came in a stretch of time, one entry of each array for each arrival, and one for each batch that came back.

    Arrivals stand in the order in which they left. `keys` are hashes of batch keys, which differ from process to
    process. `refused` of the arrivals never left for the predictor, because they were refused or their callers gave up.
    `before` is what had been counted when the block began, `after` when it was sealed (None until then).
    `about` belongs to the ring's owner.
    """

    __slots__ = (
        "about", "after", "batch_rows", "batch_seconds", "before", "began", "ended", "keys", "refused", "rows", "sent",
        "sizes", "times",
    )  # fmt: skip

    def __init__(self, began: float, before: Measures, about: Any) -> None:
        self.about = about
        self.began = self.ended = began
        self.before = before
        self.after: Measures | None = None
        self.refused = 0
        self.times = array.array("d")
        self.rows = array.array("I")
        self.sizes = array.array("Q")
        self.keys = array.array("I")
        self.sent = array.array("d")
        self.batch_rows = array.array("I")
        self.batch_seconds = array.array("f")

    def sealed(self, now: float, after: Measures) -> Block:
        """A copy that ends now."""
        block = Block(self.began, self.before, self.about)
        for name in ("times", "rows", "sizes", "keys", "sent", "batch_rows", "batch_seconds"):
            setattr(block, name, getattr(self, name)[:])
        block.refused, block.ended, block.after = self.refused, now, after
        return block


class Ring:
    """The latest blocks.

    `measured` reads what has been counted so far, and `clock` is the scheduler's. `on_sealed` is given each block that
    has something in it, once.
    """

    # State: the sealed blocks, oldest first, the one being written with its last moment, and how much the sealed hold.
    def __init__(
        self,
        measured: Callable[[], Measures],
        clock: Callable[[], float],
    ) -> None:
        self.on_sealed: Callable[[Block], None] | None = None
        self._about: Any = None
        self._measured = measured
        self._clock = clock
        self._sealed: collections.deque[Block] = collections.deque()
        self._arrivals = self._batches = 0
        self._begin(clock())

    # --- what happens --------------------------------------------------------------------------------------------

    def sent(self, batch: messages.Batch, arrived: Sequence[float]) -> None:
        """A batch leaves; its newcomers came at these times."""
        requests, block, key = batch.newcomers, self._block, hash(batch.key) & _KEY_BITS  # as `_hashed`, without a call
        if len(arrived) < _FEW:
            for request in requests:
                block.times.append(request.arrived)
                block.rows.append(request.rows)
                block.sizes.append(request.size)
                block.keys.append(key)
        else:
            count = len(arrived)  # packed, they take half the time that an array takes for one after the other
            block.times.frombytes(struct.pack(f"{count}d", *arrived))
            block.rows.frombytes(struct.pack(f"{count}I", *[request.rows for request in requests]))
            block.sizes.frombytes(struct.pack(f"{count}Q", *[request.size for request in requests]))
            block.keys.frombytes(struct.pack("I", key) * count)
        if batch.dispatched >= self._until or len(block.times) >= BLOCK:
            self.seal()

    def answered(self, batch: messages.Batch, seconds: float) -> None:
        """The predictor answered a batch after so many seconds."""
        block = self._block
        block.sent.append(batch.dispatched)
        block.batch_rows.append(batch.rows)
        block.batch_seconds.append(seconds)
        if len(block.sent) >= BLOCK:
            self.seal()

    def refused(self, request: messages.Request, error: errors.CarpoolError) -> None:
        """A request was refused. Only one that was never sent counts; the others have been written down."""
        if isinstance(error, _TURNED_AWAY) and not request.was_sent:
            self.turned_away(request)

    def turned_away(self, request: messages.Request) -> None:
        """A request was refused, or its caller left, before it was sent."""
        block = self._block
        block.times.append(request.arrived)
        block.rows.append(request.rows)
        block.sizes.append(request.size)
        block.keys.append(_hashed(request.key))
        block.refused += 1
        if request.arrived >= self._until or len(block.times) >= BLOCK:
            self.seal()

    def changed(self, about: Any) -> None:
        """What comes from here on comes under other settings."""
        self.seal()
        self._about = self._block.about = about

    def seal(self) -> None:
        """Begin another block, if there is anything in this one."""
        block, now = self._block, self._clock()
        if not block.times and not block.sent:
            self._begin(now)
            return
        block.ended, block.after = now, self._measured()
        self._sealed.append(block)
        self._arrivals += len(block.times)
        self._batches += len(block.sent)
        self._begin(now)
        while self._arrivals > MOST or self._batches > MOST or self._sealed[0].ended < now - SECONDS:
            gone = self._sealed.popleft()
            self._arrivals -= len(gone.times)
            self._batches -= len(gone.sent)
            if not self._sealed:
                break
        if self.on_sealed is not None:
            self.on_sealed(block)

    # --- what is told ----------------------------------------------------------------------------------------------

    def blocks(self) -> list[Block]:
        """What came lately, oldest first: sealed blocks, and a copy of the one that is being written."""
        now = self._clock()
        kept = [block for block in self._sealed if block.ended >= now - SECONDS]
        if self._block.times or self._block.sent:
            kept.append(self._block.sealed(now, self._measured()))
        return kept

    def _begin(self, now: float) -> None:
        self._block = Block(now, self._measured(), self._about)
        self._until = now + BLOCK_SECONDS


def _hashed(key: Hashable) -> int:
    # Hashes of text are salted anew in each process, so nobody can tell by one what a path or a header was.
    return hash(key) & _KEY_BITS
