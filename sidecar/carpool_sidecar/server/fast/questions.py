"""GETs about models and health, which proxies and callers send between predict requests, on the fast lane.

They are passed on to the predictor as they are. For that the general server has all it takes to stream anything both
ways, and so it costs as much as dozens of predictions. But these have no body, and answers of a few hundred bytes. If
one turns out otherwise nothing is lost: the general server asks again.
"""

from __future__ import annotations

import email.utils
import functools
import math
import re
import time
from collections.abc import Callable, Hashable

from multidict import CIMultiDict

from carpool_sidecar import drain, errors, metrics
from carpool_sidecar.protocols import interface
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import local_answers
from carpool_sidecar.server.fast import heads
from carpool_sidecar.upstream import connection, predictor

START = b"GET "
"""What questions begin with."""

MOST_BYTES = 64 * 1024
"""Bytes of an answer that is given here."""

_NAME = rb"[A-Za-z0-9._~!$&'()*+,;=@%-]+"
_PATH = re.compile(
    rb"GET (/v1/models(/%b)?|/v2(/health/(live|ready)|/models/%b(/versions/%b)?(/ready)?)?) HTTP/1\.1"
    % (_NAME, _NAME, _NAME)
)
# What is done with a line: it is passed on, left out, extended, or the general server knows what it means.
_PASSED, _DROPPED, _HOST, _AGENT, _FORWARDED_FOR, _FORWARDED, _PROTO, _FORWARDED_HOST, _REFUSED = range(9)
_KINDS: dict[bytes, int] = {
    **dict.fromkeys((name.encode() + b":" for name in headers_.HOP_BY_HOP), _DROPPED),
    **dict.fromkeys((name.lower().encode() + b":" for name in (*heads.UNUSUAL, "TE")), _REFUSED),
    **dict.fromkeys((b"content-length:", b"content-encoding:", b"proxy-connection:", b"k-network-probe:"), _REFUSED),
    b"connection:": _REFUSED, b"host:": _HOST, b"user-agent:": _AGENT, b"x-forwarded-for:": _FORWARDED_FOR,
    b"forwarded:": _FORWARDED, b"x-forwarded-proto:": _PROTO, b"x-forwarded-host:": _FORWARDED_HOST,
}  # fmt: skip
_PROBERS = tuple([each.encode() for each in local_answers.PROBER_AGENTS])
# These have no body, or mean something else without one.
_UNUSUAL = frozenset({204, 205, 304})

Reply = Callable[[bytes | None, bool], None]
"""Called once with an answer as it has to be written, and whether the connection ends behind it; or with None."""


class Questions:
    """Passes them on over connections of `relay`, which is made with `connection.PassedAnswerReader`."""

    def __init__(self, relay: predictor.HttpPredictor, life: drain.Lifecycle, counters: metrics.Metrics) -> None:
        self._relay = relay
        self._life = life
        self._metrics = counters

    def ask(self, head: bytes, peer: Hashable, reply: Reply) -> predictor.Post | None:
        """Pass on what a complete head asks; None if that is no such question, or is not answered any more.

        `peer` is the client's address. `reply` is called later, with None if it has to be asked in another way. What is
        returned can be cancelled.
        """
        address = peer[0] if isinstance(peer, tuple) and peer else None
        message = _request(head, str(address) if address else None)
        if message is None or not self._life.admits():
            return None
        return self._relay.post("", (), (), math.inf, functools.partial(self._answered, reply), message)

    def _answered(self, reply: Reply, outcome: connection.Outcome) -> None:
        close = self._life.parting
        message = _answer(outcome, close) if isinstance(outcome, interface.UpstreamResponse) else None
        if message is not None and not isinstance(outcome, errors.UpstreamError):
            self._metrics.answered("passthrough", outcome.status)
        reply(message, close)


def _request(head: bytes, peer: str | None) -> bytes | None:
    """What the predictor is sent, as the general server would; None if the head is not plain."""
    lines = heads.lines(head)
    if lines is None:
        return None
    start, *rest = lines
    if not _PATH.fullmatch(start):
        return None
    passed: list[bytes] = []
    places: dict[int, int] = {}  # of the lines that are to be there once
    names: set[bytes] = set()
    host = b""
    for line in rest:
        name = line[: line.find(b":") + 1]
        lowered = name.lower()
        kind = _KINDS.get(lowered, _PASSED)
        value = line[len(name) :].strip(b" ")
        if kind == _REFUSED and lowered == b"connection:" and value.lower() == b"keep-alive":
            kind = _DROPPED
        if kind == _REFUSED or lowered in names or not heads.is_name(name):
            return None
        names.add(lowered)
        if kind == _HOST:
            host = value
        elif kind == _AGENT and value.startswith(_PROBERS):
            return None
        elif kind != _DROPPED:
            places[kind] = len(passed)
            passed.append(name + b" " + value)
    if b"host:" not in names or not headers_.is_host(host.decode()):
        return None
    _add_forwarding(passed, places, host, peer)
    return b"\r\n".join((start, b"Host: " + host, *passed, b"", b""))


def _add_forwarding(passed: list[bytes], places: dict[int, int], host: bytes, peer: str | None) -> None:
    """As `headers.add_forwarding`, of lines."""
    if peer:
        _extend(passed, places.get(_FORWARDED_FOR), b"X-Forwarded-For: ", peer.encode())
    if _PROTO not in places:
        passed.append(b"X-Forwarded-Proto: http")
    if host and _FORWARDED_HOST not in places:
        passed.append(b"X-Forwarded-Host: " + host)
    element = headers_.forwarded_element(peer, "http", host.decode())
    _extend(passed, places.get(_FORWARDED), b"Forwarded: ", element.encode())


def _extend(passed: list[bytes], at: int | None, name: bytes, element: bytes) -> None:
    if at is None:
        passed.append(name + element)
    else:
        passed[at] = name + passed[at].partition(b": ")[2] + b", " + element


def _answer(answer: interface.UpstreamResponse, close: bool) -> bytes | None:
    """The answer as the general server writes it; None if there is something unusual about it."""
    if answer.status in _UNUSUAL:
        return None
    try:
        told = CIMultiDict([(name.decode(), value.decode()) for name, value in answer.fields])
        reason = answer.reason.decode()
    except UnicodeDecodeError:
        return None
    fields = headers_.end_to_end(told)
    body = answer.body
    if "Content-Length" not in fields:
        fields["Transfer-Encoding"] = "chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    if "Date" not in fields:
        fields["Date"] = email.utils.formatdate(time.time(), usegmt=True)
    if close:
        fields["Connection"] = "close"
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    return f"HTTP/1.1 {answer.status} {reason}\r\n{''.join(lines)}\r\n".encode() + body
