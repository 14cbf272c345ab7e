"""After `101 Switching Protocols`: bytes both ways, unread, until either side ends (WebSocket and any other upgrade).

Both transports get a protocol of ours (`transport.set_protocol`), because aiohttp's own close a connection as soon as
the peer has finished sending, which would cut half-closed tunnels. aiohttp's protocols keep their bookkeeping: they
are told that their connection is lost once the tunnel has ended.

A caller has to wait for the 101 before it speaks the new protocol. What a WebSocket caller sends too early is passed
on all the same; where aiohttp does not know the protocol it takes that for requests, and the tunnel ends at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web

from carpool_sidecar import errors
from carpool_sidecar.server import headers

# How long a closed side may take to read what was already accepted for it, before its connection is cut.
LINGER_SECONDS = 5.0


class Tunnels:
    """All open tunnels of one sidecar. State: the set of open tunnels, and whether no more may open."""

    def __init__(self) -> None:
        self._open: set[_Tunnel] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    async def relay(self, upstream: aiohttp.ClientResponse, request: web.BaseRequest) -> web.StreamResponse:
        """Pass the predictor's 101 on, then bytes both ways; returns when both connections are gone.

        A side that has finished sending may still receive. A connection that is lost takes the other one with it,
        after the bytes already accepted were delivered. Raises `errors.Draining` after `close`.
        """
        if self._closed:
            raise errors.Draining
        answer = _switching_answer(upstream)
        try:
            await answer.prepare(request)
            await request.writer.drain()
            tunnel = _Tunnel(request, upstream)
        except ConnectionError:
            return answer  # a side was lost meanwhile; aiohttp closes what is left
        self._open.add(tunnel)
        try:
            await tunnel.ended
        finally:
            self._open.discard(tunnel)
            tunnel.close()
        return answer

    async def close(self) -> None:
        """Close both sides of every tunnel and wait until they are gone; new tunnels are refused."""
        self._closed = True
        ends = [tunnel.ended for tunnel in self._open]
        for tunnel in self._open:
            tunnel.close()
        if ends:
            await asyncio.wait(ends)


class _Tunnel:
    """Two connections joined. `ended` is done when both are gone."""

    def __init__(self, request: web.BaseRequest, upstream: aiohttp.ClientResponse) -> None:
        connection = upstream.connection
        protocol = connection and connection.protocol
        if request.transport is None or protocol is None or protocol.transport is None:
            raise ConnectionResetError("a side of the tunnel was lost while it was opened")
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._caller = _End(request.transport, request.protocol, self._on_change)
        self._predictor = _End(protocol.transport, protocol, self._on_change)
        self._caller.peer, self._predictor.peer = self._predictor, self._caller
        self._caller.take_over(request.protocol.set_parser)
        self._predictor.take_over(lambda parser: protocol.set_parser(parser, None))

    def close(self) -> None:
        self._caller.close()
        self._predictor.close()

    def _on_change(self) -> None:
        """Close what has nothing left to do, as each side finishes sending or is lost."""
        sides = (self._caller, self._predictor)
        if any(side.lost for side in sides) or all(side.finished for side in sides):
            self.close()
        if all(side.lost for side in sides) and not self.ended.done():
            self.ended.set_result(None)
            # Later, because aiohttp's server cancels the handler of a lost connection, and this handler has
            # done its work.
            for side in sides:
                asyncio.get_running_loop().call_soon(side.tell_former)


class _End(asyncio.Protocol):
    """One side of a tunnel: what arrives here is written to the peer, at the pace at which the peer takes it."""

    peer: _End

    def __init__(self, transport: asyncio.Transport, former: asyncio.Protocol, on_change: Callable[[], None]) -> None:
        # for the life of the tunnel
        self._transport = transport
        self._former = former
        self._on_change = on_change
        # what has happened to the connection
        self.finished = False  # it will send no more
        self.lost = False
        self._error: Exception | None = None
        self._cut: asyncio.TimerHandle | None = None

    def take_over(self, set_parser: Callable[[Any], None]) -> None:
        """Become the transport's protocol, beginning with the bytes that came along with the head.

        `set_parser` is the method of aiohttp's protocols that hands these out, as its WebSocket code uses it.
        """
        set_parser(_Early(self.data_received))
        self._transport.set_protocol(self)

    def close(self) -> None:
        if self._cut is None and not self.lost:
            self._transport.close()
            self._cut = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def tell_former(self) -> None:
        self._former.connection_lost(self._error)

    # --- what this side's transport reports ---

    def data_received(self, data: bytes) -> None:
        self.peer.write(data)

    def eof_received(self) -> bool:
        self.finished = True
        self.peer.write_eof()
        self._on_change()
        return True

    def pause_writing(self) -> None:
        self.peer.pause_reading()

    def resume_writing(self) -> None:
        self.peer.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = self.finished = True
        self._error = exc
        if self._cut is not None:
            self._cut.cancel()
        self._on_change()

    # --- what the peer asks for; nothing happens on a connection that is going away ---

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def write_eof(self) -> None:
        if not self._transport.is_closing():
            self._transport.write_eof()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()


class _Early:
    """The parser shape that aiohttp's protocols feed; it is given the bytes behind the head, and at last the end."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._sink(data)
        return False, b""

    def feed_eof(self) -> None:
        """The tunnel sees the end of a connection by itself."""


def _switching_answer(upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    fields = headers.end_to_end(upstream.headers)
    fields["Connection"] = "Upgrade"
    for protocol in upstream.headers.getall("Upgrade", ()):
        fields.add("Upgrade", protocol)
    answer = web.StreamResponse(status=101, reason=upstream.reason, headers=fields)
    answer.force_close()
    return answer
