"""`python -m benchmarks.own_mix`: the sidecar's own code for one request of each kind of the mix, without sockets.

As `benchmarks.own`, with the client of the predictor: what it sends is written nowhere, and what it reads was made
beforehand. In a cell all requests are of one kind; `mixed` is what they come to in the shares of the mix.
"""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import math
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import uvloop

from benchmarks import mix, own
from carpool_sidecar.server.http1 import connection as connections
from carpool_sidecar.upstream import connection, predictor

_TRIES, _TURNS = 100, 20
_BASE: Final = "http://127.0.0.1:8080"
_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 23 Nov 2026 10:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
    b"content-type: application/json\r\n\r\n%b"
)
_PATH, _SIZE = "/v1/models/echo:predict", 37
_MODELS = b'{"models":["echo"]}'

CELLS: Final[dict[str, tuple[mix.Kind, Callable[[bytes], bool]]]] = {
    "repeated": ("repeated", lambda request: True),
    "varied": ("varied", lambda request: True),
    "models": ("mixed", lambda request: request.startswith(b"GET ")),
    "gzip": ("mixed", lambda request: b"\r\nContent-Encoding: gzip\r\n" in request),
    "invalid": ("mixed", lambda request: request.endswith(b"]")),  # bodies without their last byte
}
"""Which requests of which list a cell has."""


class Wire(own.Silent):
    """The way to the predictor, which answers what was written when it is told to."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._asked = b""
        self._ends = socket.socketpair()  # so that the client can ask whether anything came

    def write(self, data: Any) -> None:
        self._asked += data

    def abort(self) -> None:
        if self._ends[0].fileno() >= 0:
            for end in self._ends:
                end.close()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._ends[0] if name == "socket" else default

    def answer(self, predictions: bytes) -> None:
        """Answer what was asked; a batch with these predictions."""
        asked, self._asked = self._asked, b""
        if not asked:
            return
        message = _HEAD % ((len(_MODELS), _MODELS) if asked.startswith(b"GET ") else (len(predictions), predictions))
        self._protocol.get_buffer(len(message))[: len(message)] = message
        self._protocol.buffer_updated(len(message))


class Loop(uvloop.Loop):
    """Connects to nothing but wires."""

    wires: list[Wire]

    async def create_connection(self, factory: Any, *address: Any) -> Any:  # type: ignore[override]
        protocol = factory()
        made = Wire(protocol)
        protocol.connection_made(made)
        self.wires.append(made)
        return made, protocol


class Client(own.Silent):
    """The end of a caller, who has an address."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40000) if name == "peername" else default


class Stand:
    """32 connections before a predictor at the end of wires, and the requests of a cell, over and over."""

    def __init__(self, cell: str, wires: list[Wire]) -> None:
        self.site = own.Site(lambda body: b"")
        self._streams = predictor.Pool(_BASE, 5.0, connection.LenientReader)
        self._predictor = predictor.HttpPredictor(_BASE, 5.0)
        self._wires = wires
        self._callers = [Client() for _ in range(own.BATCH)]
        self._opened = own.open_connections(self.site, self._callers, self._predictor, self._streams)
        kind, belongs = CELLS[cell]
        listed = [each for each in mix.requests(kind, "127.0.0.1:9081", _PATH, _SIZE) if belongs(each)]
        self._requests = itertools.cycle(listed)
        self._predictions = b'{"predictions":[%b]}' % b",".join([b"[5.1,3.5,1.4,0.2]"] * own.BATCH)

    def send(self) -> list[tuple[connections.Connection, bytes]]:
        """What comes in one turn: a request on each connection, in bytes that were just written, as a socket's are."""
        listed = [bytes(bytearray(each)) for each in itertools.islice(self._requests, own.BATCH)]
        return list(zip(self._opened, listed, strict=True))

    def answer_all(self) -> None:
        """Have the predictor answer all that it was asked."""
        for each in self._wires:
            each.answer(self._predictions)

    def answered(self) -> int:
        """How many callers were answered since this was last asked."""
        found = sum([each.written > 0 for each in self._callers])
        for each in self._callers:
            each.written = 0
        return found

    async def close(self) -> None:
        """Let go of the connections to the predictor."""
        self.site.driver.close()
        await self._streams.close()
        await self._predictor.close()


async def microseconds(
    cell: str, tries: int = _TRIES, turns: int = _TURNS, watch: cProfile.Profile | None = None
) -> float:
    """Processor time of one request; the best of `tries`, each of so many `turns`. Raises `own.Disturbed`."""
    wires: list[Wire] = []
    cast(Loop, asyncio.get_running_loop()).wires = wires
    stand, best = Stand(cell, wires), math.inf
    for number in range(tries + 1):  # the first is to warm up
        taken = 0.0
        for _ in range(turns):
            pairs = stand.send()
            if watch is not None and number:
                watch.enable()
            started = time.thread_time()
            for protocol, data in pairs:
                protocol.data_received(data)
            stand.site.driver.flush()  # as at the end of a turn of the event loop
            await asyncio.sleep(0 if number else 0.01)  # at first the predictor has to be connected to
            stand.answer_all()
            await asyncio.sleep(0)
            taken += time.thread_time() - started
            if watch is not None:
                watch.disable()
            if (answered := stand.answered()) != own.BATCH:
                raise own.Disturbed(f"of {own.BATCH} requests {answered} were answered")
        if number:
            best = min(best, taken)
    await stand.close()
    return best / turns / own.BATCH * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each cell, or a profile."""
    options = own.parser("own_mix", __doc__, CELLS, _TRIES).parse_args(argv)
    own.measure(options, CELLS, microseconds, "{:6.2f}".format, Loop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
