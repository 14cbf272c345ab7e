"""How many answers of calls passed through may be arriving at once for one connection.

Nothing tells how large a message is before grpc has read it whole. But it takes in next to nothing of a message that
is not asked for, so as few as possible are asked for at once: then what has come for a client that does not read stops
the rest. A message that takes its time, of a stream that has little to tell, must keep no other waiting: after a
moment its place is free again.
"""

from __future__ import annotations

import asyncio
import collections

_PLACES = 8
_MOMENT = 0.02
"""Seconds."""

_WHOLE = 16
"""Calls of one connection that may have their answers read without asking."""

LARGE = 64 * 1024
"""Bytes of a message after which the next of the same stream is expected to be large, too."""


class Gate:
    """Of one connection. Places are given in order."""

    # State: who holds a place, with the time when it began; who waits for one; the timer, while somebody waits.
    __slots__ = ("_gates", "_holders", "_number", "_timer", "_waiting", "_whole", "holds")

    def __init__(self, gates: Gates, number: int) -> None:
        self._gates = gates
        self._number = number
        self._holders: dict[object, float] = {}
        self._waiting: collections.OrderedDict[asyncio.Future[None], object] = collections.OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._whole = 0
        self.holds = 0
        """Passages that use it."""

    async def enter(self, who: object) -> None:
        """Wait for a place, which `leave` gives back."""
        loop = asyncio.get_running_loop()
        if self._waiting or len(self._holders) >= _PLACES:
            mine: asyncio.Future[None] = loop.create_future()
            self._waiting[mine] = who
            self._watch(loop)
            try:
                await mine
            except asyncio.CancelledError:
                self._waiting.pop(mine, None)
                self.leave(who)
                raise
        else:
            self._holders[who] = loop.time()

    def leave(self, who: object) -> None:
        """The message has come, or is not waited for any more."""
        if self._holders.pop(who, None) is not None:
            self._admit()

    def try_whole(self) -> bool:
        """Whether one more answer may be read whole, without `enter`; if so, `end_whole` has to be called."""
        if self._whole >= _WHOLE:
            return False
        self._whole += 1
        return True

    def end_whole(self) -> None:
        """The counterpart of `try_whole`."""
        self._whole -= 1

    def close(self) -> None:
        """One passage less uses it."""
        self.holds -= 1
        if not self.holds:
            self._gates.forget(self._number)
            if self._timer is not None:
                self._timer.cancel()

    def _admit(self) -> None:
        """Give what is free to those who wait."""
        now = asyncio.get_running_loop().time()
        while self._waiting and len(self._holders) < _PLACES:
            mine, who = self._waiting.popitem(last=False)
            if not mine.done():  # else it was cancelled
                self._holders[who] = now
                mine.set_result(None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._holders:
            self._timer = loop.call_at(next(iter(self._holders.values())) + _MOMENT, self._look)

    def _look(self) -> None:
        """Whoever has held a place for long enough does not any more."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for who in [who for who, began in self._holders.items() if began + _MOMENT <= now]:
            del self._holders[who]
        self._admit()
        if self._waiting:
            self._watch(loop)


class Gates:
    """Those of all connections that have answers on their way."""

    # State: by the connection's number.
    def __init__(self) -> None:
        self._gates: dict[int, Gate] = {}

    def open(self, connection: int) -> Gate:
        """The connection's, to be closed by each that has opened it."""
        gate = self._gates.get(connection)
        if gate is None:
            gate = self._gates[connection] = Gate(self, connection)
        gate.holds += 1
        return gate

    def forget(self, connection: int) -> None:
        """Nobody uses it any more."""
        del self._gates[connection]

    def __len__(self) -> int:
        return len(self._gates)
