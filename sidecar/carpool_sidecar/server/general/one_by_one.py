"""aiohttp's parser of requests, driven so that it takes one request at a time.

By itself it takes all that was read at once. Where something malformed comes behind good requests in one read, it
raises an error and forgets the requests that it had found before: they would never be answered, although they would be
if the network had cut the stream in another place. Driven like this, it gives out each before it looks at the next.

It stops behind a request when its queue is full, and keeps what follows (aiohttp 3.14.1 and later): so its queue has
room for one, and that of the connection is counted here. aiohttp itself counts a request whose body comes late as
waiting for good, so that in the end it stops where nobody makes it go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import hdrs, http, http_exceptions, streams, web

_Found = tuple[list[Any], bool, bytes]
"""Messages with their payloads; whether the connection changes to another protocol, and what came behind that."""


class OneByOne:
    """Has the methods of a parser that aiohttp's protocols use. `room` tells how many more requests may wait there."""

    # State: _payload of the last message, behind which all _is_last if nothing may follow it; answered, the payload of
    # the request that was answered last; _error that came behind messages given out, and is to be raised next;
    # _has_failed once anything was malformed; _refusal of what is behind all requests that are complete.
    def __init__(self, parser: http.HttpRequestParser, room: Callable[[], int]) -> None:
        self._parser = parser
        self._room = room
        self._payload: streams.StreamReader = streams.EMPTY_PAYLOAD
        self._is_last = False
        self.answered: streams.StreamReader | None = None
        self._error: http_exceptions.HttpProcessingError | None = None
        self._has_failed = False
        self._refusal: http_exceptions.HttpProcessingError | None = None

    def refuse(self, error: http_exceptions.HttpProcessingError) -> None:
        """Treat what has begun, and is no complete request, as malformed in this way."""
        self._refusal = error

    def break_body(self, error: http_exceptions.HttpProcessingError) -> None:
        """Treat the body that has begun as malformed in this way, and take nothing in from now on."""
        self._has_failed = True
        self._end_malformed_body(error)

    @property
    def is_in_body(self) -> bool:
        """Whether more is to come of the body of the last request."""
        return not self._payload.is_eof()

    @property
    def has_ended(self) -> bool:
        """Whether all has come that is ever answered here, and what follows means nothing."""
        return self._has_failed or (self._is_last and not self.is_in_body)

    @property
    def has_more_to_tell(self) -> bool:
        """Whether the next call to `feed_data` raises what was malformed behind the messages of the last one."""
        return self._error is not None

    def feed_data(self, data: bytes) -> _Found:
        """All messages that begin in `data` and what was kept before, as long as there is room for them.

        Raises `HttpProcessingError` for what is malformed, once, and takes nothing in from then on. If messages came
        before that, they are returned first: `has_more_to_tell`.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        messages: list[Any] = []
        while not self._has_failed:
            was_open = self.is_in_body
            self._parser.message_consumed()  # its queue has room for one
            try:
                found, is_upgraded, behind = self._parser.feed_data(data)
                if self._refusal is not None and not (found or was_open or is_upgraded):
                    raise self._refusal
            except http_exceptions.HttpProcessingError as error:
                self._has_failed = True
                if self.is_in_body:  # the parser has let go of it without a word
                    self._end_malformed_body(error)
                if not messages:
                    raise
                self._error = error
                break
            if found:
                messages += [(_as_last(message), payload) for message, payload in found]
                self._payload = found[-1][1]
                self._is_last = _is_last(found[-1][0])
            if is_upgraded:
                return messages, True, behind
            has_ended = (found or was_open) and self._payload.is_eof()
            if not has_ended or len(messages) >= self._room():
                break
            data = b""  # the parser has kept what follows
        return messages, False, b""

    def _end_malformed_body(self, error: http_exceptions.HttpProcessingError) -> None:
        if self._payload is self.answered:
            self._payload.feed_eof()  # nobody reads it but aiohttp, which would log an exception as a bug
        else:
            self._payload.set_exception(web.RequestPayloadError(told(error)))

    def message_consumed(self) -> None:
        """A message does not wait any more: nothing to be done, `room` tells."""

    def pause_reading(self) -> None:
        """Whoever reads the present body has enough."""
        self._parser.pause_reading()

    def set_upgraded(self, value: bool) -> None:
        """Whether the connection has changed to another protocol."""
        self._parser.set_upgraded(value)


def told(error: http_exceptions.HttpProcessingError) -> str:
    """What is malformed, without the line that aiohttp quotes: of that only so much as had come by then."""
    words = error.message.partition("\n\n")[0].partition(" when reading:")[0]
    return " ".join(words.split()).rstrip(":.")


def _is_last(message: Any) -> bool:
    """Whether nobody can tell where a request would begin behind this one.

    Servers disagree about the body of CONNECT (RFC 9110, section 9.3.6), and parsers about one in chunks of a request
    for a change of protocols. Whoever takes such a body for requests can be made to run what a client only stored.
    """
    return message.method == "CONNECT" or (message.chunked and hdrs.UPGRADE in message.headers)


def _as_last(message: Any) -> Any:
    """The message, which ends its connection if it is the last; so does one for a WebSocket, if it is declined.

    aiohttp takes what comes behind that for the WebSocket's until it is answered.
    """
    may_change = message.upgrade and message.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
    return message._replace(should_close=True) if may_change or _is_last(message) else message
