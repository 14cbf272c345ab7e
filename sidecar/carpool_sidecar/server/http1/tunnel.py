"""A tunnel: two connections whose protocols were switched. Bytes go both ways, unread, until both sides have ended.

A side that has finished sending may still receive; one that is lost takes the other with it.
"""

from __future__ import annotations

import asyncio


class Side(asyncio.Protocol):
    """Has a transport from the tunnel's beginning on: what comes goes to the other side, and so does the end of it.

    `former`, who had it before, is told whether there is room to write, and of its loss. Until it tells otherwise it
    takes no more bytes if it `is_full`.
    """

    # State: whether no more comes of it, and whether its connection is lost. From the tunnel's beginning on there is
    # another side.
    other: Side

    def __init__(self, transport: asyncio.Transport, former: asyncio.BaseProtocol, is_full: bool) -> None:
        self.transport = transport
        self.is_full = is_full
        self.has_finished = self.is_gone = False
        self._former = former

    def begin(self, tunnel: Tunnel, other: Side) -> None:
        """Take the transport."""
        self._tunnel = tunnel
        self.other = other
        self._read(False)  # event loops may go on calling the protocol that was there when reading began
        self.transport.set_protocol(self)
        self._read(not other.is_full)

    def data_received(self, data: bytes) -> None:
        if data and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.has_finished = True
        if not self.other.transport.is_closing():
            self.other.transport.write_eof()
        if self.other.has_finished:
            self._tunnel.close()
        return True

    def pause_writing(self) -> None:
        """What this side does not take is not read from the other."""
        self._former.pause_writing()
        self.other._read(False)

    def resume_writing(self) -> None:
        self._former.resume_writing()
        self.other._read(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the other side as well."""
        self.is_gone = True
        self._former.connection_lost(exc)
        self._tunnel.close()

    def _read(self, wanted: bool) -> None:
        transport = self.transport
        if not transport.is_closing() and transport.is_reading() != wanted:
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()


class Tunnel:
    """Both sides, with what came `early` from the caller, and from the predictor `behind` its answer.

    It is in `tunnels` while there is one of them. A side that is closed has `linger` seconds to read what was already
    accepted for it, before it is cut.
    """

    def __init__(
        self, tunnels: set[Tunnel], linger: float, caller: Side, early: bytes, predictor: Side, behind: bytes
    ) -> None:
        self._tunnels = tunnels
        self._linger = linger
        self._sides = (caller, predictor)
        tunnels.add(self)
        caller.begin(self, predictor)
        predictor.begin(self, caller)
        caller.data_received(early)
        predictor.data_received(behind)

    def close(self) -> None:
        """End both sides, when all that was accepted for them is delivered."""
        for side in self._sides:
            if not side.transport.is_closing():
                side.transport.close()
                asyncio.get_running_loop().call_later(self._linger, side.transport.abort)
        if all(side.is_gone for side in self._sides):
            self._tunnels.discard(self)
            for side in self._sides:  # else they would keep each other
                del side.other, side._tunnel
