"""gRPC's status codes: what our own failures are in them, and what theirs are in HTTP's.

Codes: https://grpc.io/docs/guides/status-codes. To HTTP: the table at google.rpc.Code,
https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto.
"""

from __future__ import annotations

import json
import re
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

# Each library has words of its own for a message that is too large, and some have this code for it, some that.
_TELL_SIZES: Final = frozenset({RESOURCE_EXHAUSTED, OUT_OF_RANGE})
_READ: Final = 1024  # characters: messages begin with what is wrong, and what they quote comes later
_SENT: Final = re.compile(r"\b(?:messages?|requests?|payloads?|body|frames?|packets?|batch(?:es)?|calls?|rpc)\b", re.I)
_MEASURE: Final = re.compile(
    r"(?:\b|_)(?:size|length|large|larger|big|bigger|long|longer|bytes?)\b|\b\d* ?[KMG]i?B\b", re.I
)
_BOUND: Final = re.compile(
    r"\bexceed|\bmax(?:imum)?\b|\blimit|\btoo (?:large|big|long)\b|\b(?:larger|bigger|greater|longer|more) than\b|>",
    re.I,
)
_TOO_MANY_ROWS: Final = re.compile(
    r"\btoo many (?:inputs|instances|items|rows|texts|sentences|documents|records|tensors|elements|tokens)\b", re.I
)
# Nothing that is sent in pieces cures these. Memory that cannot be had is known by its own words, whatever the code.
_OVERLOAD: Final = re.compile(
    r"overload|\bbusy\b|quota|throttl|(?:\b|_)rate(?:\b|_)|\bper[ -](?:second|minute|hour|day)\b|queue|backlog|pending"
    r"|concurren|in[ -]?flight|simultaneous|try again|\bretry (?:later|after|in)\b|back ?off|capacity|bandwidth"
    r"|too many (?:[a-z]+ )?(?:requests|calls|rpcs|clients|connections|streams|sessions|threads)\b"
    r"|\b(?:workers?|slots?|pool)\b",
    re.I,
)
_MEMORY: Final = re.compile(r"memory|\bOOM\b|allocat", re.I)


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

    What is too large for it is 413 in HTTP, as members of a batch may do alone. Exhaustion of which the words tell
    neither that nor overload leaves in doubt whether one member asks for too much.
    """
    read = words[:_READ]
    is_overload = not read.strip() or _OVERLOAD.search(read) is not None
    is_too_large = number in _TELL_SIZES and not is_overload and _tells_size(read)
    body = json.dumps({"error": words}).encode()
    status = 413 if is_too_large else _HTTP.get(number, 500)
    error = errors.UpstreamRpcStatus(number, words, status, body, metadata)
    error.is_doubtful = number == RESOURCE_EXHAUSTED and not is_overload
    return error


def _tells_size(words: str) -> bool:
    """Whether words are about what was sent, how large it is, and how large it may be, however they are put."""
    if _MEMORY.search(words):
        return False
    return all(part.search(words) for part in (_SENT, _MEASURE, _BOUND)) or _TOO_MANY_ROWS.search(words) is not None
