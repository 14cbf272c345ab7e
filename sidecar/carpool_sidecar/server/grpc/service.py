"""Takes the gRPC calls: `ModelInfer` is batched where that is safe, every other call is passed through."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, cast

from carpool.program import shared_names
from carpool.runtime import driver
from carpool.scheduling import ledger, messages
from carpool_sidecar import drain, errors, metrics, turns
from carpool_sidecar.batching import calls, model_registry, routes
from carpool_sidecar.protocols import interface, steps
from carpool_sidecar.protocols import models as model_names
from carpool_sidecar.protocols.v2_grpc import codec as codecs
from carpool_sidecar.protocols.v2_grpc import messages as protobuf
from carpool_sidecar.protocols.v2_grpc import outlines, statuses, tensors
from carpool_sidecar.server.grpc import arrivals, heads, passthrough
from carpool_sidecar.server.http2 import headers, server_stream

_SERVER_TIMING: Final = calls.SERVER_TIMING.lower().encode()
_BATCH_ID: Final = interface.BATCH_ID.encode()
_BATCH_COUNT: Final = interface.BATCH_COUNT.encode()


class GrpcService:
    """Takes all streams (`server_stream.Service`) and answers batched calls (`driver.Replier`).

    `models` is None when batching is off. `max_rows()` is how many rows a request may have; `key_headers` are the
    names of the headers that belong to the batch key; `report` gets the bugs. Answers have `timings`, if given. `clock`
    is the sidecar's. Large messages are worked on in the `worked` turns.
    """

    # State: the heads that `_heads` remembers, the trailers of the latest batch, encoded; the latest `about` and the
    # head that it was made of; the outlines of messages, each with its model's route.
    def __init__(
        self,
        models: routes.Models | None,
        passing: passthrough.Passthrough,
        calls_driver: driver.Driver,
        life: drain.Lifecycle,
        counters: metrics.Metrics,
        limits: arrivals.MessageLimits,
        report: arrivals.Report,
        max_rows: Callable[[], int],
        key_headers: Sequence[str],
        timings: calls.ServerTimings | None = None,
        clock: Callable[[], float] = time.monotonic,
        worked: turns.Turns | None = None,
        forwarded: Sequence[shared_names.Forwarded] = (),
        priority: str = "",
    ) -> None:
        self._timings = timings
        self.models = models
        self.passthrough = passing
        self.driver = calls_driver
        self.life = life
        self.counters = counters
        self.limits = limits
        self.report = report
        self.timeouts = arrivals.MessageTimeouts(limits, report)
        self.turns = worked or turns.Turns(report)
        self.max_rows = max_rows
        self._heads = heads.HeadReader(key_headers, forwarded, priority)
        self._latest = ("", b"")
        self._about: calls.Head | None = None
        self._about_head: heads.CallHead | None = None
        self.clock = clock
        self.outlines: outlines.Outlines[calls.Route] = outlines.Outlines()

    def about(self, head: heads.CallHead, route: calls.Route, timeout: float | None) -> calls.Head:
        """What the scheduler's request of a call is tagged with: mostly the same object as for the call before."""
        about = self._about
        if about is not None and head is self._about_head and route is about.route and timeout is None:
            return about
        about = calls.Head(
            route, tensors.MODEL_INFER, head.shared, timeout, head.request_id, head.traceparent, head.tracestate, None,
            head.forwarded_for, forwarded=head.forwarded, priority=head.priority,
        )  # fmt: skip
        if timeout is None:
            self._about, self._about_head = about, head
        return about

    def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
        """Implements `server_stream.Service`."""
        known = self._heads.again(head)
        if known is not None and self.models is not None and head.path == tensors.MODEL_INFER:
            try:
                self.life.check_open()
                return InferCall(self, stream, known)
            except errors.CarpoolError as error:
                self.counters.rpc_answered("batched", heads.refuse(stream, known.content_type, error))
                return _Answered()
        return self._open(stream, head)

    def _open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
        """`open` for a head that is looked at in full."""
        content_type = dict(head.headers).get(b"content-type", b"")
        if head.method != "POST":
            stream.finish(((b":status", b"405"), (b"allow", b"POST")))
            return _Answered()
        if not heads.is_grpc(content_type):
            stream.finish(((b":status", b"415"),))
            return _Answered()
        is_infer = head.path == tensors.MODEL_INFER and self.models is not None
        try:
            self.life.check_open()
            read = self._heads.read(head.headers)
            if not is_infer:
                return self._pass(stream, head.path, read)
            self._heads.taken(head, read)
            return InferCall(self, stream, read)
        except errors.CarpoolError as error:
            lane: metrics.Lane = "batched" if is_infer else "passthrough"
            self.counters.rpc_answered(lane, heads.refuse(stream, content_type, error))
            return _Answered()

    def _pass(self, stream: server_stream.ServerStream, path: str, head: heads.CallHead) -> server_stream.Handler:
        sent = head.metadata
        active = self.limits.memory.reserve()

        def ended(code: int | None) -> None:
            active.release()
            self.passed(code)

        call = passthrough.StreamingCall(stream, head, self.limits, self.turns, ended, self.timeouts)
        self.passthrough.start(call, path, sent, head.timeout)
        active.add(0, requests=1)
        return call

    def passed(self, code: int | None) -> None:
        """A call that was passed through has ended; None if its caller left."""
        self.counters.rpc_answered("passthrough", statuses.CANCELLED if code is None else code)

    def close(self) -> None:
        """No stream is open any more."""
        self.timeouts.close()

    def answer(self, answers: Sequence[messages.Answer], about: object) -> None:
        """Implements `driver.Replier`."""
        now = time.perf_counter()
        seconds = []
        for request, pieces in answers:
            call = cast(_InferRequest, request).call
            try:
                if len(pieces) == 1 and self._timings is None:
                    trailers = self._latest_trailers(pieces[0].batch_id)
                else:
                    trailers = headers.block(self._trailers(cast(_InferRequest, request), pieces))
                call.answer(pieces, trailers)
            except Exception as error:
                self.report(error)
                call.refuse(errors.CarpoolError())
            else:
                seconds.append(now - call.started)
        self.counters.request_seconds.observe_all(seconds)
        self.counters.rpc_answered("batched", statuses.OK, len(seconds))

    def refuse(self, call: calls.Call, error: errors.CarpoolError) -> None:
        """Implements `driver.Replier`."""
        cast(_InferRequest, call).call.refuse(error)

    def _trailers(self, request: _InferRequest, pieces: Sequence[messages.Piece]) -> headers.Headers:
        batch_id, count = calls.batches(pieces)
        told = (*heads.OK, (_BATCH_ID, batch_id.encode()))
        if count > 1:
            told = (*told, (_BATCH_COUNT, b"%d" % count))
        return told if self._timings is None else (*told, (_SERVER_TIMING, self._timings.of(request).encode()))

    def _latest_trailers(self, batch_id: str) -> bytes:
        """What follows the answers of one batch, encoded."""
        if self._latest[0] != batch_id:
            self._latest = (batch_id, headers.block((*heads.OK, (_BATCH_ID, batch_id.encode()))))
        return self._latest[1]


class _Answered:
    """Gets what is left of a stream that was answered when it was opened."""

    def data(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def cancelled(self) -> None: ...

    def writable(self) -> None: ...


class _InferRequest(calls.Call):
    """The scheduler's request of a call."""

    __slots__ = ("call",)
    call: InferCall

    @property
    def origin(self) -> Hashable:
        """Implements `calls.Call`."""
        return "grpc", self.call.connection


class InferCall(ledger.Reservation):
    """One call of `ModelInfer`, from its first byte to its answer (`server_stream.Handler`): a request in the ledger.

    `started` is when the call came, by `time.perf_counter`.
    """

    # State: the message once it is complete; the one thing that the call waits for (_waiting for a model to be known,
    # _working on a large message, its _request in the scheduler, or the _passed call); whether the caller has sent all;
    # whether all is over.
    __slots__ = (
        "_arrival", "_has_ended", "_head", "_is_over", "_message", "_passed", "_request", "_service", "_stream",
        "_waiting", "_working", "started",
    )  # fmt: skip

    def __init__(self, service: GrpcService, stream: server_stream.ServerStream, head: heads.CallHead) -> None:
        self._service = service
        self._stream = stream
        self._head = head
        self._arrival: arrivals.Arrival | None = None
        self._message: bytes | None = None
        self._waiting: model_registry.Waiting | None = None
        self._working: turns.Work | None = None
        self._request: _InferRequest | None = None
        self._passed: passthrough.PassedCall | None = None
        self._is_over = self._has_ended = False
        self.started = time.perf_counter()
        service.timeouts.add(self)
        super().__init__(service.limits.memory, requests=1)

    # --- from the caller ---------------------------------------------------------------------------------------

    @property
    def connection(self) -> int:
        """The number of its connection (see `ServerStream.connection`)."""
        return self._stream.connection

    def data(self, data: bytes) -> None:
        """Implements `server_stream.Handler`."""
        if self._is_over:
            return
        arrival = self._arrival
        try:
            if arrival is None:
                whole = None if self._message is not None else arrivals.whole(data, self._service.limits)
                if whole is not None:
                    self._message = whole
                    self.add(len(whole))
                    self._stream.consumed(len(data))
                    return
                arrival = self._new_arrival()
            self._take(arrival.feed(data))
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))
        else:
            self._stream.consumed(len(data))
        if arrival is not None:
            self._stream.charge(arrival.cost)

    def _new_arrival(self) -> arrivals.Arrival:
        """What holds messages from here on, and what is held already: this call is not one message that came whole."""
        service = self._service
        arrival = self._arrival = arrivals.Arrival(service.limits, self._head.encoding, service.turns, self._inflated)
        size = self.size
        self.add(-size)
        arrival.add(size)
        return arrival

    def _inflated(self) -> None:
        """A message was inflated, or cannot be."""
        try:
            self._take(cast(arrivals.Arrival, self._arrival).take())
            if self._has_ended:
                self.end()
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))
        except Exception as bug:
            self._fail(bug)

    def _take(self, found: Sequence[bytes]) -> None:
        for message in found:
            if self._message is not None:
                raise statuses.Fault(statuses.INTERNAL, "ModelInfer takes one message; more were sent")
            self._message = message

    def end(self) -> None:
        """Implements `server_stream.Handler`."""
        self._has_ended = True
        arrival = self._arrival
        if self._is_over or (arrival is not None and arrival.is_inflating):
            return
        try:
            if arrival is not None:
                arrival.end()
            if self._message is None:
                raise statuses.Fault(statuses.INTERNAL, "ModelInfer takes one message; none was sent")
            self._service.timeouts.remove(self)
            self._submit(self._message)
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))

    def cancelled(self) -> None:
        """Implements `server_stream.Handler`."""
        if self._passed is not None:
            self._passed.cancelled()
        elif not self._is_over:
            request = self._request
            self._close()
            self._service.counters.rpc_answered("batched", statuses.CANCELLED)
            if request is not None:
                self._service.driver.cancel(request)

    def writable(self) -> None:
        """Implements `server_stream.Handler`."""
        if self._passed is not None:
            self._passed.writable()

    def expire(self) -> None:
        """Implements `arrivals.Arriving`: an incomplete message must not be kept for ever."""
        self.refuse(errors.BodyTooLate())

    # --- on its way --------------------------------------------------------------------------------------------

    def _submit(self, message: bytes) -> None:
        if self._recall(message):
            return
        try:
            found = protobuf.scan(message)
            registry = cast(routes.Models, self._service.models).registry
            name = _model_name(found)
            known = registry.get(name)
            if known is None:
                self._waiting = registry.when_known(name, lambda told: self._learned(told, found))
            else:
                self._batch(known, found)
        except errors.Unbatchable as verdict:
            self._pass_through(verdict.reason)

    def _recall(self, message: bytes) -> bool:
        """Batch a message that differs from an earlier one in its tensors alone; False if it is none."""
        service = self._service
        known = service.outlines.find(message)
        if known is None:
            return False
        found, route = known
        if found.template.rows > service.max_rows():
            return False
        watched = route.watched
        if watched is not None and service.clock() >= watched.settled_until and _has_objection(route):
            return False
        self._enqueue(route, cast(codecs.Codec, route.codec).payload(message, found), len(message))
        return True

    def _learned(self, told: model_registry.Model, found: protobuf.Fields) -> None:
        """The model is known now."""
        self._waiting = None
        self._go_on(lambda: self._batch(told, found))

    def _go_on(self, step: Callable[[], None]) -> None:
        """Take a step in a turn of the event loop of its own, where nobody else would answer the call if it failed."""
        try:
            step()
        except Exception as error:
            self._stopped(error)

    def _stopped(self, error: Exception) -> None:
        """Go on after what a step raised: a verdict, a failure or a bug."""
        if isinstance(error, errors.Unbatchable):
            self._pass_through(error.reason)
        elif isinstance(error, errors.CarpoolError):
            self.refuse(errors.bare(error))
        else:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A bug was caught where nobody else would answer the call."""
        request = self._request
        self._service.report(error)
        self.refuse(errors.CarpoolError())
        if request is not None:
            self._service.driver.cancel(request)

    def _batch(self, told: model_registry.Model, found: protobuf.Fields) -> None:
        service, message = self._service, cast(bytes, self._message)
        route = cast(routes.Models, service.models).route(told)
        codec = cast(codecs.Codec, route.codec)
        work = codec.understand(message, found, service.max_rows())
        if len(message) >= codec.large:
            self._working = service.turns.start(work, lambda told: self._understood(route, len(message), told))
            return
        payload = steps.at_once(work)
        outline = outlines.outline(message, payload.message)
        if outline is not None:
            service.outlines.put(message, outline, route)
        self._enqueue(route, payload, len(message))

    def _understood(self, route: calls.Route, size: int, told: codecs.Payload | Exception) -> None:
        """A large message was looked through."""
        self._working = None
        if isinstance(told, Exception):
            self._stopped(told)
        else:
            self._go_on(lambda: self._enqueue(route, told, size))

    def _enqueue(self, route: calls.Route, payload: codecs.Payload, size: int) -> None:
        service = self._service
        request = _InferRequest(service.about(self._head, route, self._time_left()), payload, size)
        request.call = self
        request.replier = service
        self._request = request
        self._message = None
        if self._arrival is None:
            self.add(-size)
        else:
            self._arrival.release()
        service.driver.submit(request)

    def _pass_through(self, reason: errors.NotBatched) -> None:
        """The call must not be batched, for this reason."""
        service = self._service
        service.counters.unbatched(reason)
        message, self._message = cast(bytes, self._message), None
        try:
            timeout, sent = self._time_left(), self._head.metadata
        except errors.CarpoolError as error:
            self.refuse(errors.bare(error))
            return
        arrival = self._arrival or self._new_arrival()
        call = passthrough.UnaryCall(self._stream, self._head.content_type, arrival, self._ended, message)
        service.passthrough.start(call, tensors.MODEL_INFER, sent, timeout)
        self._is_over, self._passed = True, call

    def _ended(self, code: int | None) -> None:
        """The call that was passed through has ended."""
        self.release()
        self._service.passed(code)

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

    def answer(self, pieces: Sequence[messages.Piece], trailers: bytes) -> None:
        """Send the caller's outputs, and what follows them, a header block."""
        form = cast(codecs.ResponseFormat, cast(_InferRequest, self._request).response_format)
        body = arrivals.frame(form.pieces(pieces))
        self._stream.answer_encoded(heads.answer_block(self._head.content_type), body, trailers)
        self._close()

    def refuse(self, error: errors.CarpoolError) -> None:
        """Tell the caller why there are no outputs."""
        if not self._is_over:
            self._close()  # first: even if the answer fails, nothing may stay counted
            code = heads.refuse(self._stream, self._head.content_type, error)
            counters = self._service.counters
            counters.refused.labels(error.reason).inc()
            counters.request_seconds.observe(time.perf_counter() - self.started)
            counters.rpc_answered("batched", code)

    def _close(self) -> None:
        self._is_over = True
        if self._request is None:  # else nothing of the message is held, and it has arrived
            if self._arrival is not None:
                self._arrival.release()
            self._service.timeouts.remove(self)
        self._request = self._message = None
        if self._waiting is not None:
            self._waiting.cancel()
        if self._working is not None:
            self._working.cancel()
            self._working = None
        self.release()


def _has_objection(route: calls.Route) -> bool:
    return route.objection is not None and route.objection() is not None


def _model_name(found: protobuf.Fields) -> model_names.ModelName:
    try:
        return model_names.ModelName(found.name.decode(), found.version.decode())
    except UnicodeDecodeError:
        raise errors.BadRequest("model_name and model_version must be UTF-8") from None
