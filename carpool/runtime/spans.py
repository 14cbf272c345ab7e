"""Spans of OpenTelemetry: one for each batch, and one for each wait of a member whose caller is traced.

A batch serves many traces, so it belongs to none of them: its span links to the callers' spans, and each wait, which is
a child of its caller's span, links to the batch. Only if all members are of one trace, the batch is part of that. What
is not sampled is nowhere to be found, so callers that are not have neither link nor wait.

Whether a batch is recorded is asked of the sampler as for a member whose caller is sampled, if there is one: whoever
finds a wait in a trace finds the batch, too. This needs the package opentelemetry-api; who loads it wants spans.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec

from opentelemetry import context as contexts
from opentelemetry import trace

from carpool import errors
from carpool.scheduling import messages

log = logging.getLogger("carpool.runtime")

BATCH, WAIT = "carpool.batch", "carpool.wait"
"""The names of spans."""

Attributes = Mapping[str, Any]

_NO_ATTRIBUTES: Attributes = {}
_LEFT = "caller_left"
_MOST_WORDS = 500
_KEY = secrets.token_bytes(16)  # what a batch key is hashed with: nobody can try out what a header may have been
_SAMPLED_AS = contexts.create_key("carpool-sampled-as")


class Callers(NamedTuple):
    """Who the members of a batch are called by. A caller is a `trace.SpanContext`.

    `sampled` are the parts of callers that are sampled, with these; `first` is any caller, the first sampled one if
    there is one. `is_one_trace` is whether all parts are of one trace, and `is_decided` whether all have a caller, who
    has decided whether to be sampled.
    """

    sampled: Sequence[tuple[messages.Part, Any]]
    first: Any
    is_one_trace: bool
    is_decided: bool


class Source:
    """Tells of batches what differs between programs."""

    kind = trace.SpanKind.INTERNAL
    """What a batch is: a call to somewhere else, or not."""
    goes_by_callers = False
    """Whether a sampler that is parent based is not asked about batches whose callers are not sampled."""

    def caller(self, request: messages.Request) -> Any:
        """The `SpanContext` of the span that a request was made in, or None."""
        raise NotImplementedError

    def callers(self, batch: messages.Batch) -> Callers:
        """Those of all parts of a batch."""
        found = [(part, caller) for part in batch.parts if (caller := self.caller(part.request)) is not None]
        sampled = [each for each in found if each[1].trace_flags.sampled]
        is_decided = len(found) == len(batch.parts)
        is_one_trace = is_decided and len({caller.trace_id for _, caller in found}) == 1
        first = (sampled or found)[0][1] if found else None
        return Callers(sampled, first, is_one_trace, is_decided)

    def of_wait(self, request: messages.Request) -> Attributes:
        """More attributes of a wait."""
        return _NO_ATTRIBUTES

    def of_batch(self, batch: messages.Batch) -> Attributes:
        """More attributes of a batch."""
        return _NO_ATTRIBUTES

    def of_failure(self, error: errors.CarpoolError) -> Attributes:
        """More attributes of a batch that failed; its `error.type` is the error's reason unless told here."""
        return _NO_ATTRIBUTES

    def words(self, error: errors.CarpoolError) -> str:
        """An error in words that may be told to whoever reads traces."""
        return str(error)[:_MOST_WORDS]


P = ParamSpec("P")


def _never_raises(tell: Callable[Concatenate[Spans, P], None]) -> Callable[Concatenate[Spans, P], None]:
    """Tracing never costs anybody an answer: a bug in it is logged, once."""

    @functools.wraps(tell)
    def told(self: Spans, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            tell(self, *args, **kwargs)
        except Exception:
            self.bug()

    return told


class Spans:
    """Makes spans of what a driver tells its observer. Called by one thread at a time; nothing but `span` may raise.

    `clock` is the driver's; spans are told in the time of the day. `tracer` is the application's or the program's own,
    for nothing else: its sampler is replaced by one that knows what a batch is sampled as. `on_bug` is called for each
    bug met, the first of which is in the log.
    """

    # State: the spans of batches that are out; _has_failed once a bug was logged.
    def __init__(
        self,
        tracer: trace.Tracer,
        source: Source,
        clock: Callable[[], float] = time.monotonic,
        on_bug: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_bug = on_bug
        self._has_failed = False
        self._tracer = tracer
        self._source = source
        self._clock = clock
        self._open: dict[messages.Batch, trace.Span] = {}
        self._goes_by_parents = _let_batches_be_sampled_as_members(tracer)

    def span(self, batch: messages.Batch) -> Any:
        """The span of a batch that is out; None if it is not recorded."""
        return self._open.get(batch)

    @_never_raises
    def sent(self, batch: messages.Batch) -> None:
        """Begin a batch's span, and make those of its members' waits."""
        source = self._source
        callers = source.callers(batch)
        if callers.is_decided and not callers.sampled and self._goes_by_parents and source.goes_by_callers:
            return
        at = self._time_of(batch.dispatched)
        span: Any = self._begin(batch, callers, at)
        is_recorded = span.is_recording()
        if is_recorded:
            self._open[batch] = span
        came = set(batch.newcomers)  # the waits of the others were told before
        links = [trace.Link(span.get_span_context())] if is_recorded else []
        of_batch = {"carpool.batch.id": batch.id, "carpool.batch.reason": batch.reason.value}
        for (request, start, stop), caller in callers.sampled:
            if not start and request in came:
                told = {"carpool.rows": stop - start, **of_batch, **source.of_wait(request)}
                self._wait(caller, self._time_of(request.arrived), told, links).end(at)

    @_never_raises
    def answered(self, batch: messages.Batch, seconds: float) -> None:
        """End a batch's span."""
        span = self._open.pop(batch, None)
        if span is not None:
            span.end()

    @_never_raises
    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        """End a batch's span with its error."""
        span = self._open.pop(batch, None)
        if span is None:
            return
        span.set_attributes({"error.type": error.reason, **self._source.of_failure(error)})
        span.set_status(trace.Status(trace.StatusCode.ERROR, self._source.words(error)))
        span.end()

    @_never_raises
    def turned_away(self, call: messages.Request, error: errors.CarpoolError) -> None:
        """The wait of a call that is refused before it left ends with the error."""
        if not isinstance(error, (errors.UpstreamError, errors.NotIsolated)) and type(error) is not errors.CarpoolError:
            self._ended_waiting(call, error.reason, self._source.words(error))

    @_never_raises
    def left(self, call: messages.Request) -> None:
        """So does the wait of one whose caller left."""
        self._ended_waiting(call, _LEFT, "the caller left")

    @_never_raises
    def forget(self) -> None:
        """Those batches will not come back: end their spans."""
        spans, self._open = self._open, {}
        for span in spans.values():
            span.set_status(trace.Status(trace.StatusCode.ERROR, "given up"))
            span.end()

    def bug(self) -> None:
        """The exception that is being handled is a bug; nobody's answer shall depend on it."""
        self._on_bug()
        if not self._has_failed:
            self._has_failed = True
            log.exception("spans could not be made for a reason that is a bug; it is not logged again")

    def _begin(self, batch: messages.Batch, callers: Callers, at: int) -> trace.Span:
        context = contexts.Context()
        if callers.is_one_trace:
            context = _within(callers.first)
        elif callers.sampled or callers.is_decided:
            context = contexts.set_value(_SAMPLED_AS, _within(callers.first), context)
        told = {
            "carpool.batch.id": batch.id,
            "carpool.batch.rows": batch.rows,
            "carpool.batch.requests": len(batch.parts),
            "carpool.batch.reason": batch.reason.value,
            "carpool.batch.key": _hashed(batch.key),
            **self._source.of_batch(batch),
        }
        sampled = [caller for _, caller in callers.sampled]
        links = [trace.Link(caller) for caller in (_different(sampled) if len(sampled) > 1 else sampled)]
        return self._tracer.start_span(BATCH, context, self._source.kind, told, links, at)

    def _wait(self, caller: Any, since: int, told: Attributes, links: Sequence[trace.Link] = ()) -> trace.Span:
        return self._tracer.start_span(WAIT, _within(caller), trace.SpanKind.INTERNAL, told, links, since)

    def _ended_waiting(self, call: messages.Request, reason: str, words: str) -> None:
        caller = self._source.caller(call)
        if caller is None or not caller.trace_flags.sampled:
            return
        if any(part.request is call for batch in self._open for part in batch.parts):
            return  # its wait was told when it left
        told = {"carpool.rows": call.rows, "error.type": reason, **self._source.of_wait(call)}
        span = self._wait(caller, self._time_of(call.arrived), told)
        span.set_status(trace.Status(trace.StatusCode.ERROR, words))
        span.end()

    def _time_of(self, moment: float) -> int:
        """Nanoseconds since 1970 at a moment of the driver's clock."""
        return time.time_ns() - round((self._clock() - moment) * 1e9)


class _Sampler:
    """Asks the `inner` sampler of a batch's span as of a child of the member that it is sampled as."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def should_sample(self, parent_context: Any, *args: Any, **options: Any) -> Any:
        """As samplers do."""
        alike = None if parent_context is None else contexts.get_value(_SAMPLED_AS, parent_context)
        if alike is None:
            return self.inner.should_sample(parent_context, *args, **options)
        found = self.inner.should_sample(alike, *args, **options)
        return type(found)(found.decision, found.attributes)  # the member's tracestate is not the batch's

    def get_description(self) -> str:
        """As samplers do."""
        return f"Carpool{{{self.inner.get_description()}}}"


def _let_batches_be_sampled_as_members(tracer: Any) -> bool:
    """Returns whether what callers have decided is decided.

    A tracer that is not the SDK's may have no sampler. Then a batch is sampled as a trace of its own.
    """
    sampler = getattr(tracer, "sampler", None)
    if sampler is None:
        return False
    if not isinstance(sampler, _Sampler):
        tracer.sampler = sampler = _Sampler(sampler)
    return str(sampler.inner.get_description()).startswith("ParentBased")


def _within(caller: Any) -> Any:
    """A context in which the caller's span is the current one."""
    return trace.set_span_in_context(trace.NonRecordingSpan(caller), contexts.Context())


def _different(callers: Iterable[Any]) -> list[Any]:
    """Each caller's span once."""
    return list({(caller.trace_id, caller.span_id): caller for caller in callers}.values())


def _hashed(key: object) -> str:
    """16 hexadecimal digits, equal for equal keys of this process."""
    return hashlib.blake2b(hash(key).to_bytes(8, "big", signed=True), digest_size=8, key=_KEY).hexdigest()
