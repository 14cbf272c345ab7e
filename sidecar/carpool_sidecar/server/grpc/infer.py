"""One call of `ModelInfer`, from its first byte to its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, cast

from carpool.runtime import driver
from carpool.scheduling import messages as model
from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_grpc import codec as codecs
from carpool_sidecar.protocols.v2_grpc import messages, statuses, tensors
from carpool_sidecar.server.grpc import (
    arrivals,
    bugs,
    framing,
    heads,
    inflating,
    message_timeouts,
    parts,
    passthrough,
    replies,
)
from carpool_sidecar.server.http2 import streams

MaxRows = Callable[[], int]


class Door(driver.Replier, Protocol):
    """Who opened the call."""

    models: parts.Models | None
    driver: parts.Driver
    life: parts.Life
    counters: parts.Counters
    room: parts.Room
    patience: message_timeouts.Patience
    turns: inflating.Turns
    max_rows: MaxRows
    bugs: bugs.Bugs

    def pass_alone(
        self, stream: streams.Stream, head: heads.Head, arrival: arrivals.Arrival, message: bytes
    ) -> passthrough.Passage: ...

    def refused(self, code: int, error: errors.CarpoolError, seconds: float) -> None: ...


class Asked(calls.Call):
    """The core's request, and whose it is."""

    __slots__ = ("infer",)
    infer: Infer

    @property
    def origin(self) -> Hashable:
        """Part of `calls.Call`."""
        return "grpc", self.infer.connection


class Infer:
    """Part of `streams.Handler`. `started` is when the call came, by `time.perf_counter`."""

    # State: the message once it is there; the one thing that is waited for (a model to be
    # known, the call in the core, or the call that is passed through); whether the caller has sent all; whether all is
    # over.
    __slots__ = (
        "_arrival", "_call", "_door", "_has_ended", "_head", "_is_over", "_message", "_passage", "_stream", "_waiting",
        "started",
    )  # fmt: skip

    def __init__(self, door: Door, stream: streams.Stream, head: heads.Head) -> None:
        self._door = door
        self._stream = stream
        self._head = head
        self._arrival = arrivals.Arrival(door.room, head.encoding, door.turns, self._inflated)
        self._message: bytes | None = None
        self._waiting: parts.Waiting | None = None
        self._call: Asked | None = None
        self._passage: passthrough.Passage | None = None
        self._is_over = self._has_ended = False
        self.started = time.perf_counter()
        door.patience.add(self)

    # --- from the caller ---------------------------------------------------------------------------------------

    @property
    def connection(self) -> int:
        """That of its stream (`streams.Stream`)."""
        return self._stream.connection

    def data(self, data: bytes) -> None:
        """Part of `streams.Handler`."""
        if self._is_over:
            return
        try:
            self._take(self._arrival.feed(data))
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))
        else:
            self._stream.consumed(len(data))
        self._stream.charge(self._arrival.cost)

    def _inflated(self) -> None:
        """A message was inflated, or cannot be."""
        try:
            self._take(self._arrival.take())
            if self._has_ended:
                self.end()
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))
        except Exception as error:
            self._fail(error)

    def _take(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            if self._message is not None:
                raise statuses.Fault(statuses.INTERNAL, "ModelInfer takes one message; more were sent")
            self._message = message

    def end(self) -> None:
        """Part of `streams.Handler`."""
        self._has_ended = True
        if self._is_over or self._arrival.is_inflating:
            return
        try:
            self._arrival.end()
            if self._message is None:
                raise statuses.Fault(statuses.INTERNAL, "ModelInfer takes one message; none was sent")
            self._door.patience.remove(self)
            self._submit(self._message)
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))

    def cancelled(self) -> None:
        """Part of `streams.Handler`."""
        if self._passage is not None:
            self._passage.cancelled()
        elif not self._is_over:
            call = self._call
            self._close()
            self._door.counters.rpc_answered("batched", statuses.CANCELLED)
            if call is not None:
                self._door.driver.cancel(call)

    def writable(self) -> None:
        """Part of `streams.Handler`."""
        if self._passage is not None:
            self._passage.writable()

    def expire(self) -> None:
        """Part of `patience.Arriving`: what does not come to its end must not be kept for ever."""
        self.refuse(errors.BodyTooLate())

    # --- on its way --------------------------------------------------------------------------------------------

    def _submit(self, message: bytes) -> None:
        try:
            found = messages.scan(message)
            name = models.ModelName(*_texts(found))
            catalog = cast(parts.Models, self._door.models).catalog
            known = catalog.get(name)
            if known is None:
                self._waiting = catalog.when_known(name, lambda told: self._learned(told, found))
            else:
                self._batch(known, found)
        except errors.Unbatchable as verdict:
            self._pass_on(verdict.reason)

    def _learned(self, told: Any, found: messages.Fields) -> None:
        """The model is known now."""
        self._waiting = None
        try:
            self._batch(told, found)
        except errors.Unbatchable as verdict:
            self._pass_on(verdict.reason)
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A bug, where nobody else would answer the call."""
        call = self._call
        self._door.bugs.report(error)
        self.refuse(errors.CarpoolError())
        if call is not None:
            self._door.driver.cancel(call)

    def _batch(self, told: Any, found: messages.Fields) -> None:
        door, head, message = self._door, self._head, cast(bytes, self._message)
        route = cast(parts.Models, door.models).route(told)
        payload = cast(codecs.Codec, route.codec).understand(message, found, door.max_rows())
        about = calls.Head(
            route, tensors.MODEL_INFER, head.shared, self._time_left(), head.request_id, head.traceparent,
            head.tracestate, None, head.forwarded_for,
        )  # fmt: skip
        call = Asked(about, payload, len(message))
        call.infer = self
        call.replier = door
        self._call = call
        self._message = None
        self._arrival.release_all()
        door.driver.submit(call)

    def _pass_on(self, reason: str) -> None:
        """The call has to travel alone."""
        self._door.counters.unbatched(reason)
        message, self._message = cast(bytes, self._message), None
        try:
            head = self._head._replace(timeout=self._time_left())
            passage = self._door.pass_alone(self._stream, head, self._arrival, message)
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))
            return
        self._is_over, self._passage = True, passage

    def _time_left(self) -> float | None:
        """Seconds until the caller's deadline; raises `errors.DeadlineExceeded`."""
        timeout = self._head.timeout
        if timeout is None:
            return None
        left = self.started + timeout - time.perf_counter()
        if left <= 0:
            raise errors.DeadlineExceeded
        return left

    # --- back to the caller ------------------------------------------------------------------------------------

    def answer(self, pieces: Sequence[model.Piece], trailers: streams.Headers) -> None:
        """The caller's outputs, and what follows them."""
        form = cast(interface.ResponseFormat, cast(Asked, self._call).response_format)
        body = framing.frame(form.render(pieces).body)
        self._stream.answer(replies.head(self._head.content_type), body, trailers)
        self._close()

    def refuse(self, error: errors.CarpoolError) -> None:
        """Why there are none."""
        if not self._is_over:
            self._close()  # first: whatever becomes of the words, nothing may stay counted
            code = replies.refuse(self._stream, self._head.content_type, error)
            self._door.refused(code, error, time.perf_counter() - self.started)

    def _close(self) -> None:
        self._is_over = True
        self._call = self._message = None
        self._arrival.release_all()
        self._door.patience.remove(self)
        if self._waiting is not None:
            self._waiting.cancel()
        self._door.life.leave()


def _texts(found: messages.Fields) -> tuple[str, str]:
    try:
        return found.name.decode(), found.version.decode()
    except UnicodeDecodeError:
        raise errors.BadRequest("model_name and model_version must be UTF-8") from None
