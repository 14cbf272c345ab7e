"""Outcomes as HTTP responses, and responses as bytes on the wire (RFC 9112), the same however a request came.

Two dialects: honest status codes with the v1 protocol's `{"error": …}`, and what KServe's batcher does, for clients
that depend on it (`--kserve-errors`). Predictions are answered thousands of times a second, always with the same few
headers, so heads are kept for the second they are good for, and what the members of a batch have in common is made once
for all of them.
"""

from __future__ import annotations

import email.utils
import functools
import http
import time
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface, v1

_JSON = "application/json"
# KServe's batcher sets no Content-Type, and Go's server sniffs this one.
_SNIFFED = "text/plain; charset=utf-8"


class Response(NamedTuple):
    """An HTTP answer with a complete body. `close`: the connection must not be used again."""

    status: int
    headers: calls.Headers
    body: bytes
    close: bool = False


def refusal(status: int, words: str, *headers: tuple[str, str]) -> Response:
    """What a client is told that no dialect is for; its connection is not used again."""
    return Response(status, (("Content-Type", _JSON), *headers), v1.render_error(words), close=True)


def _render_error(error: errors.CarpoolError, status: int) -> bytes:
    return v1.render_error(str(error))


_V1_WORDS = calls.ErrorWords(_render_error)


class Dialect:
    """How outcomes are told, errors in these `words`, or v1's."""

    def __init__(self, words: calls.ErrorWords | None = None) -> None:
        self._words = words or _V1_WORDS

    def predictions(self, outcome: calls.Answered) -> Response:
        """The caller's predictions, with the id of the batch they came from.

        If a request was split over several batches, that is the first one's, and the header `carpool-batch-count`
        says how many there were.
        """
        batch_id, count = calls.batches(outcome.pieces)
        code = 200
        if outcome.response_format is not None:
            code = status(outcome.pieces)
            headers, pieces = outcome.response_format.render(outcome.pieces)
            headers, body = (*headers, (interface.BATCH_ID, batch_id)), b"".join(pieces)
        else:
            headers = (("Content-Type", self.content_type),)
            rows = [piece.predictions for piece in outcome.pieces]
            body = v1.render(batch_id, outcome.list_name, rows, outcome.members)
        if count > 1:
            headers += ((interface.BATCH_COUNT, str(count)),)
        if outcome.server_timing is not None:
            headers += ((calls.SERVER_TIMING, outcome.server_timing),)
        return Response(code, headers, body)

    def error(self, error: errors.CarpoolError) -> Response:
        """A request that failed before or outside a batch."""
        headers: calls.Headers = (("Content-Type", _JSON),)
        if isinstance(error, errors.UpstreamStatus):
            if not self._words.rewords:
                return Response(error.status, error.headers, error.body)
            headers += error.harmless_headers
        if isinstance(error, errors.BatchStatus):
            headers += error.headers
        if error.retry_after is not None:
            headers += (("Retry-After", str(error.retry_after)),)
        if isinstance(error, errors.UnsupportedEncoding):
            headers += (("Accept-Encoding", "gzip, deflate"),)  # RFC 9110, 12.5.3: in answers, what is accepted
        status, closes = errors.status_of(error), isinstance(error, errors.CLOSING)
        return Response(status, headers, self._words.render(error, status), closes)

    def failure(self, error: errors.CarpoolError) -> Response:
        """A request that was accepted and got no predictions."""
        return self.error(error)

    content_type: ClassVar[str] = _JSON


class KServeDialect(Dialect):
    """What clients of KServe's batcher depend on (pkg/batcher/handler.go of kserve/kserve).

    As there: the Content-Type of predictions, the status and words for malformed bodies, and 200 with the error in
    `message` when a batch fails. Otherwise honest, as `Dialect`: overload, shutdown, bodies too large, too late or in
    an unknown coding.
    """

    content_type: ClassVar[str] = _SNIFFED

    def error(self, error: errors.CarpoolError) -> Response:
        if isinstance(error, errors.BadRequest) and not isinstance(error, errors.BadHeader):
            missing = isinstance(error, errors.NoInstances)
            text = b"no instances in the request\n" if missing else b"can't Unmarshal body\n"
            return Response(400, (("Content-Type", _SNIFFED),), text)
        return super().error(error)

    def failure(self, error: errors.CarpoolError) -> Response:
        text = error.body.decode(errors="replace") if isinstance(error, errors.UpstreamStatus) else str(error)
        # Overload has no counterpart there: a client must be told to come back.
        if isinstance(error, (errors.Overloaded, errors.Draining, errors.PayloadTooLarge)):
            return super().error(error)
        body = msgspec.json.encode({"message": text, "batchId": "", "predictions": None})
        return Response(200, (("Content-Type", _SNIFFED),), body)


# Up to this size one more copy is cheaper than one more system call, and the socket's buffer takes all of it.
LARGE: Final = 64 * 1024

_REASONS: Final[dict[int, str]] = {each.value: each.phrase for each in http.HTTPStatus}

BODILESS: Final[frozenset[int]] = frozenset({204, 304})
"""Statuses whose answers have no body, whatever their heads say (RFC 9112, 6.3)."""


def render(answer: Response, close: bool) -> list[bytes]:
    """Head and body of an answer, for HTTP/1.1, in one piece if that is small; with `close`, it says so.

    Only for headers of our own making, and values that came in a header: nothing is checked here.
    """
    start = heads[answer.status, answer.headers, close or answer.close, int(time.time())]
    if answer.status in BODILESS:
        return [start + b"\r\n"]
    body = b"" if answer.status == http.HTTPStatus.RESET_CONTENT else answer.body
    head = b"%bContent-Length: %d\r\n\r\n" % (start, len(body))
    return [head + body] if len(body) <= LARGE else [head, body]


def too_many_connections() -> bytes:
    """What a client is told that connects when `--max-connections` others are connected, or no file is left for it."""
    words = "too many connections; send the request to another replica"
    return b"".join(render(refusal(503, words, ("Retry-After", "1")), close=True))


def status(pieces: Sequence[messages.Piece]) -> int:
    """That of the predictor's answer, if it is passed on."""
    found = pieces[0].predictions
    return found.response.status if isinstance(found, interface.WholeResponse) else 200


def _write_head(told: tuple[int, calls.Headers, bool, int]) -> bytes:
    """Status line and headers but the last: of a status, headers, whether it is to close, and a Unix time for Date
    (RFC 9110, 6.6.1)."""
    status, headers, close, second = told
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    if close:
        lines.append("Connection: close\r\n")
    return f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n{''.join(lines)}Date: {date(second)}\r\n".encode(
        errors="surrogateescape"
    )


heads: Final = caches.Cache("answer_heads", 256 * 1024, make=_write_head)


@functools.lru_cache(maxsize=2)
def date(second: int) -> str:
    """A Unix time as the header Date has it."""
    return email.utils.formatdate(second, usegmt=True)
