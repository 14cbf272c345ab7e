"""A connection to the predictor, which carries one request at a time, and what reads its answers (RFC 9112).

The reader knows nothing of connections: it is given bytes and says what came of an answer. Batches, which collect
whole answers, and what is passed on, piece by piece, are both read by it. aiohttp's client would do most of that, but
not all: it reads header values as UTF-8 and leaves out what is none when it writes, drops informational answers and
trailers, takes no answer with a body where HTTP knows of none, and spends more time on a small request than all the
rest of the sidecar.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol, cast

import httptools

from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls

_MOST_FIELDS: Final = 1000

NOT_REUSED: Final[frozenset[int]] = frozenset({204, 304, 500})
"""Statuses of answers after which a connection takes no other request.

What servers wrongly send behind a 204 or a 304, as their body, may come late, and would be the next answer. uvicorn
answers 500 where a model raises, says nothing of the connection, and closes it a moment later.
"""

SWITCHING: Final = 101
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # that no field value may have (RFC 9110, section 5.5)

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

Fields = list[tuple[bytes, bytes]]
"""Names and values as they came."""


class AnswerHead(NamedTuple):
    """The head of an answer. `length` is that of its body if it says so, and `is_chunked` if it comes in chunks.

    `headers` has the first of each name, in lower case, of the `fields`. `passed` is for whoever passes it on, to find
    what was made of it before.
    """

    status: int
    reason: bytes
    fields: Fields
    headers: dict[bytes, bytes]
    length: int | None
    is_chunked: bool
    passed: dict[tuple[bool, tuple[int, int]], bytes]


class Part(NamedTuple):
    """What came of an answer at once.

    There are `trailers`, perhaps none, once it is complete, and an `error` if the rest of it is not usable. Behind a
    switch of protocols (101) `body` is of the new one.
    """

    informed: list[AnswerHead]
    """Informational answers, before the answer."""
    head: AnswerHead | None
    body: bytes
    trailers: Fields | None
    error: errors.UpstreamError | None


_heads: Final[caches.Cache[bytes, AnswerHead]] = caches.Cache("passed_heads", 256 * 1024)
_MOST_REMEMBERED: Final = 16 * 1024  # bytes of an answer with a head that is


class State(enum.Enum):
    """How far an answer is."""

    AWAITED = "nothing of it came, but informational answers perhaps"
    HEAD = "its head comes, or an informational answer before it"
    BODY = "its body comes"
    COMPLETE = "all of it came"


# As the compiled modules know them without a look-up.
_AWAITED: Final = State.AWAITED
_HEAD: Final = State.HEAD
_BODY: Final = State.BODY
_COMPLETE: Final = State.COMPLETE


class AnswerReader:
    """Reads answers one after the other. Methods that begin with `on_` are called by the parser.

    `is_spent` once the connection takes no other request; `is_head` if the request's method was HEAD.
    """

    # State: the connection's parser; of the present answer all else. _reason and _fields of the present head, and _head
    # once it is complete; _trailers; what came of it in this call: _informed, _untold, _pieces; _overhead bytes since
    # anything else came.
    __slots__ = (
        "_fields", "_head", "_informed", "_overhead", "_parser", "_pieces", "_reason", "_trailers", "_untold",
        "is_head", "is_spent", "state",
    )  # fmt: skip
    __deletable__ = ("_parser",)  # read by mypyc

    most_overhead: ClassVar[int] = 64 * 1024
    """Bytes in a row that are no body: a head, informational answers before it, chunk extensions, trailers."""

    _is_lenient: ClassVar[bool] = False
    _coding: ClassVar[str] = "transfer-encoding"

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.state = _AWAITED
        self.is_spent = self.is_head = False
        self._head: AnswerHead | None = None
        self._untold: AnswerHead | None = None
        self._reason = b""
        self._fields: Fields = []
        self._trailers: Fields = []
        self._informed: list[AnswerHead] = []
        self._pieces: list[bytes] = []
        self._overhead = 0

    def feed(self, data: memoryview) -> Part:
        """What came with this data; nothing may be fed after an error, or a switch of protocols.

        An error of the very bytes that end a head comes without that: another answer can be made of it.
        """
        error: errors.UpstreamError | None = None
        behind = b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as switch:
            behind = bytes(data[int(switch.args[0]) :])
        except httptools.HttpParserError as failure:
            if self.state is _COMPLETE:
                self.is_spent = True  # something follows that nobody asked for
            else:
                error = _reason(failure, self._is_lenient)
        informed, head, pieces, trailers = self._informed, self._untold, self._pieces, None
        self._untold, self._pieces = None, []
        if informed:
            self._informed = []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self.state is _COMPLETE:
            trailers = self._trailers
            if trailers:
                self._trailers = []
                # None may be Connection, and the parser takes it for one of the head.
                self.is_spent = self.is_spent or any(name.lower() == b"connection" for name, _ in trailers)
            self.state, self._head, self._overhead = _AWAITED, None, 0
        elif error is None:
            error = self._watch_overhead(len(data), body, head or informed)
        elif head is not None:
            head, body = None, b""
        if head is not None and head.status == SWITCHING:
            body = behind
        # Past its constructor, which costs more; so below.
        return tuple.__new__(Part, (informed, head, body, trailers, error))

    def _watch_overhead(self, size: int, body: bytes, heads: object) -> errors.UpstreamError | None:
        """Count bytes that are no body; returns why there may be no more of them."""
        if body or (self._is_lenient and heads):
            self._overhead = 0
            return None
        self._overhead += size
        if self._overhead < self.most_overhead:
            return None
        return errors.UpstreamBroken(f"the predictor's answer has a head of more than {self.most_overhead} bytes")

    def end(self) -> Part:
        """What the end of the connection means for the answer: it may be that of its body (RFC 9112, 6.3, rule 8)."""
        head = self._head
        self.is_spent = True
        if self.state is _BODY and head is not None and head.length is None and not head.is_chunked:
            return Part([], None, b"", self._trailers, None)
        return self.lost()

    def lost(self) -> Part:
        """What the loss of the connection means for the answer."""
        is_begun = self.state is _BODY or (self.state is _HEAD and not self._is_lenient)
        broken = errors.UpstreamBroken("the predictor's answer broke off")
        return Part([], None, b"", None, broken if is_begun else errors.UpstreamClosed())

    def close(self) -> None:
        """Let go of the parser: it and its reader refer to each other, and there may be many connections."""
        del self._parser

    # --- the parser's callbacks --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; raises `errors.UpstreamBroken` if it is the second to one request."""
        if self.state is _COMPLETE:
            raise errors.UpstreamBroken
        self.state = _HEAD
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Remember a header, and no trailer, which must not be taken for one (RFC 9110, section 6.5.1)."""
        if self.state is _HEAD:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Read the status, and what decides how the body is read."""
        parser, fields = self._parser, self._fields
        status = parser.get_status_code()
        if self._is_lenient and _CONTROL.search(b" ".join([value for _, value in fields])):
            named = next(name.decode("latin-1") for name, value in fields if _CONTROL.search(value))
            raise errors.UpstreamBroken(f"the value of the predictor's header {named} has a control character")
        headers = {name.lower(): value for name, value in fields}
        if len(headers) < len(fields):
            for name, value in reversed(fields):
                headers[name.lower()] = value
        codings: list[bytes] = []
        if b"transfer-encoding" in headers:
            codings = [value.lower() for name, value in fields if name.lower() == b"transfer-encoding"]
            if codings != [b"chunked"] and not (self._is_lenient and codings == [b"identity"]):
                raise errors.UpstreamBroken(f"the predictor's answer has a {self._coding} that was not asked for")
        is_chunked = codings == [b"chunked"]
        digits = headers.get(b"content-length", b"").strip()
        length = int(digits) if digits.isdigit() and not is_chunked else None
        reason, self._reason = self._reason, b""
        head: AnswerHead = tuple.__new__(AnswerHead, (status, reason, fields, headers, length, is_chunked, {}))
        if 100 <= status < 200 and status != SWITCHING:
            if not parser.should_keep_alive():  # it reads no more; known heads are not read by it
                raise errors.UpstreamBroken(f"the predictor's answer has the status {status} and ends the connection")
            self._informed.append(head)
            return
        if status < 100 or (status == SWITCHING and not self._is_lenient):
            raise errors.UpstreamBroken(f"the predictor's answer has the status {status}")
        if status == SWITCHING and not parser.should_upgrade():
            raise errors.UpstreamBroken("the predictor switched protocols without saying to which")
        self._head = self._untold = head
        self.state = _COMPLETE if self.is_head and status != SWITCHING else _BODY
        is_faulty = bool(codings) and parser.get_http_version() == "1.0"  # RFC 9112, 6.1
        if is_faulty or status in NOT_REUSED or not parser.should_keep_alive():
            self.is_spent = True

    def on_body(self, data: bytes) -> None:
        """Collect a piece of the body."""
        if self.state is _BODY:
            self._pieces.append(data)
        elif self.state is _COMPLETE:
            self.is_spent = True  # an answer to HEAD has none
        else:
            status = self._parser.get_status_code()
            raise errors.UpstreamBroken(f"the predictor's answer has the status {status} and a body")

    def on_message_complete(self) -> None:
        """It is complete, or one before it was; a switch of protocols is not the end."""
        if self._head is None:
            self.state = _AWAITED
        elif self._head.status != SWITCHING:
            self.state = _COMPLETE


class LenientReader(AnswerReader):
    """For answers that are passed on: what most clients can read of a predictor, they can read through here.

    Heads may be as large as those of requests, and any number of informational answers may come before one.
    """

    most_overhead: ClassVar[int] = 256 * 1024
    _is_lenient: ClassVar[bool] = True
    _coding: ClassVar[str] = "Transfer-Encoding"

    def __init__(self) -> None:
        super().__init__()
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    def feed(self, data: memoryview) -> Part:
        """As of any. A whole answer is not parsed if one with the same head, to the byte, was."""
        is_next = self.state is _AWAITED and not self.is_head and len(data) <= _MOST_REMEMBERED
        text = bytes(data) if is_next else b""
        end = text.find(b"\r\n\r\n") + 4
        known = _heads.get(text[:end])
        if known is not None and known.length == len(text) - end:
            self._overhead = 0
            return tuple.__new__(Part, ([], known, text[end:], [], None))
        part = super().feed(data)
        head = part.head
        # The parser takes a line end without CR, too: then what ends in an empty line may be more than the head.
        is_plain = text.count(b"\n", 0, end) == text.count(b"\r\n", 0, end)
        is_whole = is_plain and part.trailers is not None and not self.is_spent
        if is_whole and head is not None and head.length == len(text) - end:
            _heads.put(text[:end], head, 4 * end)  # with what is made of it
        return part

    def on_status(self, status: bytes) -> None:
        """Remember the reason phrase."""
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """Remember a header, or a trailer."""
        fields = self._fields if self.state is _HEAD else self._trailers
        if name.endswith((b" ", b"\t")):  # the parser lets it through where the name says how a message is framed
            raise errors.UpstreamBroken("the predictor's answer has a space before the colon of a header")
        fields.append((name, value.rstrip(b" \t")))
        if len(fields) > _MOST_FIELDS:
            raise errors.UpstreamBroken(f"the predictor's answer has more than {_MOST_FIELDS} header fields")


def _reason(error: Exception, is_lenient: bool) -> errors.UpstreamError:
    if isinstance(error.__context__, errors.UpstreamError):  # raised by a callback
        return errors.UpstreamBroken(str(error.__context__))
    words = f": {error}" if is_lenient else ""  # llhttp's own words, which quote nothing of what came
    return errors.UpstreamBroken(f"the predictor's answer is not usable (it is not valid HTTP{words})")


class Receiver(Protocol):
    """Who wants the answer. Nothing is called after the last part, one with an error, a switch of protocols or `broke`.

    Who is told of a switch takes the transport, or drops the connection.
    """

    def answer_came(self, part: Part) -> None:
        """More of the answer came."""

    def broke(self) -> None:
        """That raised an exception, which is being handled: there is no answer, or the rest of it is lost."""

    def predictor_full(self, is_full: bool) -> None:
        """Whether the predictor takes no more for now."""


class Owner(Protocol):
    """What is told of its connections."""

    def made(self, new: Connection) -> None:
        """It is open."""

    def freed(self, idle: Connection) -> None:
        """It may be used again."""

    def lost(self, old: Connection) -> None:
        """It is closed."""


class Connection(asyncio.BufferedProtocol):
    """Sends a request, reads its answer, and is then free for the next, or closes itself. It reads while it may.

    `scratch` is where all connections of a loop receive: what is there is used up before the next one reads.
    `is_closing()` is its transport's, `news(0)` its socket's own: what came since the last answer, or an end. The event
    loop may not have heard of that yet. `free_since` is its owner's. `is_full` while the predictor takes no more.
    """

    # State: the receiver, while an answer is due; _unsent of a whole request; _is_whole once a request is written to
    # its end.
    __slots__ = (
        "_is_whole", "_owner", "_reader", "_receiver", "_scratch", "_transport", "_unsent", "free_since", "is_closing",
        "is_full", "news",
    )  # fmt: skip

    def __init__(self, owner: Owner, scratch: memoryview, reader: AnswerReader) -> None:
        self._owner = owner
        self._scratch = scratch
        self._reader = reader
        self._receiver: Receiver | None = None
        self._unsent: Iterator[bytes | memoryview] | None = None
        self._is_whole = self.is_full = False
        # From connection_made on:
        self._transport: asyncio.Transport
        self.is_closing: Callable[[], bool]
        self.news: Callable[[int], Sequence[object]]
        self.free_since = 0.0

    # --- the request -------------------------------------------------------------------------------------------

    def send(self, receiver: Receiver, head: bytes, pieces: calls.Pieces, length: int) -> None:
        """Send a whole request: a head and a body of `length` bytes.

        Large pieces are handed over as they are: uvloop keeps references to them until the predictor has taken them
        (`writev`), so that one who reads slowly costs no memory beyond the body's own.
        """
        self._receiver = receiver
        self._is_whole = length < _LARGE
        if length < _WORTH_NO_COPY:
            self._transport.write(b"".join((head, *pieces)))
        elif length >= _LARGE:
            self._unsent = _slices(head, pieces)
            self._go_on()
        elif length < _WORTH_A_PIECE * len(pieces):
            self._transport.writelines((head, b"".join(pieces)))
        else:
            self._transport.writelines((head, *pieces))

    def _go_on(self) -> None:
        """Write a slice, and let others have their turn before the next."""
        if self._unsent is None or self.is_full:
            return
        piece = next(self._unsent, None)
        if piece is None:
            self._unsent = None
            self._is_whole = True
        else:
            self._transport.write(piece)
            if not self.is_full:
                asyncio.get_running_loop().call_soon(self._go_on)

    def take(self, receiver: Receiver, is_head: bool, is_last: bool) -> None:
        """Carry a request that comes in pieces; `is_head` if its method is HEAD.

        If it `is_last`, no other request follows it.
        """
        self._receiver = receiver
        self._is_whole = False
        self._reader.is_head = is_head
        self._reader.is_spent = is_last

    def write(self, data: bytes) -> None:
        """Send more of it."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_request(self) -> None:
        """It is complete."""
        self._is_whole = True

    def give_away(self) -> asyncio.Transport:
        """Its transport, from which it wants to hear the end alone."""
        self._receiver = None
        return self._transport

    def read(self, wanted: bool) -> None:
        """Read on, or not."""
        transport = self._transport
        if not transport.is_closing() and transport.is_reading() != wanted:
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def close(self) -> None:
        """Close at once, as if it was lost."""
        self._transport.abort()

    def abort(self) -> None:
        """Close at once, dropping what is unsent; the receiver is told nothing."""
        self._receiver = self._unsent = None
        self._transport.abort()

    # --- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Its transport is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.is_closing = transport.is_closing
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.news = poll.poll
        self._owner.made(self)

    def pause_writing(self) -> None:
        self.is_full = True
        if self._receiver is not None:
            self._receiver.predictor_full(True)

    def resume_writing(self) -> None:
        self.is_full = False
        self._go_on()
        if self._receiver is not None:
            self._receiver.predictor_full(False)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport receives."""
        # What is no body comes in small helpings, so that there is a limit to what one of them can hold.
        reader = self._reader
        return self._scratch if reader.state is _BODY else self._scratch[: reader.most_overhead]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes of the predictor's came."""
        receiver, reader = self._receiver, self._reader
        if receiver is None:
            self._transport.abort()  # nobody asked
            return
        if reader.state is _AWAITED and (not self._is_whole or self._transport.get_write_buffer_size()):
            reader.is_spent = True  # whoever answers part of a request may not read the rest
        part = reader.feed(self._scratch[:nbytes])
        self._hand_on(receiver, part)
        if _ACKNOWLEDGE and nbytes < _WORTH_CONFIRMING and self._receiver is receiver:
            # A server that writes head and body apart may hold the body back until the head is confirmed (Nagle's
            # algorithm), for which the kernel takes 40 ms on a connection that is used again.
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE, 1)

    def eof_received(self) -> None:
        if self._receiver is None:
            self._transport.abort()
        else:
            self._hand_on(self._receiver, self._reader.end())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._receiver is not None:
            self._hand_on(self._receiver, self._reader.end() if exc is None else self._reader.lost())
        self._reader.close()
        self._owner.lost(self)

    def _hand_on(self, receiver: Receiver, part: Part) -> None:
        """Free or close the connection, if this is the last part of an answer; then hand that over."""
        if part.error is not None:
            errors.bare(part.error)
            self.abort()
        elif part.trailers is not None:
            self._receiver = None
            if self._reader.is_spent or not self._is_whole or self.is_full:
                self.abort()
            else:
                self._owner.freed(self)
        try:
            receiver.answer_came(part)  # last, because the next request may be sent from in there
        except Exception:
            self.abort()
            receiver.broke()


def _slices(head: bytes, pieces: calls.Pieces) -> Iterator[bytes | memoryview]:
    """A head and a body, to be written one after the other; nothing is copied but pieces that are small on average."""
    yield head
    size = sum(map(len, pieces))
    for piece in (b"".join(pieces),) if size < _WORTH_A_PIECE * len(pieces) else pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _SLICE):
            yield view[start : start + _SLICE]
