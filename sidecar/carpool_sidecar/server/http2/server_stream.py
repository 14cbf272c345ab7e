"""One stream of a connection: what `streams.Stream` promises, and what the connection knows of its client's side."""

from __future__ import annotations

from typing import Protocol

from carpool_sidecar.server.http2 import errors, flow_control, headers, sender, streams


class Owner(Protocol):
    """The connection."""

    sender: sender.Sender
    number: int
    """No other connection of this process has it."""
    work: int
    """See `connection.Connection`."""

    def finished(self, exchange: Exchange) -> None:
        """The answer is out."""
        ...

    def broke_off(self, exchange: Exchange, code: int) -> None:
        """Its handler wants no more of it."""
        ...

    def returned(self, exchange: Exchange, count: int) -> None:
        """So many bytes of its body are dealt with."""
        ...

    def call_failed(self, error: Exception) -> None:
        """A handler raised this."""
        ...


class Exchange(sender.Outlet):
    """A request and its answer."""

    # handler: None before it is known and when it gets no more calls. incoming: None if no body follows. held: bytes
    # its handler has got and not consumed. missing: bytes to come by content-length. has_ended: the client's side;
    # is_over: ours, as the handler sees it.
    __slots__ = ("_most_unsent", "_owner", "handler", "has_ended", "held", "incoming", "is_over", "missing")

    def __init__(self, owner: Owner, number: int, window: int, most_unsent: int) -> None:
        super().__init__(number, window)
        self._owner = owner
        self._most_unsent = most_unsent
        self.handler: streams.Handler | None = None
        self.incoming: flow_control.Incoming | None = None
        self.held = 0
        self.missing: int | None = None
        self.has_ended = False
        self.is_over = False

    @property
    def connection(self) -> int:
        """See `streams.Stream`."""
        return self._owner.number

    # --- for the handler ---------------------------------------------------------------------------------------

    def answer(self, head: streams.Headers, body: bytes, trailers: streams.Headers) -> None:
        """See `streams.Stream`."""
        if not self.is_over:
            self.is_over, self.handler = True, None
            self._owner.sender.answer(self, headers.block(head), body, headers.block(trailers))
            if self.kept:
                self._bound()

    def start(self, headers_: streams.Headers) -> None:
        """See `streams.Stream`."""
        if not self.is_over:
            self.opening = headers.block(headers_)
            self._owner.sender.add(self, b"")

    def send(self, data: bytes) -> None:
        """See `streams.Stream`."""
        if not self.is_over and data:
            self._owner.sender.add(self, data)
            if self.kept:
                self._bound()

    def finish(self, trailers: streams.Headers) -> None:
        """See `streams.Stream`."""
        if not self.is_over:
            self.is_over, self.handler = True, None
            self.ending = headers.block(trailers)
            self._owner.sender.add(self, b"")

    def reset(self, code: int) -> None:
        """See `streams.Stream`."""
        if not self.is_over:
            self.is_over, self.handler = True, None
            self._owner.broke_off(self, code)

    @property
    def is_blocked(self) -> bool:
        """See `streams.Stream`."""
        if self.is_over:
            return False
        self.is_blocking = self.unsent_size >= self._most_unsent
        return self.is_blocking or self._owner.sender.holds_back(self)

    def consumed(self, count: int) -> None:
        """See `streams.Stream`."""
        count = min(count, self.held)
        self.held -= count
        self._owner.returned(self, count)

    def charge(self, work: int) -> None:
        """See `streams.Stream`."""
        self._owner.work += work

    def _bound(self) -> None:
        if self._owner.sender.unread.is_too_much:
            self.break_off(errors.Code.ENHANCE_YOUR_CALM)

    # --- for the connection ------------------------------------------------------------------------------------

    def begin(self, door: streams.Door, head: streams.Head) -> None:
        """Find the handler."""
        try:
            handler = door.open(self, head)
        except Exception as error:  # the other streams of the connection have no part in this
            self.fail(error)
            return
        if not self.is_over:
            self.handler = handler

    def sent(self) -> None:
        """See `sender.Outlet`."""
        self._owner.finished(self)

    def relieved(self) -> None:
        """See `sender.Outlet`."""
        if self.handler is not None:
            try:
                self.handler.writable()
            except Exception as error:  # as above
                self.fail(error)

    def take(self, payload: bytes) -> None:
        """More of the body has come."""
        if self.handler is None:
            self.consumed(len(payload))
            return
        try:
            self.handler.data(payload)
        except Exception as error:  # as above
            self.fail(error)

    def end(self) -> None:
        """That was all of it."""
        self.has_ended = True
        if self.handler is not None:
            try:
                self.handler.end()
            except Exception as error:  # as above
                self.fail(error)

    def cancel(self) -> None:
        """Nothing may be sent any more: tell the handler, if it still waits for that."""
        self.drop()
        handler, self.handler, self.is_over = self.handler, None, True
        if handler is not None:
            self._tell_cancelled(handler)

    def break_off(self, code: int) -> None:
        """Send nothing more, not even of an answer that is complete, and tell the handler."""
        handler, self.handler, self.is_over = self.handler, None, True
        self._owner.broke_off(self, code)
        if handler is not None:
            self._tell_cancelled(handler)

    def fail(self, error: Exception) -> None:
        """The handler, or the door, raised this: break the stream off, and let the handler clean up."""
        self._owner.call_failed(error)
        if not self.is_over:
            self.break_off(errors.Code.INTERNAL_ERROR)

    def _tell_cancelled(self, handler: streams.Handler) -> None:
        try:
            handler.cancelled()
        except Exception as error:  # as above
            self._owner.call_failed(error)
