"""One predict request as the front door hands it to the driver, and what comes back.

Both are plain values: whoever accepts a connection (aiohttp today) makes a `Call` and gets exactly one `Outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar import errors
from sidecar.core import model
from sidecar.wire import v1

Headers = tuple[tuple[str, str], ...]

# One header carries the ids of all members; predictors refuse heads that are too long.
_MAX_REQUEST_ID = 200
_MAX_REQUEST_IDS = 4096


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

    `target` is the path and query as received, `headers` those that belong to the batch key; `reply` is called once
    with the outcome, from the event loop, unless the call is cancelled first.
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
    """The request headers of a batch: what its members share, all their request ids, and the first one's trace."""
    first = calls[0]
    headers = list(first.headers)
    request_ids = _join_request_ids(calls)
    if request_ids:
        headers.append(("X-Request-ID", request_ids))
    traced = next((call for call in calls if call.traceparent), None)
    if traced is not None and traced.traceparent:
        headers.append(("traceparent", traced.traceparent))
        if traced.tracestate:
            headers.append(("tracestate", traced.tracestate))
    return tuple(headers)


def _join_request_ids(calls: Sequence[Call]) -> str:
    joined = ", ".join(dict.fromkeys(call.request_id[:_MAX_REQUEST_ID] for call in calls if call.request_id))
    return joined if len(joined) <= _MAX_REQUEST_IDS else joined[:_MAX_REQUEST_IDS].rpartition(", ")[0]
