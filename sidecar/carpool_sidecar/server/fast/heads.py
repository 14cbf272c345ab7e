"""Which requests take the fast lane, judged by their heads, and what a call needs of those.

It is for plain predict requests: whatever is unusual about a head is left to the general server, so that nothing
needs to be decided twice. httptools (llhttp) reads a head once. The next one on the same connection nearly always
differs in a few values only, and finding that out costs a tenth of reading it.
"""

from __future__ import annotations

import re

import httptools
from multidict import CIMultiDict

from carpool_sidecar import errors
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import local_answers, predict

MAX_HEAD = 16 * 1024
"""Bytes of a head; longer ones are the general server's business."""

# The ends of lines, and what may be within: no tabs, no obs-fold, nothing beyond ASCII.
_ORDINARY = bytes(range(32, 127)) + b"\r\n"
_TARGET = re.compile(rb"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
_TOKEN = re.compile(rb"[!-~]{1,256}")
_MAX_DIGITS = 12
# What the values that vary may add to a head.
_MAX_GROWTH = 1024
# aiohttp's limit.
_MAX_HEADERS = 128
_ZERO = ord("0")

# Headers that give a request, or its connection, a meaning beyond "here is a body, answer it".
_UNUSUAL = (
    "Transfer-Encoding", "Content-Encoding", "Expect", "Upgrade", "Trailer", "HTTP2-Settings", "Sec-WebSocket-Key1",
)  # fmt: skip

Gaps = list[tuple[int, int, int]]
"""Where values begin and end in a head, and which they are."""

# Whose values are new with every request of a connection.
_LENGTH, _REQUEST_ID, _TRACEPARENT, _JSON_SIZE = range(4)
_LINES = {
    which: re.compile(rb"\r\n%b: ?([!-~]{1,256})(?=\r)" % name, re.IGNORECASE)
    for which, name in (
        (_LENGTH, b"content-length"),
        (_REQUEST_ID, b"x-request-id"),
        (_TRACEPARENT, b"traceparent"),
        (_JSON_SIZE, b"inference-header-content-length"),
    )
}


Plain = tuple[int, int, calls.Head]
"""A head for the fast lane: the index just behind it, its body's length in bytes, and what counts of it."""


class HeadTemplate:
    """A head with gaps at the values that vary: recognises the next request of the same connection.

    Bytes that are equal to those of a head which was read in full mean the same, and a gap takes only what cannot
    change that: digits for a length, visible ASCII for an id.
    """

    __slots__ = ("_end", "_end_size", "_gaps", "_head", "_start", "_start_size")

    def __init__(self, text: bytes, head: calls.Head, gaps: Gaps) -> None:
        """`text` is the head, `gaps` are in order; one of them is the length's."""
        starts = [0, *(stop for _, stop, _ in gaps)]
        pieces = [(text[at:start], which) for at, (start, _, which) in zip(starts, gaps, strict=False)]
        self._head = head
        self._start, self._start_size = pieces[0][0], len(pieces[0][0])
        self._end, self._end_size = text[starts[-1] :], len(text) - starts[-1]
        self._gaps = pieces if len(pieces) > 1 else []

    def match(self, data: bytes, at: int) -> Plain | None:
        """The head that `data` has at `at` if it fits this template and is complete; else None."""
        if self._gaps:
            return self._match_gaps(data, at)
        # These lines are run for each request, so they are few, and none is a call of ours.
        start = at + self._start_size
        stop = data.find(b"\r", start, start + _MAX_DIGITS + 1)
        digits = data[start:stop]
        if not (digits.isdigit() and data.startswith(self._start, at) and data.startswith(self._end, stop)):
            return None
        return None if digits[0] == _ZERO else (stop + self._end_size, int(digits), self._head)

    def _match_gaps(self, data: bytes, at: int) -> Plain | None:
        length, head = 0, self._head
        for before, which in self._gaps:
            value = _TOKEN.match(data, at + len(before)) if data.startswith(before, at) else None
            if value is None:
                return None
            if which in (_REQUEST_ID, _TRACEPARENT):
                head = _with(head, which, value[0].decode())
            elif not _is_length(value[0]):
                return None
            elif which == _LENGTH:
                length = int(value[0])
            else:
                head = head._replace(json_size=int(value[0]))
            at = value.end()
        return (at + self._end_size, length, head) if data.startswith(self._end, at) else None


class Reader:
    """Reads heads by the rules of predict requests."""

    def __init__(self, rules: predict.PredictRules) -> None:
        self._rules = rules

    def read(self, text: bytes) -> tuple[Plain, HeadTemplate | None] | None:
        """Judge a complete head, up to and with its empty line; None if it is for the general server.

        Raises `routes.ModelUnknownYet` if that depends on a model of which nothing is known, and the caller has time.
        """
        fields = _fields(text)
        if fields is None:
            return None
        target, headers = fields
        length = headers.get("Content-Length", "").encode()
        if not _is_length(length) or not _is_usual(headers):
            return None
        try:
            match = self._rules.routes.match("POST", target, headers)
            if match is None or match.by_body is not None:
                return None
            head = self._rules.head(target, headers, match, self._rules.routes.route(match))
        except (errors.CarpoolError, errors.Unbatchable):
            return None
        except routes.ModelUnknownYet:
            if predict.has_deadline(headers):
                return None  # it may pass before the model is known
            raise
        gaps = _gaps(text)
        is_repeatable = gaps and len(text) + _MAX_GROWTH <= MAX_HEAD
        return (len(text), int(length), head), HeadTemplate(text, head, gaps) if is_repeatable else None


class PartialHead:
    """Watches a head that arrives bit by bit. `size` is how much of it did."""

    def __init__(self) -> None:
        self.size = 0
        self._marks = _Marks()
        self._parser = httptools.HttpRequestParser(self._marks)

    def may_go_on(self, more: bytes) -> bool:
        """Whether all that came so far, `more` included, may become a request whose head ends in an empty line."""
        self.size += len(more)
        try:
            self._parser.feed_data(more)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return not self._marks.heads


class Watch:
    """Knows whether a head has begun and not ended, by llhttp: aiohttp's own parser is that, too, but does not tell."""

    def __init__(self) -> None:
        self._marks = _Marks()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self._marks)
        self._has_changed = False

    @property
    def is_open(self) -> bool:
        """Whether there is more to come. Not so after what is no HTTP: aiohttp's parser has found that too."""
        return self._marks.is_open

    @property
    def is_between(self) -> bool:
        """Whether all that has begun is complete. Not so for good after what is no HTTP, or a change of protocols."""
        return self._marks.is_between and not self._has_changed

    @property
    def heads(self) -> int:
        """Heads that were complete so far."""
        return self._marks.heads

    @property
    def begun(self) -> int:
        """Messages and chunks of bodies that have begun so far: what aiohttp's parser takes its time for."""
        return self._marks.begun

    @property
    def chunks(self) -> int:
        """Chunks of the last message."""
        return self._marks.chunks

    def feed(self, data: bytes | memoryview) -> int:
        """Take bytes: all, or those up to the end of a request for a change of protocols; how many that are.

        What follows such a request in one read is dropped by aiohttp's parser where it does not know the protocol.
        """
        marks = self._marks
        if marks.unread:
            taken = min(marks.unread, len(data))
            marks.unread -= taken
            return taken
        if self._parser is None:
            return len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as change:
            self._has_changed = True
            marks.is_open, marks.unread = False, marks.length
            self._parser = httptools.HttpRequestParser(marks)
            return int(change.args[0])
        except httptools.HttpParserError:
            marks.is_open, self._parser = False, None
            self._has_changed = True
        return len(data)


class _Marks:
    """What llhttp calls back with: not the owner of the parser, or each would keep the other alive.

    `heads` is how many are complete. `length` is what the last one says of its body, `unread` how much of that is to
    come in a request for a change of protocols, which llhttp leaves to others.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.is_between = True
        self.heads = 0
        self.length = self.unread = self.begun = self.chunks = 0

    def on_message_begin(self) -> None:
        self.is_open = True
        self.is_between = False
        self.length = self.chunks = 0
        self.begun += 1

    def on_chunk_header(self) -> None:
        self.begun += 1
        self.chunks += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length" and value.isdigit():
            self.length = int(value[:18])

    def on_headers_complete(self) -> None:
        self.is_open = False
        self.heads += 1

    def on_message_complete(self) -> None:
        self.is_between = True


class _Collector:
    """What httptools calls back with."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[str, str]] = []

    def on_url(self, url: bytes) -> None:
        self.target = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode(), value.rstrip(b" ").decode()))


def _fields(text: bytes) -> tuple[str, CIMultiDict[str]] | None:
    """Target and headers of a POST over HTTP/1.1 on a connection to be kept, each header once; else None."""
    lines = text.count(b"\r\n")
    if len(text) > MAX_HEAD or text.translate(None, _ORDINARY) or not text.count(b"\n") == text.count(b"\r") == lines:
        return None
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(text)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    if parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
        return None
    headers = CIMultiDict(collector.headers)
    is_each_once = len({name.lower() for name, _ in collector.headers}) == len(headers) == lines - 2
    return (collector.target.decode(), headers) if is_each_once and _TARGET.fullmatch(collector.target) else None


def _is_usual(headers: CIMultiDict[str]) -> bool:
    if "Host" not in headers or len(headers) > _MAX_HEADERS or not headers_.is_host(headers["Host"]):
        return False
    if local_answers.is_probe(headers) or local_answers.comes_from_prober(headers):
        return False
    if headers.get("Connection", "keep-alive").lower() != "keep-alive":
        return False
    return not any(name in headers for name in _UNUSUAL)


def _with(head: calls.Head, which: int, value: str) -> calls.Head:
    route, target, headers, timeout, request_id, traceparent, tracestate, json_size, caller = head
    if which == _REQUEST_ID:
        return calls.Head(route, target, headers, timeout, value, traceparent, tracestate, json_size, caller)
    return calls.Head(route, target, headers, timeout, request_id, value, tracestate, json_size, caller)


def _is_length(digits: bytes) -> bool:
    """Whether this is the length of a body, as anybody would write it."""
    return digits.isdigit() and len(digits) <= _MAX_DIGITS and not digits.startswith(b"0")


def _gaps(text: bytes) -> Gaps:
    """The values that vary in a head, each of which is there once, as far as they are plainly written."""
    found = [(*line.span(1), which) for which, pattern in _LINES.items() if (line := pattern.search(text))]
    return sorted(found) if any(which == _LENGTH for *_, which in found) else []
