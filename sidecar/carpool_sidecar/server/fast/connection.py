"""A client's connection on the fast lane: plain predict requests, as many and as close together as the client likes.

Bytes are taken as they come. What is complete and plain becomes a call at once; everything else makes this step aside
for the general server, which gets the bytes and serves the connection until all that came is answered. Then the
connection comes back. Errors of the client are told here where they are as plain as that: a body that is no predict
request, and what stops arriving.

Answers are given in the order of the requests. A client that sends and does not read must not fill the memory: while
its answers wait in the transport, nothing more is read from it, large answers count as bytes held, and if it takes too
long the connection is cut.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Hashable
from typing import Final, Protocol, cast

from carpool_sidecar import errors, metrics, turns
from carpool_sidecar.batching import routes
from carpool_sidecar.protocols import interface, json_rows
from carpool_sidecar.server import lingering, responses, unread
from carpool_sidecar.server.fast import heads, progress, questions, requests

_MOST_PENDING: Final = 64
"""At most so many unanswered requests, all with one batch key; later ones stay unparsed."""

_MOST_HELD: Final = 64 * 1024
"""Bytes of unparsed requests; more are left in the socket."""


class Port(Protocol):
    """What connections share."""

    requests: requests.FastRequests
    reader: heads.Reader
    questions: questions.Questions | None
    keep_alive: float
    head_timeout: float

    def joined(self, connection: Connection) -> bool:
        """A client connected: whether it may stay."""
        ...

    def left(self, connection: Connection) -> None:
        """It is gone."""
        ...

    def lend(
        self, connection: Connection, reason: metrics.Handover, size: int | None, since: float | None
    ) -> asyncio.Protocol:
        """A general server for the request that comes next; the client has been at its head since then.

        `reason` is what is unusual about it, and `size` how many bytes it has, head and body: what follows these is
        handed to `keep`. If that is None, nobody knows its end beforehand, and the server takes all that comes. In the
        end it calls `come_back` or `connection_lost`.
        """
        ...

    def returned(self, connection: Connection) -> bool:
        """The general server has done its part: whether the connection may come back."""
        ...


class Cancellable(Protocol):
    """What a connection waits for."""

    def cancel(self) -> None:
        """It is not wanted any more."""
        ...


class Connection(asyncio.Protocol):
    """One connection, from its start to its end; it is away while the general server answers requests on it."""

    # State of reading: _template, of one of the _heads_read, which are those that fitted none. _rest: bytes not yet
    # understood, with _partial_head while they are the start of a head that came at _began. _body: a body that is
    # arriving. _waiting: to be told of a model, or for the answer to a question. _working: a large body is looked
    # through. _is_reading: the transport reads. _is_held: bytes of the client have to wait for answers.
    # State of answering: _pending: requests without an answer yet, in order. _unsent, _unsent_bytes: answers, and their
    # bytes, that the client has not read. _is_paused: there are such.
    # Of both: _came, _touched: when the client came, and last did something or was last answered. _is_over: closed,
    # lost, or away. _is_parting: the client was told that this was all. _held: the bytes of all that, and the requests
    # being handled.
    __slots__ = (
        "_began", "_body", "_came", "_heads_read", "_held", "_is_held", "_is_over", "_is_parting", "_is_paused",
        "_is_reading", "_partial_head", "_pending", "_port", "_requests", "_rest", "_template", "_touched",
        "_transport", "_unsent", "_unsent_bytes", "_waiting", "_working",
    )  # fmt: skip

    def __init__(self, port: Port) -> None:
        self._port = port
        self._requests = port.requests
        self._template: heads.HeadTemplate | None = None
        self._heads_read = 0
        self._rest = b""
        self._partial_head: progress.PartialHead | None = None
        self._began = 0.0
        self._body: progress.PartialBody | None = None
        self._waiting: Cancellable | None = None
        self._working: turns.Work | None = None
        self._is_reading = True
        self._pending: list[requests.FastRequest] = []  # few at most, and mostly one
        self._unsent = self._unsent_bytes = 0
        self._is_held = self._is_over = self._is_parting = self._is_paused = False
        self._touched = self._came = port.requests.clock()
        self._held = port.requests.memory.reserve()

    # --- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if not self._port.joined(self):
            self._transport.write(responses.too_many_connections())
            self._close()

    def data_received(self, data: bytes) -> None:
        """Take what the client sent."""
        self._touched = self._requests.clock()
        if self._body is not None:
            self._collect(self._body, data)
        elif self._is_held:
            self._hold(self._rest + data)
        elif self._rest:
            self._serve(self._rest + data)
        else:
            self._serve(data)

    def eof_received(self) -> None:
        """As for Go's and aiohttp's servers, this means the client is gone: the transport closes."""

    def pause_writing(self) -> None:
        self._is_paused = True
        self._touched = self._requests.clock()
        self._look_what_to_read()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._transport.set_write_buffer_limits()
        self._held.add(-self._unsent_bytes, -self._unsent)
        self._unsent = self._unsent_bytes = 0
        self._look_what_to_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.left(self)
        self._is_over = True
        self._body = None
        self._rest = b""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._cancel_pending()
        self._held.release()

    # --- requests ----------------------------------------------------------------------------------------------

    def _serve(self, data: bytes) -> None:
        """Take all requests that are complete in `data`, which begins with one."""
        at, size = 0, len(data)
        if self._rest:
            self._keep(b"")
        while at < size and not self._is_over:
            template = self._template
            plain = (template.match(data, at) if template is not None else None) or self._read(data, at)
            if plain is None:
                return
            self._partial_head = None
            end, length, head = plain
            stop = end + length
            if stop > size:
                self._begin_body(data, at, plain)
                return
            if self._is_paused or len(self._pending) >= _MOST_PENDING:
                self._hold(data[at:])
                return
            try:
                request = self._requests.accept(head, data[end:stop], self, self._touched)
            except errors.CarpoolError as error:
                if self._pending:
                    self._hold(data[at:])
                    return
                self._refuse(error, self._touched)
                at = stop
                continue
            if request is None:
                self._step_aside(self._requests.objection(length), stop - at, data[at:])
                return
            pending = self._pending
            if pending and request.key != pending[-1].key:
                # Each key is a queue, and queues take turns: one connection must not have many of them at once.
                self._hold(data[at:])
                return
            pending.append(request)
            self._requests.submit(request, self._held)
            at = stop

    def _read(self, data: bytes, at: int) -> heads.Plain | None:
        """The head at `at`; None if more of it has to come, or if this is not for us any more."""
        if not self._heads_read and self._template is None and not data.startswith(questions.START, at):
            shared = self._port.reader.shared(data, at)
            if shared is not None:
                self._template, plain = shared
                return plain
        end = data.find(b"\r\n\r\n", at) + 4
        if end < 4:
            self._wait_for_head(data[at:])
            return None
        reader, text = self._port.reader, data[at:end]
        if len(text) > heads.MAX_HEAD:
            self._partial_head = None
            self._step_aside(heads.handover(text), None, data[at:])
            return None
        if text.startswith(questions.START):
            self._ask(text, data, at, end)
            return None
        try:
            found = reader.read(text)
        except routes.ModelUnknownYet as pause:
            self._partial_head = None
            self._hold(data[at:])
            self._held.add(0, 1)
            self._waiting = pause.wait(self._learned)
            return None
        if found is None:
            self._partial_head = None
            self._step_aside(heads.handover(text), heads.extent(text), data[at:])
            return None
        _, length, head = found
        # Where heads repeat, the second is that of the next ones; where they do not, to try each time would be dear.
        self._heads_read += 1
        if self._heads_read > 1 and not self._heads_read & (self._heads_read - 1):
            self._template = reader.template(text, head)
        return end, length, head

    def _ask(self, text: bytes, data: bytes, at: int, end: int) -> None:
        """Pass on what is asked from `at` to `end` of `data`, or leave it to the general server."""
        self._partial_head = None
        if self._pending or self._is_paused:
            self._hold(data[at:])
            return
        asking = self._port.questions
        if asking is not None:
            self._waiting = asking.ask(text, self.peer, functools.partial(self._told, text))
        if self._waiting is None:
            self._step_aside(heads.handover(text), heads.extent(text), data[at:])
            return
        self._held.add(len(text), 1)
        if end < len(data) or self._rest:
            self._hold(data[end:])
        else:
            self._is_held = True

    def _told(self, question: bytes, message: bytes | None, close: bool) -> None:
        """A question is answered with `message`, or has to be asked in another way."""
        self._waiting = None
        self._held.add(-len(question), -1)
        if self._is_over:
            return
        if message is None:
            rest = self._rest
            self._is_held = False
            self._update_reading()
            self._step_aside("method", len(question), question, rest)
            return
        self._touched = self._requests.clock()
        self._transport.write(message)
        if close:
            self._part()
        elif self._rest or self._is_paused:
            self._go_on()
        else:
            self._is_held = False

    def _learned(self, _: object) -> None:
        self._waiting = None
        self._go_on()
        self._held.add(0, -1)

    def _wait_for_head(self, begun: bytes) -> None:
        more = begun = begun.lstrip(b"\r\n")  # empty lines before a request are none of it (RFC 9112, section 2.2)
        if not begun:
            self._keep(b"")
            return
        if self._partial_head is None:
            self._partial_head = progress.PartialHead()
            self._began = self._touched
        else:
            more = begun[self._partial_head.size :]
        if len(begun) <= heads.MAX_HEAD and self._partial_head.may_go_on(more):
            self._keep(begun)
            if self._requests.memory.has_room(0):
                return
            if self._pending:
                self._hold(begun)  # answers come in order
            else:
                self._end(errors.MemoryFull(), self._began)
        else:
            self._partial_head = None
            self._step_aside("unfinished", None, begun, since=self._began)

    # --- bodies that come in parts -----------------------------------------------------------------------------

    def _begin_body(self, data: bytes, at: int, plain: heads.Plain) -> None:
        end, length, head = plain
        if self._pending:
            self._hold(data[at:])
        elif not self._requests.takes(length):
            self._step_aside(self._requests.objection(length), end - at + length, data[at:])
        else:
            self._body = progress.PartialBody(
                data[at:end], head, length, self._touched, self._requests.scan(head, length)
            )
            self._body.add(data[end:])
            self._held.add(self._body.received, 1)

    def _collect(self, body: progress.PartialBody, data: bytes) -> None:
        data, following = (data, b"") if len(data) <= body.missing else (data[: body.missing], data[body.missing :])
        if not self._requests.memory.has_room(len(data)):
            self._drop_body()
            size = len(body.text) + body.received + body.missing
            self._step_aside("limits", size, body.text, *body.take(), data, following)
            return
        body.add(data)
        self._held.add(len(data))
        if not body.missing:
            self._finish(body, following)
        elif body.scan is not None:
            self._let_others_in()

    def _let_others_in(self) -> None:
        # libuv reads up to 32 times in a row from one socket: 8 MB, and several milliseconds.
        if self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._update_reading)

    def _finish(self, body: progress.PartialBody, following: bytes) -> None:
        self._drop_body()
        parts = body.take()
        payload = None if body.scan is None else body.scan.payload(json_rows.PartedText(parts))
        if payload is not None:
            self._submit_parsed(body, parts, payload, following)
            return
        whole = b"".join(parts)
        parts.clear()
        told = functools.partial(self._parsed, body, whole)
        self._working = self._requests.work_on(body.head, whole, told)
        if self._working is not None:
            self._held.add(len(whole), 1)
            self._hold(following)
            return
        try:
            request = self._requests.accept(body.head, whole, self, body.started)
        except errors.CarpoolError as error:
            self._refuse(error, body.started)
            self._serve_following(following)
        else:
            self._submit_large(body, [whole], request, following)

    def _parsed(self, body: progress.PartialBody, whole: bytes, outcome: interface.Payload | Exception) -> None:
        """A large body was looked through; what came meanwhile is held."""
        self._working = None
        self._held.add(-len(whole), -1)
        following = self._rest
        self._is_held = False
        self._keep(b"")
        self._update_reading()
        if isinstance(outcome, Exception):
            self._step_aside("body", len(body.text) + len(whole), body.text, whole, following)
        else:
            self._submit_parsed(body, [whole], outcome, following)

    def _submit_parsed(
        self, body: progress.PartialBody, parts: list[bytes], payload: interface.Payload, following: bytes
    ) -> None:
        size = sum(map(len, parts))
        request = self._requests.accept(body.head, b"", self, body.started, payload, size)
        self._submit_large(body, parts, request, following)

    def _submit_large(
        self, body: progress.PartialBody, parts: list[bytes], request: requests.FastRequest | None, following: bytes
    ) -> None:
        if request is None:
            size = sum(map(len, parts))
            self._step_aside(self._requests.objection(size), len(body.text) + size, body.text, *parts, following)
            return
        self._pending.append(request)
        self._requests.submit(request, self._held)
        self._serve_following(following)

    def _serve_following(self, following: bytes) -> None:
        if following and not self._is_over:
            self._serve(following)

    def _refuse(self, error: errors.CarpoolError, started: float) -> None:
        """Answer a request that no other waits before, and that came at `started`."""
        message, close = self._requests.refused(error, started)
        self._transport.write(message)
        if close:
            self._part()

    def _drop_body(self) -> None:
        if self._body is not None:
            self._held.add(-self._body.received, -1)
            self._body = None

    # --- other ways on -----------------------------------------------------------------------------------------

    def _step_aside(
        self, reason: metrics.Handover, size: int | None, *parts: bytes, since: float | None = None
    ) -> None:
        """Leave the connection, with the bytes that were not served here, to the general server.

        The first request has `size` bytes, if that is known.
        `since` is when the first of them came, if that was not now.
        """
        if self._pending or self._is_paused:
            self._hold(b"".join(parts))  # answers come in order
            return
        self._is_over = True
        self._keep(b"")
        general = self._port.lend(self, reason, size, since)
        self._transport.set_protocol(general)
        general.connection_made(self._transport)
        for part in parts:
            if part:
                general.data_received(part)

    def keep(self, data: bytes) -> None:
        """Bytes came behind the request that the general server has."""
        self._hold(self._rest + data)

    def give(self) -> bytes:
        """All that was to be kept: the general server goes on with it."""
        rest = self._rest
        self._keep(b"")
        self._is_held = False
        self._update_reading()
        return rest

    def come_back(self) -> bool:
        """All that the general server was given is answered, and no byte is left over: whether it is served here again.

        The transport has room to write.
        """
        if not self._port.returned(self):
            return False
        self._is_over = False
        self._touched = self._requests.clock()
        self._transport.set_protocol(self)
        if self._is_held:
            # Not now: the general server is in the midst of its last request.
            asyncio.get_running_loop().call_soon(self._go_on)
        return True

    def _hold(self, data: bytes) -> None:
        self._keep(data)
        self._is_held = True
        self._update_reading()

    def _keep(self, data: bytes) -> None:
        """Make this what is not yet understood; it counts as bytes held."""
        self._held.add(len(data) - len(self._rest))
        self._rest = data

    def _go_on(self) -> None:
        if self._is_over or self._is_paused or self._pending or not self._is_held:
            return
        if self._waiting is not None or self._working is not None:
            return
        self._is_held = False
        self._update_reading()
        self._serve(self._rest)

    def _look_what_to_read(self) -> None:
        """Answers have begun or ceased to wait for the client, or all are given."""
        self._update_reading()
        if self._is_held and not self._pending and not self._is_paused:
            # Not now: this may be in the midst of `_serve`, or of answers to others.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _update_reading(self) -> None:
        # What is held is read on for a while, because only a connection that is read tells that its client has left.
        is_enough = self._is_held and (len(self._rest) >= _MOST_HELD or not self._requests.memory.has_room(0))
        wanted = not (is_enough or self._is_paused)
        if wanted != self._is_reading and not self._is_parting and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- answers -----------------------------------------------------------------------------------------------

    def answered(self, request: requests.FastRequest, message: bytes, body: bytes, close: bool) -> None:
        """Send `message` and `body` when it is their turn, then end the connection if told so."""
        if self._is_over:
            return  # the client left between its answer's making and its turn
        pending = self._pending
        if pending[0] is not request:
            request.message = (message, body, close)
            self._held.add(len(message) + len(body))
            return
        pending.pop(0)
        while True:
            self._touched = self._requests.now
            self._transport.write(message)
            if body:
                self._write_large(body)
            if self._is_paused:  # the request ends when the client has taken its answer
                self._unsent += 1
                self._unsent_bytes += len(message) + len(body)
                self._held.add(len(message) + len(body))
            else:
                self._held.add(0, -1)
            if close:
                self._part()
            if not pending or (following := pending[0].message) is None:
                break
            pending.pop(0)
            message, body, close = following
            self._held.add(-len(message) - len(body))
        if self._is_held and not pending:
            self._look_what_to_read()

    @property
    def peer(self) -> Hashable:
        """The address of its other end, or None if that is not known."""
        address: Hashable = self._transport.get_extra_info("peername")
        return address

    def is_last(self, request: requests.FastRequest) -> bool:
        """Whether no request came after this one."""
        return not self._pending or self._pending[-1] is request

    def _write_large(self, body: bytes) -> None:
        # The transport keeps all of it until its last byte is sent, so it waits for the client until then.
        self._transport.set_write_buffer_limits(0)
        self._transport.write(body)
        if not self._is_paused:
            self._transport.set_write_buffer_limits()

    # --- the end -----------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End the connection if it is idle, or the client busy with nothing, for longer than it may."""
        if self._is_paused or self._is_over:
            patience = self._requests.rules.patience.seconds(self._unsent_bytes)
            if self._is_parting and not self._is_paused:
                patience = max(patience, lingering.LONGEST)
            if now - self._touched >= patience:
                unread.reset(self._transport)
        elif self._pending or self._is_held:
            pass  # the scheduler watches over what it was given
        elif self._body is not None:
            if now - self._body.started > self._requests.rules.bodies.read_timeout:
                self._end(errors.BodyTooLate(), self._body.started)
        elif self._rest:
            if now - self._began > self._port.head_timeout:
                self._end(errors.HeadTooLate(), self._began)
        elif now - self._touched > self._port.keep_alive:
            self._close()

    def may_ask(self, begun: float) -> bool:
        """Whether the client came since then and has asked nothing yet, or has asked or begun to ask since then."""
        if self._is_parting:
            return False
        if self._is_over:
            return self._touched >= begun  # the general server has it
        if self._partial_head is not None:
            return self._began >= begun
        return self._touched == self._came >= begun

    def shut(self) -> None:
        """End the connection; an answer that the client does not read is cut off."""
        if self._is_paused:
            self._transport.abort()
        elif not self._is_parting:
            self._close()

    def cut(self) -> None:
        """End the connection now, unread answers or not."""
        self._transport.abort()

    def _end(self, error: errors.CarpoolError, since: float) -> None:
        self._drop_body()
        self._keep(b"")
        self._transport.write(self._requests.refusal(error, since))
        self._part()

    def _part(self) -> None:
        """End the connection behind an answer, for which the client may have to be read a little longer."""
        self._leave()
        self._keep(b"")
        if not self._transport.is_closing():
            self._is_parting = True
            lingering.Lingering(self._transport, self)

    def _close(self) -> None:
        self._leave()
        self._transport.close()

    def _leave(self) -> None:
        self._is_over = True
        self._touched = self._requests.clock()
        self._cancel_pending()

    def _cancel_pending(self) -> None:
        if self._working is not None:
            self._working.cancel()
            self._working = None
        while self._pending:
            request = self._pending.pop(0)
            waiting = request.message
            self._held.add(0 if waiting is None else -len(waiting[0]) - len(waiting[1]), -1)
            self._requests.driver.cancel(request)
