"""Which requests are plain predict requests, judged by their heads, and what a call needs of those.

Whatever is unusual about a head is left to the reader of any head, so that nothing needs to be decided twice.
httptools (llhttp) reads a head once. The next one on the same connection often is the same but for its body's length,
and finding that out costs a twentieth of reading it. Behind a proxy that mixes callers, and with ids of requests, it
differs in lines that do not matter: then those that do are looked up together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import httptools
from multidict import CIMultiDict

from carpool.program import shared_names
from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import local_answers, predict
from carpool_sidecar.server.http1 import head_lines, messages

MAX_HEAD: Final = 16 * 1024
"""Bytes of a head; longer ones are no plain requests, and are not handed in here."""

_TARGET = re.compile(rb"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
_MAX_DIGITS: Final = 12
_ZERO: Final = ord("0")
_LENGTH_LINE = re.compile(rb"\r\ncontent-length: ?([1-9][0-9]{0,11})(?=\r)", re.IGNORECASE)

# Headers that give a request, or its connection, a meaning beyond "here is a body, answer it".
UNUSUAL: Final[tuple[str, ...]] = (
    "Transfer-Encoding", "Expect", "Upgrade", "Trailer", "HTTP2-Settings", "Sec-WebSocket-Key1",
)  # fmt: skip

_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})

# The kinds of lines, as `head_lines` has them. A line of one kind is looked at for its value, which may be new with
# every request. Other lines mean nothing here, matter as they stand, or mean something unusual.
_LENGTH: Final = 1
_REQUEST_ID: Final = 2
_TRACEPARENT: Final = 3
_JSON_SIZE: Final = 4
_TRACESTATE: Final = 5
_FORWARDED_FOR: Final = 6
_AGENT: Final = 7
_PLACES: Final = 7
_MATTERS: Final = -1
_UNLIKELY: Final = -2
_NAMES: Final[dict[int, str]] = {
    _LENGTH: "content-length", _REQUEST_ID: "x-request-id", _TRACEPARENT: "traceparent",
    _JSON_SIZE: "inference-header-content-length", _TRACESTATE: "tracestate", _FORWARDED_FOR: "x-forwarded-for",
    _AGENT: "user-agent",
}  # fmt: skip
_KINDS: Final[dict[str, int]] = {
    **dict.fromkeys([name.lower() for name in (*UNUSUAL, "K-Network-Probe")], _UNLIKELY),
    **dict.fromkeys(("host", "connection", "proxy-connection", "content-encoding"), _MATTERS),
    **{name: kind for kind, name in _NAMES.items()},
}
SINGLE: Final[tuple[str, ...]] = ("content-location", "content-range", "etag", "max-forwards", "server")
"""Headers of which a message has one each, beside those that are looked at anyway."""

# Heads are cheap to send: what is remembered of them has to end somewhere.
_MOST_PLANS: Final = 512 * 1024
# Templates that a connection's first head is compared with. Each costs a tenth of reading it.
_MOST_SHARED = 4
_NEVER: Final = b"\n"  # no head begins with it

Plain = tuple[int, int, calls.Head]
"""The head of a plain request: the index just behind it, its body's length in bytes, and what counts of it."""


class HeadTemplate:
    """A head with a gap at its body's length: recognises the next request of the same connection.

    Bytes that are equal to those of a head which was read in full mean the same, and the gap takes digits only.
    """

    # State: _repeated, a whole head of which two came whose bodies were alike in length, and _found, what it is at the
    # start of some bytes: mostly the next one is equal to the last byte, and one comparison tells. _length, the latest.
    __slots__ = ("_end", "_end_size", "_found", "_head", "_length", "_repeated", "_start", "_start_size")

    def __init__(self, text: bytes, head: calls.Head, start: int, stop: int) -> None:
        """`text` is the head, which has its length from `start` to `stop`."""
        self._head = head
        self._start, self._start_size = text[:start], start
        self._end, self._end_size = text[stop:], len(text) - stop
        self._repeated = _NEVER
        self._found: Plain | None = None
        self._length = 0

    def match(self, data: bytes, at: int) -> Plain | None:
        """The head that `data` has at `at` if it fits this template and is complete; else None."""
        if not at and data.startswith(self._repeated):
            return self._found
        # These lines are run for each request that differs, so they are few, and none is a call of ours.
        if not data.startswith(self._start, at):
            return None
        start = at + self._start_size
        stop = data.find(b"\r", start, start + _MAX_DIGITS + 1)
        digits = data[start:stop]
        if not (digits.isdigit() and data.startswith(self._end, stop)) or digits[0] == _ZERO:
            return None
        end, length = stop + self._end_size, int(digits)
        if not at:
            if self._length == length:
                self._repeated, self._found = data[:end], (end, length, self._head)
            self._length = length
        return end, length, self._head


class _Plan(NamedTuple):
    """What heads have in common whose lines that matter are the same, but for values that vary.

    `route` is None if it has to be asked for each time, because the predictor may tell of the model anew.
    """

    match: routes.Match
    route: calls.Route | None
    target: str
    headers: calls.Headers
    timeout: float | None
    coding: str | None
    forwarded: Sequence[tuple[shared_names.Forwarded, str]]
    host: str | None
    priority: int


class Reader:
    """Reads heads by the rules of predict requests.

    A head is cut into lines, and the lines that matter, together, are looked up among those of heads that were read in
    full by llhttp: everybody's, as proxies mix callers. Only values that vary are looked at each time, and all other
    lines only for being lines.
    """

    # State: _plans by lines that matter; _shared, the templates made or found useful last. Both are bounded.
    def __init__(self, rules: predict.PredictRules) -> None:
        self._rules = rules
        kinds: dict[str, int] = dict.fromkeys(SINGLE, _UNLIKELY)
        kinds |= dict.fromkeys(rules.looked_at, _MATTERS) | _KINDS
        varying = [kind for name in rules.looked_at if (kind := kinds[name]) > 0]
        self._keyed = [kind for kind in varying if kind != _JSON_SIZE]
        self._sort: Callable[[bytes], list[str | None] | None] = head_lines.sorter(kinds, _PLACES)
        self._plans: caches.Cache[str, _Plan] = caches.Cache("header_plans", _MOST_PLANS)
        self._shared: list[HeadTemplate] = []

    def read(self, text: bytes) -> Plain | None:
        """Judge a complete head, up to and with its empty line; None if it is not that of a plain request.

        Raises `routes.ModelUnknownYet` if that depends on a model of which nothing is known, and the caller has time.
        """
        found = self._sort(text)
        if found is None:
            return None
        matter, length, request_id, traceparent, json_size, tracestate, caller, agent = found
        if length is None or not _is_length(length) or matter is None:
            return None
        if agent is not None and agent.startswith(local_answers.PROBER_AGENTS):
            return None
        for kind in self._keyed:
            value = found[kind]
            if value is not None:
                matter += f"\r\n{_NAMES[kind]}:{value}"
        if json_size is not None:
            if not _is_size(json_size):
                return None
            matter += f"\r\n{_NAMES[_JSON_SIZE]}:0"  # that it is there matters
        plan = self._plans.get(matter) or self._plan(matter)
        if plan is None:
            return None
        match, route, target, headers, timeout, coding, forwarded, host, priority = plan
        if route is None:
            route = self._route(match, timeout is not None)
            if route is None:
                return None
        size_of_json = int(json_size) if json_size is not None and match.protocol == "v2" else None
        told = (
            route, target, headers, timeout, request_id, traceparent, tracestate, size_of_json, caller, coding,
            match.says_so, forwarded, host, priority,
        )  # fmt: skip
        head = tuple.__new__(calls.Head, told)  # past its constructor, which costs more
        return len(text), int(length), head

    def template(self, text: bytes, head: calls.Head) -> HeadTemplate | None:
        """What recognises a head that was read when it comes again; None if it may not be so plain then."""
        line = _LENGTH_LINE.search(text)
        if line is None or len(text) + _MAX_DIGITS > MAX_HEAD:
            return None
        made = HeadTemplate(text, head, *line.span(1))
        self._shared = [made, *self._shared[: _MOST_SHARED - 1]]
        return made

    def shared(self, data: bytes, at: int) -> tuple[HeadTemplate, Plain] | None:
        """A template of another connection that fits the head at `at`, and what it makes of it.

        Callers have many connections and write the same head on each, so that the first of a new one need not be read.
        """
        for place, template in enumerate(self._shared):
            found = template.match(data, at)
            if found is not None:
                if place:
                    self._shared.insert(0, self._shared.pop(place))
                return template, found
        return None

    def _plan(self, matter: str) -> _Plan | None:
        """Read the lines that matter as a head of their own."""
        plan = self._read_fully(f"{matter}\r\nContent-Length: 1\r\n\r\n".encode())
        if plan is not None:
            self._plans.put(matter, plan, len(matter))
        return plan

    def _read_fully(self, text: bytes) -> _Plan | None:
        found = _fields(text)
        if found is None:
            return None
        target, headers = found
        if not _is_usual(headers):
            return None
        coding = headers.get("Content-Encoding")
        if coding is not None and coding.lower() not in _CODINGS:
            return None
        try:
            match = self._rules.routes.match("POST", target, headers)
            if match is None or match.by_body is not None:
                return None
            route = self._rules.routes.route(match)
            head = self._rules.head(target, headers, match, route)
        except (errors.CarpoolError, errors.Unbatchable):
            return None
        except routes.ModelUnknownYet:
            if predict.has_deadline(headers):
                return None  # it may pass before the model is known
            raise
        is_lasting = route.watched is None
        lasting = route if is_lasting else None
        return _Plan(
            match, lasting, head.target, head.headers, head.timeout, coding, head.forwarded, head.host, head.priority
        )

    def _route(self, match: routes.Match, has_deadline: bool) -> calls.Route | None:
        try:
            return self._rules.routes.route(match)
        except (errors.CarpoolError, errors.Unbatchable):
            return None
        except routes.ModelUnknownYet:
            if has_deadline:
                return None
            raise


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
    found = head_lines.lines(text)
    if found is None:
        return None
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(text)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    if not messages.begins_with_request_line(text):
        return None
    if parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
        return None
    headers = CIMultiDict(collector.headers)
    is_each_once = len({name.lower() for name, _ in collector.headers}) == len(headers) == len(found) - 1
    return (collector.target.decode(), headers) if is_each_once and _TARGET.fullmatch(collector.target) else None


def _is_usual(headers: CIMultiDict[str]) -> bool:
    if "Host" not in headers or not headers_.is_host(headers["Host"]):
        return False
    if local_answers.is_probe(headers) or local_answers.comes_from_prober(headers):
        return False
    if headers.get("Connection", "keep-alive").lower() != "keep-alive":
        return False
    return not any(name in headers for name in UNUSUAL)


def _is_length(digits: str) -> bool:
    """Whether this is the length of a body, as anybody would write it."""
    return _is_size(digits) and not digits.startswith("0")


def _is_size(digits: str) -> bool:
    return len(digits) <= _MAX_DIGITS and digits.isdigit()
