"""The messages of one call on their way in, counted as memory and kept within its limits."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

from carpool.program import allocator
from carpool_sidecar import errors
from carpool_sidecar.server.grpc import framing, inflating, parts

_MESSAGES_A_UNIT = 2  # see `streams.Stream.charge`


class Arrival:
    """Unframes and inflates the data of one stream. `held` bytes of it count in `room` until they are released.

    Large messages are inflated in later turns of the event loop, when others have had `turns`: then `news` is called
    each time that `take` has something to return or to raise.
    """

    # State: what is complete or being inflated, in order; what went wrong with that; the most that was held at once.
    __slots__ = ("_error", "_has_turn", "_largest", "_news", "_queue", "_room", "_turns", "_unframer", "cost", "held")

    def __init__(
        self, room: parts.Room, encoding: bytes | None, turns: inflating.Turns, news: Callable[[], None]
    ) -> None:
        self._room = room
        self._unframer = framing.Unframer(room.max_body_bytes, encoding)
        self._turns = turns
        self._news: Callable[[], None] | None = news
        self._queue: collections.deque[bytes | inflating.Inflation] = collections.deque()
        self._error: errors.CarpoolError | None = None
        self._has_turn = False
        self._largest = 0
        self.held = 0
        self.cost = 0
        """Of what was fed last, beside its bytes, for `streams.Stream.charge`."""

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The messages that are there now.

        Raises `errors.Overloaded`, `errors.PayloadTooLarge` and `statuses.Fault`; the stream is of no use after that.
        """
        self._check_room(len(data))
        before = self._unframer.held
        found = self._unframer.feed(data)
        self.cost = len(found) // _MESSAGES_A_UNIT
        self._count(self._unframer.held - before + sum(map(len, found)))
        plain = [each for each in found if isinstance(each, bytes)]
        if not self._queue and len(plain) == len(found):
            return plain
        self._queue.extend(found)
        if not self._has_turn:
            self._inflate()
        return self.take()

    def take(self) -> Sequence[bytes]:
        """As `feed`, without more data."""
        if self._error is not None:
            raise self._error
        messages: list[bytes] = []
        while self._queue and isinstance(first := self._queue[0], bytes):
            messages.append(first)
            self._queue.popleft()
        return messages

    @property
    def is_inflating(self) -> bool:
        """Whether there will be news."""
        return self._has_turn

    @property
    def is_incomplete(self) -> bool:
        """Whether a message has begun to arrive that is not all here."""
        return self._unframer.held > 0

    def end(self) -> None:
        """No more data; raises `statuses.Fault` in the middle of a message."""
        self._unframer.end()

    def release(self, size: int) -> None:
        """A message of so many bytes is dealt with; does nothing after `release_all`."""
        self._count(-min(size, self.held))

    def release_all(self) -> None:
        """Nothing of it is kept any more, and nothing will come of it."""
        self._count(-self.held)
        self._queue.clear()
        self._unframer.drop()
        self._news = None
        if self._largest > allocator.LARGE:
            self._largest = 0
            self._room.on_large_body()

    # --- inflating ---------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Part of `inflating.Worker`."""
        if self._news is None:
            return False
        self._has_turn = False
        try:
            self._inflate(is_turn=True)
        except errors.CarpoolError as error:
            self._error = errors.bare(error)
        except Exception as error:  # its caller must be answered
            self._turns.report(error)
            self._error = errors.CarpoolError()
        if self._error is not None or (self._queue and isinstance(self._queue[0], bytes)):
            self._news()
        return self._has_turn

    def _inflate(self, is_turn: bool = False) -> None:
        """Do one step's work; what is left is for later turns."""
        work = 0
        for at, each in enumerate(self._queue):
            if isinstance(each, bytes):
                continue
            while not each.is_done and work < inflating.STEP:
                produced = each.step()
                self._check_room(produced)
                self._count(produced)
                work += inflating.cost(produced)
            if not each.is_done:
                self._has_turn = True
                break
            self._count(-len(each))
            self._queue[at] = each.plain()
        if self._has_turn and not is_turn:
            self._turns.add(self)

    def _check_room(self, size: int) -> None:
        if not self._room.has_room(size):
            raise errors.MemoryFull

    def _count(self, size: int) -> None:
        self.held += size
        self._largest = max(self._largest, self.held)
        self._room.buffered_bytes += size
