"""Calls passed through to the predictor, with messages as bytes: what all of them have in common."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc.aio

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import metadata, statuses
from carpool_sidecar.server.grpc import arrivals, bugs, framing, gates, replies
from carpool_sidecar.server.http2 import streams


class Relay:
    """Passes calls through over a channel; `report` gets the bugs."""

    # State: the calls under way.
    def __init__(self, channel: Any, report: bugs.Report) -> None:
        self._channel = channel
        self._report = report
        self._gates = gates.Gates()
        self._out: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        """Calls that have not ended at the predictor, whoever left."""
        return len(self._out)

    def start(self, passage: Passage, path: str, sent: metadata.Metadata, timeout: float | None) -> None:
        """Call the predictor's method for `passage`; `timeout` is in seconds."""
        passage.report = self._report
        passage.gate = self._gates.open(passage.connection)
        running = passage.run(self._channel, path, sent, timeout)
        task = asyncio.get_running_loop().create_task(running, name="pass a call through")
        passage.task = task
        self._out.add(task)
        task.add_done_callback(self._out.discard)
        task.add_done_callback(passage.over)

    async def close(self) -> None:
        """Break off all calls that are under way."""
        for task in self._out:
            task.cancel()
        await asyncio.gather(*self._out, return_exceptions=True)


class Passage(abc.ABC):
    """One call that is passed through.

    `ended` is called once with its status code, or None if the caller left.
    """

    # State: the task that passes it on; whether the answer has begun; `ended` until it was called; whether the call of
    # grpc.aio was given a message, which it keeps, with a task of its own, until that is over; whether the caller may
    # read again.
    report: bugs.Report
    gate: gates.Gate

    def __init__(
        self,
        stream: streams.Stream,
        content_type: bytes,
        arrival: arrivals.Arrival,
        ended: Callable[[int | None], None],
    ) -> None:
        self._stream = stream
        self._content_type = content_type
        self._arrival = arrival
        self._ended: Callable[[int | None], None] | None = ended
        self._is_writable = asyncio.Event()
        self._has_begun = self._is_whole = False
        self.task: asyncio.Task[None] | None = None

    @abc.abstractmethod
    def begin(self, channel: Any, path: str, sent: metadata.Metadata, timeout: float | None) -> Any:
        """The call of grpc.aio."""

    @abc.abstractmethod
    async def exchange(self, call: Any) -> None:
        """Pass everything on until the predictor has told its status; may raise `grpc.aio.AioRpcError` with that."""

    async def run(self, channel: Any, path: str, sent: metadata.Metadata, timeout: float | None) -> None:
        """Pass everything on until the predictor has told its status, or the caller left."""
        call = None
        try:
            await asyncio.sleep(0)  # a turn of the connection's: what is reset at once never reaches the predictor
            call = self.begin(channel, path, sent, timeout)
            await self.exchange(call)
        except grpc.aio.AioRpcError as error:
            first = error.initial_metadata()
            if first:
                self._start(first)
            self._tell(error.code(), error.details(), error.trailing_metadata())
        except Exception as error:
            self.report(error)
            self._refuse(errors.CarpoolError())
        finally:
            if call is not None and call.cancel() and self._is_whole:
                # Else its task keeps the exception that ended it, whose frames keep the call with its message and task.
                with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                    await call.wait_for_connection()
            self._arrival.release_all()

    @property
    def connection(self) -> int:
        """That of its stream (`streams.Stream`)."""
        return self._stream.connection

    def writable(self) -> None:
        """Part of `streams.Handler`."""
        self._is_writable.set()

    async def _receive(self, call: Any) -> None:
        """Pass the answer's messages on, no faster than the caller reads."""
        first = await call.initial_metadata()
        if not call.done():
            self._start(first)
        size = gates.LARGE
        while True:
            if self._stream.is_blocked:
                await self._until_writable()
            if size >= gates.LARGE:
                await self._take_place()
            message = await call.read()
            if message is grpc.aio.EOF:
                break
            size = len(message)
            self._start(first)
            self._stream.send(framing.frame((message,)))
            del message
            self.gate.leave(self)
        self.gate.leave(self)
        if first:
            self._start(first)
        self._tell(await call.code(), await call.details(), await call.trailing_metadata())

    async def _take_place(self) -> None:
        await self.gate.enter(self)
        while self._stream.is_blocked:  # by what has come for others meanwhile
            self.gate.leave(self)
            await self._until_writable()
            await self.gate.enter(self)

    async def _until_writable(self) -> None:
        while self._stream.is_blocked:
            self._is_writable.clear()
            await self._is_writable.wait()

    def over(self, _: object) -> None:
        """`run` has ended, or was cancelled, perhaps before it began: the caller left, or the sidecar closes."""
        self.gate.leave(self)
        self.gate.close()
        self._arrival.release_all()
        self.task = None  # it keeps the exception that ended it, whose frames keep this
        self._refuse(errors.Draining())

    def cancelled(self) -> None:
        """Part of `streams.Handler`."""
        self._finish(None)
        self._stop()

    @property
    def _is_over(self) -> bool:
        return self._ended is None

    def _start(self, first: Any) -> None:
        """Begin the answer, if it has not begun, with the predictor's initial metadata."""
        if not self._has_begun:
            self._has_begun = True
            self._stream.start(replies.head(self._content_type) + metadata.write(first or ()))

    def _tell(self, code: Any, details: str | None, last: Any) -> None:
        """End the answer with the predictor's status."""
        number = code.value[0]
        self._end(number, metadata.status(number, details or "") + metadata.write(last or ()))

    def _break_off(self, error: errors.CarpoolError) -> None:
        self._refuse(error)
        self._stop()

    def _refuse(self, error: errors.CarpoolError) -> None:
        """Our own failure: its status is the call's."""
        code = statuses.code(error)
        self._end(code, metadata.status(code, statuses.details(error)))

    def _end(self, code: int, trailers: streams.Headers) -> None:
        if not self._is_over:
            self._stream.finish(trailers if self._has_begun else replies.head(self._content_type) + trailers)
            self._finish(code)

    def _finish(self, code: int | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(code)

    def _stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
