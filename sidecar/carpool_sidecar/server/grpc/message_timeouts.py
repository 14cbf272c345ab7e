"""One timer for all calls whose message has not arrived: a timer for each would be set only to be cancelled."""

from __future__ import annotations

import asyncio
from typing import Protocol

from carpool_sidecar.server.grpc import bugs, parts


class Arriving(Protocol):
    """A call whose message is on its way."""

    def expire(self) -> None:
        """It took too long."""
        ...


class Patience:
    """Expires calls that were added `room.read_timeout` seconds ago and not removed, at most that much later."""

    # State: the calls, oldest first, with the loop's time when each expires; the timer, while there are some.
    def __init__(self, room: parts.Room, report: bugs.Report) -> None:
        self._room = room
        self._report = report
        self._arriving: dict[Arriving, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Arriving) -> None:
        """Wait for this one from now on."""
        loop, patience = asyncio.get_running_loop(), self._room.read_timeout
        self._arriving[call] = loop.time() + patience
        if self._timer is None:
            self._timer = loop.call_later(patience, self._look)

    def remove(self, call: Arriving) -> None:
        """Its message is there, or it is over."""
        self._arriving.pop(call, None)

    def close(self) -> None:
        """Wait for none any more."""
        self._arriving.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for call in [call for call, deadline in self._arriving.items() if deadline <= loop.time()]:
            self.remove(call)
            try:
                call.expire()
            except Exception as error:  # the others expire all the same
                self._report(error)
        self._timer = loop.call_at(next(iter(self._arriving.values())), self._look) if self._arriving else None
