"""The server's end of the socket to a worker: calls go out, answers come back in the same order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from carpool.workers import frames


class WorkerDown(Exception):
    """There is no worker that could take the call now; the call was not sent."""


class WorkerDied(Exception):
    """The worker process ended while it held the call. Whether the call was computed is unknown."""


@dataclass(slots=True)
class Reply:
    """A worker's answer to one call: the kind of its frame, and the whole body."""

    kind: int
    body: frames.Buffer


class WorkerConnection(asyncio.BufferedProtocol):
    """One worker's connection, from its start to its loss. `closed` is done once it is lost."""

    def __init__(self, notice: Callable[[int, bytes], None]) -> None:
        """`notice(kind, body)` is called for each frame that is no answer: READY and UNUSABLE."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._notice = notice
        self._decoder = frames.Decoder()
        self._waiting: deque[asyncio.Future[Reply]] = deque()  # oldest call first
        self._transport: asyncio.Transport | None = None

    async def call(self, body: Sequence[frames.Buffer], length: int) -> Reply:
        """Send one call, given in pieces of `length` bytes together, and wait for its answer.

        Raises `WorkerDown` if the connection is lost already, `WorkerDied` if it is lost first. Cancelling loses this
        answer only.
        """
        if self._transport is None or self._transport.is_closing():
            raise WorkerDown
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._transport.writelines([frames.header(frames.CALL, length), *body])
        return await future

    def close(self) -> None:
        """Stop reading and writing; the worker notices the end of its stream and exits."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for kind, body in self._decoder.received(nbytes):
            if kind in (frames.READY, frames.UNUSABLE):
                self._notice(kind, bytes(body))
                continue
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(Reply(kind, body))

    def connection_lost(self, exc: Exception | None) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(WorkerDied())
        if not self.closed.done():
            self.closed.set_result(None)
