"""How many clients may be connected at once, counted for all ports and protocols together."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from carpool_sidecar import files
from carpool_sidecar.server import unread

log = logging.getLogger("carpool.sidecar.server")

_MOST_CONNECTIONS = 10_000
# What the sidecar needs for itself: ports, the way to the predictor, and what is the admin port's.
_OWN_FILES = 64


def usual_limit() -> int:
    """The limit where none was chosen: half of the open files, as a request passed through takes a second, at most
    10,000."""
    return max(1, min(_MOST_CONNECTIONS, (files.limit() - _OWN_FILES) // 2))


class ConnectionLimit:
    """Counts clients that connect and leave. `open` is how many there are; `on_refused` is called for each too many.

    All who come in are looked after by the `watch`, if there is one.
    """

    def __init__(self, most: int, on_refused: Callable[[], None], watch: unread.Watch | None = None) -> None:
        self.open = 0
        self._most = most
        self._on_refused = on_refused
        self._watch = watch

    def has_file(self, number: int) -> bool:
        """Implements `listening.Limit`."""
        if files.is_spared(number):
            log.warning("a client was refused: the limit of open files is reached")
            self._on_refused()
            return False
        return True

    def came(self, caller: socket.socket, transport: asyncio.Transport) -> None:
        """Implements `listening.Limit`."""
        if self._watch is not None:
            self._watch.add(caller, transport)

    def enter(self) -> bool:
        """A client connected: whether it may stay. If so, `leave` has to be called when it is gone."""
        if self.open >= self._most:
            self._on_refused()
            return False
        self.open += 1
        return True

    def leave(self) -> None:
        """The counterpart of `enter`."""
        self.open -= 1
