"""Reads the predictor's answers off a connection's bytes (RFC 9112), without knowing of connections."""

from __future__ import annotations

import httptools

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface

Outcome = interface.UpstreamResponse | errors.UpstreamError
"""What becomes of a request: an answer with status 2xx, or why there is none."""

# Bytes in a row that are no body: a head, informational answers before it, chunk extensions, trailers.
MOST_OVERHEAD = 64 * 1024

# Headers of a refusal that mean something to the caller; the rest speaks of the batch's connection.
_TELLING = ("Content-Type", "Retry-After", "Location", "WWW-Authenticate", "Allow")
_TELLING_KEYS = tuple((name, name.lower().encode()) for name in _TELLING)


class AnswerReader:
    """Reads answers one after the other: feed it until it says complete, then take the outcome.

    Methods that begin with `on_` are called by the parser. An answer's body of more than `max_bytes`, which may be
    changed at any time, is refused.
    """

    # State: the connection's parser, and of the answer all else. begun: some of it came, other than informational
    # answers (1xx, _interim) before it. _overhead: bytes since its body was _size_before long. _tidy: of its _pieces.
    __slots__ = (
        "_complete", "_headers", "_interim", "_keep_alive", "_overhead", "_parser", "_pieces", "_size",
        "_size_before", "_status", "_tidy", "_told", "begun", "is_in_body", "max_bytes",
    )  # fmt: skip

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self.begun = self.is_in_body = self._interim = self._complete = self._keep_alive = False
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._told: tuple[tuple[str, str], ...] = ()
        self._status = self._size = self._size_before = self._overhead = self._tidy = 0

    def feed(self, data: memoryview) -> bool:
        """Whether the answer is complete with this data.

        Raises `errors.UpstreamBroken` for what is not HTTP, for a switch of protocols, for more than 64 KiB in a row
        that are no body, and for a body over the limit. Nothing may be fed after that.
        """
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                raise _reason(error) from None
            self._keep_alive = False  # something follows that nobody asked for
        if not self._complete:
            self._watch_overhead(len(data))
            self._tidy_up()
        return self._complete

    def end(self) -> bool:
        """Whether the end of the connection completes the answer (RFC 9112, section 6.3, rule 8)."""
        headers = self._headers
        return self.is_in_body and b"content-length" not in headers and b"transfer-encoding" not in headers

    def take(self) -> tuple[Outcome, bool]:
        """The outcome of a complete answer, and whether the connection may be used again; ready for the next."""
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        is_good = 200 <= self._status < 300
        refusal = None if is_good else errors.UpstreamStatus(self._status, body, self._told)
        outcome = refusal or interface.UpstreamResponse(body, self._headers)
        keep_alive = self._keep_alive
        self._reset()
        return outcome, keep_alive

    def close(self) -> None:
        """Let go of the parser: it and its reader refer to each other, and there may be many connections."""
        del self._parser

    # --- the parser's callbacks --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            raise errors.UpstreamBroken
        self.begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        self._status = status = self._parser.get_status_code()
        if 200 <= status < 600:
            self._keep_alive = self._parser.should_keep_alive()
            self.is_in_body = True
            if status >= 300:
                self._told = self._tell()
            if b"content-encoding" in self._headers or b"content-length" not in self._headers:
                self._check_codings()
            elif int(self._headers[b"content-length"]) > self.max_bytes:
                raise self._too_large()
        elif 100 <= status < 200 and status != 101:
            self._interim = True
        else:
            raise errors.UpstreamBroken(f"the predictor's answer has the status {status}")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self.max_bytes:
            raise self._too_large()
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = self.begun = False
            self._headers = {}
        else:
            self._complete = True

    # --- what the parser does not judge ------------------------------------------------------------------------

    def _watch_overhead(self, fed: int) -> None:
        if self._size > self._size_before:
            self._size_before, self._overhead = self._size, 0
            return
        self._overhead += fed
        if self._overhead >= MOST_OVERHEAD:
            raise errors.UpstreamBroken(f"the predictor's answer has a head of more than {MOST_OVERHEAD} bytes")

    def _tidy_up(self) -> None:
        """Tiny chunks become one piece: an object for each would take many times their size."""
        if len(self._pieces) - self._tidy > 1:
            self._pieces[self._tidy :] = [b"".join(self._pieces[self._tidy :])]
        self._tidy = len(self._pieces)

    def _check_codings(self) -> None:
        """Only what was asked for: identity, in chunks at most."""
        for name, allowed in ((b"content-encoding", b"identity"), (b"transfer-encoding", b"chunked")):
            if self._headers.get(name, allowed).lower() != allowed:
                raise errors.UpstreamBroken(f"the predictor's answer has a {name.decode()} that was not asked for")

    def _too_large(self) -> errors.UpstreamBroken:
        return errors.UpstreamBroken(f"the predictor's answer is larger than {self.max_bytes} bytes")

    def _tell(self) -> tuple[tuple[str, str], ...]:
        found = ((name, self._headers.get(key, b"")) for name, key in _TELLING_KEYS)
        told = ((name, value.decode(errors="surrogateescape")) for name, value in found)
        return tuple((name, value) for name, value in told if value and value.isprintable())


def _reason(error: Exception) -> errors.UpstreamError:
    if isinstance(error.__context__, errors.UpstreamError):  # raised by a callback
        return errors.UpstreamBroken(str(error.__context__))
    # Not the parser's words: they may quote what came.
    return errors.UpstreamBroken("the predictor's answer is not usable (it is not valid HTTP)")
