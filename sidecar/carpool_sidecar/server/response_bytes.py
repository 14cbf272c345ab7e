"""Complete answers as bytes on the wire (RFC 9112), the same whichever way a request came.

Predictions are answered thousands of times a second, always with the same few headers, so heads are kept for the
second they are good for, and what the members of a batch have in common is made once for all of them.
"""

from __future__ import annotations

import email.utils
import functools
import http
import time
from collections.abc import Sequence

from carpool.scheduling import messages
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface, v1
from carpool_sidecar.server import dialects

# Up to this size one more copy is cheaper than one more system call, and the socket's buffer takes all of it.
LARGE = 64 * 1024

# RFC 9110, 6.4.1: these never have content.
_BODILESS = frozenset({204, 304})


def render(answer: dialects.Answer, close: bool) -> list[bytes]:
    """Head and body of an answer, for HTTP/1.1, in one piece if that is small; with `close`, it says so.

    Only for headers of our own making, and values that came in a header and are UTF-8: nothing is checked here.
    """
    start = _head(answer.status, answer.headers, close or answer.close, int(time.time()))
    if answer.status in _BODILESS:
        return [start + b"\r\n"]
    body = b"" if answer.status == http.HTTPStatus.RESET_CONTENT else answer.body
    head = b"%bContent-Length: %d\r\n\r\n" % (start, len(body))
    return [head + body] if len(body) <= LARGE else [head, body]


class Predictions:
    """Renders the answers of one batch after the other, in the words of a dialect."""

    # State: the batch that was rendered last, and what all answers of it begin with; the same for `render_form`.
    def __init__(self, dialect: dialects.Dialect) -> None:
        self._content_type = (("Content-Type", dialect.content_type),)
        self._batch_id = ""
        self._list_name = self._head = self._start = b""
        self._form_batch_id, self._form_head = "", b""
        self._form_headers: calls.Headers = ()

    def render_form(self, form: interface.ResponseFormat, pieces: Sequence[messages.Piece]) -> tuple[bytes, bytes]:
        """As `render`, for one piece, in the words of another protocol; large ones have a body apart."""
        headers, body = form.render(pieces)
        batch_id = pieces[0].batch_id
        if batch_id is not self._form_batch_id or headers is not self._form_headers:
            start = _head(200, (*headers, (calls.BATCH_ID, batch_id)), False, int(time.time()))
            self._form_batch_id, self._form_headers, self._form_head = batch_id, headers, start + b"Content-Length: "
        text = b"".join(body)
        size = len(text)
        if size <= LARGE:
            return b"%b%d\r\n\r\n%b" % (self._form_head, size, text), b""
        return b"%b%d\r\n\r\n" % (self._form_head, size), text

    def render(self, list_name: bytes, pieces: Sequence[messages.Piece]) -> bytes | None:
        """Head and body of an answer on a connection that stays open; None if it is large, or of several batches."""
        if len(pieces) > 1:
            return None
        _, batch_id, rows = pieces[0]
        if batch_id is not self._batch_id or list_name != self._list_name:
            self._next_batch(batch_id, list_name)
        joined = b",".join(rows)
        size = len(self._start) + len(joined) + len(v1.END)
        return None if size > LARGE else b"%b%d\r\n\r\n%b%b%b" % (self._head, size, self._start, joined, v1.END)

    def _next_batch(self, batch_id: str, list_name: bytes) -> None:
        # All answers of a batch are given within one turn of the loop, so one Date is right for all.
        self._batch_id, self._list_name = batch_id, list_name
        self._start = v1.start(batch_id, list_name)
        self._head = _head(200, self._content_type, False, int(time.time())) + b"Content-Length: "


@functools.lru_cache(maxsize=64)
def _head(status: int, headers: calls.Headers, close: bool, second: int) -> bytes:
    """Status line and headers but the last. `second` is the Unix time for Date (RFC 9110, 6.6.1)."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    if close:
        lines.append("Connection: close\r\n")
    return f"HTTP/1.1 {status} {_reason(status)}\r\n{''.join(lines)}Date: {_date(second)}\r\n".encode()


@functools.lru_cache(maxsize=2)
def _date(second: int) -> str:
    return email.utils.formatdate(second, usegmt=True)


def _reason(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:  # a number that nobody has registered
        return ""
