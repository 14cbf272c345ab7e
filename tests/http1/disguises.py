"""Fields and chunks in disguise: one server takes them for the end of a body, another does not, and a request follows.

The kinds are those that are published for finding request smuggling: a field that frames the body is hidden by a byte,
a fold or a spelling; sizes of chunks end otherwise than in CRLF; bodies are of methods that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.http1 import tables as t
from tests.http1.exchange import Step

_ECHO = t.target(b"echo")
_OTHER = b"/x" + b"-" + t.NUMBER
_INSIDE = t.request(b'{"instances":["smuggled"]}', b"/smuggled-" + t.NUMBER + b":predict")
_NEXT = t.request(b'{"instances":["next"]}', t.target(b"next"))
_BYTES = (
    *(bytes([code]) for code in (*range(0x21), 0x22, 0x2C, 0x3A, 0x3B, 0x5C, 0x7F, 0x85, 0xA0, 0xAD, 0xFF)),
    b"\xc2\x85", b"\xc2\xa0", b"\xc2\xad", b"\xe2\x80\x8b", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xe3\x80\x80",
)  # fmt: skip
_PLACES: dict[str, Callable[[bytes, bytes, bytes], bytes]] = {
    "before the name": lambda name, value, byte: byte + name + b": " + value,
    "in the name": lambda name, value, byte: name[:4] + byte + name[4:] + b": " + value,
    "for the hyphen": lambda name, value, byte: name.replace(b"-", byte) + b": " + value,
    "behind the name": lambda name, value, byte: name + byte + b": " + value,
    "behind the colon": lambda name, value, byte: name + b":" + byte + value,
    "in the value": lambda name, value, byte: name + b": " + value[:1] + byte + value[1:],
    "behind the value": lambda name, value, byte: name + b": " + value + byte,
}
_FOLDS = (
    b"X: y\r\n %b: %b", b"X: y\r\n\t%b: %b", b"X: y\n%b: %b", b"X: y\r%b: %b", b"X: y\r\n\r%b: %b", b"X: y\r\r\n%b: %b",
    b"%b:\r\n %b", b"%b:\r\n\t%b", b"%b:\n %b", b"%b:\r\n \r\n %b", b"%b:\r\n\r\n %b", b"%b\n: %b", b"%b\r\n: %b",
    b"%b\r\n : %b", b"%b:\n\x0b%b", b"X: y\n\n%b: %b", b"X: y\n \n%b: %b", b"X: y\r\n \r\n%b: %b", b"X: y\0\r\n%b: %b",
    b"X: y\r\0\n%b: %b", b"X y\r\n%b: %b", b":\r\n%b: %b", b": y\r\n%b: %b", b"X: \"\r\n%b: %b\r\n Y: \"",
    b"%b x: %b", b"%b %b", b"%b; %b", b"%b= %b", b"X: %b: %b", b"Cookie: a=\"\r\n%b: %b", b"%b: =?iso-8859-1?B?%b?=",
)  # fmt: skip
_CODINGS = (
    b"chunked, identity", b"identity, chunked", b"chunked, chunked", b"chunk", b"chunkedchunked", b"x chunked y",
    b"'chunked'",
    b'"chunked"', b"chunked;q=0", b"chunked, gzip", b"ch\x96nked", b"CHUNKED", b"cHuNkEd", b",chunked", b"chunked,",
    b"[chunked]",
)  # fmt: skip
_LENGTHS = (
    b"+%d", b"-%d", b"0%d", b"00000000000000000000%d", b"%d.0", b"%de0", b"0x%x", b"%d,", b",%d", b"%d, %d", b"%d,0",
    b"0,%d",    b"%d;", b"%d abc", b"\"%d\"", b"%d\r\n 0", b"0\r\n %d", b"%d\nX: y",
)  # fmt: skip
# Ends of lines that are none: in the line of a size, in an extension, behind data, behind the last chunk.
_ENDS = (b"\n", b"\r", b"\rX", b"\r\r", b"\r\r\n", b"\n\r", b"", b"XX", b" \r\n", b"\0\r\n", b"\x0b\r\n")
_SIZE_LINES: dict[str, Callable[[int, bytes], bytes]] = {
    "size": lambda size, end: b"%x" % size + end,
    "extension": lambda size, end: b"%x;a" % size + end,
    "value of an extension": lambda size, end: b"%x;a=b" % size + end,
    "quoted value of an extension": lambda size, end: b'%x;a="' % size + end + b'"\r\n',
    "extension that goes on": lambda size, end: b"%x;a" % size + end + b"b\r\n",
}
_METHODS = (b"POST", b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"TRACE", b"PATCH")

Made = Iterator[tuple[str, tuple[Step, ...]]]


def _head(start: bytes, *lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([start + b" " + version, b"Host: h", *lines, b"", b""])


def _disguised(name: bytes, value: bytes) -> Iterator[tuple[str, bytes]]:
    for where, put in _PLACES.items():
        for byte in _BYTES:
            yield f"{byte!r} {where}", put(name, value, byte)
    for fold in _FOLDS:
        yield f"{fold!r}", fold % (name, value)
    for other in (name.replace(b"-", b"_"), name.swapcase(), b"X-" + name, name.replace(b"o", b"\xc3\xb6")):
        yield f"{other!r}", other + b": " + value
    for before in (b"Connection: ", b"Connection : ", b"Trailer: "):
        yield f"named by {before!r}", before + name + b"\r\n" + name + b": " + value
        yield f"{before!r} in one line", before + b"close, " + name + b"\r\n" + name + b": " + value


def of_codings() -> Made:
    """`Transfer-Encoding` in disguise beside a length that covers less, or more, than the chunks."""
    post = b"POST " + _ECHO
    body = b"0\r\n\r\n" + _INSIDE
    for name, line in _disguised(b"Transfer-Encoding", b"chunked"):
        yield f"{name}, length of all", (_head(post, b"Content-Length: %d" % len(body), line) + body, _NEXT)
        yield f"{name}, short length", (_head(post, line, b"Content-Length: 5") + body, _NEXT)
    for coding in _CODINGS:
        line = b"Transfer-Encoding: " + coding
        for field in (b"Content-Length: %d" % len(body), b"Content-Length: 5", b"Transfer-Encoding: chunked", b"X: y"):
            yield f"{coding!r}, then {field[:20]!r}", (_head(post, line, field) + body, _NEXT)
            yield f"{coding!r}, behind {field[:20]!r}", (_head(post, field, line) + body, _NEXT)
    yield "of the content", (_head(post, b"Content-Encoding: chunked", b"Content-Length: 5") + body, _NEXT)


def of_lengths() -> Made:
    """`Content-Length` in disguise, alone and beside a plain one, with a request for a body."""
    size = len(_INSIDE)
    for start in (b"POST " + _ECHO, b"GET " + _OTHER):
        method = start.split(b" ")[0].decode()
        for name, line in _disguised(b"Content-Length", b"%d" % size):
            yield f"{method}, {name}", (_head(start, line) + _INSIDE, _NEXT)
        for length in _LENGTHS:
            line = b"Content-Length: " + length.replace(b"%d", b"%d" % size).replace(b"%x", b"%x" % size)
            yield f"{method}, {length!r}", (_head(start, line) + _INSIDE, _NEXT)
            yield f"{method}, {length!r} behind 0", (_head(start, b"Content-Length: 0", line) + _INSIDE, _NEXT)
            yield f"{method}, {length!r} expected", (_head(start, b"Expect: 100-continue", line), _INSIDE, _NEXT)
    for verb in _METHODS:
        for version in (b"HTTP/1.1", b"HTTP/1.0"):
            for field in (b"X: y", b"Expect: 100-continue", b"Expect: y 100-continue", b"Range: bytes=0-0"):
                head = _head(verb + b" " + _OTHER, b"Content-Length: %d" % size, field, version=version)
                yield f"{verb!r} of {version!r} with {field!r}", (head + _INSIDE, _NEXT)
                yield f"{verb!r} of {version!r} with {field!r}, later", (head, _INSIDE, _NEXT)


def of_upgrades() -> Made:
    """A body of a request for a change of protocols, which may be read as what comes behind that."""
    for verb in _METHODS:
        for protocol in (b"websocket", b"x", b"h2c", b"TLS/1.0"):
            lines = (b"Connection: Upgrade", b"Upgrade: " + protocol)
            for kind, field, body in (
                ("length", b"Content-Length: %d" % len(_INSIDE), _INSIDE),
                ("chunks", b"Transfer-Encoding: chunked", t.chunked(_INSIDE)),
            ):
                head = _head(verb + b" " + _OTHER, *lines, field)
                yield f"{verb!r} to {protocol!r} with {kind}", (head + body, _NEXT)
                yield f"{verb!r} to {protocol!r} with {kind}, later", (head, body, _NEXT)


def of_chunks() -> Made:
    """Lines of sizes, and ends of data, that end otherwise."""
    head = _head(b"PUT " + _OTHER, b"Transfer-Encoding: chunked")
    for end in _ENDS:
        for name, line in _SIZE_LINES.items():
            yield f"{name} ends in {end!r}", (head + line(5, end) + b"abcde\r\n0\r\n\r\n" + _INSIDE, _NEXT)
            hidden = line(2, end) + b"xx\r\n%x\r\n" % len(_INSIDE) + _INSIDE + b"\r\n0\r\n\r\n"
            yield f"{name} ends in {end!r}, a request inside", (head + hidden, _NEXT)
        yield f"data ends in {end!r}", (head + b"5\r\nabcde" + end + b"0\r\n\r\n" + _INSIDE, _NEXT)
        yield f"data is longer by {end!r}", (head + b"5\r\nabcde" + end + b"\r\n0\r\n\r\n" + _INSIDE, _NEXT)
        yield f"last chunk ends in {end!r}", (head + b"0" + end + _INSIDE, _NEXT)
        yield f"trailers end in {end!r}", (head + b"0\r\n" + end + _INSIDE, _NEXT)
        yield f"a trailer ends in {end!r}", (head + b"0\r\nX: y" + end + b"\r\n" + _INSIDE, _NEXT)
    for size in (
        b"5 ",
        b" 5",
        b"5_",
        b"+5",
        b"-5",
        b"0x5",
        b"5h",
        b"05" + b"\0",
        b"5\t",
        b"100000005",
        b"ffffffff",
        b"5,5",
    ):
        yield f"size {size!r}", (head + size + b"\r\nabcde\r\n0\r\n\r\n" + _INSIDE, _NEXT)


GROUPS: dict[str, Callable[[], Made]] = {
    "codings in disguise": of_codings, "lengths in disguise": of_lengths, "chunks in disguise": of_chunks,
    "bodies of upgrades": of_upgrades,
}  # fmt: skip
