"""One predict request as the front door hands it to the driver, and what comes back.

Both are plain values: whoever accepts a connection (aiohttp today) makes a `Call` and gets exactly one `Outcome`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar import errors
from sidecar.core import model
from sidecar.wire import v1

Headers = tuple[tuple[str, str], ...]
Pieces = Sequence[bytes | memoryview]  # a body, to be sent in order

# One header carries the ids of all members; predictors refuse heads that are too long.
_MAX_REQUEST_ID = 200
_MAX_REQUEST_IDS = 4096
_MAX_TRACESTATE = 512  # what everyone has to be able to pass on (W3C Trace Context, 3.3.1.5)

# W3C Trace Context, 3.2.2: version, trace-id, parent-id and flags; later versions than 00 may append to them.
_IDS = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(rf"00{_IDS}|(?!00|ff)[0-9a-f]{{2}}{_IDS}(?:-[!-~]{{1,200}})?")


@dataclass(slots=True)
class Answered:
    """Predictions for every instance of the request, in its own order."""

    member: bytes
    pieces: Sequence[model.Piece]

    @property
    def batch_ids(self) -> list[str]:
        """The batches that the request travelled in; the first is its `batchId`."""
        return list(dict.fromkeys(piece.batch_id for piece in self.pieces))


Outcome = Answered | errors.CarpoolError


@dataclass(slots=True)
class Call:
    """A predict request.

    `target` is the path and query as received, in origin form, `headers` those that belong to the batch key; `reply`
    is called once with the outcome, from the event loop, unless the call is cancelled first. `traceparent` and
    `tracestate` are the caller's, not yet checked.
    """

    target: str
    headers: Headers
    payload: v1.Payload
    size: int
    reply: Callable[[Outcome], None]
    timeout: float | None = None
    request_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Requests with equal keys may share a batch."""
        return (self.target, self.headers, self.payload.member, self.payload.others)


def merged_headers(calls: Sequence[Call]) -> Headers:
    """The request headers of a batch: what its members share, their request ids, and the first valid trace.

    Ids are cut at 200 characters, and only as many whole ones are listed as fit into 4096. What is no `traceparent`
    (W3C Trace Context) is left out, and so is a `tracestate` of more than 512 characters.
    """
    first = calls[0]
    headers = list(first.headers)
    request_ids = _join_request_ids(calls)
    if request_ids:
        headers.append(("X-Request-ID", request_ids))
    return (*headers, *_first_trace(calls))


def _first_trace(calls: Sequence[Call]) -> Headers:
    for call in calls:
        if call.traceparent and _TRACEPARENT.fullmatch(call.traceparent):
            trace: Headers = (("traceparent", call.traceparent),)
            if call.tracestate and len(call.tracestate) <= _MAX_TRACESTATE:
                trace += (("tracestate", call.tracestate),)
            return trace
    return ()


def _join_request_ids(calls: Sequence[Call]) -> str:
    joined = ", ".join(dict.fromkeys(call.request_id[:_MAX_REQUEST_ID] for call in calls if call.request_id))
    return joined if len(joined) <= _MAX_REQUEST_IDS else joined[:_MAX_REQUEST_IDS].rpartition(", ")[0]
