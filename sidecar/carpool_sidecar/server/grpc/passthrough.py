"""Calls passed through to the predictor, with messages as bytes, no faster than either side reads."""

from __future__ import annotations

import abc
import asyncio
import collections
import contextlib
from collections.abc import Callable
from typing import Any

import grpc.aio

from carpool_sidecar import errors, turns
from carpool_sidecar.protocols.v2_grpc import metadata, statuses
from carpool_sidecar.server.grpc import arrivals, heads, read_slots
from carpool_sidecar.server.http2 import headers, server_stream

WORK = 24
"""What a call that is passed through costs beside its own turn (see `ServerStream.charge`): tasks and grpc.aio's part
of it run in later turns of the event loop, each of which would otherwise serve dozens of calls."""


class Passthrough:
    """Passes calls through over a channel; `report` gets the bugs."""

    # State: the calls under way.
    def __init__(self, channel: Any, report: arrivals.Report) -> None:
        self._channel = channel
        self._report = report
        self._slots = read_slots.ConnectionSlots()
        self._out: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        """Calls that have not ended at the predictor, even if their callers left."""
        return len(self._out)

    def start(self, call: PassedCall, path: str, sent: metadata.Metadata, timeout: float | None) -> None:
        """Call the predictor's method for `call`; `timeout` is in seconds."""
        call.report = self._report
        call.slots = self._slots.open(call.connection)
        running = call.run(self._channel, path, sent, timeout)
        task = asyncio.get_running_loop().create_task(running, name="pass a call through")
        call.task = task
        self._out.add(task)
        task.add_done_callback(self._out.discard)
        task.add_done_callback(call.over)

    async def close(self) -> None:
        """Break off all calls that are under way."""
        for task in self._out:
            task.cancel()
        await asyncio.gather(*self._out, return_exceptions=True)


class PassedCall(abc.ABC):
    """One call that is passed through.

    `ended` is called once with its status code, or None if the caller left.
    """

    # State: the task that passes it on; whether the answer has begun; `ended` until it was called; whether the call of
    # grpc.aio was given a message, which it keeps, with a task of its own, until that is over; whether the caller may
    # read again.
    report: arrivals.Report
    slots: read_slots.ReadSlots

    def __init__(
        self,
        stream: server_stream.ServerStream,
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
        stream.charge(WORK)

    @abc.abstractmethod
    def begin(self, channel: Any, path: str, sent: metadata.Metadata, timeout: float | None) -> Any:
        """The call of grpc.aio."""

    @abc.abstractmethod
    async def transfer(self, call: Any) -> None:
        """Pass everything on until the predictor has told its status; may raise `grpc.aio.AioRpcError` with that."""

    async def run(self, channel: Any, path: str, sent: metadata.Metadata, timeout: float | None) -> None:
        """Call the predictor, and pass everything on until it has told its status, or the caller left."""
        call = None
        try:
            await asyncio.sleep(0)  # a turn of the connection's: what is reset at once never reaches the predictor
            call = self.begin(channel, path, sent, timeout)
            await self.transfer(call)
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
            self._arrival.release()

    @property
    def connection(self) -> int:
        """The number of its connection (see `ServerStream.connection`)."""
        return self._stream.connection

    def writable(self) -> None:
        """Implements `server_stream.Handler`."""
        self._is_writable.set()

    async def _receive(self, call: Any) -> None:
        """Pass the answer's messages on, no faster than the caller reads."""
        first = await call.initial_metadata()
        if not call.done():
            self._start(first)
        size = read_slots.LARGE
        while True:
            await self._until_writable()
            if size >= read_slots.LARGE:
                await self._acquire_slot()
            message = await call.read()
            if message is grpc.aio.EOF:
                break
            size = len(message)
            self._start(first)
            self._stream.send(arrivals.frame((message,)))
            del message
            self.slots.release(self)
        self.slots.release(self)
        if first:
            self._start(first)
        self._tell(await call.code(), await call.details(), await call.trailing_metadata())

    async def _acquire_slot(self) -> None:
        await self.slots.acquire(self)
        while self._stream.is_blocked:  # by what has come for others meanwhile
            self.slots.release(self)
            await self._until_writable()
            await self.slots.acquire(self)

    async def _until_writable(self) -> None:
        while self._stream.is_blocked:
            self._is_writable.clear()
            await self._is_writable.wait()

    def over(self, _: object) -> None:
        """`run` has ended, or was cancelled, perhaps before it began: the caller left, or the sidecar closes."""
        self.slots.release(self)
        self.slots.close()
        self._arrival.release()
        self.task = None  # it keeps the exception that ended it, whose frames keep this
        self._refuse(errors.Draining())

    def cancelled(self) -> None:
        """Implements `server_stream.Handler`."""
        self._finish(None)
        self._stop()

    @property
    def _is_over(self) -> bool:
        return self._ended is None

    def _start(self, first: Any) -> None:
        """Begin the answer, if it has not begun, with the predictor's initial metadata."""
        if not self._has_begun:
            self._has_begun = True
            self._stream.start(heads.answer_head(self._content_type) + metadata.write(first or ()))

    def _tell(self, code: Any, details: str | None, last: Any) -> None:
        """End the answer with the predictor's status."""
        number = code.value[0]
        self._end(number, metadata.status(number, details or "") + metadata.write(last or ()))

    def _break_off(self, error: errors.CarpoolError) -> None:
        self._refuse(error)
        self._stop()

    def _refuse(self, error: errors.CarpoolError) -> None:
        """End the answer with the status of our own failure."""
        code = statuses.code(error)
        self._end(code, metadata.status(code, statuses.details(error)))

    def _end(self, code: int, trailers: headers.Headers) -> None:
        if not self._is_over:
            begun = () if self._has_begun else heads.answer_head(self._content_type)
            self._stream.finish(begun + trailers)
            self._finish(code)

    def _finish(self, code: int | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(code)

    def _stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class UnaryCall(PassedCall):
    """A call of a unary method whose message is complete: it takes half the time of a `StreamingCall`."""

    # State beside the base's: the message until it is passed on; whether the answer is among those read whole.
    def __init__(
        self,
        stream: server_stream.ServerStream,
        content_type: bytes,
        arrival: arrivals.Arrival,
        ended: Callable[[int | None], None],
        message: bytes,
    ) -> None:
        super().__init__(stream, content_type, arrival, ended)
        self._message = message
        self._is_whole = True
        self._is_counted = False

    def begin(self, channel: Any, path: str, sent: metadata.Metadata, timeout: float | None) -> Any:
        """Implements `PassedCall`.

        An answer that is read whole at once cannot be kept waiting, so only a caller that reads gets some that way.
        """
        message, self._message = self._message, b""
        self._is_counted = not self._stream.is_blocked and self.slots.try_whole()
        kind = channel.unary_unary if self._is_counted else channel.unary_stream
        return kind(path)(message, metadata=sent, timeout=timeout)

    async def transfer(self, call: Any) -> None:
        """Implements `PassedCall`."""
        if not self._is_counted:
            await self._receive(call)
            return
        answer = arrivals.frame((await call,))
        head = heads.answer_head(self._content_type) + metadata.write(await call.initial_metadata() or ())
        last = heads.OK + metadata.write(await call.trailing_metadata() or ())
        if not self._is_over:
            self._stream.answer(head, answer, last)
            self._finish(statuses.OK)

    def over(self, ended: object) -> None:
        """Implements `PassedCall`."""
        if self._is_counted:
            self.slots.end_whole()
        super().over(ended)


class StreamingCall(PassedCall):
    """A call of any kind: messages go in both directions at once."""

    # State beside the base's: messages not yet sent on, and bytes that the caller may not send again yet; whether the
    # caller has sent all, and whether all of that is in messages; whether a message is arriving; news for `_send`.
    def __init__(
        self,
        stream: server_stream.ServerStream,
        head: heads.CallHead,
        limits: arrivals.MessageLimits,
        worked: turns.Turns,
        ended: Callable[[int | None], None],
        timeouts: arrivals.MessageTimeouts,
    ) -> None:
        arrival = arrivals.Arrival(limits, head.encoding, worked, self._inflated)
        super().__init__(stream, head.content_type, arrival, ended)
        self._timeouts = timeouts
        self._is_watched = False
        self._messages: collections.deque[bytes] = collections.deque()
        self._ungranted = 0
        self._is_complete = self._has_ended = False
        self._news = asyncio.Event()

    # --- from the caller ---------------------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        """Implements `server_stream.Handler`."""
        if self._is_over:
            return
        try:
            messages = self._arrival.feed(data)
        except errors.CarpoolError as error:
            self._break_off(error)
            return
        self._stream.charge(self._arrival.cost)
        self._ungranted += len(data)
        self._messages.extend(messages)
        self._watch(bool(messages))
        if self._messages:
            self._news.set()
        elif not self._arrival.is_inflating:
            self._grant()

    def _inflated(self) -> None:
        """Messages were inflated, or cannot be."""
        try:
            self._messages.extend(self._arrival.take())
        except errors.CarpoolError as error:
            self._break_off(error)
            return
        self._is_complete = self._has_ended and not self._arrival.is_inflating
        self._news.set()

    def _watch(self, has_news: bool) -> None:
        """Bound the time of a message that has begun: its bytes are kept until it is complete."""
        if has_news or not self._arrival.is_incomplete:
            self._timeouts.remove(self)
        if self._arrival.is_incomplete and (has_news or not self._is_watched):
            self._timeouts.add(self)
        self._is_watched = self._arrival.is_incomplete

    def expire(self) -> None:
        """Implements `arrivals.Arriving`. A caller that the predictor holds up is not late."""
        if self._messages:
            self._timeouts.add(self)
        elif not self._is_over:
            self._break_off(errors.BodyTooLate())

    def _finish(self, code: int | None) -> None:
        self._timeouts.remove(self)
        super()._finish(code)

    def end(self) -> None:
        """Implements `server_stream.Handler`."""
        self._timeouts.remove(self)
        try:
            self._arrival.end()
        except errors.CarpoolError as error:
            self._break_off(error)
        self._has_ended = True
        self._is_complete = not self._arrival.is_inflating
        self._news.set()

    def _grant(self) -> None:
        granted, self._ungranted = self._ungranted, 0
        if granted:
            self._stream.consumed(granted)

    # --- to the predictor and back -----------------------------------------------------------------------------

    def begin(self, channel: Any, path: str, sent: metadata.Metadata, timeout: float | None) -> Any:
        """Implements `PassedCall`.

        A call whose only message came together with its head is of a method that takes one message. It is passed on as
        such: grpc.aio sometimes fails to tell the status of calls that end before they have sent all.
        """
        if self._is_complete and len(self._messages) == 1:
            self._is_whole = True
            return channel.unary_stream(path)(self._messages.popleft(), metadata=sent, timeout=timeout)
        return channel.stream_stream(path)(metadata=sent, timeout=timeout)

    async def transfer(self, call: Any) -> None:
        """Implements `PassedCall`."""
        if self._is_whole:
            self._grant()
            await self._receive(call)
            return
        sending = asyncio.create_task(self._send(call), name="pass a caller's messages on")
        try:
            await self._receive(call)
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _send(self, call: Any) -> None:
        try:
            while True:
                while self._messages:
                    message = self._messages.popleft()
                    await _write(call, message)
                    self._arrival.release_message(len(message))
                self._grant()
                if self._is_complete:
                    await call.done_writing()
                    return
                self._news.clear()
                await self._news.wait()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            return  # the call is over: `_receive` learns why
        except Exception as error:  # else nobody would end the call before its deadline
            self.report(error)
            self._break_off(errors.CarpoolError())


async def _write(call: Any, message: bytes) -> None:
    """Send as `call.write` does, but keep a status that comes meanwhile, which every public method makes INTERNAL."""
    send = getattr(getattr(call, "_cython_call", None), "send_serialized_message", None)
    if send is None:  # a grpcio that is built differently
        await call.write(message)
        return
    await call.wait_for_connection()
    await send(message)
