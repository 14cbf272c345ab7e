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
from carpool_sidecar.protocols.v2_http import answers, framing

_JSON = "application/json"
# KServe's batcher sets no Content-Type, and Go's server sniffs this one.
_SNIFFED = "text/plain; charset=utf-8"


class Response(NamedTuple):
    """An HTTP answer with a complete body. `close`: the connection must not be used again."""

    status: int
    headers: calls.Headers
    body: bytes
    close: bool = False


_TOO_MANY_CONNECTIONS = Response(
    503,
    (("Content-Type", _JSON), ("Retry-After", "1")),
    b'{"error":"too many connections; send the request to another replica"}',
    close=True,
)


def _render_error(error: errors.CarpoolError, status: int) -> bytes:
    return v1.render_error(str(error))


_V1_WORDS = calls.ErrorWords(_render_error)


class Dialect:
    """How outcomes are told, errors in these `words`."""

    def __init__(self, words: calls.ErrorWords = _V1_WORDS) -> None:
        self._words = words

    def predictions(self, outcome: calls.Answered) -> Response:
        """The caller's predictions, with the id of the batch they came from.

        If a request was split over several batches, that is the first one's, and the header `carpool-batch-count`
        says how many there were.
        """
        batch_id, count = calls.batches(outcome.pieces)
        status = 200
        if outcome.response_format is not None:
            status = _status(outcome.pieces)
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
        return Response(status, headers, body)

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
        if isinstance(error, errors.BadRequest):
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

# RFC 9110, 6.4.1: these never have content.
_BODILESS = frozenset({204, 304})


def render(answer: Response, close: bool) -> list[bytes]:
    """Head and body of an answer, for HTTP/1.1, in one piece if that is small; with `close`, it says so.

    Only for headers of our own making, and values that came in a header: nothing is checked here.
    """
    start = _heads[answer.status, answer.headers, close or answer.close, int(time.time())]
    if answer.status in _BODILESS:
        return [start + b"\r\n"]
    body = b"" if answer.status == http.HTTPStatus.RESET_CONTENT else answer.body
    head = b"%bContent-Length: %d\r\n\r\n" % (start, len(body))
    return [head + body] if len(body) <= LARGE else [head, body]


def too_many_connections() -> bytes:
    """What a client is told that connects when `--max-connections` others are connected, or no file is left for it."""
    return b"".join(render(_TOO_MANY_CONNECTIONS, close=True))


class Predictions:
    """Renders the answers of one batch after the other, in the words of a dialect."""

    # State: the batch that was rendered last, and what all answers of it begin with; the same for `render_form`.
    def __init__(self, dialect: Dialect) -> None:
        self._content_type = (("Content-Type", dialect.content_type),)
        self._batch_id = ""
        self._list_name = self._members = self._head = self._start = b""
        self._form_batch_id, self._form_head = "", b""
        self._form_headers: calls.Headers = ()

    def render_form(
        self, form: interface.ResponseFormat, pieces: Sequence[messages.Piece]
    ) -> tuple[bytes | None, bytes]:
        """As `render`, for one piece, in the words of another protocol; large ones have a body apart.

        No head for what has another status than 200.
        """
        headers: calls.Headers = framing.JSON
        text = form.text(pieces[0].predictions) if type(form) is answers.ResponseFormat else None
        if text is None:
            if _status(pieces) != http.HTTPStatus.OK:
                return None, b""
            headers, body = form.render(pieces)
            text = b"".join(body)
        batch_id = pieces[0].batch_id
        if batch_id is not self._form_batch_id or headers is not self._form_headers:
            start = _heads[200, (*headers, (interface.BATCH_ID, batch_id)), False, int(time.time())]
            self._form_batch_id, self._form_headers, self._form_head = batch_id, headers, start + b"Content-Length: "
        size = len(text)
        if size <= LARGE:
            return b"%b%d\r\n\r\n%b" % (self._form_head, size, text), b""
        return b"%b%d\r\n\r\n" % (self._form_head, size), text

    def render(self, list_name: bytes, pieces: Sequence[messages.Piece], members: bytes = b"") -> bytes | None:
        """Head and body of an answer on a connection that stays open; None if it is large, or of several batches."""
        if len(pieces) > 1:
            return None
        _, batch_id, rows = pieces[0]
        if len(rows[0]) > LARGE:
            return None
        if batch_id is not self._batch_id or list_name != self._list_name or members != self._members:
            # All answers of a batch are given within one turn of the loop, so one Date is right for all.
            self._batch_id, self._list_name, self._members = batch_id, list_name, members
            self._start = v1.START % (batch_id.encode(), members, list_name)
            self._head = _heads[200, self._content_type, False, int(time.time())] + b"Content-Length: "
        joined = b",".join(rows)
        size = len(self._start) + len(joined) + len(v1.END)
        return None if size > LARGE else b"%b%d\r\n\r\n%b%b%b" % (self._head, size, self._start, joined, v1.END)


def _status(pieces: Sequence[messages.Piece]) -> int:
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
    return f"HTTP/1.1 {status} {_reason(status)}\r\n{''.join(lines)}Date: {_date(second)}\r\n".encode(
        errors="surrogateescape"
    )


_heads: Final = caches.Cache("answer_heads", 256 * 1024, make=_write_head)


@functools.lru_cache(maxsize=2)
def _date(second: int) -> str:
    return email.utils.formatdate(second, usegmt=True)


def _reason(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:  # a number that nobody has registered
        return ""
