"""How many answers of calls passed through may be arriving at once for one connection.

Nothing tells how large a message is before grpc has read all of it. But grpc takes in next to nothing of a message that
nobody reads. So as few answers as possible are read at once: if their client does not read, what has come stops the
rest. A message that takes its time, of a stream that has little to tell, must keep no other waiting: its slot is free
again after a moment.
"""

from __future__ import annotations

import asyncio
import collections
import math

from carpool.runtime import deadline_timer

LARGE = 64 * 1024
"""Bytes of a message after which the next message of the same stream is expected to be large, too."""

_SLOTS = 8
_MOMENT = 0.02
"""Seconds for which a message may keep its slot while others wait."""

_WHOLE = 16
"""Calls of one connection that may have their answers read without a slot."""


class ReadSlots:
    """The slots of one connection, given in order."""

    # State: who holds a slot, with the time when it began; who waits for one; the timer, once somebody had to wait, as
    # it keeps this alive; calls without a slot; calls at all.
    __slots__ = ("_connections", "_holders", "_number", "_timer", "_users", "_waiting", "_whole")

    def __init__(self, connections: ConnectionSlots, number: int) -> None:
        self._connections = connections
        self._number = number
        self._holders: dict[object, float] = {}
        self._waiting: collections.OrderedDict[asyncio.Future[None], object] = collections.OrderedDict()
        self._timer: deadline_timer.DeadlineTimer | None = None
        self._whole = self._users = 0

    def open(self) -> None:
        """One more call uses these slots."""
        self._users += 1

    def close(self) -> None:
        """The counterpart of `open`."""
        self._users -= 1
        if not self._users:
            self._connections.forget(self._number)
            if self._timer is not None:
                self._timer.stop()
                self._timer = None

    async def acquire(self, who: object) -> None:
        """Wait for a slot, which `release` gives back."""
        loop = asyncio.get_running_loop()
        if not self._waiting and len(self._holders) < _SLOTS:
            self._holders[who] = loop.time()
            return
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting[mine] = who
        self._watch()
        try:
            await mine
        except asyncio.CancelledError:
            self._waiting.pop(mine, None)
            self.release(who)
            raise

    def release(self, who: object) -> None:
        """The message has come, or nobody waits for it any more."""
        if self._holders.pop(who, None) is not None:
            self._admit()

    def try_whole(self) -> bool:
        """Whether one more answer may be read whole, without a slot; if so, `end_whole` has to be called."""
        if self._whole >= _WHOLE:
            return False
        self._whole += 1
        return True

    def end_whole(self) -> None:
        """The counterpart of `try_whole`."""
        self._whole -= 1

    def _admit(self) -> None:
        """Give free slots to those who wait."""
        now = asyncio.get_running_loop().time()
        while self._waiting and len(self._holders) < _SLOTS:
            mine, who = self._waiting.popitem(last=False)
            if not mine.done():  # else it was cancelled
                self._holders[who] = now
                mine.set_result(None)

    def _watch(self) -> None:
        if self._holders:
            if self._timer is None:
                self._timer = deadline_timer.DeadlineTimer(self._take_back)
            self._timer.look_by(next(iter(self._holders.values())) + _MOMENT)

    def _take_back(self, now: float) -> float:
        """Take slots from those who have held them for long enough."""
        if not self._waiting:
            return math.inf
        for who in [who for who, began in self._holders.items() if began + _MOMENT <= now]:
            del self._holders[who]
        self._admit()
        return next(iter(self._holders.values())) + _MOMENT if self._waiting else math.inf


class ConnectionSlots:
    """The slots of all connections that have answers on their way."""

    # State: by the connection's number.
    def __init__(self) -> None:
        self._slots: dict[int, ReadSlots] = {}

    def open(self, connection: int) -> ReadSlots:
        """The slots of this connection; each caller has to `close` them."""
        slots = self._slots.get(connection)
        if slots is None:
            slots = self._slots[connection] = ReadSlots(self, connection)
        slots.open()
        return slots

    def forget(self, connection: int) -> None:
        """No call uses them any more."""
        del self._slots[connection]

    def __len__(self) -> int:
        return len(self._slots)
