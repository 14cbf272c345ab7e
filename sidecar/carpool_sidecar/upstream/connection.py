"""Connections to the predictor: a pool of them, and one that carries one request at a time (RFC 9112).

The reader of answers knows nothing of connections: it is given bytes and gives outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, cast

import httptools

from carpool.runtime import deadline_timer
from carpool_sidecar import errors, files
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface

Outcome = interface.UpstreamResponse | errors.UpstreamError
"""What becomes of a request: an answer with status 2xx, or why there is none."""

Reply = Callable[[Outcome], None]

IDLE_SECONDS: Final = 4.0
"""So long a connection is kept that nobody uses.

uvicorn, and so most model servers, closes idle ones after 5 s. Letting go of them first avoids sending a request, which
may not be repeatable, into a connection that is just being closed.
"""

# Large enough that a system call is little beside the copy it makes, small enough to stay in a core's cache.
_SCRATCH: Final = 256 * 1024
# Bytes in a row that are no body: a head, informational answers before it, chunk extensions, trailers.
_MOST_OVERHEAD = 64 * 1024

NOT_REUSED: Final[frozenset[int]] = frozenset({204, 304, 500})
"""Statuses of answers after which a connection takes no other request.

What servers wrongly send behind a 204 or a 304, as their body, may come late, and would be the next answer. uvicorn
answers 500 where a model raises, says nothing of the connection, and closes it a moment later.
"""

# Headers of a refusal that mean something to the caller; the rest speaks of the batch's connection. OpenAI's clients
# look for `retry-after-ms` before they look for Retry-After.
_TELLING = ("Content-Type", "Retry-After", "Retry-After-Ms", "Location", "WWW-Authenticate", "Allow")
_TELLING_KEYS = tuple((name, name.lower().encode()) for name in _TELLING)

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

    def made(self, new: Pooled) -> None:
        """It is open."""

    def freed(self, idle: Pooled) -> None:
        """It may be used again."""

    def lost(self, old: Pooled) -> None:
        """It is closed."""


class Pooled(asyncio.BufferedProtocol):
    """A connection that can be kept.

    `is_closing()` is its transport's, `news(0)` its socket's own: what came since the last answer, or an end. The event
    loop may not have heard of that yet. `free_since` is its owner's.
    """

    __slots__ = ("_owner", "_transport", "free_since", "is_closing", "news")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # From connection_made on:
        self._transport: asyncio.Transport
        self.is_closing: Callable[[], bool]
        self.news: Callable[[int], Sequence[object]]
        self.free_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Its transport is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.is_closing = transport.is_closing
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.news = poll.poll
        self._owner.made(self)

    def abort(self) -> None:
        """Close at once, dropping what is unsent."""
        self._transport.abort()


class Connection(Pooled):
    """Sends a request, reads its answer, and is then free for the next, or closes itself.

    `scratch` is where all connections of a loop receive: what is there is used up before the next one reads.
    """

    # State: _reply while an answer is due, _unsent of the request; _is_full while the socket takes no more;
    # _is_spent once nothing may follow it.
    __slots__ = ("_is_full", "_is_spent", "_reader", "_reply", "_scratch", "_unsent")

    def __init__(self, owner: Owner, scratch: memoryview, reader: AnswerReader) -> None:
        super().__init__(owner)
        self._scratch = scratch
        self._reader = reader
        self._reply: Reply | None = None
        self._is_spent = self._is_full = False
        self._unsent: Iterator[bytes | memoryview] | None = None

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
            self.keep_alive = self._parser.should_keep_alive() and status not in NOT_REUSED
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
        told = self._ordered or self._headers.items()
        for name, allowed in ((b"content-encoding", b"identity"), (b"transfer-encoding", b"chunked")):
            if any(key == name and value.lower() != allowed for key, value in told):
                raise errors.UpstreamBroken(f"the predictor's answer has a {name.decode()} that was not asked for")
        if b"transfer-encoding" in self._headers and self._parser.get_http_version() == "1.0":
            self.keep_alive = False  # its framing counts as faulty (RFC 9112, 6.1)

    def _too_large(self) -> errors.UpstreamBroken:
        return errors.UpstreamBroken(f"the predictor's answer is larger than {self.max_bytes} bytes")

    def _tell(self) -> tuple[tuple[str, str], ...]:
        found = ((name, self._headers.get(key, b"")) for name, key in _TELLING_KEYS)
        told = ((name, value.decode(errors="surrogateescape")) for name, value in found)
        return tuple((name, value) for name, value in told if value and value.isprintable())


def _reason(error: Exception) -> errors.UpstreamError:
    if isinstance(error.__context__, errors.UpstreamError):  # raised by a callback
        return errors.UpstreamBroken(str(error.__context__))
    # Not the parser's words: they may quote what came.
    return errors.UpstreamBroken("the predictor's answer is not usable (it is not valid HTTP)")


class Pool:
    """Hands out connections to one host and port, the one used last first; idle ones are closed after 4 seconds.

    `make` makes one for an owner; all receive in the same bytes.
    """

    # State: all connections; those that are free, the one used last at the end; _gone, set up by `close`.
    def __init__(self, host: str, port: int, make: Callable[[Owner, memoryview], Pooled]) -> None:
        self._address = (host, port)
        self._make = make
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._all: set[Pooled] = set()
        self._free: list[Pooled] = []
        self._gone: asyncio.Event | None = None
        self._deadlines = deadline_timer.DeadlineTimer(self._close_idle)

    def take(self) -> Pooled | None:
        """A connection that nothing came over since its last answer, if there is one."""
        while self._free:
            latest = self._free.pop()
            if not latest.is_closing() and not latest.news(0):
                return latest
            latest.abort()
        return None

    async def open(self) -> Pooled:
        """A new connection; raises `errors.UpstreamUnreachable`, `errors.OutOfSockets` or `errors.UpstreamClosed`."""
        if self._gone is not None:
            raise errors.UpstreamUnreachable("the predictor cannot be reached: all connections to it were closed")
        opened = self._make(self, self._scratch)
        try:
            files.check()
            await asyncio.get_running_loop().create_connection(lambda: opened, *self._address)
        except OSError as error:
            raise _translated(error) from None
        except asyncio.CancelledError:
            self.lost(opened)  # uvloop closes a connection that was just made without telling its protocol
            raise
        if opened.is_closing() or opened.news(0):
            opened.abort()
            raise errors.UpstreamClosed
        return opened

    async def close(self) -> None:
        """Close all connections and return when they are gone. None can be had afterwards."""
        self._deadlines.stop()
        self._free.clear()
        self._gone = asyncio.Event()
        for each in self._all:
            each.abort()
        if self._all:
            await self._gone.wait()

    # --- what connections tell ---------------------------------------------------------------------------------

    def made(self, new: Pooled) -> None:
        """Implements `Owner`."""
        self._all.add(new)

    def freed(self, idle: Pooled) -> None:
        """Keep a connection for the next request."""
        if self._gone is not None:
            idle.abort()
            return
        idle.free_since = asyncio.get_running_loop().time()
        self._free.append(idle)
        if (due := idle.free_since + IDLE_SECONDS) < self._deadlines.due_at:
            self._deadlines.look_by(due)

    def lost(self, old: Pooled) -> None:
        """Implements `Owner`."""
        self._all.discard(old)
        if old in self._free:
            self._free.remove(old)
        if self._gone is not None and not self._all:
            self._gone.set()

    def _close_idle(self, now: float) -> float:
        """Close what has been idle for too long; returns when to look again."""
        fresh = 0
        while fresh < len(self._free) and self._free[fresh].free_since + IDLE_SECONDS <= now:
            self._free[fresh].abort()
            fresh += 1
        del self._free[:fresh]
        return self._free[0].free_since + IDLE_SECONDS if self._free else math.inf


def _translated(error: OSError) -> errors.UpstreamError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return errors.OutOfSockets()
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else "its address is unknown"
    return errors.UpstreamUnreachable(f"the predictor cannot be reached: {reason}")
