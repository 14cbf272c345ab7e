"""A request that is no plain predict request, and its answer: what its connection and whoever answers it share.

The connection gives it what comes of the body. That waits until it is taken, or is passed on as it comes. Whoever
answers writes a complete answer, or one piece by piece. Both sides can be told to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import responses
from carpool_sidecar.server.http1 import bodies, messages, tunnel

_NOTHING: Final = bodies.Parts()  # of all requests without a body
_MOST_UNREAD: Final = 64 * 1024  # bytes of a body; more are left in the socket until somebody reads
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Consumer(Protocol):
    """Who passes a request on as it comes, and answers it."""

    def broken(self, words: str) -> None:
        """The rest of the body is no HTTP."""

    def caller_full(self, is_full: bool) -> None:
        """Whether the caller takes no more of its answer for now."""

    def expire(self, now: float, quiet_since: float, patience: float) -> None:
        """Look whether a side that should send, or take, has done nothing for more than `patience` seconds.

        Since `quiet_since` nothing came from the caller or went to it, and it was not told that it may go on. Called
        again and again while the caller takes all.
        """


class Writer(Protocol):
    """Where answers are written."""

    @property
    def peer(self) -> Hashable: ...

    def write(self, data: bytes, body: bytes = b"") -> None: ...


class Connection(Protocol):
    """The caller's."""

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def answers(self) -> Writer: ...

    def hold(self, exchange: Exchange, size: int) -> bool: ...

    def answer_ended(self, exchange: Exchange, close: bool) -> None: ...

    def look_what_to_read(self) -> None: ...

    def part(self) -> None: ...

    def become_tunnel(self) -> tuple[tunnel.Side, bytes]: ...


class Exchange:
    """One request, which came at `started`, and its answer.

    `unread` is what came of its body and nobody took; it counts. Once there is an `on_body`, that is called with what
    comes, and at the end. `wants_more` is whether more of it is wanted, `broken` says what is wrong with the rest, and
    `is_continued` is set once the caller was told to send it. `held` are the bytes that count for it. `cancel` is
    called if the caller leaves before the answer is complete. The answer `is_begun` once some of it was written, and
    both that and `is_over` once it is complete, or nobody waits for it.
    """

    # State: those; the consumer, if there is one; whoever waits for news of the body.
    __slots__ = (
        "_waiter", "answered_at", "broken", "cancel", "connection", "consumer", "head", "held", "is_begun",
        "is_closing", "is_continued", "is_over", "on_body", "reader", "started", "unread", "wants_more",
    )  # fmt: skip

    def __init__(self, connection: Connection, head: messages.RequestHead, started: float) -> None:
        self.connection = connection
        self.head = head
        self.started = started
        self.reader = messages.body_of(head)
        self.unread = _NOTHING if self.reader.is_complete else bodies.Parts()
        self.consumer: Consumer | None = None
        self.on_body: Callable[[bytes], None] | None = None
        self.cancel: Callable[[], object] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.wants_more = True
        self.held = 0
        self.broken = ""
        self.is_continued = self.is_begun = self.is_over = False
        self.answered_at = 0.0
        self.is_closing = not head.keep_alive

    # --- what the connection calls -----------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Take what came; returns what is behind the body, or for the next turn if that is not complete.

        Raises `messages.Malformed`.
        """
        content, rest = self.reader.feed(data)
        if self.is_over:
            return rest
        if self.on_body is None:
            if content:
                self.unread.add(content)
            size, has_room = self.unread.size, self.connection.hold(self, len(content))
            if not self._tell():  # who has sent all is read on, so that its leaving is noticed
                self.want(self.reader.is_complete or not size or (has_room and size < _MOST_UNREAD))
        elif content or self.reader.is_complete:
            self.on_body(content)
        return rest

    def break_body(self, words: str) -> None:
        """The rest of the body is no HTTP: nothing more is taken, and the connection ends behind the answer."""
        self.broken = words
        self.is_closing = True
        self._tell()
        if self.consumer is not None:
            self.consumer.broken(words)

    def lost(self) -> None:
        """The caller is gone."""
        cancel = self.cancel
        if not self.is_over:
            self.give_away()
            if cancel is not None:
                cancel()

    def give_away(self) -> None:
        """This is no request any more: nobody waits for its answer, or protocols were switched."""
        self.is_begun = self.is_over = True
        self.consumer = self.on_body = self.cancel = self._waiter = None
        self.take()

    def _tell(self) -> bool:
        """Wake whoever waits for news of the body; returns whether somebody does."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return waiter is not None

    # --- what whoever answers calls -------------------------------------------------------------------------------

    @property
    def expects_continue(self) -> bool:
        """Whether the caller waits to be told before it sends its body: until then nobody knows whether it will."""
        head, reader = self.head, self.reader
        if self.is_continued or reader.is_complete or reader.chunks or reader.received:
            return False
        return head.version == messages.HTTP_1_1 and headers_.expects_continue(head.headers)

    def send_continue(self) -> None:
        """Let the caller go on with its body, if it waits for that."""
        if self.expects_continue and not self.is_begun:
            self.is_continued = True
            self.connection.answers.write(_CONTINUE)

    def drop_body(self) -> None:
        """Nobody reads the body: what came of it is let go, and so is what comes."""
        self.take()
        self.on_body = _ignore
        self.want(True)

    def take(self) -> list[bytes]:
        """What came of the body and nobody took: parts that are the caller's, who counts them from now on."""
        self.connection.hold(self, -self.unread.size)
        return self.unread.take()

    def news(self) -> asyncio.Future[None]:
        """Done when more of the body came, or is known not to come."""
        self.want(True)
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        return waiter

    def want(self, wanted: bool) -> None:
        """Take more of the body, or no more for now."""
        if wanted != self.wants_more:
            self.wants_more = wanted
            self.connection.look_what_to_read()

    def write(self, data: bytes) -> None:
        """Write some of the answer."""
        self.is_begun = True
        self.connection.answers.write(data)

    def end(self, close: bool = False) -> None:
        """The answer is complete; with `close` the connection ends behind it."""
        if not self.is_over:
            self.give_away()
            self.connection.answer_ended(self, close or self.is_closing)

    def respond(self, answer: responses.Response, close: bool = False) -> None:
        """Give a complete answer."""
        if self.is_over:
            return
        is_old = self.head.version == messages.HTTP_1_0
        is_odd = not is_old and self.head.version != messages.HTTP_1_1
        close = close or answer.close or self.is_closing or self.expects_continue or is_odd
        head, *body = responses.render(answer._replace(close=False), close and not is_old)
        if is_old:
            head = _as_old(head, close)
        if self.head.method == "HEAD":
            end = head.find(b"\r\n\r\n") + 4
            head, body = head[:end], []
        self.connection.answers.write(head, b"".join(body))
        self.end(close)


def _ignore(data: bytes) -> None:
    pass


def _as_old(head: bytes, close: bool) -> bytes:
    """An answer for HTTP/1.0, where connections are closed unless something else is said."""
    start, _, rest = head.partition(b"\r\n")
    kept = b"" if close else b"Connection: keep-alive\r\n"
    return b"HTTP/1.0" + start[8:] + b"\r\n" + kept + rest
