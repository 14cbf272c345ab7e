"""Traces of the sidecar: what OpenTelemetry is told of batches, and where spans go.

Loaded with `--tracing otlp` only, as it needs packages of the extra `otel`. Spans are exported by a thread of the SDK,
which the event loop never waits for; what it cannot get rid of is dropped. All else is chosen by OpenTelemetry's own
environment variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import opentelemetry.exporter.otlp.proto.http.trace_exporter as otlp
from opentelemetry import trace
from opentelemetry.sdk import resources
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import export

import carpool_sidecar
from carpool.runtime import spans
from carpool.scheduling import messages
from carpool_sidecar import errors, metrics
from carpool_sidecar.batching import calls, executor
from carpool_sidecar.protocols import interface
from carpool_sidecar.recording import ring

_SERVICE = "carpool-sidecar"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"

# Where things are in a `traceparent`, and how the last digit of its flags looks without "sampled".
_TRACE_ID, _SPAN_ID, _FLAGS, _LAST_FLAG = slice(3, 35), slice(36, 52), slice(53, 55), slice(54, 55)
_NOT_SAMPLED = frozenset("02468ace")

# It warns of each `tracestate` that is none, in the words of the header: a line for every request of such a caller.
logging.getLogger(trace.TraceState.__module__).setLevel(logging.ERROR)


class Tracing:
    """Implements `executor.Tracing`; `spans` are told what happens by the driver's observer.

    `base` is the predictor's `http://HOST:PORT`, `rpc` what batches go to that go by gRPC, with its port. `on_bug` is
    called for each bug met.
    """

    # State: the provider, which has a thread; the spans of batches that are out.
    def __init__(
        self,
        base: str,
        rpc: tuple[calls.Predictor, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_bug: Callable[[], None] = lambda: None,
        processor: sdk.SpanProcessor | None = None,
    ) -> None:
        """`processor` takes the spans instead of an exporter."""
        self._base = base
        self._host, _, port = base.rpartition("/")[2].rpartition(":")
        self._port = int(port)
        self._rpc: calls.Predictor | None
        self._rpc, self._rpc_port = (None, 0) if rpc is None else rpc
        self._provider = sdk.TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor or export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
        tracer = self._provider.get_tracer("carpool", carpool_sidecar.__version__)
        self.spans = spans.Spans(tracer, Heads(), clock, on_bug)

    def headers_of(self, batch: messages.Batch, route: calls.Route, target: str) -> calls.Headers:
        """Implements `executor.Tracing`: that of the batch's span; none if it is not recorded."""
        span = self.spans.span(batch)
        if span is None:
            return ()
        try:
            span.set_attributes({"server.address": self._host, **self._of_call(route, target)})
            context = span.get_span_context()
            sent: calls.Headers = (("traceparent", trace_header(context)),)
            state = context.trace_state
            return (*sent, ("tracestate", state.to_header())) if state else sent
        except Exception:
            self.spans.bug()
            return ()

    def came_back(self, batch: messages.Batch, reply: interface.UpstreamResponse | errors.UpstreamError) -> None:
        """Implements `executor.Tracing`."""
        span = self.spans.span(batch)
        if span is None:
            return
        try:
            span.set_attributes(self._of_reply(batch.parts[0].request.tag.route, reply))
        except Exception:
            self.spans.bug()

    async def close(self, seconds: float) -> bool:
        """Export what is left and end; returns whether that was done within so many seconds."""
        over, loop = asyncio.Event(), asyncio.get_running_loop()

        def flush() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(over.set)

        # Nobody waits for this thread at the end of the process, as they would for one of an executor.
        threading.Thread(target=flush, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await over.wait()
        except TimeoutError:
            return False
        return True

    def _of_call(self, route: calls.Route, target: str) -> spans.Attributes:
        if route.predictor is self._rpc:
            return {"rpc.system.name": "grpc", "rpc.method": target.removeprefix("/"), "server.port": self._rpc_port}
        # Without the query, which may have secrets.
        url = self._base + target.partition("?")[0]
        return {"http.request.method": "POST", "url.full": url, "server.port": self._port}

    def _of_reply(
        self, route: calls.Route, reply: interface.UpstreamResponse | errors.UpstreamError
    ) -> spans.Attributes:
        if isinstance(reply, errors.UpstreamRpcStatus):
            return {"rpc.response.status_code": _rpc_code(reply.code)}
        if not isinstance(reply, interface.UpstreamResponse | errors.UpstreamStatus):
            return {}
        if route.predictor is self._rpc:
            return {"rpc.response.status_code": _rpc_code(0)}
        return {"http.response.status_code": reply.status}


class Observer(executor.Observer):
    """As `executor.Observer`, and makes spans."""

    def __init__(
        self,
        counters: metrics.Metrics,
        made: spans.Spans,
        clock: Callable[[], float] = time.monotonic,
        kept: ring.Ring | None = None,
        timings: calls.ServerTimings | None = None,
    ) -> None:
        super().__init__(counters, clock, kept, timings)
        self._spans = made
        self.before = made.sent

    def answered(self, batch: messages.Batch, seconds: float) -> None:
        super().answered(batch, seconds)
        self._spans.answered(batch, seconds)

    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        super().failed(batch, error)
        self._spans.failed(batch, error)

    def turned_away(self, call: messages.Request, error: errors.CarpoolError) -> None:
        super().turned_away(call, error)
        self._spans.turned_away(call, error)

    def left(self, call: messages.Request) -> None:
        super().left(call)
        self._spans.left(call)


class Heads(spans.Source):
    """Requests whose tag is a `calls.Head`: its `traceparent` and `tracestate` name the caller's span."""

    kind = trace.SpanKind.CLIENT
    goes_by_callers = True

    def caller(self, request: messages.Request) -> Any:
        """Implements `spans.Source`."""
        head: calls.Head = request.tag
        return None if head.traceparent is None else span_context(head.traceparent, head.tracestate)

    def callers(self, batch: messages.Batch) -> spans.Callers:
        """Implements `spans.Source`, at the cost of a look at one letter for each member that is not sampled."""
        parts, sampled, is_decided = batch.parts, [], True
        # By index, and all at once: this is done for every request.
        notable = [part for part in parts if (part[0].tag.traceparent or "")[_LAST_FLAG] not in _NOT_SAMPLED]
        for part in notable:
            caller = self.caller(part.request)
            if caller is None:
                is_decided = False
            else:
                sampled.append((part, caller))
        if sampled:
            first = sampled[0][1]
            trace_id = sampled[0][0].request.tag.traceparent[_TRACE_ID]
            is_one_trace = is_decided and all(part.request.tag.traceparent[_TRACE_ID] == trace_id for part in parts)
            return spans.Callers(sampled, first, is_one_trace, is_decided)
        first = self.caller(parts[0].request)
        is_one_trace = is_decided and first is not None and len(parts) == 1
        return spans.Callers((), first, is_one_trace, is_decided and first is not None)

    def of_wait(self, request: messages.Request) -> spans.Attributes:
        """Implements `spans.Source`."""
        head: calls.Head = request.tag
        found = {"url.path": head.target.partition("?")[0]}
        return {**found, "http.request.header.x-request-id": [head.request_id]} if head.request_id else found

    def of_failure(self, error: errors.CarpoolError) -> spans.Attributes:
        """Implements `spans.Source`."""
        if isinstance(error, errors.UpstreamRpcStatus):
            return {"error.type": _rpc_code(error.code)}
        return {"error.type": str(error.status)} if isinstance(error, errors.UpstreamStatus) else {}

    def words(self, error: errors.CarpoolError) -> str:
        """Implements `spans.Source`: a predictor's own words may quote what callers sent."""
        if isinstance(error, errors.UpstreamRpcStatus):
            return f"the predictor answered {_rpc_code(error.code)}"
        if isinstance(error, errors.UpstreamStatus):
            return f"the predictor answered {error.status}"
        return super().words(error)


def span_context(traceparent: str, tracestate: str | None) -> Any:
    """The span that a `traceparent` names; None if it is none. A `tracestate` is left out as when it is forwarded."""
    if not calls.is_traceparent(traceparent):
        return None
    trace_id, span_id, flags = traceparent[_TRACE_ID], traceparent[_SPAN_ID], traceparent[_FLAGS]
    state = None
    if tracestate and len(tracestate) <= calls.MAX_TRACESTATE:
        state = trace.TraceState.from_header([tracestate])
    return trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16)), state)


def trace_header(context: Any) -> str:
    """The `traceparent` of a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def check_environment() -> None:
    """Raises `ValueError` for what OpenTelemetry's environment variables ask for and is not to be had."""
    name = next((name for name in _PROTOCOLS if os.environ.get(name)), None)
    if name is not None and os.environ[name].strip() != _PROTOCOL:
        raise ValueError(f"{name} is {os.environ[name]!r}; spans go by {_PROTOCOL} only")
    try:
        export.BatchSpanProcessor(otlp.OTLPSpanExporter()).shutdown()
    except (ValueError, OSError) as error:
        raise ValueError(f"OpenTelemetry's environment variables cannot be used: {error}") from None


def _resource() -> Any:
    """What the environment says of this service, with a name in any case."""
    found = resources.Resource.create({"service.version": carpool_sidecar.__version__})
    if str(found.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        return found.merge(resources.Resource({"service.name": _SERVICE}))
    return found


def _rpc_code(code: int) -> str:
    return metrics.RPC_CODES[code] if 0 <= code < len(metrics.RPC_CODES) else str(code)
