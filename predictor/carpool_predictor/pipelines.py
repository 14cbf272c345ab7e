"""Calls to the workers of a pool from an event loop, with no thread between: for servers that do not batch.

A call of the pool itself is answered before the next one is sent to that worker, and threads make it, which costs a
batch nothing. A server that passes small requests on one by one is several times as fast if the next one is at the
worker already, and if no thread has to wake up for each. The pool starts the processes, as ever; its workers must not
be called in both ways.

Such calls are bytes: the model is called with the bytes of one request, in whatever kind of buffer, and returns its
answer in pieces.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable
from typing import Any, cast

from carpool.workers import errors, messages, payload, pool, worker
from carpool_predictor import calls

Bytes = bytes | bytearray
Sent = asyncio.Future[tuple[messages.Kind, payload.Payload]]


class Pipelines:
    """A pool as a coroutine function from bytes to bytes. Each call goes to the worker with the fewest before it."""

    # Mutable state: the pipeline to each worker's present process.
    def __init__(self, workers: pool.Processes[..., Any]) -> None:
        self._workers = workers.workers
        self._name = workers.__name__
        self._pipelines: dict[worker.Worker, _Pipeline] = {}

    def __call__(self, *request: Bytes) -> Awaitable[Bytes]:
        """What the model returns for a request, put together, or raises. The request may be in pieces, too.

        Raises `errors.WorkerDied` if no worker is up, or if it dies before it answers. Cancelling loses the answer.
        """
        best: _Pipeline | None = None
        for each in self._workers:
            if each.state is worker.State.READY:
                found = self._pipelines.get(each)
                if found is None or found.is_closing:
                    found = self._pipelines[each] = _Pipeline(each, self._pipelines)
                if best is None or len(found) < len(best):
                    best = found
        if best is None:
            raise errors.WorkerDied(f"no worker process of {self._name} is up")
        return best.answer(best.send(list(request)))


class _Pipeline(asyncio.BufferedProtocol):
    """One worker's process, from the first call to its end. Its length is how many calls are not answered yet."""

    # Mutable state: the transport and its socket once it is open, what is to be sent before that, and who waits, oldest
    # call first.
    def __init__(self, to: worker.Worker, pipelines: dict[worker.Worker, _Pipeline]) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = to
        self._pipelines = pipelines
        self._decoder = calls.Decoder()
        self._waiting: deque[Sent] = deque()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[payload.Buffer] = []
        self._sock: socket.socket | None = None
        self._opening = self._loop.create_task(self._open())

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_closing(self) -> bool:
        return self._transport is not None and self._transport.is_closing()

    async def _open(self) -> None:
        try:
            self._sock = self._worker.duplicate_socket()
            await self._loop.create_unix_connection(lambda: self, sock=self._sock)
        except (OSError, errors.WorkerDied):
            if self._sock is not None:
                self._sock.close()
            self.connection_lost(None)

    def send(self, request: list[payload.Buffer]) -> Sent:
        """Send a request, in pieces; what `answer` waits for."""
        sent: Sent = self._loop.create_future()
        self._waiting.append(sent)
        pieces = messages.encoded(messages.Kind.BYTES, payload.Payload(request, []))
        if self._transport is None:
            self._unsent += pieces
        else:
            self._transport.writelines(pieces)
        return sent

    async def answer(self, sent: Sent) -> Bytes:
        """The answer to a request. Raises what the model raised, and `errors.WorkerDied`."""
        kind, body = await sent
        if kind is messages.Kind.RAISED:
            raise payload.load(body)
        return cast(Bytes, body.pieces[0])

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class
        self._transport.writelines(self._unsent)
        self._unsent = []

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for answer in self._decoder.received(nbytes):
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sock is not None:
            # After a write that failed, uvloop closes the file but leaves the object open, which would close the number
            # once more, and whatever has it by then.
            self._loop.call_soon(self._sock.detach)
        if self._pipelines.get(self._worker) is self:
            del self._pipelines[self._worker]
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._worker.died(is_sent=True))
