"""A request that is no plain predict request, and its answer: what its connection and whoever answers it share.

The connection gives it what comes of the body. Whoever answers, the `Consumer`, gets that, and writes: a complete
answer, or one piece by piece. Both sides can be told to wait.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Hashable
from typing import Final, Protocol

from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import responses
from carpool_sidecar.server.http1 import messages, tunnel

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Stage(enum.Enum):
    """How far an answer is."""

    WAITING = "nothing of it was written"
    BEGUN = "some of it was written"
    OVER = "it is complete, or nobody waits for it"


# As the compiled modules know them without a look-up.
WAITING: Final = Stage.WAITING
BEGUN: Final = Stage.BEGUN
OVER: Final = Stage.OVER


class Consumer(Protocol):
    """Who answers a request."""

    def body(self, data: bytes) -> None:
        """More of its body came."""

    def body_ended(self) -> None:
        """The body is complete."""

    def body_broken(self, words: str) -> None:
        """The rest of the body is no HTTP."""

    def settled(self) -> None:
        """All that came at once was handed on."""

    def caller_full(self, is_full: bool) -> None:
        """Whether the caller takes no more of its answer for now."""

    def lost(self) -> None:
        """The caller is gone: nobody waits for the answer any more."""

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

    def hold(self, exchange: Exchange, size: int) -> None: ...

    def answer_ended(self, exchange: Exchange, close: bool) -> None: ...

    def look_what_to_read(self) -> None: ...

    def become_tunnel(self) -> tuple[tunnel.Side, bytes]: ...


class Exchange:
    """One request, which came at `started`, and its answer.

    `wants_more` is whether its consumer takes more of the body, `is_continued` once the caller was told to send it.
    `is_beginning` until all that came with the head was handed on. `held` are the bytes that count for it.
    """

    # State: those; the consumer, once there is one; the task that answers, if one does.
    __slots__ = (
        "answered_at", "connection", "consumer", "head", "held", "is_beginning", "is_broken", "is_closing",
        "is_continued", "reader", "stage", "started", "task", "wants_more",
    )  # fmt: skip

    def __init__(self, connection: Connection, head: messages.RequestHead, started: float) -> None:
        self.connection = connection
        self.head = head
        self.started = started
        self.reader = messages.body_of(head)
        self.consumer: Consumer | None = None
        self.task: asyncio.Task[None] | None = None
        self.wants_more = self.is_beginning = True
        self.held = 0
        self.is_broken = self.is_continued = False
        self.stage = WAITING
        self.answered_at = 0.0
        self.is_closing = not head.keep_alive

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete, or nobody waits for it; whoever is called may have made it so."""
        return self.stage is OVER

    # --- what the connection calls -----------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Take what came; returns what is behind the body, or for the next turn if that is not complete.

        Raises `messages.Malformed`, of which the consumer is not told.
        """
        content, rest = self.reader.feed(data)
        consumer = self.consumer
        if not self.is_over and consumer is not None:
            if content:
                consumer.body(content)
            if self.reader.is_complete and not self.is_over:
                consumer.body_ended()
        return rest

    def break_body(self, words: str) -> None:
        """The rest of the body is no HTTP: nothing more is taken, and the connection ends behind the answer."""
        self.is_broken = self.is_closing = True
        if self.consumer is not None and self.stage is not OVER:
            self.consumer.body_broken(words)

    def settled(self) -> None:
        """All that came at once was fed."""
        self.is_beginning = False
        if self.consumer is not None and self.stage is not OVER:
            self.consumer.settled()

    def expire(self, now: float, quiet_since: float, patience: float) -> None:
        """As `Consumer.expire`."""
        if self.consumer is not None:
            self.consumer.expire(now, quiet_since, patience)

    def full(self, is_full: bool) -> None:
        """Whether the caller takes no more for now."""
        if self.consumer is not None and self.stage is not OVER:
            self.consumer.caller_full(is_full)

    def lost(self) -> None:
        """The caller is gone."""
        consumer, self.consumer = self.consumer, None
        if not self.is_over:
            self.stage = OVER
            if consumer is not None:
                consumer.lost()
            if self.task is not None:
                self.task.cancel()

    # --- what the consumer calls -------------------------------------------------------------------------------

    @property
    def may_switch(self) -> bool:
        """Whether what comes behind the request may be of another protocol."""
        return "Upgrade" in self.head.headers

    @property
    def expects_continue(self) -> bool:
        """Whether the caller waits to be told before it sends its body: until then nobody knows whether it will."""
        is_waiting = not self.is_continued and not self.reader.is_complete and not self.reader.chunks
        version = self.head.version
        return (
            is_waiting
            and not self.reader.received
            and version == messages.HTTP_1_1
            and headers_.expects_continue(self.head.headers)
        )

    def send_continue(self) -> None:
        """Let the caller go on with its body, if it waits for that."""
        if self.expects_continue and self.stage is WAITING:
            self.is_continued = True
            self.connection.answers.write(_CONTINUE)

    def want(self, wanted: bool) -> None:
        """Take more of the body, or no more for now."""
        if wanted != self.wants_more:
            self.wants_more = wanted
            self.connection.look_what_to_read()

    def write(self, data: bytes) -> None:
        """Write some of the answer."""
        if self.stage is WAITING:
            self.stage = BEGUN
        self.connection.answers.write(data)

    def inform(self, head: bytes) -> None:
        """Write an informational answer, before the answer."""
        self.connection.answers.write(head)

    def end(self, close: bool = False) -> None:
        """The answer is complete; with `close` the connection ends behind it."""
        if not self.is_over:
            self.stage = OVER
            self.consumer = None
            self.connection.answer_ended(self, close or self.is_closing)

    def respond(self, answer: responses.Response, close: bool = False) -> None:
        """Give a complete answer."""
        if self.is_over:
            return
        version, is_old = self.head.version, self.head.version == messages.HTTP_1_0
        close = close or answer.close or self.is_closing or self.expects_continue
        if version != messages.HTTP_1_1 and not is_old:
            close = True
        head, *body = responses.render(answer._replace(close=False), close and not is_old)
        if is_old:
            head = _as_old(head, close)
        if self.head.method == "HEAD":
            end = head.find(b"\r\n\r\n") + 4
            head, body = head[:end], []
        self.stage = BEGUN
        self.connection.answers.write(head, b"".join(body))
        self.end(close)


def _as_old(head: bytes, close: bool) -> bytes:
    """An answer for HTTP/1.0, where connections are closed unless something else is said."""
    start, _, rest = head.partition(b"\r\n")
    kept = b"" if close else b"Connection: keep-alive\r\n"
    return b"HTTP/1.0" + start[8:] + b"\r\n" + kept + rest
