"""Which requests are plain predict requests, judged by their heads, and what a call needs of those.

Whatever is unusual about a head is left to whoever answers any request, so that nothing needs to be decided twice.
Heads are read by llhttp (`messages`). The next one on the same connection often is the same but for its body's length,
and finding that out costs a twentieth of reading it. Behind a proxy that mixes callers, and with ids of requests, it
differs in fields that do not matter: then lines of names that llhttp has read are told apart without it, which is half
the work, and those that do matter are looked up together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from carpool.program import shared_names
from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import local_answers, predict
from carpool_sidecar.server.http1 import messages

MAX_HEAD: Final = 16 * 1024
"""Bytes of a head; longer ones are no plain requests, and are not handed in here."""

_TARGET = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
_MAX_DIGITS: Final = 12
_ZERO: Final = ord("0")
_LENGTH_LINE = re.compile(rb"\r\ncontent-length: ?([1-9][0-9]{0,11})(?=\r)", re.IGNORECASE)

# Headers that give a request, or its connection, a meaning beyond "here is a body, answer it".
UNUSUAL: Final[tuple[str, ...]] = (
    "Transfer-Encoding", "Expect", "Upgrade", "Trailer", "HTTP2-Settings", "Sec-WebSocket-Key1",
)  # fmt: skip

_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})

# The kinds of fields. One of a kind above 0 is looked at for its value, which may be new with every request. Others
# mean nothing here, matter as they stand, or mean something unusual.
_LENGTH: Final = 1
_REQUEST_ID: Final = 2
_TRACEPARENT: Final = 3
_JSON_SIZE: Final = 4
_TRACESTATE: Final = 5
_FORWARDED_FOR: Final = 6
_AGENT: Final = 7
_PLACES: Final = 7
_NOTHING: Final = 0
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

# Every byte but visible ASCII and line ends becomes another.
_LINES: Final = bytes([code if 32 <= code < 127 or code in b"\r\n" else 32 for code in range(256)])
_MOST_NAMES: Final = 1024  # that are remembered, of so many bytes
_LONGEST_NAME: Final = 64

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
    """What heads have in common whose fields that matter are the same, but for values that vary.

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

    The fields of a head that matter, together, are looked up among those of heads that were judged in full:
    everybody's, as proxies mix callers. Only values that vary are looked at each time.
    """

    # State: _plans by fields that matter; _starts, kinds by names as the parser read them, with a colon and a space;
    # _shared, the templates made or found useful last. All are bounded.
    def __init__(self, rules: predict.PredictRules) -> None:
        self._rules = rules
        looked_at = [name.lower() for name in rules.looked_at]
        self._kinds: dict[str, int] = {
            **dict.fromkeys(SINGLE, _UNLIKELY), **dict.fromkeys(looked_at, _MATTERS), **_KINDS,
        }  # fmt: skip
        self._starts: dict[str, int] = {}
        self._keyed = [kind for name in looked_at if (kind := self._kinds[name]) > 0 and kind != _JSON_SIZE]
        self._plans: caches.Cache[str, _Plan] = caches.Cache("header_plans", _MOST_PLANS)
        self._shared: list[HeadTemplate] = []

    def read(self, text: bytes) -> Plain | None:
        """Judge a complete head, up to and with its empty line; None if it is not that of a plain request.

        None, too, if that depends on a model of which nothing is known: whoever answers any request asks.
        """
        found = self._sort(text)
        if found is None:
            return None
        matter, (_, length, request_id, traceparent, json_size, tracestate, caller, agent) = found
        if length is None or not _is_size(length) or length.startswith("0"):
            return None
        if agent is not None and agent.startswith(local_answers.PROBER_AGENTS):
            return None
        if json_size is not None and not _is_size(json_size):
            return None
        plan = self._plans.get(matter) or self._plan(matter)
        if plan is None:
            return None
        match, route, target, headers, timeout, coding, forwarded, host, priority = plan
        if route is None:
            route = self._route(match)
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

    def _sort(self, text: bytes) -> tuple[str, list[str | None]] | None:
        """The request line and all fields that matter, as a head of their own, and at each kind's place its value.

        None for heads that servers may differ on: with anything but visible ASCII, or with a field twice that is
        looked at, or that only others know to answer.
        """
        found = self._sort_usual(text) or self._sort_any(text)
        if found is None:
            return None
        matter, values = found
        for kind in self._keyed:
            keyed = values[kind]
            if keyed is not None:
                matter.append(f"{_NAMES[kind]}: {keyed}")
        if values[_JSON_SIZE] is not None:
            matter.append(f"{_NAMES[_JSON_SIZE]}: 0")  # that it is there matters
        return "\r\n".join(matter), values

    def _sort_usual(self, text: bytes) -> tuple[list[str], list[str | None]] | None:
        """As `_sort_any`, in half the time; None for what is not plain lines under names that the parser has read.

        The request line, and all that matters, is read by the parser with the plan that is looked up by it.
        """
        if text.translate(_LINES) != text or not text.endswith(b"\r\n\r\n"):
            return None
        lines, starts = text.decode().splitlines(), self._starts
        count = len(lines)
        if count > messages.MAX_LINES:
            return None
        matter = lines[:1]
        values: list[str | None] = [None] * (_PLACES + 1)
        others = len(text) - 2 * count - len(lines[0])  # bytes that are in no line, nor one of two at its end
        for at in range(1, count - 1):
            line = lines[at]
            others -= len(line)
            start = line.find(":") + 2
            kind = starts.get(line[:start], _UNLIKELY)
            if kind > 0:
                value = line[start:].strip(" ")
                if not value or values[kind] is not None:
                    return None
                values[kind] = value
            elif kind == _MATTERS and not line.startswith(" ", start):
                matter.append(line)
            elif kind != _NOTHING:
                return None
        return None if others else (matter, values)

    def _sort_any(self, text: bytes) -> tuple[list[str], list[str | None]] | None:
        if b"\t" in text or not text.isascii():
            return None
        found = messages.Fields()
        try:
            messages.parse(text, found)
        except messages.Malformed:
            return None
        kinds, starts = self._kinds, self._starts
        if len(starts) > _MOST_NAMES:
            starts.clear()
        matter = [text[: text.find(b"\r")].decode()]
        values: list[str | None] = [None] * (_PLACES + 1)
        for name, value in [(name.decode(), value.decode()) for name, value in found.fields]:
            kind = kinds.get(name.lower(), _NOTHING)
            if len(name) <= _LONGEST_NAME:
                starts[f"{name}: "] = kind
            if kind > 0:
                if values[kind] is not None:
                    return None
                values[kind] = value.rstrip(" ")
            elif kind == _MATTERS:
                matter.append(f"{name}: {value}")
            elif kind != _NOTHING:
                return None
        return matter, values

    def _plan(self, matter: str) -> _Plan | None:
        """Read what matters as a head of its own."""
        try:
            asked = messages.read_head(f"{matter}\r\nContent-Length: 1\r\n\r\n".encode())
        except messages.Malformed:
            return None
        target, headers = asked.target, asked.headers
        coding = headers.get("Content-Encoding")
        if not _is_usual(asked) or (coding is not None and coding.lower() not in _CODINGS):
            return None
        try:
            match = self._rules.routes.match("POST", target, headers)
            if match is None or match.by_body is not None:
                return None
            route = self._rules.routes.route(match)
            if route is None:
                return None
            head = self._rules.head(target, headers, match, route)
        except (errors.CarpoolError, errors.Unbatchable):
            return None
        lasting = route if route.watched is None else None
        plan = _Plan(
            match, lasting, head.target, head.headers, head.timeout, coding, head.forwarded, head.host, head.priority
        )
        self._plans.put(matter, plan, len(matter))
        return plan

    def _route(self, match: routes.Match) -> calls.Route | None:
        try:
            return self._rules.routes.route(match)
        except (errors.CarpoolError, errors.Unbatchable):
            return None


def _is_usual(asked: messages.RequestHead) -> bool:
    """Whether this is a POST over HTTP/1.1 on a connection to be kept, with each header once and none that is odd."""
    headers = asked.headers
    if asked.method != "POST" or asked.version != messages.HTTP_1_1 or not asked.keep_alive:
        return False
    if not _TARGET.fullmatch(asked.target) or len({name.lower() for name in headers}) != len(headers):
        return False
    if not headers_.is_host(headers["Host"]) or local_answers.is_probe(headers):
        return False
    if local_answers.comes_from_prober(headers) or headers.get("Connection", "keep-alive").lower() != "keep-alive":
        return False
    return not any(name in headers for name in UNUSUAL)


def _is_size(digits: str) -> bool:
    return len(digits) <= _MAX_DIGITS and digits.isdigit()
