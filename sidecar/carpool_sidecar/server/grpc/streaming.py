"""Calls of any kind passed through: messages in both directions at once, no faster than either side reads."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import Any

import grpc.aio

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import metadata
from carpool_sidecar.server.grpc import arrivals, heads, inflating, message_timeouts, parts, passthrough
from carpool_sidecar.server.http2 import streams


class Streaming(passthrough.Passage):
    """Part of `streams.Handler`."""

    # State: messages not yet sent on, and bytes that the caller may not send again yet; whether the caller has sent
    # all, and whether all of that is in messages; whether a message is arriving; events for the two directions.
    def __init__(
        self,
        stream: streams.Stream,
        head: heads.Head,
        room: parts.Room,
        turns: inflating.Turns,
        ended: Callable[[int | None], None],
        patience_: message_timeouts.Patience,
    ) -> None:
        arrival = arrivals.Arrival(room, head.encoding, turns, self._inflated)
        super().__init__(stream, head.content_type, arrival, ended)
        self._patience = patience_
        self._is_watched = False
        self._messages: collections.deque[bytes] = collections.deque()
        self._ungranted = 0
        self._is_complete = self._has_ended = False
        self._news = asyncio.Event()

    # --- from the caller ---------------------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        """Part of `streams.Handler`."""
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
        """A message that has begun must come to its end: its bytes are kept until then."""
        if has_news or not self._arrival.is_incomplete:
            self._patience.remove(self)
        if self._arrival.is_incomplete and (has_news or not self._is_watched):
            self._patience.add(self)
        self._is_watched = self._arrival.is_incomplete

    def expire(self) -> None:
        """Part of `patience.Arriving`. A caller who is held up by the predictor is not late."""
        if self._messages:
            self._patience.add(self)
        elif not self._is_over:
            self._break_off(errors.BodyTooLate())

    def _finish(self, code: int | None) -> None:
        self._patience.remove(self)
        super()._finish(code)

    def end(self) -> None:
        """Part of `streams.Handler`."""
        self._patience.remove(self)
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
        """Part of `relay.Passage`.

        A call whose only message came together with its head is one of a method that takes one message: grpc.aio fails
        now and then to tell the status of calls that end before they have sent all.
        """
        if self._is_complete and len(self._messages) == 1:
            self._is_whole = True
            return channel.unary_stream(path)(self._messages.popleft(), metadata=sent, timeout=timeout)
        return channel.stream_stream(path)(metadata=sent, timeout=timeout)

    async def exchange(self, call: Any) -> None:
        """Part of `relay.Passage`."""
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
                    self._arrival.release(len(message))
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
    """What `call.write` does, which makes INTERNAL of any status that comes meanwhile: nothing public leaves it be."""
    send = getattr(getattr(call, "_cython_call", None), "send_serialized_message", None)
    if send is None:  # a grpcio that is built differently
        await call.write(message)
        return
    await call.wait_for_connection()
    await send(message)
