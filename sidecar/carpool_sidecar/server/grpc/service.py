"""The gRPC port: `ModelInfer` is batched where that is safe, every other call is passed through."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

from carpool.scheduling import messages as model
from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols.v2_grpc import statuses, tensors
from carpool_sidecar.server.grpc import (
    arrivals,
    bugs,
    heads,
    infer,
    inflating,
    message_timeouts,
    parts,
    replies,
    streaming,
    unary_passthrough,
)
from carpool_sidecar.server.grpc import passthrough as relays
from carpool_sidecar.server.http2 import streams

_PASSING = 24
"""What a call that is passed through costs, beyond its own turn (see `streams.Stream.charge`): tasks and grpc.aio's
part of it come in later turns of the event loop, which would else carry those of dozens of calls each."""

_BATCH_ID, _BATCH_COUNT = calls.BATCH_ID.encode(), calls.BATCH_COUNT.encode()


class Door:
    """Takes all streams (`streams.Door`) and answers the calls made of them (`driver.Replier`).

    `models` is None when batching is off. `max_rows()` is how many rows a request may have; `key_headers` are the
    names of the headers that belong to the batch key.
    """

    # State: what `heads` remembers, and the trailers of the latest batch.
    def __init__(
        self,
        models: parts.Models | None,
        relay: relays.Relay,
        driver: parts.Driver,
        life: parts.Life,
        counters: parts.Counters,
        room: parts.Room,
        max_rows: infer.MaxRows,
        key_headers: Sequence[str],
    ) -> None:
        self.models = models
        self.relay = relay
        self.driver = driver
        self.life = life
        self.counters = counters
        self.room = room
        self.bugs = bugs.Bugs(counters)
        self.patience = message_timeouts.Patience(room, self.bugs.report)
        self.turns = inflating.Turns(self.bugs.report)
        self.max_rows = max_rows
        self._heads = heads.Reader(key_headers)
        self._latest = ("", replies.OK)

    def open(self, stream: streams.Stream, head: streams.Head) -> streams.Handler:
        """Part of `streams.Door`."""
        content_type = dict(head.headers).get(b"content-type", b"")
        if head.method != "POST":
            replies.refuse_as_http(stream, 405, ((b"allow", b"POST"),))
            return _Nobody()
        if not heads.is_grpc(content_type):
            replies.refuse_as_http(stream, 415)
            return _Nobody()
        is_infer = head.path == tensors.MODEL_INFER and self.models is not None
        lane = "batched" if is_infer else "passthrough"
        try:
            self.life.check_open()
            read = self._heads.read(head.headers)
            return self._infer(stream, read) if is_infer else self._pass(stream, head.path, read)
        except errors.CarpoolError as error:
            self.counters.rpc_answered(lane, replies.refuse(stream, content_type, error))
            return _Nobody()

    def pass_alone(
        self, stream: streams.Stream, head: heads.Head, arrival: arrivals.Arrival, message: bytes
    ) -> relays.Passage:
        """Pass a call of `ModelInfer` through that was to be batched; raises `errors.BadRequest` if it cannot be."""
        sent = head.metadata
        stream.charge(_PASSING)
        passage = unary_passthrough.Alone(stream, head.content_type, arrival, self._passed, message)
        self.relay.start(passage, tensors.MODEL_INFER, sent, head.timeout)
        return passage

    def _infer(self, stream: streams.Stream, head: heads.Head) -> streams.Handler:
        opened = infer.Infer(self, stream, head)
        self.life.enter()
        return opened

    def _pass(self, stream: streams.Stream, path: str, head: heads.Head) -> streams.Handler:
        sent = head.metadata
        stream.charge(_PASSING)
        passage = streaming.Streaming(stream, head, self.room, self.turns, self._passed, self.patience)
        self.relay.start(passage, path, sent, head.timeout)
        self.life.enter()
        return passage

    def _passed(self, code: int | None) -> None:
        self.life.leave()
        self.counters.rpc_answered("passthrough", statuses.CANCELLED if code is None else code)

    def close(self) -> None:
        """No stream is open any more."""
        self.patience.close()
        self.turns.close()

    # --- answers -----------------------------------------------------------------------------------------------

    def answer(self, answers: Sequence[model.Answer], list_name: bytes) -> None:
        """Part of `driver.Replier`."""
        now = time.perf_counter()
        seconds = []
        for call, pieces in answers:
            asked = cast(infer.Asked, call)
            try:
                asked.infer.answer(pieces, self._trailers(pieces))
            except Exception as error:
                self.bugs.report(error)
                self.refuse(asked, errors.CarpoolError())
            else:
                seconds.append(now - asked.infer.started)
        self.counters.request_seconds.observe_all(seconds)
        self.counters.rpc_answered("batched", statuses.OK, len(seconds))

    def refuse(self, call: calls.Call, error: errors.CarpoolError) -> None:
        """Part of `driver.Replier`."""
        cast(infer.Asked, call).infer.refuse(error)

    def refused(self, code: int, error: errors.CarpoolError, seconds: float) -> None:
        """A call of `ModelInfer` was refused."""
        self.counters.refused.labels(error.reason).inc()
        self.counters.request_seconds.observe_all((seconds,))
        self.counters.rpc_answered("batched", code)

    def _trailers(self, pieces: Sequence[model.Piece]) -> streams.Headers:
        if len(pieces) > 1:
            batch_id, count = calls.batches(pieces)
            told = (*replies.OK, (_BATCH_ID, batch_id.encode()))
            return (*told, (_BATCH_COUNT, b"%d" % count)) if count > 1 else told
        batch_id = pieces[0].batch_id
        if self._latest[0] != batch_id:
            self._latest = (batch_id, (*replies.OK, (_BATCH_ID, batch_id.encode())))
        return self._latest[1]


class _Nobody:
    """Gets what is left of a stream that was answered when it was opened."""

    def data(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def cancelled(self) -> None: ...

    def writable(self) -> None: ...
