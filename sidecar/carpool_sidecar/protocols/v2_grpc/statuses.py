"""gRPC's status codes: what our own failures are in them, and what theirs are in HTTP's.

Codes: https://grpc.io/docs/guides/status-codes. To HTTP: the table at google.rpc.Code,
https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from carpool_sidecar import errors

OK: Final = 0
CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED = range(1, 8)
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = range(8, 15)
DATA_LOSS, UNAUTHENTICATED = 15, 16

_HTTP = {
    CANCELLED: 499, INVALID_ARGUMENT: 400, DEADLINE_EXCEEDED: 504, NOT_FOUND: 404, ALREADY_EXISTS: 409,
    PERMISSION_DENIED: 403, RESOURCE_EXHAUSTED: 429, FAILED_PRECONDITION: 400, ABORTED: 409, OUT_OF_RANGE: 400,
    UNIMPLEMENTED: 501, UNAVAILABLE: 503, UNAUTHENTICATED: 401,
}  # fmt: skip

_TOO_LARGE = "eceived message larger than max"  # the words of gRPC's libraries; some begin with "R", some with "r"


class Fault(errors.BadRequest):
    """A call that cannot be read as gRPC; its status has a code of its own."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.code = number


# The first that an error is one of decides.
_CODES: Sequence[tuple[type[errors.CarpoolError], int]] = (
    (errors.BadRequest, INVALID_ARGUMENT),
    (errors.ModelNotFound, NOT_FOUND),
    (errors.PayloadTooLarge, RESOURCE_EXHAUSTED),
    (errors.Overloaded, RESOURCE_EXHAUSTED),
    (errors.Draining, UNAVAILABLE),
    (errors.NotIsolated, UNAVAILABLE),
    (errors.UpstreamUnreachable, UNAVAILABLE),
    (errors.UpstreamClosed, UNAVAILABLE),
    (errors.OutOfSockets, UNAVAILABLE),
    (errors.Abandoned, UNAVAILABLE),
    (errors.BodyTooLate, DEADLINE_EXCEEDED),
    (errors.DeadlineExceeded, DEADLINE_EXCEEDED),
    (errors.UpstreamTimeout, DEADLINE_EXCEEDED),
)


def code(error: errors.CarpoolError) -> int:
    """What a gRPC caller is told of a failure of ours, or of the predictor's own."""
    if isinstance(error, errors.UpstreamRpcStatus | errors.BatchStatus | Fault) and error.code is not None:
        return error.code
    return next((number for kind, number in _CODES if isinstance(error, kind)), INTERNAL)


def details(error: errors.CarpoolError) -> str:
    """Its words."""
    return error.details if isinstance(error, errors.UpstreamRpcStatus) else str(error)


def failure(number: int, words: str, metadata: tuple[tuple[str, str | bytes], ...]) -> errors.UpstreamRpcStatus:
    """A status of the predictor's, with its trailing metadata.

    What is too large for it is 413 in HTTP, as members of a batch may do alone, while nothing cures other exhaustion.
    """
    body = json.dumps({"error": words}).encode()
    is_too_large = number == RESOURCE_EXHAUSTED and _TOO_LARGE in words
    return errors.UpstreamRpcStatus(number, words, 413 if is_too_large else _HTTP.get(number, 500), body, metadata)
