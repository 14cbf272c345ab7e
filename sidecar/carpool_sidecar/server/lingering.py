"""The end of a connection whose client may still be sending: told that this was all, and read for a while, unheard.

The kernel resets a connection that is closed before all that came is read, and the client forgets the answers that are
still on their way to it (RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio
from typing import Final

QUIET: Final = 2.0
"""Seconds without a byte of the client after which it counts as told."""

LONGEST: Final = 30.0
"""Seconds in all."""


class Lingering(asyncio.Protocol):
    """Has the transport from now on: says that no more will be sent, drops what comes, and closes.

    It closes when the client has ended its side, or at the latest when its time is up. `former` is told of the end, and
    whether there is room to write.
    """

    # State: when the last byte came, and when all time is up, by the loop's clock; the timer until it is closed.
    def __init__(self, transport: asyncio.Transport, former: asyncio.Protocol) -> None:
        self._transport = transport
        self._former = former
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._end = self._heard + LONGEST
        self._timer = self._loop.call_later(QUIET, self._look)
        transport.set_protocol(self)
        transport.write_eof()
        self._read_on()

    def data_received(self, data: bytes) -> None:
        """Drop it. In each turn of the event loop the connection is read once, as others want their turns."""
        self._heard = self._loop.time()
        self._transport.pause_reading()
        self._loop.call_soon(self._read_on)

    def pause_writing(self) -> None:
        """Tell who was here before."""
        self._former.pause_writing()

    def resume_writing(self) -> None:
        """Tell who was here before."""
        self._former.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who was here before."""
        self._timer.cancel()
        self._former.connection_lost(exc)

    def _read_on(self) -> None:
        if not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()

    def _look(self) -> None:
        left = min(self._heard + QUIET, self._end) - self._loop.time()
        if left <= 0:
            self._transport.close()
        else:
            self._timer = self._loop.call_later(left, self._look)
