"""A request that is not batched, on its way to the predictor, and the answer on its way back: streamed, unchanged.

Bodies are never collected. What one side does not take for now is not read from the other, so memory stays constant and
a slow reader slows its sender down, in both directions. Framing belongs to each connection: what was read is written
anew (RFC 9112, 6). Header values go as the bytes that came.

After `101 Switching Protocols` the same two connections are a `tunnel`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Final

from multidict import CIMultiDict

from carpool_sidecar import errors
from carpool_sidecar.batching import routes
from carpool_sidecar.protocols import hop_by_hop
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import responses, unread
from carpool_sidecar.server.http1 import exchange, messages, tunnel
from carpool_sidecar.upstream import connection as connections
from carpool_sidecar.upstream import predictor

log = logging.getLogger("carpool.sidecar.server")

# Seconds in which a predictor may take what waits for it until there is room for more: that it takes some is not seen.
_LONGEST_STEP: Final = unread.LARGEST_STEP / unread.SLOWEST_STEPS

# Of methods other than these the length is told, though it may be 0 (RFC 9110, 8.6).
_WITHOUT_BODY: Final[frozenset[str]] = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# A server that does not expect a body may leave it unread, and take it for the next request.
_WITHOUT_BODY_MOSTLY: Final[frozenset[str]] = _WITHOUT_BODY | {"DELETE"}
# No trailer may be one of these (RFC 9110, 6.5.1): they frame or route a message, or belong to one connection.
_NO_TRAILERS: Final[frozenset[str]] = hop_by_hop.FIELDS | {
    "content-length",
    "content-type",
    "content-encoding",
    "host",
}

Refuse = Callable[[errors.CarpoolError], None]
"""Answers a request that could not be passed on."""


@dataclasses.dataclass
class Relays:
    """Passes requests on over `streams`.

    `is_ending` tells whether callers' connections are closed behind their answers. `count` is called with the status of
    each answer, `on_bug` when one breaks off for a reason that is a bug, and is in the log. Of the `tunnels` that are
    open a closed side has `linger` seconds; once it `is_closed` no more may open.
    """

    streams: predictor.Pool
    is_ending: Callable[[], bool]
    count: Callable[[int], None]
    on_bug: Callable[[], None] = lambda: None
    tunnels: set[tunnel.Tunnel] = dataclasses.field(default_factory=set)
    is_closed: bool = False
    linger: float = 5.0

    def close_tunnels(self) -> None:
        """Close all tunnels; new ones are refused."""
        self.is_closed = True
        for each in list(self.tunnels):
            each.close()


class Relay:
    """Implements `exchange.Consumer` and `connections.Receiver`: what comes from one goes to the other."""

    # State of the request: so many bytes of the body are _missing, where that is known; _is_again on the second try. Of
    # the answer: _status, 0 until its head came; whether the caller finds its end by its length, or it goes in chunks;
    # _close behind it.
    __slots__ = (
        "_ask", "_close", "_connection", "_exchange", "_has_length", "_in_chunks", "_is_again", "_known", "_missing",
        "_opening", "_refuse", "_relays", "_status", "_upgrade",
    )  # fmt: skip

    def __init__(self, relays: Relays, asked: exchange.Exchange, refuse: Refuse, known: bytes | None = None) -> None:
        """`known` is the body if that was read, and decoded, already."""
        self._relays = relays
        self._exchange = asked
        self._refuse = refuse
        self._known = known
        self._connection: connections.Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        head = asked.head
        self._upgrade = offered_upgrade(head)
        self._ask = self._request_head(known)
        self._missing = (head.length or 0) if known is None else len(known)
        self._is_again = self._close = self._has_length = self._in_chunks = False
        self._status = 0

    def start(self) -> None:
        """Begin; what comes of the body waits in the exchange until there is a connection."""
        asked = self._exchange
        asked.consumer, asked.cancel = self, self._drop
        if asked.broken:
            self.broken(asked.broken)
        else:
            self._connect()

    def _request_head(self, known: bytes | None) -> bytes:
        head, peer = self._exchange.head, self._exchange.connection.answers.peer
        address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if known is None and head.passed is not None and head.passed[0] == address:
            return head.passed[1]
        made = request_head(head, address, self._upgrade, known, self._relays.streams.host)
        if known is None:
            head.passed = address, made
        return made

    def _connect(self) -> None:
        free = self._relays.streams.take()
        if free is not None:
            self._use(free)
        else:
            self._opening = self._relays.streams.open(self._opened, self._failed)

    def _opened(self, opened: connections.Connection) -> None:
        self._opening = None
        self._use(opened)

    def _use(self, connection: connections.Connection) -> None:
        self._connection = connection
        asked, known = self._exchange, self._known
        head = asked.head
        is_odd = head.length != 0 and head.method in _WITHOUT_BODY_MOSTLY
        # Whoever writes a body behind the head of its answer to HEAD may do so when that is read already.
        is_head = head.method == "HEAD"
        connection.take(self, is_head, is_last=is_odd or is_head)
        asked.on_body = self._came
        self.predictor_full(connection.is_full)
        if known is None:
            self._send([self._ask], asked.take() if asked.unread.size else [])
        else:
            self._send([self._ask], [known] if known else [])

    # --- the request -------------------------------------------------------------------------------------------

    def _came(self, data: bytes) -> None:
        self._send([], [data] if data else [])

    def _send(self, pieces: list[bytes], parts: list[bytes]) -> None:
        """Write `pieces`, and parts of the body, in one piece."""
        connection, asked = self._connection, self._exchange
        if connection is None:
            return
        in_chunks = asked.head.length is None and self._known is None
        for part in parts:
            self._missing -= len(part)
            pieces.append(b"%x\r\n%b\r\n" % (len(part), part) if in_chunks else part)
        is_whole = asked.reader.is_complete
        if is_whole:
            if in_chunks:
                pieces.append(b"0\r\n\r\n")
            elif self._missing:  # by a bug: the predictor would take the next caller's request for the rest of this one
                self._relays.on_bug()
                self._end_without(errors.CarpoolError())
                return
            asked.want(True)
        connection.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if is_whole:
            connection.end_request()
        else:
            asked.send_continue()

    def broken(self, words: str) -> None:
        """Implements `exchange.Consumer`."""
        self._end_without(errors.MalformedBody(f"the body is not valid HTTP: {words}"))

    def _end_without(self, error: errors.CarpoolError) -> None:
        """The rest of the request does not come."""
        self._drop()
        if self._status:
            self._reset()
        else:
            self._refuse(error)

    def caller_full(self, is_full: bool) -> None:
        """Implements `exchange.Consumer`."""
        if self._connection is not None:
            self._connection.read(not is_full)

    def expire(self, now: float, quiet_since: float, patience: float) -> None:
        """Implements `exchange.Consumer`. An answer without a length may be a stream, which may take its time.

        Where nothing is wanted of the caller, the predictor has no room for what came of the body. Until there is a
        connection to the predictor the caller may wait for that.
        """
        asked = self._exchange
        if now - quiet_since <= patience or self._connection is None:
            return
        if asked.reader.is_complete:
            if self._has_length:
                log.warning("the predictor's answer stopped, the caller's connection is reset")
                self._drop()
                self._reset()
        elif asked.wants_more:
            asked.is_closing = True
            self._end_without(errors.BodyTooLate())
        elif now - quiet_since > patience + _LONGEST_STEP:
            asked.is_closing = True
            self._end_without(errors.UpstreamTimeout("the predictor did not take the request in time"))

    def _drop(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # --- the answer --------------------------------------------------------------------------------------------

    def predictor_full(self, is_full: bool) -> None:
        """Implements `connection.Receiver`. Who has sent all is read on, so that its leaving is noticed."""
        self._exchange.want(not is_full or self._exchange.reader.is_complete)

    def answer_came(self, part: connections.Part) -> None:
        """Implements `connection.Receiver`."""
        asked, head, trailers = self._exchange, part.head, part.trailers
        for each in part.informed:
            # HTTP/1.0 knows no such answers (RFC 9110, 15.2).
            if each.status != 100 and asked.head.version == messages.HTTP_1_1:
                told = answer_head(each, headers_.end_to_end(_texts(each.fields)), messages.HTTP_1_1)
                asked.connection.answers.write(told)  # the answer itself is not begun by that
        if head is not None and head.status == connections.SWITCHING:
            self._switch(head, part.body)
            return
        if trailers is not None or part.error is not None:
            self._connection = None
        written = []
        if head is not None:
            written.append(self._begin_answer(head))
        if part.body:
            written.append(b"%x\r\n%b\r\n" % (len(part.body), part.body) if self._in_chunks else part.body)
        if trailers is not None and self._in_chunks:
            written.append(self._last_chunk(trailers))
        if written:
            asked.write(written[0] if len(written) == 1 else b"".join(written))
        if trailers is not None:
            self._relays.count(self._status)
            asked.end(self._close)
        elif part.error is not None:
            self._failed(part.error)

    def _begin_answer(self, head: connections.AnswerHead) -> bytes:
        """The head of the answer as it goes to the caller."""
        asked = self._exchange.head
        self._status = head.status
        self._close = self._exchange.is_closing or self._exchange.expects_continue or self._relays.is_ending()
        kind = self._close, asked.version
        if (found := head.passed.get(kind)) is not None:
            self._has_length = True
            return found
        fields = headers_.end_to_end(_texts(head.fields))
        if head.status in responses.BODILESS or asked.method == "HEAD":
            pass
        elif head.length is not None:
            self._has_length = True
        elif asked.version == messages.HTTP_1_1:
            self._in_chunks = True
            fields["Transfer-Encoding"] = "chunked"
        else:
            self._close = True  # which is how the caller finds its end
        is_lasting = self._has_length and "Date" in fields
        if "Date" not in fields:
            fields["Date"] = responses.date(int(time.time()))  # RFC 9110, 6.6.1
        if self._close and asked.version == messages.HTTP_1_1:
            fields["Connection"] = "close"
        elif not self._close and asked.version == messages.HTTP_1_0:
            fields["Connection"] = "keep-alive"
        made = answer_head(head, fields, asked.version)
        if is_lasting:
            head.passed[kind] = made
        return made

    def _last_chunk(self, trailers: connections.Fields) -> bytes:
        """The end of a body in chunks, with trailers for who asks for them (RFC 9110, 6.5.1)."""
        lines = [b"0\r\n"]
        if trailers and "trailers" in self._exchange.head.headers.get("TE", "").lower():
            lines += [
                b"%b: %b\r\n" % (name, value)
                for name, value in trailers
                if name.decode("latin-1").lower() not in _NO_TRAILERS
                and not headers_.has_control(value.decode("latin-1"))
            ]
        return b"".join(lines) + b"\r\n"

    def _failed(self, error: errors.UpstreamError) -> None:
        self._connection = self._opening = None
        asked = self._exchange
        if self._status:
            log.warning("the predictor's answer broke off, the caller's connection is reset: %s", error)
            self._reset()
        elif self._may_ask_again(error):
            self._is_again = True
            self._connect()
        else:
            if isinstance(error, errors.UpstreamBroken):
                log.warning("an answer could not be passed on: %s", error)
            asked.want(True)
            self._refuse(error)

    def broke(self) -> None:
        """Implements `connection.Receiver`."""
        self._connection = None
        self._relays.on_bug()
        if self._exchange.is_begun:
            log.exception("relaying an answer failed for a reason that is a bug, the caller's connection is reset")
            unread.reset(self._exchange.connection.transport)
        else:
            log.exception("relaying an answer failed for a reason that is a bug")
            self._refuse(errors.CarpoolError())

    def _may_ask_again(self, error: errors.UpstreamError) -> bool:
        head = self._exchange.head
        is_bare = head.length == 0 and self._known is None
        return is_bare and not self._is_again and predictor.may_ask_again(head.method, error)

    def _reset(self) -> None:
        """Cut the caller off; one of HTTP/1.0 would take a plain close for the end."""
        self._relays.count(self._status)
        unread.reset(self._exchange.connection.transport)

    def _switch(self, head: connections.AnswerHead, behind: bytes) -> None:
        """Make a tunnel of both connections, if that was asked for; `behind` came after the answer."""
        asked, told, connection = self._exchange, _texts(head.fields), self._connection
        error: errors.CarpoolError | None = None
        if self._upgrade is None:
            error = errors.UpstreamBroken("the predictor switched protocols without being asked")
        elif not asked.reader.is_complete:
            error = errors.UpstreamBroken("the predictor switched protocols before the request was complete")
        elif self._relays.is_closed:
            error = errors.Draining()
        elif not headers_.accepts_upgrade(self._upgrade, told):
            error = errors.UpstreamBroken("the predictor switched to a protocol that was not offered")
        if error is not None or connection is None:
            self._drop()
            self._refuse(error or errors.CarpoolError())
            return
        fields = headers_.end_to_end(told)
        fields["Connection"] = "Upgrade"
        for protocol in told.getall("Upgrade", ()):
            fields.add("Upgrade", protocol)
        self._relays.count(head.status)
        asked.write(answer_head(head, fields, messages.HTTP_1_1))
        caller, early = asked.connection.become_tunnel()
        predictor = tunnel.Side(connection.give_away(), connection, connection.is_full)
        tunnel.Tunnel(self._relays.tunnels, self._relays.linger, caller, early, predictor, behind)


def offered_upgrade(head: messages.RequestHead) -> str | None:
    """The protocols that are offered to the predictor, as the value of `Upgrade`; None if a request offers none.

    None with a body, either: servers disagree about that, and uvicorn takes it for the next request. An offer may be
    ignored (RFC 9110, 7.8).
    """
    if head.version != messages.HTTP_1_1 or head.length != 0:
        return None
    return headers_.requested_upgrade(head.headers)


def request_head(
    head: messages.RequestHead, address: str, upgrade: str | None, known: bytes | None, own_host: str
) -> bytes:
    """The head of a request as it goes to the predictor, which is `own_host` for callers that name none.

    `address` is the caller's, or nothing.
    """
    target, host = head.target, head.headers.get("Host")
    if not target.startswith("/") and "://" in target:
        rest = target.partition("://")[2]
        host = _host_of(target)  # that of the target counts (RFC 9112, 3.2.2)
        is_of_server = head.method == "OPTIONS" and "/" not in rest and "?" not in rest
        target = "*" if is_of_server else routes.origin_form(target)  # RFC 9112, 3.2.4
    fields = headers_.outgoing_headers(head.headers, address or None, host)
    fields.popall("Host", None)
    fields.popall("Content-Length", None)
    if upgrade is not None:
        fields["Connection"], fields["Upgrade"] = "Upgrade", upgrade
    if known is not None:
        fields.popall("Content-Encoding", None)
        fields["Content-Length"] = str(len(known))
    elif head.length is None:
        fields["Transfer-Encoding"] = "chunked"
    elif head.length or "Content-Length" in head.headers or head.method not in _WITHOUT_BODY:
        fields["Content-Length"] = str(head.length)
    return _written(f"{head.method} {target} HTTP/1.1\r\nHost: {own_host if host is None else host}", fields)


def _host_of(target: str) -> str:
    authority = target.partition("://")[2].partition("/")[0].partition("?")[0]
    return authority.rpartition("@")[2]


def answer_head(head: connections.AnswerHead, fields: CIMultiDict[str], version: messages.Version) -> bytes:
    """The head of an answer as it goes to a caller of this version, with these fields.

    The length of what never has a body is left out (RFC 9110, 8.6).
    """
    if head.status < 200 or head.status == 204:
        fields.popall("Content-Length", None)
    reason = head.reason.decode(errors="surrogateescape")
    if headers_.has_control(reason):
        reason = ""  # nobody needs it (RFC 9112, section 4)
    return _written(f"HTTP/1.{version[1]} {head.status} {reason}", fields)


def _written(start: str, fields: CIMultiDict[str]) -> bytes:
    lines = [start, *[f"{name}: {value}" for name, value in fields.items()], "\r\n"]
    return "\r\n".join(lines).encode(errors="surrogateescape")


def _texts(fields: connections.Fields) -> CIMultiDict[str]:
    return CIMultiDict(
        [(name.decode(errors="surrogateescape"), value.decode(errors="surrogateescape")) for name, value in fields]
    )
