"""One predict request as the servers hand it to the driver, and what comes back.

Whoever accepts a connection makes a `Call` and gets exactly one `Outcome`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from carpool.compiled import mypyc_attr
from carpool.program import shared_names
from carpool.runtime import driver
from carpool.scheduling import messages, suspicion
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, steps

Headers = interface.Headers
Pieces = interface.Pieces

# One header carries what all members sent; predictors refuse heads that are too long.
_MAX_REQUEST_ID: Final = 200
_MAX_JOINED: Final = 4096
MAX_TRACESTATE = 512
"""Characters of a `tracestate` that everyone has to be able to pass on (W3C Trace Context, 3.3.1.5)."""

# W3C Trace Context, 3.2.2: version, trace-id, parent-id and flags; later versions than 00 may append to them.
_IDS = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(rf"00{_IDS}|(?!00|ff)[0-9a-f]{{2}}{_IDS}(?:-[!-~]{{1,200}})?")


@dataclass(slots=True)
class Answered:
    """Predictions for every instance of the request, in its own order; the rest is the payload's and the batch's.

    `server_timing` is the value of the header of that name, where it was asked for. For `list_name` and `members` see
    `interface.BatchPredictions`.
    """

    list_name: bytes
    pieces: Sequence[messages.Piece]
    response_format: interface.ResponseFormat | None = None
    server_timing: str | None = None
    members: bytes = b""


Outcome = Answered | errors.CarpoolError


def batches(pieces: Sequence[messages.Piece]) -> tuple[str, int]:
    """The id of the first batch that a request travelled in, and how many there were; `pieces` are its predictions."""
    return pieces[0].batch_id, len({piece.batch_id for piece in pieces})


class Predictor(Protocol):
    """Where batches go."""

    def post(
        self,
        target: str,
        headers: Headers,
        body: Pieces,
        timeout: float,
        reply: Callable[[interface.UpstreamResponse | errors.UpstreamError], None],
    ) -> driver.Execution:
        """Post a body; `reply` is called once, later and within `timeout` seconds, with the answer or an error.

        Raises `errors.BadRequest` for what cannot be posted.
        """
        ...


class Watched(Protocol):
    """What may stop calls of one kind from being batched: nothing, before `settled_until` on the sidecar's clock."""

    settled_until: float


class ErrorWords(NamedTuple):
    """How errors are told to clients of a protocol: `render` makes the body of an error and its status.

    With `rewords` also of the predictor's own refusals, which else reach their caller as they came. Where several
    dialects share a path, `of_body` tells the words for the client that sent a body.
    """

    render: Callable[[errors.CarpoolError, int], bytes]
    rewords: bool = False
    of_body: Callable[[bytes], steps.Steps[ErrorWords]] | None = None


class Route(NamedTuple):
    """How calls of one kind travel: the words of their protocol, and where they go.

    `objection()` gives the reason not to batch, or None; ask only after `watched.settled_until`.
    `rejected` is told when the predictor rejects a batch of several: what is known of it may be out of date.
    `doubtful` are statuses beside 4xx by which these predictors tell of a request's own faults as well as of theirs.
    `error_words` tells errors as clients of this protocol know them; None: as v1 does. `key_headers` belong to the
    batch key beside those of the settings, each as it is looked up and as it is written. Where it `is_rewritten` the
    predictor is sent another body than the caller's, whose type does not matter then.
    """

    codec: interface.Codec
    predictor: Predictor
    objection: Callable[[], errors.NotBatched | None] | None = None
    doubtful: frozenset[int] = frozenset()
    rejected: Callable[[], None] | None = None
    watched: Watched | None = None
    error_words: ErrorWords | None = None
    key_headers: Sequence[tuple[str, str]] = ()
    is_rewritten: bool = False


LEVELS: Final = {1: "high", 0: "normal", -1: "low"}
"""Of priority, by the words for them."""

_LEVELS: Final = {name: level for level, word in LEVELS.items() for name in (word, str(level))}


def level(header: str, text: str | None) -> int:
    """The level of priority that a request's header says, 0 without it. Raises `errors.BadRequest`."""
    if text is None:
        return 0
    found = _LEVELS.get(text.strip().lower())
    if found is None:
        raise errors.BadHeader(f"{header} must be high, normal or low, or 1, 0 or -1; got {text[:40]!r}")
    return found


class Head(NamedTuple):
    """What a call needs of a request's head; requests of one connection mostly share it.

    `target` is the path and query as received, in origin form, `headers` those that belong to the batch key, `timeout`
    the caller's in seconds. `traceparent` and `tracestate` are the caller's, not yet checked. `json_size` is how many
    bytes of the body are JSON, if it says so (v2's binary tensors). `forwarded_for` names the caller where a proxy
    stands in front. `coding` is the one coding of the body, if it has not been undone, and `says_so` is False where its
    media type speaks against a predict request. `forwarded` are values that go along with its batch beside the key.
    `host` is the Host that the caller asked for, `priority` its level (see `level`).
    """

    route: Route
    target: str
    headers: Headers = ()
    timeout: float | None = None
    request_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    json_size: int | None = None
    forwarded_for: str | None = None
    coding: str | None = None
    says_so: bool = True
    forwarded: Sequence[tuple[shared_names.Forwarded, str]] = ()
    host: str | None = None
    priority: int = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Call(messages.Request):
    """A predict request on its way: the core's request, whose tag is a `Head` and whose payload an `interface.Payload`.

    One object for both, because there is one for each request. `response_format` is the payload's, which is gone when
    the answer comes. `left` tells of its first batch, where answers are to say that: when it left, by the scheduler's
    clock, its rows, and why.
    """

    __slots__ = ("left", "response_format")
    response_format: interface.ResponseFormat | None
    left: tuple[float, int, messages.Reason]

    def __init__(self, head: Head, payload: interface.Payload, size: int) -> None:
        """Make the scheduler's request of a head and rows; `size` is the body's, in bytes.

        What its rows have beyond the body counts as held, for it is while their call is out.
        """
        most = head.route.codec.max_batch_size
        self.response_format = payload.response_format
        key = (head.target, head.headers, payload.key)  # requests with equal keys may share a batch
        if head.route.is_rewritten:
            size += payload.added
        super().__init__(key, payload.row_count, size, payload, head, head.timeout, most, head.priority)

    @property
    def error_words(self) -> ErrorWords | None:
        """How its client is told errors: as its answer would have been written, or in its route's words."""
        words: ErrorWords | None = self.tag.route.error_words
        own = getattr(self.response_format, "render_error", None)
        return words if words is None or own is None else words._replace(render=own)

    @property
    def origin(self) -> Hashable | None:
        """The connection that it came on, or None if that is not known."""
        return None


SERVER_TIMING = "Server-Timing"


class ServerTimings:
    """Tells where the time of a request went, in the words of W3C Server Timing; `clock` is the scheduler's.

    `note` has to be called for each batch that leaves.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def note(self, batch: messages.Batch) -> None:
        """Remember with its members when a batch left, unless they have left before."""
        for request in batch.newcomers:
            request.left = (batch.dispatched, batch.rows, batch.reason)  # type: ignore[attr-defined] # a `Call`

    def of(self, call: Call) -> str:
        """The header's value for a call that is answered now: milliseconds in the queue, and from then on."""
        left, rows, reason = call.left
        queue, predict = (left - call.arrived) * 1e3, (self._clock() - left) * 1e3
        return f'queue;dur={queue:.2f}, predict;dur={predict:.2f}, batch;desc="{reason}, {rows} instances"'


def _content(request: messages.Request) -> Hashable | None:
    content: Hashable | None = request.payload.content
    return None if content is None else (request.tag.target, content)


def _shape(request: messages.Request) -> Hashable | None:
    shape: Hashable | None = request.payload.row_pattern
    return None if shape is None else (request.tag.target, shape)


def _forwarded_for(request: messages.Request) -> Hashable | None:
    head: Head = request.tag
    return head.forwarded_for


def _origin(request: messages.Request) -> Hashable | None:
    call: Call = request  # type: ignore[assignment] # what the driver submits
    return call.origin


TRAITS: suspicion.Traits = {
    "content": _content, "shape": _shape, "forwarded_for": _forwarded_for, "origin": _origin,
}  # fmt: skip
"""What calls may have in common with rejected ones."""


def merged_headers(heads: Sequence[Head], own: Headers = (), trace: Headers = ()) -> Headers:
    """The request headers of a batch: its `own`, what its members share, what they forward, their ids, its `trace`.

    Without a trace of its own that is its members' first valid one.

    Of what they share all but those of the same names as its own. Ids are cut at 200 characters, and only as many
    whole ones, or values that are forwarded and joined, are listed as fit into 4096. What is no `traceparent` (W3C
    Trace Context) is left out, and so is a `tracestate` of more than 512 characters.
    """
    shared = heads[0].headers
    ids = [head.request_id for head in heads if head.request_id]
    traced = [head for head in heads if head.traceparent]
    if own:
        names = {name.lower() for name, _ in own}
        shared = own + tuple(header for header in shared if header[0].lower() not in names)
    forwarding = [head.forwarded for head in heads if head.forwarded]
    if forwarding:
        shared += _forwarded(forwarding)
    if ids:
        shared += (("X-Request-ID", _joined([name[:_MAX_REQUEST_ID] for name in ids])),)
    if trace:
        return shared + trace
    return shared + _first_trace(traced) if traced else shared


def _forwarded(members: Sequence[Sequence[tuple[shared_names.Forwarded, str]]]) -> Headers:
    found: dict[str, list[str]] = {}
    for member in members:
        for header, value in member:
            values = found.setdefault(header.name, [])
            if header.joined or not values:
                values.append(value)
    joined = [(name, values[0] if len(values) == 1 else _joined(values)) for name, values in found.items()]
    return tuple([(name, value) for name, value in joined if value or found[name] == [""]])


def is_traceparent(text: str) -> bool:
    """Whether this is a `traceparent` (W3C Trace Context); one has version, trace, span and flags at fixed places."""
    return _TRACEPARENT.fullmatch(text) is not None


def _first_trace(heads: Sequence[Head]) -> Headers:
    for head in heads:
        if head.traceparent and is_traceparent(head.traceparent):
            trace: Headers = (("traceparent", head.traceparent),)
            if head.tracestate and len(head.tracestate) <= MAX_TRACESTATE:
                trace += (("tracestate", head.tracestate),)
            return trace
    return ()


def _joined(values: Sequence[str]) -> str:
    """Each value once, as many whole ones as fit; empty ones are none of a list (RFC 9110, section 5.6.1)."""
    listed: list[str] = []
    room = _MAX_JOINED + len(", ")
    for value in dict.fromkeys(filter(None, values)):
        size = len(value) + len(", ")
        if size <= room:  # what one caller sent does not keep out what the next ones did
            room -= size
            listed.append(value)
    return ", ".join(listed)
