"""One stream: a request and its answer, between the connection and the handler that answers it."""

from __future__ import annotations

from typing import Protocol

from carpool.compiled import mypyc_attr
from carpool_sidecar.server.http2 import frames, headers, limits, send_queue


class Handler(Protocol):
    """Gets a client's stream. All calls come from the event loop and must not block; what they raise is a bug, which
    costs the stream and is reported."""

    def data(self, data: bytes) -> None:
        """More of the body arrived, never empty."""
        ...

    def end(self) -> None:
        """The client has sent everything and waits for the answer."""
        ...

    def cancelled(self) -> None:
        """Nothing can be sent any more: the client reset the stream, the connection is lost, the client does not read
        and memory is short, or this handler raised something. Called at most once, never after `answer`, `finish` or
        `reset`, and perhaps from within `send`."""
        ...

    def writable(self) -> None:
        """`is_blocked` was true and is false again."""
        ...


class Service(Protocol):
    """Takes the streams of all connections."""

    def open(self, stream: ServerStream, head: headers.Head) -> Handler:
        """A client has opened a stream. The service may answer before it returns. If it raises, which is a bug, it must
        leave nothing behind: nothing more is called."""
        ...


class Connection(Protocol):
    """What a stream needs of its connection."""

    sender: send_queue.Sender
    number: int
    work: int

    def finished(self, stream: ServerStream) -> None:
        """The answer is sent."""
        ...

    def broke_off(self, stream: ServerStream, code: int) -> None:
        """Our side ends the stream with RST_STREAM."""
        ...

    def returned(self, stream: ServerStream, count: int) -> None:
        """The handler has consumed `count` bytes of the body."""
        ...

    def call_failed(self, error: Exception) -> None:
        """A handler raised this."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class ServerStream(send_queue.SendQueue):
    """Where a handler sends its answer. Once the stream is cancelled or its answer complete, calls have no effect."""

    # State. handler: None before it is known and when it gets no more calls. incoming: None until more than one frame
    # of the body comes. held: bytes that the handler got and has not consumed. missing: bytes to come by
    # content-length. has_ended: the client's side ended; is_over: ours did, as the handler sees it.
    __slots__ = ("_connection", "_most_unsent", "handler", "has_ended", "held", "incoming", "is_over", "missing")

    def __init__(self, connection: Connection, number: int, window: int, most_unsent: int) -> None:
        super().__init__(number, window)
        self._connection = connection
        self._most_unsent = most_unsent
        self.handler: Handler | None = None
        self.incoming: limits.ReceiveWindow | None = None
        self.held = 0
        self.missing: int | None = None
        self.has_ended = False
        self.is_over = False

    # --- for the handler ---------------------------------------------------------------------------------------

    @property
    def connection(self) -> int:
        """A number that all streams of this connection share, and no other streams of this process."""
        return self._connection.number

    def answer(self, head: headers.Headers, body: bytes, trailers: headers.Headers) -> None:
        """Send the whole answer at once; `head` begins with `:status`."""
        self.answer_encoded(headers.block(head), body, headers.block(trailers))

    def answer_encoded(self, head: bytes, body: bytes, trailers: bytes) -> None:
        """`answer` with fields that are header blocks already (`headers.block`)."""
        if not self.is_over:
            self.is_over, self.handler = True, None
            self._connection.sender.answer(self, head, body, trailers)
            if self.kept:
                self._check_unread()

    def start(self, head: headers.Headers) -> None:
        """Begin an answer whose messages come one by one."""
        if not self.is_over:
            self.opening = headers.block(head)
            self._connection.sender.add(self, b"")

    def send(self, data: bytes) -> None:
        """Send more of the body. It is kept until the client takes it: see `is_blocked`."""
        if not self.is_over and data:
            self._connection.sender.add(self, data)
            self._check_unread()

    def finish(self, trailers: headers.Headers) -> None:
        """End the answer. Without `start` these fields are the whole answer, and begin with `:status`."""
        if not self.is_over:
            self.is_over, self.handler = True, None
            self.ending = headers.block(trailers)
            self._connection.sender.add(self, b"")

    def reset(self, code: int) -> None:
        """Break the stream off, with an error code of RFC 9113, section 7."""
        if not self.is_over:
            self.is_over, self.handler = True, None
            self._connection.broke_off(self, code)

    @property
    def is_blocked(self) -> bool:
        """Whether much is unsent, because a window is too small or the socket full; `writable` tells of the end."""
        if self.is_over:
            return False
        self.is_blocking = self.unsent_size >= self._most_unsent
        return self.is_blocking or self._connection.sender.holds_back(self)

    def consumed(self, count: int) -> None:
        """`count` bytes given to `Handler.data` are consumed: the client may send as many more."""
        count = min(count, self.held)
        self.held -= count
        self._connection.returned(self, count)

    def charge(self, work: int) -> None:
        """Count `work` for what the client has just asked for, in units of 4 microseconds of the event loop.

        The turn of its connection, and the round of turns, end earlier for it. For use within `Service.open` and the
        calls of a handler.
        """
        self._connection.work += work

    # --- for the connection ------------------------------------------------------------------------------------

    def begin(self, service: Service, head: headers.Head) -> None:
        """Find the handler."""
        try:
            handler = service.open(self, head)
        except Exception as error:  # it must not end the other streams of the connection; the same holds below
            self._fail(error)
            return
        if not self.is_over:
            self.handler = handler

    def sent(self) -> None:
        """The answer is complete and sent."""
        self._connection.finished(self)

    def relieved(self) -> None:
        """Tell the handler that it may send more."""
        if self.handler is not None:
            try:
                self.handler.writable()
            except Exception as error:
                self._fail(error)

    def take(self, payload: bytes) -> None:
        """Give the handler more of the body."""
        if self.handler is None:
            self.consumed(len(payload))
            return
        try:
            self.handler.data(payload)
        except Exception as error:
            self._fail(error)

    def end(self) -> None:
        """Tell the handler that the body is complete."""
        self.has_ended = True
        if self.handler is not None:
            try:
                self.handler.end()
            except Exception as error:
                self._fail(error)

    def cancel(self) -> None:
        """Nothing can be sent any more: tell the handler, if it still waits for that."""
        self.drop()
        self._tell_cancelled(self._close())

    def break_off(self, code: int) -> None:
        """Send nothing more, not even of a complete answer, and tell the handler."""
        handler = self._close()
        self._connection.broke_off(self, code)
        self._tell_cancelled(handler)

    def _close(self) -> Handler | None:
        handler, self.handler, self.is_over = self.handler, None, True
        return handler

    def _check_unread(self) -> None:
        if self.kept and self._connection.sender.unread.is_too_much:
            self.break_off(frames.Code.ENHANCE_YOUR_CALM)

    def _fail(self, error: Exception) -> None:
        """The handler or the service raised this: break the stream off, and let the handler clean up."""
        self._connection.call_failed(error)
        if not self.is_over:
            self.break_off(frames.Code.INTERNAL_ERROR)

    def _tell_cancelled(self, handler: Handler | None) -> None:
        if handler is not None:
            try:
                handler.cancelled()
            except Exception as error:
                self._connection.call_failed(error)
