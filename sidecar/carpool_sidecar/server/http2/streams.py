"""What the HTTP/2 server and those who answer its streams know of each other."""

from __future__ import annotations

from typing import NamedTuple, Protocol

Headers = tuple[tuple[bytes, bytes], ...]
"""Fields in order, names in lower case, no pseudo-headers but for `:status` in an answer."""


class Head(NamedTuple):
    """How a client's stream begins: a well-formed request head (RFC 9113, 8.3), pseudo-headers taken out."""

    method: str
    path: str
    authority: bytes
    headers: Headers


class Handler(Protocol):
    """Gets a client's stream. All calls come from the event loop and must not block; what they raise is a bug, which
    costs the stream and is reported."""

    def data(self, data: bytes) -> None:
        """More of the body, never empty."""
        ...

    def end(self) -> None:
        """The client has sent everything; it still waits for the answer."""
        ...

    def cancelled(self) -> None:
        """Nothing may be sent any more: reset by the client, the connection is lost, the client does not read and
        memory is short, or this handler has raised something. Called at most once, never after `answer`, `finish` or
        `reset`, and perhaps from within `send`."""
        ...

    def writable(self) -> None:
        """`is_blocked` was true and is no longer."""
        ...


class Stream(Protocol):
    """Where an answer goes. Once the stream was cancelled or its answer is complete, calls have no effect."""

    @property
    def connection(self) -> int:
        """A number that streams of the same connection have, and no others of this process."""
        ...

    def answer(self, head: Headers, body: bytes, trailers: Headers) -> None:
        """The whole answer at once: `head` begins with `:status`."""
        ...

    def start(self, headers: Headers) -> None:
        """Begin an answer whose messages come one by one."""
        ...

    def send(self, data: bytes) -> None:
        """More of its body. It is kept until the client takes it: see `is_blocked`."""
        ...

    def finish(self, trailers: Headers) -> None:
        """End it. Without `start` these fields are the whole answer, and begin with `:status`."""
        ...

    def reset(self, code: int) -> None:
        """Break the stream off, with an error code of RFC 9113, section 7."""
        ...

    @property
    def is_blocked(self) -> bool:
        """Much is unsent, for lack of flow control window or because the socket is full; `writable` will tell."""
        ...

    def consumed(self, count: int) -> None:
        """So many bytes given to `Handler.data` are dealt with: the client may send as many more."""
        ...

    def charge(self, work: int) -> None:
        """What the client has just asked for will take so much more of the event loop, in units of 4 microseconds: its
        connection's turn, and the round of turns, end the sooner for it. For use within `Door.open` and the calls of
        a handler."""
        ...


class Door(Protocol):
    """Takes the streams of all connections."""

    def open(self, stream: Stream, head: Head) -> Handler:
        """A client has opened a stream. The door may answer before it returns. If it raises, which is a bug, nothing
        is told to anybody: it must leave nothing behind."""
        ...
