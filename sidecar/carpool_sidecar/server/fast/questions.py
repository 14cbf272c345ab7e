"""GETs about models and health, which proxies and callers send between predict requests, on the fast lane.

They are passed on to the predictor as they are. For that the general server has all it takes to stream anything both
ways, and so it costs as much as dozens of predictions. But these have no body, and answers of a few hundred bytes. If
one turns out otherwise nothing is lost: the general server asks again.
"""

from __future__ import annotations

import email.utils
import functools
import re
import time
from collections.abc import Callable, Hashable

from multidict import CIMultiDict

from carpool_sidecar import drain, errors, metrics
from carpool_sidecar.protocols import interface
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server.fast import heads
from carpool_sidecar.upstream import connection, predictor

START = b"GET "
"""What questions begin with."""

MOST_BYTES = 64 * 1024
"""Bytes of an answer that is given here."""

_NAME = r"[A-Za-z0-9._~!$&'()*+,;=@%-]+"
_PATH = re.compile(rf"/v1/models(/{_NAME})?|/v2(/health/(live|ready)|/models/{_NAME}(/versions/{_NAME})?(/ready)?)?")
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
        fields = heads.fields(head, START.strip())
        if fields is None:
            return None
        target, headers = fields
        is_plain = heads.is_usual(headers) and not any(name in headers for name in ("Content-Length", "TE"))
        if not (is_plain and _PATH.fullmatch(target) and self._life.admits()):
            return None
        address = peer[0] if isinstance(peer, tuple) and peer else None
        message = _request(target, headers, str(address) if address else None)
        return self._relay.send(message, (), 0, float("inf"), functools.partial(self._answered, reply))

    def _answered(self, reply: Reply, outcome: connection.Outcome) -> None:
        close = self._life.parting
        message = _answer(outcome, close) if isinstance(outcome, interface.UpstreamResponse) else None
        if message is not None and not isinstance(outcome, errors.UpstreamError):
            self._metrics.answered("passthrough", outcome.status)
        reply(message, close)


def _request(target: str, headers: CIMultiDict[str], peer: str | None) -> bytes:
    passed = headers_.end_to_end(headers)
    host = headers["Host"]
    headers_.add_forwarding(passed, peer, "http", host)
    del passed["Host"]
    lines = [f"{name}: {value}\r\n" for name, value in passed.items()]
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{''.join(lines)}\r\n".encode()


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
