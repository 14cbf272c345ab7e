"""A client's connection: its requests in their order, as many and as close together as it likes.

Bytes are taken as they come. A plain predict request that is complete becomes a call at once, and many of those may be
on their way together. Any other request is an `exchange`, and has the connection to itself until it is answered. What
comes behind it, or cannot be understood yet, is held.

Answers are given in the order of the requests (`requests.Answers`). While some wait in the transport, no more requests
are read from the client, and if it takes too long the connection is cut.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Final, Protocol, cast

from carpool_sidecar import errors
from carpool_sidecar.protocols import json_rows
from carpool_sidecar.server import responses, unread
from carpool_sidecar.server.http1 import bodies, exchange, heads, messages, requests, tunnel
from carpool_sidecar.server.http1 import handler as handlers

_MOST_HELD: Final = 64 * 1024
"""Bytes of unparsed requests; more are left in the socket."""

_LONGEST_DROPPING: Final = 10.0
"""Seconds for the rest of a body whose request is answered already."""

QUIET: Final = 2.0
"""Seconds without a byte of a client after which it counts as told that this was all."""

LONGEST_PARTING: Final = 30.0
"""Seconds in which it may send more, unheard, in all."""

_LINE_END: Final = (b"\r", b"\n")


class State(enum.Enum):
    """What a connection does with bytes that come."""

    READING = "a head is read, or awaited"
    BODY = "the body of a plain predict request is read"
    EXCHANGE = "any other request has the connection until it is answered"
    REFUSING = "as before, and the head behind it is dropped, and will be refused"
    HELD = "bytes wait for answers"
    TUNNEL = "protocols were switched: bytes go both ways, and come here no more"
    PARTING = "the client was told that this was all: it is read for a while, unheard"
    ENDED = "nothing more is taken: the connection closes, or is lost"


# As the compiled modules know them without a look-up.
_READING: Final = State.READING
_BODY: Final = State.BODY
_EXCHANGE: Final = State.EXCHANGE
_HELD: Final = State.HELD
_REFUSING: Final = State.REFUSING
_TUNNEL: Final = State.TUNNEL
_PARTING: Final = State.PARTING
_ENDED: Final = State.ENDED


class Port(Protocol):
    """What connections share of `server.Server`. Without a `reader` there are no plain predict requests."""

    requests: requests.PlainRequests
    reader: heads.Reader | None
    handler: handlers.Handler
    keep_alive: float
    head_timeout: float

    def joined(self, connection: Connection) -> bool: ...

    def may_linger(self, connection: Connection) -> bool: ...

    def left(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """One connection, from its start to its end. As for Go's server, a client that will send no more is gone."""

    # State: _state. _template, of one of the _heads_read, which are those that fitted none. _rest: bytes not
    # yet understood. _head: the start of a head. _body: a body that is arriving. _exchange: a request that is not
    # answered, or of which the rest comes.
    # answers: requests without an answer yet, and what the client has not taken.
    # _came: when the client did; _quiet_since: when it was last heard or answered before its latest bytes, or last
    # heard once it was told the end. _held: the bytes of all that, and the requests being handled.
    __slots__ = (
        "_body", "_came", "_exchange", "_head", "_heads_read", "_held", "_port", "_quiet_since", "_requests", "_rest",
        "_state", "_template", "answers", "transport",
    )  # fmt: skip

    def __init__(self, port: Port) -> None:
        self._port = port
        self._requests = port.requests
        self._state = _READING
        self._template: heads.HeadTemplate | None = None
        self._heads_read = 0
        self._rest = b""
        self._head: messages.PartialHead | None = None
        self._body: bodies.PartialBody | None = None
        self._exchange: exchange.Exchange | None = None
        self._held = port.requests.memory.reserve()
        self.answers = requests.Answers(self, port.requests, self._held)
        self._quiet_since = self._came = self.answers.touched

    # --- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self.answers.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if not self._port.joined(self):
            self.transport.write(responses.too_many_connections())
            if self._port.may_linger(self):
                self.part()
            else:
                self._close()

    def data_received(self, data: bytes) -> None:
        """Take what the client sent."""
        answers, state = self.answers, self._state
        if state is _PARTING:
            self._quiet_since = self._requests.clock()
            self._let_others_in()
            return
        self._quiet_since = answers.touched
        answers.touched = self._requests.clock()
        if state is _READING:
            if self._head is None:
                self._serve(data)
            else:
                self._held.add(-len(self._head.text))
                self._look_at_head(self._head, data)
        elif state is _BODY:
            if self._body is not None:
                self._collect(self._body, data)
        elif state is _EXCHANGE:
            self._feed(data)
        elif state is _REFUSING:
            self._let_others_in()
        elif state is _HELD:
            self._hold(self._rest + data)

    def pause_writing(self) -> None:
        self._set_full(True)

    def resume_writing(self) -> None:
        self._set_full(False)

    def _set_full(self, is_full: bool) -> None:
        asked = self._exchange
        self.answers.set_full(is_full, asked is not None or self._state is _TUNNEL)
        if asked is not None and asked.consumer is not None:
            asked.consumer.caller_full(is_full)
        if self._state is not _TUNNEL:
            self.look_what_to_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.left(self)
        self._body = None
        self._rest = b""
        self._leave()
        self._held.release()

    # --- requests ----------------------------------------------------------------------------------------------

    def _serve(self, data: bytes) -> None:
        """Take all requests that are complete in `data`, which begins with one."""
        at, size, answers = 0, len(data), self.answers
        if self._rest:
            self._keep(b"")
        while at < size and self._state is _READING:
            template = self._template
            plain = (template.match(data, at) if template is not None else None) or self._read(data, at)
            if plain is None:
                return
            end, length, head = plain
            stop = end + length
            if stop > size:
                self._begin_body(data, at, plain)
                return
            pending = answers.pending
            if answers.is_full or len(pending) >= requests.MOST_PENDING:
                self._hold(data[at:])
                return
            try:
                request = self._requests.accept(head, data[end:stop], answers, answers.touched)
            except errors.CarpoolError as error:
                if pending:
                    self._hold(data[at:])
                    return
                self._refuse(error, answers.touched)
                at = stop
                continue
            if request is None:
                self._begin_exchange(data[at:end], data[end:])
                return
            if pending and request.key != pending[-1].key:
                # Each key is a queue, and queues take turns: one connection must not have many of them at once.
                self._hold(data[at:])
                return
            self._requests.submit(request)
            at = stop

    def _read(self, data: bytes, at: int) -> heads.Plain | None:
        """The head at `at`, if it is that of a plain predict request and complete."""
        reader = self._port.reader
        if reader is not None and not self._heads_read and self._template is None and data.startswith(b"POST ", at):
            shared = reader.shared(data, at)
            if shared is not None:
                self._template, plain = shared
                return plain
        start, size = at, len(data)
        if data.startswith(_LINE_END, at):
            at = size - len(data[at:].lstrip(b"\r\n"))  # RFC 9112, 2.2: empty lines before a request are none of it
        end = data.find(b"\r\n\r\n", at) + 4
        if end < 4:
            if at < size:
                self._head = messages.PartialHead(self.answers.touched)
                self._look_at_head(self._head, data[at:] if at else data)
            elif not start:
                self.answers.touched = self._quiet_since  # by line ends alone nobody stays
            return None
        text = data[at:end]
        if reader is None or len(text) > heads.MAX_HEAD or not text.startswith(b"POST "):
            self._begin_exchange(text, data[end:])
            return None
        found = reader.read(text)
        if found is None:
            self._begin_exchange(text, data[end:])
            return None
        _, length, plain_head = found
        # Where heads repeat, the second is that of the next ones; where they do not, to try each time would be dear.
        self._heads_read += 1
        if self._heads_read > 1 and not self._heads_read & (self._heads_read - 1):
            self._template = reader.template(text, plain_head)
        return end, length, plain_head

    # --- heads that come in parts ------------------------------------------------------------------------------

    def _look_at_head(self, head: messages.PartialHead, more: bytes) -> None:
        try:
            is_complete = head.add(more)
        except messages.Malformed as error:
            self._head = None
            self._end_in_turn(bytes(head.text), error)
            return
        text = head.text
        if is_complete:
            self._head = None
            self._serve(bytes(text))
        else:
            self._held.add(len(text))
            if self._requests.memory.has_room(0):
                return
            self._held.add(-len(text))
            self._head = None
            if self.answers.pending:
                self._hold(bytes(text))  # answers come in order
            else:
                self._refuse(errors.MemoryFull(), head.began, close=True)

    def _end_in_turn(self, text: bytes, error: messages.Malformed) -> None:
        """Answer what is no request, as the last, when it is its turn; until then it is held, and read once more."""
        if not self.answers.may_own:
            self._hold(text)
            return
        answer = error.answer()
        self._requests.rules.metrics.malformed.labels(answer.status).inc()
        self.transport.write(b"".join(responses.render(answer, close=True)))
        self.part()

    # --- bodies that come in parts -----------------------------------------------------------------------------

    def _begin_body(self, data: bytes, at: int, plain: heads.Plain) -> None:
        end, length, head = plain
        if self.answers.pending:
            self._hold(data[at:])
        elif not self._requests.takes(length):
            self._begin_exchange(data[at:end], data[end:])
        else:
            self._state = _BODY
            self._body = bodies.PartialBody(
                data[at:end], head, length, self.answers.touched, self._requests.scan(head, length)
            )
            self._body.add(data[end:])
            self._held.add(self._body.size, 1)

    def _collect(self, body: bodies.PartialBody, data: bytes) -> None:
        data, following = (data, b"") if len(data) <= body.missing else (data[: body.missing], data[body.missing :])
        if not self._requests.memory.has_room(len(data)):
            self._drop_body()
            self._begin_exchange(body.text, b"".join([*body.take(), data, following]), body.started)
            return
        body.add(data)
        self._held.add(len(data))
        if not body.missing:
            self._finish(body, following)
        elif body.scan is not None:
            self._let_others_in()

    def _let_others_in(self) -> None:
        # libuv reads up to 32 times in a row from one socket: 8 MB, and several milliseconds.
        if not self.transport.is_closing() and self.transport.is_reading():
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._update_reading)

    def _finish(self, body: bodies.PartialBody, following: bytes) -> None:
        """Make a call of a request whose body came in parts. A large one that was not looked through takes turns."""
        self._drop_body()
        parts = body.take()
        size = sum(map(len, parts))
        payload = None if body.scan is None else body.scan.payload(json_rows.PartedText(parts))
        if payload is None and size >= body.head.route.codec.large:
            self._begin_exchange(body.text, b"".join([*parts, following]), body.started)
            return
        try:
            whole = b"".join(parts) if payload is None else b""
            request = self._requests.accept(body.head, whole, self.answers, body.started, payload, size)
        except errors.CarpoolError as error:
            self._refuse(error, body.started)
        else:
            if request is None:
                self._begin_exchange(body.text, b"".join([*parts, following]), body.started)
                return
            self._requests.submit(request)
        if following and self._state is _READING:
            self._serve(following)

    def _refuse(self, error: errors.CarpoolError, since: float, close: bool = False) -> None:
        """Answer a request that no other waits before, and that began at `since`; with `close` it is the last."""
        self._drop_body()
        message, close = self._requests.refusal(error, since, close)
        self._quiet_since = self.answers.touched = self._requests.clock()
        self.transport.write(message)
        if close:
            self.part()

    def _drop_body(self) -> None:
        if self._body is not None:
            self._held.add(-self._body.size, -1)
            self._body = None
            self._state = _READING

    # --- requests that are no plain predict requests -----------------------------------------------------------

    def _begin_exchange(self, text: bytes, behind: bytes, started: float | None = None) -> None:
        """Serve the request of a complete head, with what came behind it so far; it came at `started`, or just now."""
        if not self.answers.may_own:
            self._hold(text + behind)  # answers come in order
            return
        try:
            head = self._port.handler.read_head(text)
        except messages.Malformed as error:
            self._end_in_turn(b"", error)
            return
        asked = exchange.Exchange(self, head, self.answers.touched if started is None else started)
        self._state = _EXCHANGE
        self._exchange = asked
        self._held.add(0, 1)
        if behind:
            self._feed(behind)
        self._port.handler.begin(asked)

    def _feed(self, data: bytes) -> None:
        """Give the exchange what came of its body; keep what is behind that, or is for the next turn."""
        asked = self._exchange
        if asked is None or asked.broken:
            return
        was_complete = asked.reader.is_complete
        if self._rest or was_complete:
            if self._rest and self._has_no_room_for_head(asked):
                # It is refused in its turn. Until then it is read and dropped: so a client that leaves is noticed.
                self._keep(b"")
                self._state = _REFUSING
            else:
                self._keep(self._rest + data)
            self._update_reading()
            return
        try:
            behind = asked.feed(data)
        except messages.Malformed as error:
            was_answered = asked.is_over
            asked.break_body(str(error))
            if was_answered:  # nobody asked for another
                self._exchange = None
                self.part()
            return
        if asked.is_over and asked.reader.is_complete:
            self._exchange = None
            self._resume(behind)
            return
        if behind:
            self._keep(behind)
            self._update_reading()
            if not asked.reader.is_complete:
                asyncio.get_running_loop().call_soon(self._feed_later)

    def _has_no_room_for_head(self, asked: exchange.Exchange) -> bool:
        """Whether what is behind an exchange is the start of a head, not a complete one, for which there is no room."""
        is_head = asked.reader.is_complete and "Upgrade" not in asked.head.headers and b"\r\n\r\n" not in self._rest
        return is_head and not self._requests.memory.has_room(0)

    def _feed_later(self) -> None:
        if self._exchange is not None and self._state is _EXCHANGE:
            rest = self._rest
            self._keep(b"")
            self._feed(rest)
            self._update_reading()

    def _resume(self, behind: bytes) -> None:
        """A request is over, and this is what came behind it."""
        if self._state is _REFUSING:
            self._refuse(errors.MemoryFull(), self.answers.touched, close=True)
            return
        self._state = _HELD if behind else _READING
        self._keep(behind)
        self._update_reading()
        if behind:
            asyncio.get_running_loop().call_soon(self._go_on)

    # --- what exchanges call -----------------------------------------------------------------------------------

    def hold(self, asked: exchange.Exchange, size: int) -> bool:
        """Count so many bytes more for an exchange; returns whether there is room for others."""
        asked.held += size
        self._held.add(size)
        return self._requests.memory.has_room(0)

    def answer_ended(self, asked: exchange.Exchange, close: bool) -> None:
        """The answer is complete; with `close` the connection ends behind it."""
        self._held.add(-asked.held)
        asked.held = 0
        self.answers.end_own()
        asked.answered_at = self.answers.touched
        if close or asked.broken:
            self._exchange = None
            self.part()
        elif asked.reader.is_complete:
            self._exchange = None
            self._resume(self._rest)
        else:
            asked.wants_more = True  # what comes of the body is dropped
            self._update_reading()

    def become_tunnel(self) -> tuple[tunnel.Side, bytes]:
        """Give away the transport, and what came already behind the request; the rest of it counts as going on."""
        rest, asked = self._rest, self._exchange
        self._keep(b"")
        if asked is not None:
            asked.give_away()
        self._exchange = None
        self._state = _TUNNEL
        return tunnel.Side(self.transport, self, self.answers.is_full), rest

    # --- what is held ------------------------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self._keep(data)
        self._state = _HELD
        self.answers.is_awaited = True
        self._update_reading()

    def _keep(self, data: bytes) -> None:
        """Make this what is not yet understood; it counts as bytes held."""
        self._held.add(len(data) - len(self._rest))
        self._rest = data

    def _go_on(self) -> None:
        if self._state is not _HELD or not self.answers.may_own:
            return
        self._state = _READING
        self._quiet_since = self.answers.touched
        self._update_reading()
        self._serve(self._rest)

    def look_what_to_read(self) -> None:
        """Answers have begun or ceased to wait for the client, or all are given; or an exchange has enough, or not."""
        self.answers.touched = self._requests.clock()
        self._update_reading()
        if self._state is _HELD and self.answers.may_own:
            # Not now: this may be in the midst of `_serve`, or of answers to others.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _update_reading(self) -> None:
        # What is held is read on for a while, because only a connection that is read tells that its client has left.
        asked = self._exchange
        is_held = self._state is _HELD or asked is not None
        is_enough = is_held and (len(self._rest) >= _MOST_HELD or not self._requests.memory.has_room(0))
        if is_enough and asked is not None and self._has_no_room_for_head(asked):
            is_enough = False
        if self._state is _PARTING:
            wanted = True
        elif asked is None or asked.is_over:
            wanted = not (is_enough or self.answers.is_full)
        else:  # the exchange itself looks whether there is room for a body that nobody takes
            wanted = asked.wants_more and not (is_enough if asked.reader.is_complete else self._rest)
        if wanted != self.transport.is_reading() and self._state is not _ENDED and not self.transport.is_closing():
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # --- the end -----------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End the connection if it is idle, or the client busy with nothing, for longer than it may."""
        asked = self._exchange
        if self._state is _TUNNEL:
            return
        if asked is not None and not asked.is_over:
            if asked.consumer is not None and not self.answers.is_full:  # who takes nothing is found by its socket
                asked.consumer.expire(now, self.answers.touched, self._requests.rules.bodies.read_timeout)
        elif self.answers.is_full or self._state is _ENDED:
            waiting = unread.waiting(self.transport, self.transport.get_extra_info("socket"))
            if now - self.answers.touched >= self._requests.rules.patience.seconds(self.answers.unsent_bytes, waiting):
                unread.reset(self.transport)
        elif self._state is _PARTING:
            if now - self._quiet_since >= QUIET or now - self.answers.touched >= LONGEST_PARTING:
                self._close()
        elif asked is not None:
            if now - asked.answered_at > _LONGEST_DROPPING:
                self.part()
        elif not self.answers.pending and self._state is not _HELD:  # else the scheduler watches over what it was given
            self._expire_reading(now)

    def _expire_reading(self, now: float) -> None:
        body, head = self._body, self._head
        if body is not None:
            if now - body.started > self._requests.rules.bodies.read_timeout:
                self._refuse(errors.BodyTooLate(), body.started, close=True)
        elif head is not None:
            if now - head.began > self._port.head_timeout:
                self._refuse(errors.HeadTooLate(), head.began, close=True)
        elif now - self.answers.touched > self._port.keep_alive:
            self._close()

    def may_ask(self, begun: float) -> bool:
        """Whether the client came since then and has asked nothing yet, or has asked or begun to ask since then."""
        if self._state in (_PARTING, _ENDED, _TUNNEL):
            return False
        if self._exchange is not None:
            return self._exchange.started >= begun
        if self._head is not None:
            return self._head.began >= begun
        return self.answers.touched == self._came >= begun

    def shut(self) -> None:
        """End the connection, behind an answer that has begun; one that the client does not read is cut off.

        Tunnels are closed by who has them.
        """
        asked = self._exchange
        if self._state is _TUNNEL:
            return
        if asked is not None and not asked.is_over:
            asked.is_closing = True
        elif self.answers.is_full:
            self.transport.abort()
        elif self._state is _PARTING:
            self.transport.close()
        else:
            self._close()

    def cut(self) -> None:
        """End the connection now, unread answers or not."""
        self.transport.abort()

    def part(self) -> None:
        """End the connection behind an answer, and read the client a little longer.

        The kernel resets a connection that is closed before all that came is read, and the client forgets the answers
        that are still on their way to it (RFC 9112, section 9.6).
        """
        self._leave()
        self._keep(b"")
        if not self.transport.is_closing():
            self._state = _PARTING
            self._quiet_since = self.answers.touched
            self.transport.write_eof()
            self._update_reading()

    def _close(self) -> None:
        self._leave()
        self.transport.close()

    def _leave(self) -> None:
        self._state = _ENDED
        self.answers.touched = self._requests.clock()
        asked, self._exchange = self._exchange, None
        if asked is not None:
            asked.lost()
        if self._head is not None:
            self._held.add(-len(self._head.text))
            self._head = None
        self.answers.cancel()
