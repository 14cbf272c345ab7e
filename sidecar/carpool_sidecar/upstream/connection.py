"""One connection to the predictor, with one exchange at a time."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.upstream import answers, requests

Reply = Callable[[answers.Outcome], None]


class Keeper(Protocol):
    """Who is told what becomes of a connection."""

    def made(self, new: Connection) -> None:
        """It is open."""

    def freed(self, idle: Connection) -> None:
        """It may be used again."""

    def lost(self, old: Connection) -> None:
        """It is closed."""


class Connection(asyncio.BufferedProtocol):
    """Sends a request, reads its answer, and is then free for the next, or closes itself.

    `scratch` is where all connections of a loop receive: what is there is used up before the next one reads.
    `free_since` is its keeper's.
    """

    # State: _reply while an exchange is under way, _unsent of its request; _is_full while the socket takes no more;
    # _is_spent once nothing may follow it.
    __slots__ = (
        "_is_full", "_is_spent", "_keeper", "_poll", "_reader", "_reply", "_scratch", "_transport", "_unsent",
        "free_since",
    )  # fmt: skip

    def __init__(self, keeper: Keeper, scratch: memoryview, max_answer_bytes: int) -> None:
        self._keeper = keeper
        self._scratch = scratch
        self._reader = answers.AnswerReader(max_answer_bytes)
        self._transport: asyncio.Transport  # from connection_made on
        self._poll = select.poll()
        self._reply: Reply | None = None
        self._is_spent = self._is_full = False
        self._unsent: Iterator[bytes | memoryview] | None = None
        self.free_since = 0.0

    def limit_answers(self, max_bytes: int) -> None:
        """Refuse answers of more than so many bytes from now on."""
        self._reader.max_bytes = max_bytes

    def send(self, head: bytes, pieces: calls.Pieces, length: int, reply: Reply) -> None:
        """Send a request; `reply` is called once, later, unless the exchange is aborted first."""
        self._reply = reply
        if length < requests.LARGE:
            requests.write(self._transport, head, pieces, length)
        else:
            self._unsent = requests.slices(head, pieces)
            self._go_on()

    def is_silent(self) -> bool:
        """Whether nothing came since the last answer, and no end: the socket is asked, not the loop, which may lag."""
        return not self._transport.is_closing() and not self._poll.poll(0)

    def abort(self) -> None:
        """Close at once, dropping what is unsent; the reply to an exchange under way is never called."""
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
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._keeper.made(self)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._go_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        # What is no body comes in small helpings, so that there is a limit to what one of them can hold.
        return self._scratch if self._reader.is_in_body else self._scratch[: answers.MOST_OVERHEAD]

    def buffer_updated(self, nbytes: int) -> None:
        if self._reply is None:
            self.abort()  # nobody asked
            return
        if not self._reader.begun and (self._unsent is not None or self._transport.get_write_buffer_size()):
            self._is_spent = True  # whoever answers part of a request may not read the rest
        try:
            is_complete = self._reader.feed(self._scratch[:nbytes])
        except errors.UpstreamError as error:
            errors.bare(error)
            self._settle(error, is_free=False)
            return
        if is_complete:
            outcome, keep_alive = self._reader.take()
            self._settle(outcome, keep_alive and not self._is_spent)

    def eof_received(self) -> None:
        self._end(is_orderly=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(is_orderly=exc is None)
        self._reader.close()
        self._keeper.lost(self)

    def _end(self, is_orderly: bool) -> None:
        if self._reply is None:
            self.abort()
        elif is_orderly and self._reader.end():
            self._settle(self._reader.take()[0], is_free=False)
        elif self._reader.begun:
            self._settle(errors.UpstreamBroken("the predictor's answer broke off"), is_free=False)
        else:
            self._settle(errors.UpstreamClosed(), is_free=False)

    def _settle(self, outcome: answers.Outcome, is_free: bool) -> None:
        reply, self._reply = self._reply, None
        if is_free:
            self._keeper.freed(self)
        else:
            self.abort()
        if reply is not None:
            reply(outcome)  # last, because the next request may be sent from in there
