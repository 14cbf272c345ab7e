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
from typing import Final, Protocol

from multidict import CIMultiDict

from carpool.program import addresses
from carpool_sidecar import drain, metrics
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import local_answers
from carpool_sidecar.server.fast import head_lines, heads
from carpool_sidecar.upstream import connection

START: Final = b"GET "
"""What questions begin with."""

MOST_BYTES: Final = 64 * 1024
"""Bytes of an answer that is given here."""

_NAME = r"[A-Za-z0-9._~!$&'()*+,;=@%-]+"
_PATH = re.compile(
    rf"GET (/v1/models(/{_NAME})?|/v2(/health/(live|ready)|/models/{_NAME}(/versions/{_NAME})?(/ready)?)?) HTTP/1\.1"
)
# What is done with a line: it is passed on, left out, extended, or the general server knows what it means.
_PASSED: Final = 0
_DROPPED: Final = 1
_HOST: Final = 2
_AGENT: Final = 3
_FORWARDED_FOR: Final = 4
_FORWARDED: Final = 5
_PROTO: Final = 6
_FORWARDED_HOST: Final = 7
_CONNECTION: Final = 8
_REFUSED: Final = 9
_KINDS: Final[dict[str, int]] = {
    **dict.fromkeys([name + ":" for name in headers_.HOP_BY_HOP], _DROPPED),
    **dict.fromkeys([name.lower() + ":" for name in (*heads.UNUSUAL, "TE")], _REFUSED),
    **dict.fromkeys(("content-length:", "content-encoding:", "proxy-connection:", "k-network-probe:"), _REFUSED),
    "connection:": _CONNECTION, "host:": _HOST, "user-agent:": _AGENT, "x-forwarded-for:": _FORWARDED_FOR,
    "forwarded:": _FORWARDED, "x-forwarded-proto:": _PROTO, "x-forwarded-host:": _FORWARDED_HOST,
}  # fmt: skip
# Anybody may send names and make servers write heads: what is remembered of them has to end somewhere.
_MOST_NAMES: Final = 1024
_MOST_ANSWERS: Final = 64
# The end of a head, as lines.
_END: Final = ("", "")
# These have no body, or mean something else without one.
_UNUSUAL = frozenset({204, 205, 304})

Reply = Callable[[bytes | None, bool], None]
"""Called once with an answer as it has to be written, and whether the connection ends behind it; or with None."""


class Asked(Protocol):
    """A question that was passed on."""

    def cancel(self) -> None:
        """Nobody waits for its answer any more."""
        ...


class Relay(Protocol):
    """The way to the predictor: `predictor.HttpPredictor`, made with `connection.PassedAnswerReader`."""

    def post(
        self,
        target: str,
        headers: calls.Headers,
        body: calls.Pieces,
        timeout: float,
        reply: connection.Reply,
        head: bytes = b"",
    ) -> Asked:
        """Send the request of a complete `head`; `reply` is called once, with what becomes of it."""
        ...


class Questions:
    """Passes them on over connections of `relay`."""

    # State: the kind of each line, and its name in lower case, by the names met so far; heads of answers as they are
    # written, by heads as they came. Both are bounded.
    def __init__(self, relay: Relay, life: drain.Lifecycle, counters: metrics.Metrics) -> None:
        self._relay = relay
        self._life = life
        self._metrics = counters
        self._kinds: dict[str, tuple[int, str]] = {}
        self._written: dict[bytes, bytes] = {}

    def ask(self, head: bytes, peer: Hashable, reply: Reply) -> Asked | None:
        """Pass on what a complete head asks; None if that is no such question, or is not answered any more.

        `peer` is the client's address. `reply` is called later, with None if it has to be asked in another way. What is
        returned can be cancelled.
        """
        address = addresses.plain(str(peer[0])) if isinstance(peer, tuple) and peer else None
        message = self._request(head, address or None)
        if message is None or not self._life.admits():
            return None
        return self._relay.post("", (), (), math.inf, functools.partial(self._answered, reply), message)

    def _answered(self, reply: Reply, outcome: connection.Outcome) -> None:
        close = self._life.parting
        message = None
        if type(outcome) is interface.UpstreamResponse:
            message = self._answer(outcome, close)
            if message is not None:
                self._metrics.answered("passthrough", outcome.status)
        reply(message, close)

    # --- what the predictor is sent ----------------------------------------------------------------------------

    def _request(self, head: bytes, peer: str | None) -> bytes | None:
        """What the predictor is sent, as the general server would; None if the head is not plain."""
        lines = head_lines.lines(head)
        if lines is None or not _PATH.fullmatch(lines[0]):
            return None
        passed = [lines[0], ""]
        places: dict[int, int] = {}  # of the lines that are to be there once
        names: set[str] = set()
        host, kinds = "", self._kinds
        for line in lines[1:]:
            name = line[: line.find(":") + 1]
            kind, lowered = kinds.get(name) or self._learn(name)
            names.add(lowered)
            value = line[len(name) :].strip(" ")
            if kind != _PASSED:
                if kind == _HOST:
                    host = value
                if kind in (_HOST, _DROPPED) or (kind == _CONNECTION and value.lower() == "keep-alive"):
                    continue
                is_prober = kind == _AGENT and value.startswith(local_answers.PROBER_AGENTS)
                if is_prober or kind in (_CONNECTION, _REFUSED):
                    return None
                places[kind] = len(passed)
            passed.append(f"{name} {value}")
        if len(names) != len(lines) - 1 or "host:" not in names:
            return None
        forwarding = _forwarding(host, peer)
        if forwarding is None:
            return None
        passed[1], caller, host_line, element = forwarding
        if caller:
            _extend(passed, places.get(_FORWARDED_FOR), "X-Forwarded-For: ", caller)
        if _PROTO not in places:
            passed.append("X-Forwarded-Proto: http")
        if host and _FORWARDED_HOST not in places:
            passed.append(host_line)
        _extend(passed, places.get(_FORWARDED), "Forwarded: ", element)
        passed += _END
        return "\r\n".join(passed).encode()

    def _learn(self, name: str) -> tuple[int, str]:
        """What is done with lines of a name that was not met before, and the name in lower case."""
        lowered = name.lower()
        learned = (_KINDS.get(lowered, _PASSED) if head_lines.is_name(name) else _REFUSED), lowered
        if len(self._kinds) < _MOST_NAMES:
            self._kinds[name] = learned
        return learned

    # --- what the client is told -------------------------------------------------------------------------------

    def _answer(self, answer: interface.UpstreamResponse, close: bool) -> bytes | None:
        """The answer as the general server writes it; None if there is something unusual about it."""
        written = self._written.get(answer.head)
        if written is not None and not close:
            return written + answer.body
        if answer.status in _UNUSUAL:
            return None
        try:
            told = CIMultiDict([(name.decode(), value.decode()) for name, value in answer.fields])
            start = f"HTTP/1.1 {answer.status} {answer.reason.decode()}"
        except UnicodeDecodeError:
            return None
        fields = headers_.end_to_end(told)
        is_lasting = bool(answer.head) and not close and "Date" in fields and "Content-Length" in fields
        body = answer.body
        if "Content-Length" not in fields:
            fields["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        if "Date" not in fields:
            fields["Date"] = email.utils.formatdate(time.time(), usegmt=True)
        if close:
            fields["Connection"] = "close"
        lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
        head = f"{start}\r\n{''.join(lines)}\r\n".encode()
        if is_lasting:
            if len(self._written) >= _MOST_ANSWERS:
                self._written.clear()  # those in use are soon here again
            self._written[answer.head] = head
        return head + body


@functools.lru_cache(maxsize=64)
def _forwarding(host: str, peer: str | None) -> tuple[str, str, str, str] | None:
    """What is told of a host that was asked for and of who asked, as by `headers.add_forwarding`; None for no host.

    The line of the host, the caller's address, the line X-Forwarded-Host, and the element of Forwarded.
    """
    if not headers_.is_host(host):
        return None
    return f"Host: {host}", peer or "", f"X-Forwarded-Host: {host}", headers_.forwarded_element(peer, "http", host)


def _extend(passed: list[str], at: int | None, name: str, element: str) -> None:
    if at is None:
        passed.append(name + element)
    else:
        passed[at] = f"{name}{passed[at].partition(': ')[2]}, {element}"
