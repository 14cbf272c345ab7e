"""The streams: what clients send, good, odd and hostile, made of tables.

Each group is a function that yields names and streams. A new entry of a table makes new streams and changes no others.
"""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator

from tests.http1 import disguises, odd_answers
from tests.http1 import tables as t
from tests.http1.exchange import End, Step, Stream

Made = Iterator[tuple[str, tuple[Step, ...]] | tuple[str, tuple[Step, ...], tuple[Step, ...]]]

_ECHO = t.target(b"echo")
_OTHER = b"/x" + b"-" + t.NUMBER
_BODY = b'{"instances":[1]}'
_CHUNKS = t.chunked(_BODY, 5)
PREDICT = t.request(_BODY)
"""A plain predict request."""
GET = t.request(b"", _OTHER, method=b"GET", length=False)
PUT = t.request(b"abc", _OTHER, method=b"PUT")
MODEL = t.request(b"", b"/v1/models/echo-" + t.NUMBER, method=b"GET", length=False)
NEXT = odd_answers.NEXT


def _gzip(data: bytes) -> bytes:
    """gzip without compression, whose bytes are the same with all versions of Python and zlib."""
    size = struct.pack("<H", len(data)) + struct.pack("<H", len(data) ^ 0xFFFF)
    trailer = struct.pack("<II", zlib.crc32(data), len(data))
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff\x01" + size + data + trailer


KINDS = {
    "predict": PREDICT,
    "model": MODEL,
    "GET": GET,
    "PUT": PUT,
    "HEAD": t.request(b"", _OTHER, method=b"HEAD", length=False),
    "chunked predict": t.request(_CHUNKS, _ECHO, b"Transfer-Encoding: chunked", length=False),
    "chunked PUT": t.request(
        t.chunked(b"hello", 2), _OTHER, b"Transfer-Encoding: chunked", method=b"PUT", length=False
    ),
    "no JSON": t.request(b'{"instances":[1}'),
    "columns": t.request(t.COLUMNS[0]),
    "gzip": t.request(_gzip(_BODY), _ECHO, b"Content-Encoding: gzip"),
    "last": t.request(_BODY, _ECHO, b"Connection: close"),
    "1.0": t.request(_BODY, _ECHO, version=b"HTTP/1.0"),
    "1.0 to be kept": t.request(_BODY, _ECHO, b"Connection: keep-alive", version=b"HTTP/1.0"),
    "probe": t.request(b"", b"/", b"K-Network-Probe: queue", method=b"GET", length=False),
    "refused upgrade": t.request(b"", _OTHER, b"Connection: Upgrade", b"Upgrade: tcp", method=b"GET", length=False),
}
MALFORMED = (
    b"\0\0\0\0", b"garbage\r\n\r\n", b"GET\r\n\r\n", b"\r\n\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST", b"\xff" * 50,
    b"A" * 70_000, b" ", b"\r", b"\n", b"}", b"0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", GET.replace(b"Host: h\r\n",
    b""),
    GET.replace(b"Host: h", b"Host: h\r\nHost: i"), t.request(b"", _OTHER, b"Content-Length: x", length=False),
    t.request(b"", _OTHER, *(b"X-%d: v" % number for number in range(200))),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)  # fmt: skip
_ASKED = {
    "predict": (b"POST " + _ECHO, _BODY),
    "PUT": (b"PUT " + _OTHER, b"abc"),
    "GET": (b"GET " + _OTHER, b""),
}


def _asks(*lines: bytes, start: bytes, body: bytes, version: bytes = b"HTTP/1.1", without: bytes = b"-") -> bytes:
    """A request with these lines more, and without the usual line of a name."""
    usual = [b"Host: h", b"Accept: */*", *([b"Content-Length: %d" % len(body)] if body else [])]
    kept = [line for line in usual if not line.lower().startswith(without.lower().strip() + b":")]
    return b"\r\n".join([start + b" " + version, *kept, *lines, b"", body])


def _said(*parts: bytes, most: int = 48) -> str:
    """A short name for bytes."""
    text = repr(b": ".join(parts))[2:-1]
    return text if len(text) <= most else f"{text[: most - 12]}… of {sum(map(len, parts))}"


# --- heads ------------------------------------------------------------------------------------------------------


def _fields() -> Made:
    for asked, (name, value) in itertools.product(("predict", "PUT"), t.KNOWN):
        start, body = _ASKED[asked]
        line = name + b": " + value
        yield f"{asked}, {_said(line)}", (_asks(line, start=start, body=body), NEXT)
        if asked == "predict":
            yield f"{asked}, only {_said(line)}", (_asks(line, start=start, body=body, without=name), NEXT)
            yield f"{asked}, twice {_said(line)}", (_asks(line, line, start=start, body=body), NEXT)


def _names_and_values() -> Made:
    for asked, (start, body) in _ASKED.items():
        for name in t.NAMES:
            yield f"{asked}, name {_said(name)}", (_asks(name + b": v", start=start, body=body), NEXT)
        for value in t.VALUES:
            yield f"{asked}, value {_said(value)}", (_asks(b"X-A: " + value, start=start, body=body), NEXT)
            yield f"{asked}, id {_said(value)}", (_asks(b"X-Request-ID: " + value, start=start, body=body), NEXT)


def _spellings() -> Made:
    lines = (b"Host: h", b"Content-Length: %d", b"Transfer-Encoding: chunked", b"Accept: a", b"Connection: close")
    for (asked, (start, body)), line in itertools.product(_ASKED.items(), lines):
        name, value = (line % len(body) if b"%d" in line else line).split(b": ")
        sent = t.chunked(body) if b"chunked" in value else body
        without = b"content-length" if b"chunked" in value else name
        for place, spell in enumerate(t.SPELLINGS):
            request = _asks(spell(name, value), start=start, body=b"", without=without) + sent
            yield f"{asked}, {name.decode()} {place}", (request, NEXT)


def _line_ends() -> Made:
    for (asked, (start, body)), end in itertools.product(_ASKED.items(), t.LINE_ENDS):
        lines = [start + b" HTTP/1.1", b"Host: h", b"Content-Length: %d" % len(body), b""]
        for place in range(len(lines)):
            ends = [end if place == at else b"\r\n" for at in range(len(lines))]
            head = b"".join(line + each for line, each in zip(lines, ends, strict=True))
            yield f"{asked}, {_said(end)} behind {place}", (head + body, NEXT)
        yield f"{asked}, {_said(end)} behind all", (end.join([*lines, body]), NEXT)
        yield f"{asked}, {_said(end)} before", (end + b"\r\n".join([*lines, body]), NEXT)


def _targets() -> Made:
    for (asked, (start, body)), target in itertools.product(_ASKED.items(), t.ODD_TARGETS):
        method = start.split(b" ")[0]
        yield f"{asked}, {_said(target)}", (_asks(start=method + b" " + target, body=body), NEXT)


def _methods() -> Made:
    for method, target in itertools.product([*t.METHODS, b"TRACE", b"REPORT"], (_ECHO, _OTHER)):
        start, kind = method + b" " + target, "predict" if target is _ECHO else "other"
        yield f"{_said(method)} {kind}", (_asks(start=start, body=b""), NEXT)
        yield f"{_said(method)} {kind} with a body", (_asks(start=start, body=_BODY), NEXT)
        chunked = _asks(b"Transfer-Encoding: chunked", start=start, body=b"") + _CHUNKS
        yield f"{_said(method)} {kind} in chunks", (chunked, NEXT)


def _versions() -> Made:
    connections = ((), (b"Connection: keep-alive",), (b"Connection: close",))
    for (asked, (start, body)), version, lines in itertools.product(_ASKED.items(), t.VERSIONS[1:], connections):
        name = f"{asked}, {_said(version)} {_said(*lines)}"
        yield name, (_asks(*lines, start=start, body=body, version=version), NEXT)
    for asked, (start, body) in _ASKED.items():
        for line in (
            b"Transfer-Encoding: chunked",
            b"Expect: 100-continue",
            b"Upgrade: x\r\nConnection: upgrade",
            b"TE: trailers",
        ):
            request = _asks(line, start=start, body=body, version=b"HTTP/1.0")
            yield f"{asked}, 1.0 with {_said(line)}", (request, NEXT)
        yield f"{asked}, 1.0 without Host", (_asks(start=start, body=body, version=b"HTTP/1.0", without=b"host"), NEXT)
        yield f"{asked}, no version", (start + b"\r\n\r\n", NEXT)
        yield f"{asked}, 1.0 half-closed", (_asks(start=start, body=body, version=b"HTTP/1.0"), End.HALF)


def _sizes() -> Made:
    for asked, (start, body) in _ASKED.items():
        for size in (1000, 8000, 16_000, 16_384, 30_000, 65_000, 65_536, 65_537, 70_000, 200_000, 262_144, 300_000):
            yield f"{asked}, a line of {size}", (_asks(b"X: " + b"v" * size, start=start, body=body), NEXT)
            lines = [b"X-%d: " % place + b"v" * 990 for place in range(size // 1000)]
            yield f"{asked}, {size} in lines", (_asks(*lines, start=start, body=body), NEXT)
            slow = _asks(b"X: " + b"v" * size, start=start, body=body)
            yield f"{asked}, a line of {size} in two", (slow[:900], slow[900:], NEXT)
        for count in (60, 100, 123, 124, 125, 126, 127, 128, 129, 200, 1000, 5000):
            lines = [b"X-%d: v" % place for place in range(count)]
            yield f"{asked}, {count} lines", (_asks(*lines, start=start, body=body), NEXT)


# --- bodies -----------------------------------------------------------------------------------------------------


def _lengths() -> Made:
    for (asked, (start, body)), length in itertools.product(_ASKED.items(), t.LENGTHS):
        line = b"Content-Length: " + length
        yield f"{asked}, {_said(length)}", (_asks(line, start=start, body=body, without=b"content-length"), NEXT)
        both = _asks(line, b"Transfer-Encoding: chunked", start=start, body=b"") + t.chunked(body)
        yield f"{asked}, {_said(length)} and chunks", (both, NEXT)
        if body:
            yield f"{asked}, {_said(length)} once more", (_asks(line, start=start, body=body), NEXT)
    for size in (399_999, 400_000, 400_001, 500_000, 3_000_000):
        for name, head in (("predict", PREDICT), ("PUT", PUT)):
            head = head.split(b"\r\n\r\n")[0].replace(b": %d" % (17 if name == "predict" else 3), b": %d" % size)
            yield f"{name}, {size} declared", (head + b"\r\n\r\n", 3.0)
            yield f"{name}, {size} declared, some sent", (head + b"\r\n\r\n" + b" " * 1000, 3.0)
    for size in (70_000, 399_000, 400_000, 400_001, 450_000):
        body = b'{"instances":["' + b"x" * (size - 18) + b'"]}'
        yield f"{size} sent", (t.request(body), NEXT)
        yield (
            f"{size} sent in chunks",
            (t.request(t.chunked(body, *[40_000] * 9), _ECHO, b"Transfer-Encoding: chunked", length=False), NEXT),
        )


def _json() -> Made:
    bodies = [*t.INVALID, *t.COLUMNS]
    bodies += [b'{"instances":[%b]}' % row for row in t.ROWS] + [b'{%b,"inputs":[1]}' % other for other in t.OTHERS]
    for place, body in enumerate(bodies):
        name = f"{place} {_said(body)}"
        yield name, (t.request(body), NEXT)
        head, body = t.request(body).split(b"\r\n\r\n", 1)
        yield f"{name}, later", (head + b"\r\n\r\n", body, NEXT)


def _codings() -> Made:
    codings = (
        b"gzip",
        b"GZip",
        b"x-gzip",
        b"deflate",
        b"br",
        b"identity",
        b"",
        b"gzip, gzip",
        b"zstd",
        b"gzip,",
        b"gzip;q=1",
    )
    zipped = _gzip(_BODY)
    bodies = {
        "zipped": zipped,
        "plain": _BODY,
        "cut": zipped[:-3],
        "more": zipped + b"x",
        "empty": b"",
        "twice": _gzip(zipped),
    }
    for coding, (name, body), (asked, (start, _)) in itertools.product(codings, bodies.items(), _ASKED.items()):
        if asked != "GET":
            request = _asks(b"Content-Encoding: " + coding, start=start, body=body)
            yield f"{asked}, {_said(coding)}, {name}", (request, NEXT)


def _transfer_codings() -> Made:
    codings = [value for name, value in t.KNOWN if name == b"Transfer-Encoding"]
    codings += [
        b"chunked ",
        b"chunked, identity",
        b"chunked\0",
        b"'chunked'",
        b"chunked;",
        b",chunked",
        b"chunk\r\n ed",
        b"\r\n chunked",
        b"chunked\xff",
        b"CHUNKED",
    ]
    for (asked, (start, body)), coding in itertools.product(_ASKED.items(), codings):
        line, chunks = b"Transfer-Encoding: " + coding, t.chunked(body)
        length = b"Content-Length: %d" % len(chunks)
        for name, lines in {
            "": (line,), ", length": (line, length), "length, ": (length, line), ", twice": (line, line),
            ", short length": (line, b"Content-Length: 4"), ", chunked": (line, b"Transfer-Encoding: chunked"),
        }.items():  # fmt: skip
            yield f"{asked}, {_said(coding)} {name}", (_asks(*lines, start=start, body=b"") + chunks, NEXT)


_SIZES = {
    "extension": b"11;a=b\r\n", "extension without value": b"11;a\r\n", "quoted extension": b'11;a="b;\\"c"\r\n',
    "quoted CR": b'11;a="\r"\r\n', "quoted LF": b'11;a="\n"\r\n', "bare semicolon": b"11;\r\n",
    "extension, LF": b"11;a\n",
    "extension of 20 kB": b"11;a=" + b"v" * 20_000 + b"\r\n", "space before extension": b"11 ;a=b\r\n",
    "space behind": b"11 \r\n", "tab behind": b"11\t\r\n", "space before": b" 11\r\n", "zeros": b"00000000011\r\n",
    "many zeros": b"0" * 40 + b"11\r\n", "0x": b"0x11\r\n", "sign": b"+11\r\n", "minus": b"-11\r\n",
    "no size": b"\r\n",
    "17 digits": b"FFFFFFFFFFFFFFFFF\r\n", "16 digits": b"FFFFFFFFFFFFFFFF\r\n", "letters": b"zz\r\n",
    "underscore": b"1_1\r\n",
    "LF": b"11\n", "CR": b"11\r", "CR CR LF": b"11\r\r\n", "too short": b"12\r\n", "too long": b"f\r\n",
}  # fmt: skip
_TRAILERS = {
    "none": b"", "one": b"X-T: v\r\n", "two": b"X-T: v\r\nX-U: w\r\n", "Content-Length": b"Content-Length: 5\r\n",
    "Host": b"Host: other\r\n", "Transfer-Encoding": b"Transfer-Encoding: gzip\r\n",
    "Authorization": b"Authorization: x\r\n",
    "X-Request-ID": b"X-Request-ID: late\r\n", "Connection": b"Connection: close\r\n", "malformed": b"X T: v\r\n",
    "no colon": b"XT\r\n", "folded": b"X-T: v\r\n w\r\n", "70 kB": b"X-T: " + b"v" * 70_000 + b"\r\n",
    "200": b"".join(b"X-%d: v\r\n" % place for place in range(200)),
}  # fmt: skip
_CHUNKINGS = {
    "usual": _CHUNKS, "one": t.chunked(_BODY), "by bytes": t.chunked(_BODY, *[1] * 30), "empty": b"0\r\n\r\n",
    **{f"size, {name}": size + _BODY + b"\r\n0\r\n\r\n" for name, size in _SIZES.items()},
    **{f"trailers, {name}": t.chunked(_BODY, last=b"0\r\n" + lines + b"\r\n") for name, lines in _TRAILERS.items()},
    "LF only": t.chunked(_BODY).replace(b"\r\n", b"\n"), "CR only": t.chunked(_BODY).replace(b"\r\n", b"\r"),
    "LF behind data": b"11\r\n" + _BODY + b"\n0\r\n\r\n", "LF behind the last": t.chunked(_BODY, last=b"0\n\r\n"),
    "LF at the end": t.chunked(_BODY, last=b"0\r\n\n"), "more than its size": b"11\r\n" + _BODY + b"xx0\r\n\r\n",
    "no end of data": b"11\r\n" + _BODY + b"0\r\n\r\n", "no last": t.chunked(_BODY, last=b""),
    "half": b"11\r\n" + _BODY[:5],
    "last without end": t.chunked(_BODY, last=b"0\r\n"), "last with extension": t.chunked(_BODY,
    last=b"0;a=b\r\n\r\n"),
    "a request behind": _CHUNKS + t.request(b'{"instances":["behind"]}'),
}  # fmt: skip


def _chunkings() -> Made:
    for asked, start in (("predict", b"POST " + _ECHO), ("PUT", b"PUT " + _OTHER), ("GET", b"GET " + _OTHER)):
        head = _asks(b"Transfer-Encoding: chunked", start=start, body=b"")
        for name, body in _CHUNKINGS.items():
            yield f"{asked}, {name}", (head + body, NEXT)
            if asked != "GET":
                yield f"{asked}, {name}, later", (head, body, NEXT)
                yield f"{asked}, {name}, in two", (head + body[: len(body) // 2], body[len(body) // 2 :], NEXT)
                yield f"{asked}, {name}, half-closed", (head + body, End.HALF)


def _expectations() -> Made:
    lines = (
        b"100-continue",
        b"100-Continue",
        b"100-continue, x",
        b"200-ok",
        b"",
        b"100-continue\r\nExpect: 100-continue",
    )
    for (asked, (start, body)), value, version in itertools.product(_ASKED.items(), lines, (b"HTTP/1.1", b"HTTP/1.0")):
        name = f"{asked}, {_said(value)}, {version.decode()}"
        request = _asks(b"Expect: " + value, start=start, body=body, version=version)
        head = request[: len(request) - len(body)]
        yield f"{name}, at once", (request, NEXT)
        if body:
            yield f"{name}, later", (head, body, NEXT)
            yield f"{name}, never", (head, 6.0)
            yield f"{name}, another request", (head, NEXT)
            chunked = _asks(b"Transfer-Encoding: chunked", b"Expect: " + value, start=start, body=b"", version=version)
            yield f"{name}, chunks later", (chunked, t.chunked(body), NEXT)
    large = PREDICT.replace(b"Content-Length: 17", b"Expect: 100-continue\r\nContent-Length: 500000").replace(
        _BODY, b""
    )
    yield "too large", (large, NEXT)
    yield "too large for a coding that is unknown", (large.replace(b"Expect", b"Content-Encoding: br\r\nExpect"), NEXT)


# --- connections ------------------------------------------------------------------------------------------------


def _pipelines() -> Made:
    for (first, one), (second, two) in itertools.product(KINDS.items(), KINDS.items()):
        yield f"{first}, {second}", (one + two + NEXT,)
        yield f"{first}, {second} cut", (one + two[:20], two[20:] + NEXT)
    for (kind, good), (place, bad) in itertools.product(KINDS.items(), enumerate(MALFORMED)):
        yield f"{kind}, then {place} {_said(bad)}", (good + bad, NEXT)
    for place, bad in enumerate(MALFORMED):
        yield f"{place} {_said(bad)}", (bad, NEXT)
        yield (
            f"{place} {_said(bad)} by bytes",
            (*(bad[at : at + 1] for at in range(6) if bad[at:]), bad[6:] or NEXT, NEXT),
        )
    for count in (33, 64, 65, 150):
        parts = [t.request(b'{"instances":[%d]}' % number) for number in range(count)]
        yield f"{count} predicts", (b"".join(parts),)
        yield f"{count} GETs", (GET * count,)
        yield f"{count} GETs, garbage", (GET * count + b"garbage\r\n\r\n",)


def _cuts() -> Made:
    for kind, request in KINDS.items():
        whole = request + NEXT
        for at in range(1, len(request) + 4, 5):
            yield f"{kind}, {at}", (whole[:at], whole[at:])
        yield f"{kind}, by sevens", tuple(whole[at : at + 7] for at in range(0, len(whole), 7))


def _ends() -> Made:
    slow = (0.5, b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n" + b'{"predictions":[1]}')
    for (kind, request), end in itertools.product(KINDS.items(), End):
        body = request.find(b"\r\n\r\n") + 4
        for name, part in {
            "nothing": b"", "a byte": request[:1], "a part of the head": request[:30], "the head": request[:body],
            "a part of the body": request[: body + 2], "all": request, "all and some": request + NEXT[:20],
            "all and another": request + NEXT,
        }.items():  # fmt: skip
            if part or name == "nothing":
                yield f"{kind}, {end.name} behind {name}", (*([part] if part else []), end, 1.0)
        yield f"{kind}, {end.name} while it waits", (request, 0.2, end, 1.0), slow


def _slow() -> Made:
    for kind, request in KINDS.items():
        body = request.find(b"\r\n\r\n") + 4
        stops = {
            "head": 40,
            "line": request.find(b"\r\n") + 2,
            "end of the head": body - 2,
            "body": body,
            "end": len(request) - 1,
        }
        for name, at in stops.items():
            if at < len(request):
                yield f"{kind}, stops in {name}", (request[:at],)
                yield f"{kind}, stops in {name}, behind another", (PREDICT + request[:at],)
                yield f"{kind}, goes on in {name}", (request[:at], 3.5, request[at:] + NEXT)
        yield f"{kind}, idle", (request,)
        yield f"{kind}, empty lines", (b"\r\n" + request + b"\r\n\r\n", 2.0, b"\r\n" + NEXT)


_UPGRADES = (
    b"websocket",
    b"WebSocket",
    b"tcp",
    b"h2c",
    b"h2c, tcp",
    b"tcp, h2c",
    b"",
    b"HTTP/2.0",
    b"TLS/1.0, HTTP/1.1",
)
_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "


def _upgrades() -> Made:
    hidden, framed = t.request(b"", b"/hidden-" + t.NUMBER, method=b"GET", length=False), b"\x81\x05hello"
    for (asked, (start, body)), protocol in itertools.product(_ASKED.items(), _UPGRADES):
        switch: tuple[Step, ...] = (_SWITCH + protocol + b"\r\n\r\n",)
        for connection in (b"Upgrade", b"keep-alive, upgrade", b"close, Upgrade", b"keep-alive"):
            request = _asks(b"Connection: " + connection, b"Upgrade: " + protocol, start=start, body=body)
            name = f"{asked}, {_said(protocol)}, {connection.decode()}"
            yield f"{name}, declined", (request, NEXT)
            yield f"{name}, declined, at once", (request + hidden, NEXT)
            if connection == b"Upgrade":
                yield f"{name}, accepted", (request, framed, b"more", End.HALF, 1.0), switch
                yield f"{name}, accepted, at once", (request + framed, b"more", End.CLOSE), switch
                yield (
                    f"{name}, accepted with bytes",
                    (request, b"more", End.CLOSE),
                    (switch[0] + b"first", 0.2, b"second"),
                )
                yield f"{name}, accepted and ended", (request, b"more", 1.0), (*switch, 0.2, End.CLOSE)
        chunked = _asks(
            b"Transfer-Encoding: chunked", b"Connection: Upgrade", b"Upgrade: " + protocol, start=start, body=b""
        )
        yield f"{asked}, {_said(protocol)}, chunks, declined", (chunked + _CHUNKS + hidden, NEXT)
        yield f"{asked}, {_said(protocol)}, chunks, accepted", (chunked + _CHUNKS, framed, End.CLOSE), switch
    for name, target in (("authority", b"a:1"), ("path", _OTHER), ("URL", b"http://a" + _OTHER)):
        yield f"CONNECT, {name}", (_asks(start=b"CONNECT " + target, body=b""), hidden)
        yield f"CONNECT, {name}, at once", (_asks(start=b"CONNECT " + target, body=b"") + hidden,)


# --- attacks ----------------------------------------------------------------------------------------------------


def _smuggling() -> Made:
    """Where does a body end, if Content-Length, Transfer-Encoding or several of them disagree?"""
    inside = t.request(b'{"instances":["smuggled"]}', b"/smuggled-" + t.NUMBER + b":predict")
    bodies = {
        "last chunk, request": b"0\r\n\r\n" + inside, "chunks, request": t.chunked(_BODY) + inside, "request": inside,
        "half a chunk": b"5\r\nabc",
        "chunk of the request": t.chunked(inside), "last chunk": b"0\r\n", "JSON": _BODY,
        "JSON, request": _BODY + inside,
    }  # fmt: skip
    codings = (
        b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding:\tchunked",
        b"Transfer-Encoding: xchunked", b"Transfer_Encoding: chunked", b"X: y\r\n Transfer-Encoding: chunked",
        b"X: y\nTransfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked", b"Transfer-Encoding\0: chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
        b"\x0bTransfer-Encoding: chunked", b"Transfer-Encoding: \x00chunked", b"Transfer-Encoding:\r\n chunked",
        b"Transfer-Encoding: cow", b"Transfer-Encoding: chunked, identity", b"TRANSFER-ENCODING: CHUNKED",
    )  # fmt: skip
    for (name, body), coding in itertools.product(bodies.items(), codings):
        for length in sorted({len(body), len(body) - len(inside), 4, 0} - set(range(-999, 0))):
            request = t.request(b"", _ECHO, b"Content-Length: %d" % length, coding, length=False) + body
            at = "" if length == len(body) else f" {length}" if length <= 4 else " shorter"
            yield f"{name}, {_said(coding)}{at}", (request, NEXT)
    lines = [
        (b"Content-Length: 4", b"Content-Length: %d"),
        (b"Content-Length: %d", b"Content-Length: %d"),
        (b"Content-Length: %d, %d",),
        (),
    ]
    for (name, body), each in itertools.product(bodies.items(), lines):
        filled = [line % ((len(body),) * line.count(b"%d")) for line in each]
        yield f"{name}, lengths {_said(*each)}", (t.request(b"", _ECHO, *filled, length=False) + body, NEXT)


def _nonsense() -> Made:
    words = (
        GET,
        PREDICT,
        b"\r\n",
        b"\0",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"FFFFFFFFF\r\n",
        b" ",
        NEXT[:40],
        b"HTTP/1.1",
        b":",
        b"\n",
    )
    for seed in range(150):
        chance = random.Random(seed)
        pieces = [
            chance.choice(words) + chance.randbytes(chance.choice((0, 0, 1, 40))) for _ in range(chance.randint(1, 8))
        ]
        yield f"{seed}", tuple(pieces)


def _strict_framing() -> Made:
    from tests.app import test_strict_framing as table

    for place, (sent, status, _) in enumerate(table.REFUSED):
        yield f"{place} refused {status} by Go", (sent.replace(b"/v1/models/m:", _ECHO.removesuffix(b"predict")), NEXT)
    for place, sent in enumerate(table.TAKEN):
        yield f"{place} taken by Go", (sent.replace(b"/v1/models/m:", _ECHO.removesuffix(b"predict")), NEXT)


GROUPS: dict[str, Callable[[], Iterable[tuple]]] = {
    "fields": _fields, "names and values": _names_and_values, "spellings": _spellings, "line ends": _line_ends,
    "targets": _targets,
    "methods": _methods, "versions": _versions, "sizes of heads": _sizes, "lengths": _lengths, "JSON": _json,
    "codings": _codings,
    "transfer codings": _transfer_codings, "chunkings": _chunkings, "expectations": _expectations,
    "pipelines": _pipelines, "cuts": _cuts,
    "ends": _ends, "slow": _slow, "upgrades": _upgrades, "smuggling": _smuggling, "nonsense": _nonsense,
    "strict framing": _strict_framing, **disguises.GROUPS,
    **{f"answers to {asked}": made for asked, made in odd_answers.GROUPS.items()},
}  # fmt: skip


def streams(group: str) -> list[Stream]:
    """All streams of a group; names that come again are numbered."""
    found: dict[str, Stream] = {}
    for name, *rest in GROUPS[group]():
        count = 1
        unique = name
        while unique in found:
            count += 1
            unique = f"{name} ({count})"
        found[unique] = Stream(group, unique, *rest)
    return list(found.values())
