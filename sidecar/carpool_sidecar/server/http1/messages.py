"""What a message is (RFC 9112): any head by llhttp, bodies by their length or in chunks. Bytes in, values out.

There is one opinion on that. What is read here is what goes to the predictor, written anew: the client's own framing
never does. What servers may differ on is malformed: whoever stands before or behind the sidecar may read it in another
way, and such differences are what request smuggling is made of.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

import httptools
import yarl
from multidict import CIMultiDict

from carpool.compiled import mypyc_attr
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import responses

MAX_HEAD: Final = 256 * 1024
"""Bytes of a head."""

MAX_LINES: Final = 1000
"""Fields of a head."""

MOST_TRAILERS: Final = 64 * 1024
"""Bytes of the trailers of a body."""

Version = tuple[int, int]
HTTP_1_0: Final[Version] = (1, 0)
HTTP_1_1: Final[Version] = (1, 1)

# Of these a message has one each: a second is for somebody who reads another one than we do.
_SINGLE: Final[frozenset[str]] = frozenset(
    {
        "content-length", "content-location", "content-range", "content-type", "etag", "host", "max-forwards", "server",
        "transfer-encoding", "user-agent",
    }
)  # fmt: skip
_TLS: Final = b"\x16\x03"
# RFC 9112, 3: one space each. The parser takes several, and the protocols RTSP and ICE.
_REQUEST_LINE = re.compile(rb"[\r\n]*[^ \r\n]+ [^ \r\n]+(?: HTTP/[^ \r\n]+)?\r\n")
# RFC 9112, 7.1. A size that is longer is larger than any body, or has zeros that not all servers count alike.
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_EXTENSIONS = re.compile(
    rb"(?:;[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:=(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+|\"(?:[^\x00-\x08\x0a-\x1f\x7f\"\\]|\\[\x20-\x7e])*\"))?)*"
)
_TRAILER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[^\x00-\x08\x0a-\x1f\x7f]*")
_FRAMING: Final[frozenset[bytes]] = frozenset({b"content-length", b"transfer-encoding"})
_LONGEST_SIZE_LINE: Final = 16 * 1024  # bytes
_MOST_CHUNKS: Final = 128  # that are read at once


@mypyc_attr(native_class=False)
class Malformed(Exception):
    """This is no HTTP, or not by everybody's reading; the words say why, and quote nothing that came."""

    def answer(self) -> responses.Response:
        """What its sender is told."""
        return responses.refusal(400, f"malformed HTTP: {self}")


@mypyc_attr(native_class=False)
class HeadTooLarge(Malformed):
    """A head has more bytes or lines than may be, as the words say."""

    def answer(self) -> responses.Response:
        return responses.refusal(431, str(self))


class RequestHead:
    """A request without its body. Text is what came as UTF-8, other bytes as PEP 383 has them.

    `length` is that of its body in bytes, 0 without one, or None if it comes in chunks. `keep_alive` is whether another
    request may follow on the connection. Heads repeat: `passed` is for whoever passes them on, to find what was made of
    this one before.
    """

    __slots__ = ("headers", "keep_alive", "length", "method", "passed", "target", "version")

    def __init__(
        self,
        method: str,
        target: str,
        version: Version,
        headers: CIMultiDict[str],
        length: int | None,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.length = length
        self.keep_alive = keep_alive
        self.passed: tuple[str, bytes] | None = None


class Fields:
    """What llhttp calls back with: the `fields` of a head, as they came."""

    __slots__ = ("fields", "is_complete", "parser")

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self.parser: httptools.HttpRequestParser | None = None
        """There while it parses: each would keep the other alive."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.is_complete = True


class _Head(Fields):
    """Fields, and the rest."""

    __slots__ = ("keep_alive", "target")

    def __init__(self) -> None:
        super().__init__()
        self.target = b""
        self.keep_alive = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_headers_complete(self) -> None:
        self.is_complete = True
        self.keep_alive = self.parser is not None and self.parser.should_keep_alive()


def parse(text: bytes, into: Fields) -> httptools.HttpRequestParser:
    """Parse a complete head, up to and with its empty line; raises `Malformed`."""
    parser = into.parser = httptools.HttpRequestParser(into)
    try:
        parser.feed_data(text)
    except httptools.HttpParserUpgrade:
        pass  # what is asked for is decided by whoever answers
    except httptools.HttpParserError as error:
        raise Malformed(_words(text, error)) from None
    finally:
        into.parser = None
    if not into.is_complete:
        raise Malformed("this is no request of HTTP/1.1")
    _check_size(0, len(into.fields))
    return parser


def read_head(text: bytes) -> RequestHead:
    """Read a complete head, up to and with its empty line; raises `Malformed`."""
    _check_size(len(text), 0)
    parsed = _Head()
    parser = parse(text, parsed)
    if not _REQUEST_LINE.match(text):
        raise Malformed("this is no request of HTTP/1.1")
    found = [(name.decode(errors="surrogateescape"), _text(value)) for name, value in parsed.fields]
    headers = CIMultiDict(found)
    major, _, minor = parser.get_http_version().partition(".")
    version = (int(major), int(minor))
    _check_fields(version, found, headers)
    method = parser.get_method().decode()
    target = parsed.target.decode(errors="surrogateescape")
    if method != "CONNECT":
        _check_target(method, target)
    chunked = "Transfer-Encoding" in headers
    length = None if chunked else int(headers.get("Content-Length", "").strip(" \t").lstrip("0") or "0")
    keep_alive = parsed.keep_alive and not _may_be_misread(method, version, headers, length)
    return RequestHead(method, target, version, headers, length, keep_alive)


def _check_size(size: int, lines: int) -> None:
    """Raises `HeadTooLarge`."""
    if size > MAX_HEAD:
        raise HeadTooLarge(f"the head of the request is larger than {MAX_HEAD} bytes")
    if lines > MAX_LINES:
        raise HeadTooLarge(f"the head of the request has more than {MAX_LINES} lines")


def _may_be_misread(method: str, version: Version, headers: CIMultiDict[str], length: int | None) -> bool:
    """Whether nobody can tell where a request would begin behind this one.

    Servers disagree about the body of CONNECT (RFC 9110, section 9.3.6), and parsers about one in chunks of a request
    for a change of protocols, or of a version without chunks (RFC 9112, section 6.1). Whoever takes such a body for
    requests can be made to run what a client only stored. And what comes behind a request for a WebSocket may be that
    already, though it is declined.
    """
    if method == "CONNECT" or (length is None and version < HTTP_1_1):
        return True
    if "Upgrade" not in headers:
        return False
    asks = "upgrade" in headers_.connection_options(headers)
    return length is None or (asks and headers.get("Upgrade", "").lower() == "websocket")


def _text(value: bytes) -> str:
    return value.rstrip(b" \t").decode(errors="surrogateescape")


def _words(text: bytes, error: Exception) -> str:
    if text.startswith(_TLS):
        return "Received HTTPS traffic on an HTTP port"
    return str(error) or "it is not valid HTTP"  # llhttp's own words, which quote nothing


def _check_fields(version: Version, fields: list[tuple[str, str]], headers: CIMultiDict[str]) -> None:
    seen = set()
    for name, _ in fields:
        lowered = name.lower()
        if lowered in _SINGLE:
            if lowered in seen:
                raise Malformed(f"Duplicate '{lowered.title()}' header found")
            seen.add(lowered)
    if version == HTTP_1_1 and "Host" not in headers:
        raise Malformed("Missing 'Host' header in request")
    if "Sec-WebSocket-Key1" in headers:
        raise Malformed("Invalid HTTP header: 'Sec-WebSocket-Key1'")  # of a draft whose body nothing frames


def _check_target(method: str, target: str) -> None:
    """Origin form, asterisk form of OPTIONS, or absolute form with a host (RFC 9112, 3.2)."""
    if target.startswith("/") or (target == "*" and method == "OPTIONS"):
        return
    host = None
    if "://" in target:
        with contextlib.suppress(ValueError):
            host = yarl.URL(target, encoded=True).raw_host
    if not host:
        raise Malformed("the request target is neither a path nor a URL with a host")


class PartialHead:
    """A head that arrives bit by bit: the bytes that are here."""

    # State: them, of which the parser has seen all; what it found, which does not own it: each would keep the other.
    def __init__(self, began: float) -> None:
        self.began = began
        self.text = bytearray()
        self._found = Fields()
        self._parser = httptools.HttpRequestParser(self._found)

    def add(self, more: bytes) -> bool:
        """Take more bytes; returns whether a head is complete with them.

        Raises `Malformed` for what no head may begin with, or be.
        """
        text = self.text
        start = max(0, len(text) - 3)
        text += more
        if text.find(b"\r\n\r\n", start) >= 0:
            return True
        try:
            self._parser.feed_data(more)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            raise Malformed(_words(bytes(text[:2]), error)) from None
        if self._found.is_complete:
            raise Malformed("the head ends in a line without CR")
        _check_size(len(text), len(self._found.fields))
        return False


class Body:
    """A body of so many bytes, as it comes. `chunks` is 0; `received` counts what it has of data."""

    __slots__ = ("_missing", "chunks", "is_complete", "received")

    def __init__(self, length: int) -> None:
        self.is_complete = not length
        self.chunks = self.received = 0
        self._missing = length

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What `data` has of the body, and what was not looked at: unless it is complete, that is for the next turn.

        Raises `Malformed`.
        """
        missing = self._missing
        if len(data) < missing:
            self._missing = missing - len(data)
            self.received += len(data)
            return data, b""
        self._missing = 0
        self.received += missing
        self.is_complete = True
        return (data, b"") if len(data) == missing else (data[:missing], data[missing:])


class ChunkedBody(Body):
    """A body in chunks (RFC 9112, 7.1). Extensions are ignored, and so are trailers: no field of a request is one."""

    # State: bytes of a line that is not complete; bytes that the chunk misses, or -1 in its line end, -2 in the line of
    # a size, -3 in trailers, of which so many bytes came.
    __slots__ = ("_line", "_trailers")

    def __init__(self) -> None:
        super().__init__(1)
        self._missing = _IN_SIZE
        self._line = b""
        self._trailers = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """As of any body. Many small chunks are not all read at once: others want their turns."""
        if self._line:
            data, self._line = self._line + data, b""
        pieces: list[bytes] = []
        at, size, most = 0, len(data), self.chunks + _MOST_CHUNKS
        while at < size and not self.is_complete:
            missing = self._missing
            if missing > 0:
                piece = data[at : at + missing]
                pieces.append(piece)
                at += len(piece)
                self.received += len(piece)
                self._missing = missing - len(piece) or _IN_END
            elif missing == _IN_END:
                if data[at] != 13:
                    raise Malformed("Missing expected CR after chunk data")
                if at + 1 == size:
                    break
                if data[at + 1] != 10:
                    raise Malformed("Expected LF after chunk data")
                at += 2
                self._missing = _IN_SIZE
                if self.chunks >= most:
                    break
            else:
                end = data.find(b"\n", at)
                if end < 0:
                    self._check_begun(data, at)
                    break
                line = data[at:end]
                at = end + 1
                if missing == _IN_SIZE:
                    self._begin(line)
                else:
                    self._trailer(line)
        rest = data[at:]
        if rest and not self.is_complete and self.chunks < most:
            self._line, rest = rest, b""
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), rest

    def _begin(self, line: bytes) -> None:
        if not line.endswith(b"\r"):
            raise Malformed("Missing expected CR after chunk size")
        found = _size(line, len(line) - 1)
        self.chunks += 1
        self._missing = found or _IN_TRAILERS

    def _trailer(self, line: bytes) -> None:
        self._trailers += len(line) + 1
        if self._trailers > MOST_TRAILERS:
            raise Malformed(f"more than {MOST_TRAILERS} bytes of trailers")
        if line == b"\r":
            self.is_complete = True
            return
        found = _TRAILER.fullmatch(line, 0, len(line) - 1) if line.endswith(b"\r") else None
        if found is None:
            raise Malformed("Invalid header token")
        if found[1].lower() in _FRAMING:
            raise Malformed("a trailer says where a body ends")

    def _check_begun(self, data: bytes, at: int) -> None:
        """A line that is not complete: whether it may become one."""
        size = len(data) - at
        if self._missing == _IN_TRAILERS:
            if self._trailers + size > MOST_TRAILERS:
                raise Malformed(f"more than {MOST_TRAILERS} bytes of trailers")
            return
        if size > _LONGEST_SIZE_LINE:
            raise Malformed(f"more than {_LONGEST_SIZE_LINE} bytes of chunk extensions")
        found = _SIZE.match(data, at)
        if found is None:
            raise Malformed("Invalid character in chunk size")
        end = found.end()
        if end < len(data) and data[end] not in b";\r":
            _size(data[at:], size)


_IN_END: Final = -1
_IN_SIZE: Final = -2
_IN_TRAILERS: Final = -3


def _size(line: bytes, stop: int) -> int:
    """The size that the line of a chunk begins with; raises `Malformed`."""
    found = _SIZE.match(line, 0, stop)
    if found is None:
        raise Malformed("Invalid character in chunk size")
    end = found.end()
    if end < stop and line[end] != 59:
        if _SIZE.match(line, end, stop):
            raise Malformed("Chunk size overflow")
        raise Malformed("Invalid character in chunk size")
    if stop > _LONGEST_SIZE_LINE:
        raise Malformed(f"more than {_LONGEST_SIZE_LINE} bytes of chunk extensions")
    if not _EXTENSIONS.fullmatch(line, end, stop):
        raise Malformed("Invalid character in chunk extensions")
    return int(found[0], 16)


def body_of(head: RequestHead) -> Body:
    """What reads the body of a request."""
    return ChunkedBody() if head.length is None else Body(head.length)
