"""One connection to the predictor, with one request at a time (RFC 9112).

The reader of answers knows nothing of connections: it is given bytes and gives outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, cast

import httptools

from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface

Outcome = interface.UpstreamResponse | errors.UpstreamError
"""What becomes of a request: an answer with status 2xx, or why there is none."""

Reply = Callable[[Outcome], None]

IDLE_SECONDS = 4.0
"""So long a connection is kept that nobody uses.

uvicorn, and so most model servers, closes idle ones after 5 s. Letting go of them first avoids sending a request, which
may not be repeatable, into a connection that is just being closed.
"""

# Bytes in a row that are no body: a head, informational answers before it, chunk extensions, trailers.
_MOST_OVERHEAD = 64 * 1024

# uvicorn answers this where a model raises, says nothing of the connection, and closes it a moment later.
_RAISED = 500

# Headers of a refusal that mean something to the caller; the rest speaks of the batch's connection. OpenAI's clients
# look for `retry-after-ms` before they look for Retry-After.
_TELLING = ("Content-Type", "Retry-After", "Retry-After-Ms", "Location", "WWW-Authenticate", "Allow")
_TELLING_KEYS = tuple((name, name.lower().encode()) for name in _TELLING)

# Heads of answers that are remembered, all and each.
_MOST_KNOWN_BYTES: Final = 128 * 1024
_LONGEST_KNOWN: Final = 2048

# Up to this size one copy costs less than handing over the pieces; so it does where they are smaller on average.
_WORTH_NO_COPY = 64 * 1024
_WORTH_A_PIECE = 2 * 1024
# From so many bytes on a request goes in slices: the kernel takes some four megabytes in a single call.
_LARGE = 2 * 1024 * 1024
_SLICE = 512 * 1024

# Linux alone has it. It holds for what came until now; the kernel forgets it. After more bytes than that nobody waits:
# only what is smaller than a segment is held back.
_WORTH_CONFIRMING: Final = 16 * 1024
_ACKNOWLEDGE: Final[int] = getattr(socket, "TCP_QUICKACK", 0)


class Owner(Protocol):
    """What is told of its connections."""

    def made(self, new: Connection) -> None:
        """It is open."""

    def freed(self, idle: Connection) -> None:
        """It may be used again."""

    def lost(self, old: Connection) -> None:
        """It is closed."""


class Connection(asyncio.BufferedProtocol):
    """Sends a request, reads its answer, and is then free for the next, or closes itself.

    `scratch` is where all connections of a loop receive: what is there is used up before the next one reads.
    `is_closing()` is its transport's, `news(0)` its socket's own: what came since the last answer, or an end. The event
    loop may not have heard of that yet. `free_since` is its owner's.
    """

    # State: _reply while an answer is due, _unsent of the request; _is_full while the socket takes no more;
    # _is_spent once nothing may follow it.
    __slots__ = (
        "_is_full", "_is_spent", "_owner", "_reader", "_reply", "_scratch", "_transport", "_unsent", "free_since",
        "is_closing", "news",
    )  # fmt: skip

    def __init__(self, owner: Owner, scratch: memoryview, reader: AnswerReader) -> None:
        self._owner = owner
        self._scratch = scratch
        self._reader = reader
        # From connection_made on:
        self._transport: asyncio.Transport
        self.is_closing: Callable[[], bool]
        self.news: Callable[[int], Sequence[object]]
        self._reply: Reply | None = None
        self._is_spent = self._is_full = False
        self._unsent: Iterator[bytes | memoryview] | None = None
        self.free_since = 0.0

    def send(self, head: bytes, pieces: calls.Pieces, length: int, reply: Reply) -> None:
        """Send a head and a body of `length` bytes; `reply` is called once, later, unless `abort` is called first.

        Large pieces are handed over as they are: uvloop keeps references to them until the predictor has taken them
        (`writev`), so that one who reads slowly costs no memory beyond the body's own.
        """
        self._reply = reply
        if length < _WORTH_NO_COPY:
            self._transport.write(b"".join((head, *pieces)))
        elif length >= _LARGE:
            self._unsent = _slices(head, pieces)
            self._go_on()
        elif length < _WORTH_A_PIECE * len(pieces):
            self._transport.writelines((head, b"".join(pieces)))
        else:
            self._transport.writelines((head, *pieces))

    def abort(self) -> None:
        """Close at once, dropping what is unsent; a reply that is due is never called."""
        self._reply = self._unsent = None
        self._transport.abort()

    def _go_on(self) -> None:
        """Write a slice, and let others have their turn before the next."""
        if self._unsent is None or self._is_full:
            return
        piece = next(self._unsent, None)
        if piece is None:
            self._unsent = None
        else:
            self._transport.write(piece)
            if not self._is_full:
                asyncio.get_running_loop().call_soon(self._go_on)

    # --- the protocol's callbacks ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_closing = transport.is_closing
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.news = poll.poll
        self._owner.made(self)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._go_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport receives."""
        # What is no body comes in small helpings, so that there is a limit to what one of them can hold.
        return self._scratch if self._reader.is_in_body else self._scratch[:_MOST_OVERHEAD]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes of the predictor's came."""
        if self._reply is None:
            self.abort()  # nobody asked
            return
        reader = self._reader
        if not reader.begun and (self._unsent is not None or self._transport.get_write_buffer_size()):
            self._is_spent = True  # whoever answers part of a request may not read the rest
        try:
            outcome = reader.feed(self._scratch[:nbytes])
        except errors.UpstreamError as error:
            errors.bare(error)
            self._finish(error, is_free=False)
        else:
            if outcome is not None:
                self._finish(outcome, reader.keep_alive and not self._is_spent)
            elif _ACKNOWLEDGE and nbytes < _WORTH_CONFIRMING:
                self._acknowledge()

    def _acknowledge(self) -> None:
        """Confirm at once what came of an answer.

        A server that writes head and body apart may hold the body back until the head is confirmed (Nagle's algorithm),
        for which the kernel takes 40 ms on a connection that is used again.
        """
        with contextlib.suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE, 1)

    def eof_received(self) -> None:
        self._end(is_orderly=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(is_orderly=exc is None)
        self._reader.close()
        self._owner.lost(self)

    def _end(self, is_orderly: bool) -> None:
        if self._reply is None:
            self.abort()
        elif is_orderly and (outcome := self._reader.end()) is not None:
            self._finish(outcome, is_free=False)
        elif self._reader.begun:
            self._finish(errors.UpstreamBroken("the predictor's answer broke off"), is_free=False)
        else:
            self._finish(errors.UpstreamClosed(), is_free=False)

    def _finish(self, outcome: Outcome, is_free: bool) -> None:
        """Free or close the connection, then hand over the outcome."""
        reply, self._reply = self._reply, None
        if is_free:
            self._owner.freed(self)
        else:
            self.abort()
        if reply is not None:
            reply(outcome)  # last, because the next request may be sent from in there


def _slices(head: bytes, pieces: calls.Pieces) -> Iterator[bytes | memoryview]:
    """A head and a body, to be written one after the other; nothing is copied but pieces that are small on average."""
    yield head
    size = sum(map(len, pieces))
    for piece in (b"".join(pieces),) if size < _WORTH_A_PIECE * len(pieces) else pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _SLICE):
            yield view[start : start + _SLICE]


class AnswerReader:
    """Reads answers one after the other.

    Methods that begin with `on_` are called by the parser. An answer's body of more than `max_bytes` is refused.
    `keep_alive` is whether the connection may be used again after the latest answer.
    """

    # State: the connection's parser; _outcome of a complete answer; of the present answer all else. begun: some of it
    # came, other than informational answers (1xx, _interim) before it. _overhead: bytes since its body was _size_before
    # long. _tidy: of its _pieces. _ordered: all its headers, once a name came again.
    __slots__ = (
        "_headers", "_interim", "_ordered", "_outcome", "_overhead", "_parser", "_pieces", "_size", "_size_before",
        "_status", "_tidy", "_told", "begun", "is_in_body", "keep_alive", "max_bytes",
    )  # fmt: skip
    __deletable__ = ("_parser",)  # read by mypyc

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._outcome: Outcome | None = None
        self.begun = self.is_in_body = self.keep_alive = self._interim = False
        self._headers: dict[bytes, bytes] = {}
        self._ordered: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._told: tuple[tuple[str, str], ...] = ()
        self._status = self._size = self._size_before = self._overhead = self._tidy = 0

    def feed(self, data: memoryview) -> Outcome | None:
        """The outcome, if the answer is complete with this data.

        Raises `errors.UpstreamBroken` for what is not HTTP, for a switch of protocols, for more than 64 KiB in a row
        that are no body, and for a body over the limit. Nothing may be fed after that.
        """
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._outcome is None:
                raise _reason(error) from None
            self.keep_alive = False  # something follows that nobody asked for
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            self._watch_overhead(len(data))
            self._tidy_up()
        return outcome

    def end(self) -> Outcome | None:
        """The outcome, if the end of the connection completes the answer (RFC 9112, section 6.3, rule 8)."""
        headers = self._headers
        if not self.is_in_body or b"content-length" in headers or b"transfer-encoding" in headers:
            return None
        self.on_message_complete()
        self.keep_alive = False
        return self._outcome

    def close(self) -> None:
        """Let go of the parser: it and its reader refer to each other, and there may be many connections."""
        del self._parser

    # --- the parser's callbacks --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; raises `errors.UpstreamBroken` if it is the second to one request."""
        if self._outcome is not None:
            raise errors.UpstreamBroken
        self.begun = True
        self._headers = {}
        if self._ordered:
            self._ordered = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Remember a header: the first of each name, and all if there are several of one."""
        if self.is_in_body:
            return  # a trailer, which must not be taken for a header (RFC 9110, section 6.5.1)
        key, headers = name.lower(), self._headers
        if key not in headers:
            if self._ordered:
                self._ordered.append((key, value))
            headers[key] = value
        else:
            if not self._ordered:
                self._ordered = list(headers.items())
            self._ordered.append((key, value))

    def on_headers_complete(self) -> None:
        """Read the status, and what decides how the body is read."""
        self._status = status = self._parser.get_status_code()
        if 200 <= status < 600:
            self.keep_alive = self._parser.should_keep_alive() and status != _RAISED
            self.is_in_body = True
            if status >= 300:
                self._told = self._tell()
            if b"content-encoding" in self._headers or b"content-length" not in self._headers:
                self._check_codings()
            elif int(self._headers[b"content-length"]) > self.max_bytes:
                raise self._too_large()
        elif 100 <= status < 200 and status != 101:
            self._interim = True
        else:
            raise errors.UpstreamBroken(f"the predictor's answer has the status {status}")

    def on_body(self, data: bytes) -> None:
        """Collect a piece of the body; raises if it is too large, or of an informational answer, which has none."""
        if self._interim:
            raise errors.UpstreamBroken(f"the predictor's answer has the status {self._status} and a body")
        self._size += len(data)
        if self._size > self.max_bytes:
            raise self._too_large()
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Make the outcome of what was collected."""
        self.begun = self.is_in_body = False
        if self._interim:
            self._interim = False
            return
        pieces, self._pieces = self._pieces, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._size = self._size_before = self._overhead = self._tidy = 0
        if 200 <= self._status < 300:
            self._outcome = interface.UpstreamResponse(body, self._headers, self._status, b"", self._ordered)
        else:
            self._outcome = errors.UpstreamStatus(self._status, body, self._told)

    # --- what the parser does not judge ------------------------------------------------------------------------

    def _watch_overhead(self, fed: int) -> None:
        if self._size > self._size_before:
            self._size_before, self._overhead = self._size, 0
            return
        self._overhead += fed
        if self._overhead >= _MOST_OVERHEAD:
            raise errors.UpstreamBroken(f"the predictor's answer has a head of more than {_MOST_OVERHEAD} bytes")

    def _tidy_up(self) -> None:
        """Tiny chunks become one piece: an object for each would take many times their size."""
        if len(self._pieces) - self._tidy > 1:
            self._pieces[self._tidy :] = [b"".join(self._pieces[self._tidy :])]
        self._tidy = len(self._pieces)

    def _check_codings(self) -> None:
        """Only what was asked for: identity, in chunks at most."""
        for name, allowed in ((b"content-encoding", b"identity"), (b"transfer-encoding", b"chunked")):
            if self._headers.get(name, allowed).lower() != allowed:
                raise errors.UpstreamBroken(f"the predictor's answer has a {name.decode()} that was not asked for")

    def _too_large(self) -> errors.UpstreamBroken:
        return errors.UpstreamBroken(f"the predictor's answer is larger than {self.max_bytes} bytes")

    def _tell(self) -> tuple[tuple[str, str], ...]:
        found = ((name, self._headers.get(key, b"")) for name, key in _TELLING_KEYS)
        told = ((name, value.decode(errors="surrogateescape")) for name, value in found)
        return tuple((name, value) for name, value in told if value and value.isprintable())


class KnownHeads:
    """Heads of answers that were read, and what was read of them: equal ones mean the same and need not be read again.

    Servers write the same head to the same question, for as long as `Date` is the same.
    """

    # State: so many answers without their bodies, and how long these have to be, by heads.
    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: caches.Cache[bytes, tuple[interface.UpstreamResponse, int]] = caches.Cache(
            "known_answers", _MOST_KNOWN_BYTES, _LONGEST_KNOWN
        )

    def answer(self, text: bytes) -> interface.UpstreamResponse | None:
        """The answer that `text` is, if it is a whole one with a known head."""
        end = text.find(b"\r\n\r\n") + 4
        known = self._answers.get(text[:end])
        if known is None:
            return None
        read, size = known
        if len(text) != end + size:
            return None
        _, headers, status, reason, fields, head = read
        told = (text[end:], headers, status, reason, fields, head)
        return tuple.__new__(interface.UpstreamResponse, told)  # past its constructor, which costs more

    def learn(self, text: bytes, read: interface.UpstreamResponse) -> interface.UpstreamResponse:
        """`text` was read as this answer, and its connection goes on: the same, with its head if that is known."""
        end = text.find(b"\r\n\r\n") + 4
        if b"content-length" not in read.headers or text[end:] != read.body or end > _LONGEST_KNOWN:
            return read
        read = read._replace(head=text[:end])
        self._answers.put(read.head, (read._replace(body=b""), len(read.body)), end)
        return read


class PassedAnswerReader(AnswerReader):
    """Reads answers that are passed on: of any status, with all that came.

    What is `known` is shared by the readers of all connections.
    """

    # State: of the present answer, beside the rest.
    __slots__ = ("_fields", "_known", "_phrase")

    def __init__(self, known: KnownHeads, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._known = known
        self._fields: list[tuple[bytes, bytes]] = []
        self._phrase = b""

    def feed(self, data: memoryview) -> Outcome | None:
        """As of any answer; one that is here as a whole, with a known head, is not shown to the parser."""
        if self.begun or self._overhead or len(data) > _MOST_OVERHEAD:
            return super().feed(data)
        text = bytes(data)
        found = self._known.answer(text)
        if found is not None:
            self.keep_alive = True
            return found
        outcome = super().feed(data)
        if self.keep_alive and isinstance(outcome, interface.UpstreamResponse):
            return self._known.learn(text, outcome)
        return outcome

    def on_message_begin(self) -> None:
        """As of any answer."""
        super().on_message_begin()
        self._fields = []
        self._phrase = b""

    def on_status(self, status: bytes) -> None:
        """Remember the words behind the status; they may come in parts."""
        self._phrase += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """Remember a header as it came."""
        super().on_header(name, value)
        if not self.is_in_body:
            self._fields.append((name, value))

    def on_message_complete(self) -> None:
        """Make the outcome of what was collected."""
        super().on_message_complete()
        outcome = self._outcome
        if isinstance(outcome, interface.UpstreamResponse | errors.UpstreamStatus):
            self._outcome = interface.UpstreamResponse(
                outcome.body, self._headers, self._status, self._phrase, self._fields
            )


def _reason(error: Exception) -> errors.UpstreamError:
    if isinstance(error.__context__, errors.UpstreamError):  # raised by a callback
        return errors.UpstreamBroken(str(error.__context__))
    # Not the parser's words: they may quote what came.
    return errors.UpstreamBroken("the predictor's answer is not usable (it is not valid HTTP)")
