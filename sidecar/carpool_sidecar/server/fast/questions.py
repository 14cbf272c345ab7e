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
from carpool_sidecar import caches, drain, metrics
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
# What becomes of lines, in the words of `head_lines.sorter`: those that are not named here are passed on as they are.
_PASSED: Final = -1
_DROPPED: Final = 0
_REFUSED: Final = -2
# Of these the value is looked at, or extended; each may be there once.
_LOOKED_AT: Final = (
    "Host", "Connection", "User-Agent", "Content-Type", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host",
    "Forwarded",
)  # fmt: skip
_KINDS: Final[dict[str, int]] = {
    **dict.fromkeys(headers_.HOP_BY_HOP, _DROPPED),
    **dict.fromkeys([name.lower() for name in heads.UNUSUAL], _REFUSED),
    **dict.fromkeys(heads.SINGLE, _REFUSED),
    **dict.fromkeys(("te", "content-length", "content-encoding", "proxy-connection", "k-network-probe"), _REFUSED),
    **{name.lower(): place for place, name in enumerate(_LOOKED_AT, 1)},
}
# Anybody may make servers write heads: what is remembered of them has to end somewhere.
_MOST_BYTES: Final = 256 * 1024
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

    # State: heads of answers as they are written, by heads as they came, and what counts them. It is bounded.
    def __init__(self, relay: Relay, life: drain.Lifecycle, counters: metrics.Metrics) -> None:
        self._relay = relay
        self._life = life
        self._metrics = counters
        self._sort: Callable[[bytes], list[str | None] | None] = head_lines.sorter(_KINDS, len(_LOOKED_AT), _PASSED)
        self._written: caches.Cache[bytes, tuple[bytes, metrics.Count]] = caches.Cache("passed_answers", _MOST_BYTES)

    def ask(self, head: bytes, peer: Hashable, reply: Reply) -> Asked | None:
        """Pass on what a complete head asks; None if that is no such question, or is not answered any more.

        `peer` is the client's address. `reply` is called later, with None if it has to be asked in another way. What is
        returned can be cancelled.
        """
        message = self._request(head, str(peer[0]) if isinstance(peer, tuple) and peer else "")
        if message is None or (self._life.draining and not self._life.admits()):
            return None
        return self._relay.post("", (), (), math.inf, functools.partial(self._answered, reply), message)

    def _answered(self, reply: Reply, outcome: connection.Outcome) -> None:
        close = self._life.parting
        reply(self._answer(outcome, close) if type(outcome) is interface.UpstreamResponse else None, close)

    # --- what the predictor is sent ----------------------------------------------------------------------------

    def _request(self, head: bytes, peer: str) -> bytes | None:
        """What the predictor is sent, as the general server would; None if the head is not plain."""
        found = self._sort(head)
        if found is None:
            return None
        text, host, kept, agent, media_type, caller, proto, asked_host, forwarded = found
        if text is None or host is None or (kept is not None and kept.lower() != "keep-alive"):
            return None
        if agent is not None and agent.startswith(local_answers.PROBER_AGENTS):
            return None
        start, _, passed = text.partition("\r\n")
        told = _forwarding[host, peer] if _PATH.fullmatch(start) else None
        if told is None:
            return None
        address, element = told
        lines = [start, f"Host: {host}", passed] if passed else [start, f"Host: {host}"]
        if agent is not None:
            lines.append(f"User-Agent: {agent}")
        if media_type is not None:
            lines.append(f"Content-Type: {media_type}")
        if address:
            lines.append(f"X-Forwarded-For: {address}" if caller is None else f"X-Forwarded-For: {caller}, {address}")
        elif caller is not None:
            lines.append(f"X-Forwarded-For: {caller}")
        lines.append("X-Forwarded-Proto: http" if proto is None else f"X-Forwarded-Proto: {proto}")
        if asked_host is not None or host:
            lines.append(f"X-Forwarded-Host: {host if asked_host is None else asked_host}")
        lines.append(
            f"Forwarded: {element}\r\n\r\n" if forwarded is None else f"Forwarded: {forwarded}, {element}\r\n\r\n"
        )
        return "\r\n".join(lines).encode()

    # --- what the client is told -------------------------------------------------------------------------------

    def _answer(self, answer: interface.UpstreamResponse, close: bool) -> bytes | None:
        """The answer as the general server writes it, and counted; None if there is something unusual about it."""
        written = self._written.get(answer.head)
        if written is not None and not close:
            written[1].inc()
            return written[0] + answer.body
        if answer.status in _UNUSUAL:
            return None
        try:
            told = CIMultiDict([(name.decode(), value.rstrip().decode()) for name, value in answer.fields])
            start = f"HTTP/1.1 {answer.status} {answer.reason.decode()}"
        except UnicodeDecodeError:
            return None
        if headers_.has_control(start):
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
        count = self._metrics.requests.labels("passthrough", answer.status)
        count.inc()
        if is_lasting:
            self._written.put(answer.head, (head, count), len(answer.head) + len(head))
        return head + body


def _forward(asked: tuple[str, str]) -> tuple[str, str] | None:
    """Of a host and a peer: who asked, "" if nobody knows, and the element of Forwarded, as by
    `headers.add_forwarding`; None for no host."""
    host, peer = asked
    if not headers_.is_host(host):
        return None
    address = addresses.plain(peer)
    return address, headers_.forwarded_element(address or None, "http", host)


_forwarding: Final = caches.Cache("forwarding", 64 * 1024, make=_forward)
