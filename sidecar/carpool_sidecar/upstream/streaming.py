"""A request on its way to the predictor, and its answer on the way back: handed on piece by piece.

The client of batches (`predictor`) waits for a whole answer; this one hands on what comes, when it comes. aiohttp's
client would do most of it, but not all: it reads header values as UTF-8 and leaves out what is none when it writes,
drops informational answers and trailers, takes no answer with a body where HTTP knows of none, and spends more time on
a small request than all the rest of the sidecar.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import re
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, cast

import httptools
import yarl

from carpool_sidecar import errors
from carpool_sidecar.upstream import connection

log = logging.getLogger("carpool.sidecar.upstream")

Fields = list[tuple[bytes, bytes]]
"""Names and values as they came."""

# Of an answer's head, as of a request's: bytes, and lines. So many bytes may come in a row that are no body.
_MOST_OVERHEAD: Final = 256 * 1024
_MOST_FIELDS: Final = 1000
# As in `connection`: Linux alone has it.
_WORTH_CONFIRMING: Final = 16 * 1024
_ACKNOWLEDGE: Final[int] = getattr(socket, "TCP_QUICKACK", 0)
_SWITCHING: Final = 101
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # that no field value may have (RFC 9110, section 5.5)


class AnswerHead(NamedTuple):
    """The head of an answer. `length` is that of its body if it says so, and `is_chunked` if it comes in chunks."""

    status: int
    reason: bytes
    fields: Fields
    length: int | None
    is_chunked: bool


class Part(NamedTuple):
    """What came of an answer at once. There are `trailers`, perhaps none, once it is complete."""

    informed: list[AnswerHead]
    """Informational answers, before the answer."""
    head: AnswerHead | None
    body: bytes
    trailers: Fields | None


class Receiver(Protocol):
    """Who wants the answer. Nothing is called after the last part, `failed`, `broke` or `switched`."""

    def answer_came(self, part: Part) -> None:
        """More of the answer came."""

    def switched(self, head: AnswerHead, behind: bytes) -> None:
        """The predictor has switched protocols, and this came behind; take the transport, or `drop` the connection."""

    def failed(self, error: errors.UpstreamError) -> None:
        """There is no answer, or the rest of it is lost."""

    def broke(self) -> None:
        """One of these raised an exception, which is being handled: there is no answer, or the rest of it is lost."""

    def predictor_full(self, is_full: bool) -> None:
        """Whether the predictor takes no more for now."""


class State(enum.Enum):
    """How far an answer is."""

    AWAITED = "nothing of it came"
    HEAD = "its head comes, or informational answers before it"
    BODY = "its body comes"
    COMPLETE = "all of it came"


# As the compiled modules know them without a look-up.
_AWAITED: Final = State.AWAITED
_HEAD: Final = State.HEAD
_BODY: Final = State.BODY
_COMPLETE: Final = State.COMPLETE


class Connection(connection.Pooled):
    """Carries one request at a time and is then free for the next, or closes itself. It reads while it may."""

    # State: the receiver, while an answer is due; _is_whole once the request is written to its end; _is_full while the
    # socket takes no more; _is_spent once nothing may follow.
    # Of the answer: its _state; _reason and _fields of the present head, and _head once it is complete; _trailers; what
    # came of it in this call: _informed, _untold, _pieces; _is_head if its request was HEAD; _overhead bytes since
    # something else came.
    __slots__ = (
        "_fields", "_head", "_informed", "_is_full", "_is_head", "_is_spent", "_is_whole", "_overhead", "_parser",
        "_pieces", "_reason", "_receiver", "_scratch", "_state", "_trailers", "_untold",
    )  # fmt: skip
    __deletable__ = ("_parser",)

    def __init__(self, owner: connection.Owner, scratch: memoryview) -> None:
        super().__init__(owner)
        self._scratch = scratch
        self._parser = self._new_parser()
        self._receiver: Receiver | None = None
        self._is_full = False
        self._begin_anew()

    def _new_parser(self) -> httptools.HttpResponseParser:
        """As lenient as most clients are: what direct callers can read, they can read through here."""
        parser = httptools.HttpResponseParser(self)
        parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        return parser

    def _begin_anew(self) -> None:
        self._reason = b""
        self._fields: Fields = []
        self._trailers: Fields = []
        self._informed: list[AnswerHead] = []
        self._pieces: list[bytes] = []
        self._head: AnswerHead | None = None
        self._untold: AnswerHead | None = None
        self._state = _AWAITED
        self._is_whole = self._is_spent = self._is_head = False
        self._overhead = 0

    # --- the request -------------------------------------------------------------------------------------------

    def take(self, receiver: Receiver, is_head: bool, is_last: bool) -> None:
        """Carry a request for this receiver from now on; `is_head` if its method is HEAD.

        If it `is_last`, no other request follows it.
        """
        self._receiver = receiver
        self._is_spent = is_last
        self._is_head = is_head

    @property
    def is_full(self) -> bool:
        """Whether the predictor takes no more for now."""
        return self._is_full

    def write(self, data: bytes) -> None:
        """Send more of the request."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_request(self) -> None:
        """The request is complete."""
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

    def drop(self) -> None:
        """Close at once; the receiver is told nothing."""
        self._receiver = None
        self._transport.abort()

    # --- the transport's calls ---------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._is_full = True
        if self._receiver is not None:
            self._receiver.predictor_full(True)

    def resume_writing(self) -> None:
        self._is_full = False
        if self._receiver is not None:
            self._receiver.predictor_full(False)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport receives."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes of the predictor's came."""
        receiver = self._receiver
        if receiver is None:
            self._transport.abort()  # nobody asked
            return
        if self._state is _AWAITED and (not self._is_whole or self._transport.get_write_buffer_size()):
            self._is_spent = True  # whoever answers part of a request may not read the rest
        error, behind = self._feed(self._scratch[:nbytes])
        try:
            self._hand_on(receiver, error, behind, nbytes)
        except Exception:
            self._receiver = None
            self._transport.abort()
            receiver.broke()

    def _feed(self, data: memoryview) -> tuple[errors.UpstreamError | None, bytes]:
        """What is wrong with it, and what is behind a switch of protocols."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as switch:
            return None, bytes(data[int(switch.args[0]) :])
        except httptools.HttpParserError as error:
            if self._state is _COMPLETE:
                self._is_spent = True  # something follows that nobody asked for
                return None, b""
            return _reason(error), b""
        if self._state is _COMPLETE:
            return None, b""
        if self._pieces or self._informed or self._untold is not None:
            self._overhead = 0
        self._overhead += len(data)
        if self._overhead > _MOST_OVERHEAD and not self._pieces:
            return errors.UpstreamBroken(f"the predictor's answer has a head of more than {_MOST_OVERHEAD} bytes"), b""
        return None, b""

    def _hand_on(self, receiver: Receiver, error: errors.UpstreamError | None, behind: bytes, size: int) -> None:
        informed, self._informed = self._informed, []
        head, self._untold = self._untold, None
        pieces, self._pieces = self._pieces, []
        has_switched = head is not None and head.status == _SWITCHING
        told = head
        if head is not None and (has_switched or error is not None):
            told, pieces = None, []  # of an answer that is broken at once another one can be made
        trailers = None
        if error is None and self._state is _COMPLETE and not has_switched:
            trailers = self._end()
        if informed or told is not None or pieces or trailers is not None:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            receiver.answer_came(Part(informed, told, body, trailers))
        if self._receiver is not receiver:
            return  # that was all, or it wants no more
        if error is not None:
            self._fail(receiver, error)
        elif head is not None and has_switched:
            receiver.switched(head, behind)
        elif _ACKNOWLEDGE and size < _WORTH_CONFIRMING:
            # As in `connection`: a server may hold the body back until its head is confirmed.
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE, 1)

    def _end(self) -> Fields:
        """Free or close the connection; returns the trailers of the answer."""
        trailers = self._trailers
        self._receiver = None
        if any(name.lower() == b"connection" for name, _ in trailers):
            self._is_spent = True  # no trailer may be that, and the parser takes it for one of the head
        if self._is_whole and not self._is_spent and not self._is_full:
            self._begin_anew()
            self._owner.freed(self)
        else:
            self._transport.abort()
        return trailers

    def _fail(self, receiver: Receiver, error: errors.UpstreamError) -> None:
        self._receiver = None
        self._transport.abort()
        receiver.failed(errors.bare(error))

    def eof_received(self) -> None:
        if self._receiver is not None:
            self._lose(self._receiver, is_orderly=True)

    def connection_lost(self, exc: Exception | None) -> None:
        receiver = self._receiver
        if receiver is not None:
            self._lose(receiver, is_orderly=exc is None)
        self._receiver = None
        del self._parser  # it and this refer to each other
        self._owner.lost(self)

    def _lose(self, receiver: Receiver, is_orderly: bool) -> None:
        head = self._head
        if is_orderly and head is not None and head.length is None and not head.is_chunked:
            self._is_spent = True  # the end of the connection is that of the answer (RFC 9112, 6.3, rule 8)
            receiver.answer_came(Part([], None, b"", self._end()))
        elif head is not None:
            self._fail(receiver, errors.UpstreamBroken("the predictor's answer broke off"))
        else:
            self._fail(receiver, errors.UpstreamClosed())

    # --- the parser's calls ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._state is _COMPLETE:
            raise errors.UpstreamBroken  # the second to one request
        self._state = _HEAD
        self._reason = b""
        self._fields = []

    def on_status(self, status: bytes) -> None:
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields if self._state is _HEAD else self._trailers
        if name.endswith((b" ", b"\t")):  # the parser lets it through where the name says how a message is framed
            raise errors.UpstreamBroken("the predictor's answer has a space before the colon of a header")
        fields.append((name, value.rstrip(b" \t")))
        if len(fields) > _MOST_FIELDS:
            raise errors.UpstreamBroken(f"the predictor's answer has more than {_MOST_FIELDS} header fields")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        length: int | None = None
        codings: list[bytes] = []
        for name, value in self._fields:
            lowered = name.lower()
            if lowered == b"content-length":
                length = int(value) if value.isdigit() else None
            elif lowered == b"transfer-encoding":
                codings.append(value.lower())
            if _CONTROL.search(value):
                told = name.decode("latin-1")
                raise errors.UpstreamBroken(f"the value of the predictor's header {told} has a control character")
        is_chunked = codings == [b"chunked"]
        if codings and not is_chunked and codings != [b"identity"]:
            raise errors.UpstreamBroken("the predictor's answer has a Transfer-Encoding that was not asked for")
        head = AnswerHead(status, self._reason, self._fields, None if is_chunked else length, is_chunked)
        if 100 <= status < 200 and status != _SWITCHING:
            self._informed.append(head)
            return
        if status < 100:
            raise errors.UpstreamBroken(f"the predictor's answer has the status {status}")
        if status == _SWITCHING and not self._parser.should_upgrade():
            raise errors.UpstreamBroken("the predictor switched protocols without saying to which")
        self._head = self._untold = head
        self._state = _COMPLETE if self._is_head else _BODY
        is_faulty = bool(codings) and self._parser.get_http_version() == "1.0"  # RFC 9112, 6.1
        if is_faulty or not self._parser.should_keep_alive() or status in connection.NOT_REUSED:
            self._is_spent = True

    def on_body(self, data: bytes) -> None:
        if not self._is_head:
            self._pieces.append(data)
        else:
            self._is_spent = True  # an answer to HEAD has none

    def on_message_complete(self) -> None:
        if self._head is not None:
            self._state = _COMPLETE


class Opening:
    """A connection that is being made for a receiver."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task: asyncio.Task[None] | None = task

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()


class Streams:
    """Connections for requests that are passed on, to the predictor at `base` (`http://HOST:PORT`).

    `connect_timeout` is in seconds. `on_bug` is called when one cannot be made by a bug, which is in the log.
    """

    # State: the connections; the tasks that open some.
    def __init__(self, base: str, connect_timeout: float, on_bug: Callable[[], None] = lambda: None) -> None:
        url = yarl.URL(base)
        host = url.host_port_subcomponent
        if url.scheme != "http" or not url.host or not url.port or not host:
            raise ValueError(f"the predictor's address {base!r} must be http://HOST:PORT")
        self.host = host
        """As a Host header has it."""
        self._pool = connection.Pool(url.host, url.port, Connection)
        self._connect_timeout = connect_timeout
        self._on_bug = on_bug
        self._opening: set[asyncio.Task[None]] = set()

    def take(self) -> Connection | None:
        """A connection that was used before, if one is free."""
        return cast(Connection | None, self._pool.take())

    def open(self, then: Callable[[Connection], None], failed: Callable[[errors.UpstreamError], None]) -> Opening:
        """Make a connection; one of both is called later, unless that is cancelled."""
        task = asyncio.get_running_loop().create_task(self._open(then, failed), name="connect to the predictor")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return Opening(task)

    async def _open(self, then: Callable[[Connection], None], failed: Callable[[errors.UpstreamError], None]) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                opened = cast(Connection, await self._pool.open())
        except TimeoutError:
            failed(errors.UpstreamUnreachable("the predictor cannot be reached: connecting timed out"))
        except errors.UpstreamError as error:
            failed(errors.bare(error))
        except Exception:
            self._on_bug()
            log.exception("a connection to the predictor could not be made for a reason that is a bug")
            failed(errors.UpstreamBroken("the predictor could not be called"))
        else:
            then(opened)

    async def close(self) -> None:
        """Close all connections, whatever they carry; none can be had afterwards."""
        for task in list(self._opening):
            task.cancel()
        if self._opening:
            await asyncio.wait(self._opening)
        await self._pool.close()


def _reason(error: Exception) -> errors.UpstreamError:
    if isinstance(error.__context__, errors.UpstreamError):  # raised by a callback
        return errors.UpstreamBroken(str(error.__context__))
    # llhttp's words quote nothing of what came.
    return errors.UpstreamBroken(f"the predictor's answer is not usable (it is not valid HTTP: {error})")
