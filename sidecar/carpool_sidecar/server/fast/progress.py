"""How far a client is: what came of a body, and whether a head or a whole request has begun in bytes that others read.

That of heads is told by llhttp. aiohttp's parser is llhttp, too, but does not tell.
"""

from __future__ import annotations

import httptools

from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import v1

_LITTLE = 4 * 1024  # bytes: smaller parts cost more each than to be put together
_PUT_TOGETHER = 16 * 1024


class PartialHead:
    """Watches a head that arrives bit by bit. `size` is how much of it did."""

    def __init__(self) -> None:
        self.size = 0
        self._marks = _Marks()
        self._parser = httptools.HttpRequestParser(self._marks)

    def may_go_on(self, more: bytes) -> bool:
        """Whether all that came so far, `more` included, may become a request whose head ends in an empty line."""
        self.size += len(more)
        try:
            self._parser.feed_data(more)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return not self._marks.heads


class PartialBody:
    """A body on its way: the bytes of its head, the parts that are here, and how many bytes are missing.

    `scan` looks through the parts of a large one as they come; at once it would take too long. Little parts are put
    together, so that a client who sends a few bytes at a time gets no object for each of them.
    """

    # State: _parts, and _little, what came behind them and is to be put together.
    __slots__ = ("_little", "_parts", "head", "missing", "received", "scan", "started", "text")

    def __init__(self, text: bytes, head: calls.Head, length: int, started: float, scan: v1.RequestScan | None) -> None:
        self.text = text
        self.head = head
        self._parts: list[bytes] = []
        self._little = bytearray()
        self.received = 0
        self.missing = length
        self.started = started
        self.scan = scan

    def add(self, part: bytes) -> None:
        """More of it came."""
        little = self._little
        if len(part) >= _LITTLE:
            if little:
                self._put_together()
            self._parts.append(part)
        elif part:
            little += part
            if len(little) >= _PUT_TOGETHER:
                self._put_together()
        self.received += len(part)
        self.missing -= len(part)
        if self.scan is not None and part:
            self.scan.feed(part)

    def take(self) -> list[bytes]:
        """All that is here, in parts none of which is empty; they are the caller's."""
        if self._little:
            self._put_together()
        parts, self._parts = self._parts, []
        return parts

    def _put_together(self) -> None:
        self._parts.append(bytes(self._little))
        self._little = bytearray()


class Watch:
    """Knows whether a head has begun and not ended, and how many.

    `head_size` is how many bytes of an open head came: if it began amid those of one call to `feed`, all of these where
    its beginning is not found. `is_behind_change` if the last call ended where a request for a change of protocols
    does. `has_trailers` once a body ended in some, until it is set back.
    """

    def __init__(self) -> None:
        self.head_size = 0
        self._marks = _Marks()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self._marks)
        self._has_changed = False
        self.is_behind_change = False

    @property
    def is_open(self) -> bool:
        """Whether there is more to come. Not so after what is no HTTP: aiohttp's parser has found that too."""
        return self._marks.is_open

    @property
    def is_between(self) -> bool:
        """Whether all that has begun is complete. Not so for good after what is no HTTP, or a change of protocols."""
        return self._marks.is_between and not self._has_changed

    @property
    def heads(self) -> int:
        """Heads that were complete so far."""
        return self._marks.heads

    @property
    def lines(self) -> int:
        """Fields of the last head, complete or not."""
        return self._marks.lines

    @property
    def has_trailers(self) -> bool:
        """Whether a body ended in some since this was set back."""
        return self._marks.has_trailers

    @has_trailers.setter
    def has_trailers(self, value: bool) -> None:
        self._marks.has_trailers = value

    @property
    def trailer_size(self) -> int:
        """Bytes of trailers of the last message, give or take a call to `feed`, but for the first of them."""
        return self._marks.trailer_size

    @property
    def begun(self) -> int:
        """Messages and chunks of bodies that have begun so far: what aiohttp's parser takes its time for."""
        return self._marks.begun

    @property
    def chunks(self) -> int:
        """Chunks of the last message."""
        return self._marks.chunks

    def feed(self, data: bytes | memoryview) -> int:
        """Take bytes: all, or those up to the end of a request for a change of protocols; how many that are.

        What follows such a request in one read is dropped by aiohttp's parser where it does not know the protocol. Of
        one whose body comes in chunks the end is not found: nothing may be taken behind it.
        """
        marks = self._marks
        if marks.unread:
            taken = min(marks.unread, len(data))
            marks.unread -= taken
            self.is_behind_change = not marks.unread
            return taken
        self.is_behind_change = False
        if self._parser is None:
            return len(data)
        before = marks.heads if marks.is_open else -1
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as change:
            self._has_changed = True
            marks.is_open, marks.unread = False, marks.length
            self.is_behind_change = not marks.unread
            self._parser = httptools.HttpRequestParser(marks)
            return int(change.args[0])
        except httptools.HttpParserError:
            marks.is_open, self._parser = False, None
            self._has_changed = True
        if marks.is_in_trailers:
            marks.trailer_size += len(data)
        if marks.is_open:
            if marks.heads == before:
                self.head_size += len(data)
            else:
                end = bytes(data).rfind(b"\r\n\r\n")  # of what came before
                self.head_size = len(data) - (end + 4 if end >= 0 else 0)
        return len(data)


class _Marks:
    """What llhttp calls back with: not the owner of the parser, or each would keep the other alive.

    `heads` is how many are complete. `length` is what the last one says of its body, `unread` how much of that is to
    come in a request for a change of protocols, which llhttp leaves to others.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.is_between = True
        self.heads = 0
        self.length = self.unread = self.begun = self.chunks = self.lines = 0
        self.trailer_size = 0
        self.has_trailers = self.is_in_trailers = False

    def on_message_begin(self) -> None:
        self.is_open = True
        self.is_between = False
        self.length = self.chunks = self.lines = self.trailer_size = 0
        self.begun += 1

    def on_chunk_header(self) -> None:
        self.begun += 1
        self.chunks += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_open:
            self.has_trailers = self.is_in_trailers = True
            return
        self.lines += 1
        if name.lower() == b"content-length":
            digits = value.strip(b" \t").lstrip(b"0")[:20]  # llhttp refuses what is not below 2 ** 64
            self.length = int(digits) if digits.isdigit() else 0

    def on_headers_complete(self) -> None:
        self.is_open = False
        self.heads += 1

    def on_message_complete(self) -> None:
        self.is_between = True
        self.is_in_trailers = False
