"""Answers of predictors, usual, odd and broken, and the requests that they are given to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from tests.http1 import tables as t
from tests.http1.exchange import Early, End, Step

_OTHER = b"/x" + b"-" + t.NUMBER
_PREDICTIONS = b'{"predictions":[1]}'
NEXT = t.request(b'{"instances":["next"]}', t.target(b"next"))
"""What follows an odd request or answer, to show what became of the connection."""

ASKED = {
    "predict": t.request(),
    "model": t.request(b"", b"/v1/models/echo-" + t.NUMBER, method=b"GET", length=False),
    "GET": t.request(b"", _OTHER, method=b"GET", length=False),
    "HEAD": t.request(b"", _OTHER, method=b"HEAD", length=False),
    "PUT": t.request(b"abc", _OTHER, method=b"PUT"),
    "GET of 1.0": t.request(b"", _OTHER, method=b"GET", length=False, version=b"HTTP/1.0"),
}


def _answer(
    *lines: bytes,
    status: bytes = b"200 OK",
    body: bytes = _PREDICTIONS,
    length: bool = True,
    version: bytes = b"HTTP/1.1",
) -> bytes:
    fixed = [b"Date: x", b"Content-Length: %d" % len(body)] if length else [b"Date: x"]
    return b"\r\n".join([version + b" " + status, *fixed, *lines, b"", body])


_OK = _answer()
_CHUNKED = functools.partial(_answer, b"Transfer-Encoding: chunked", length=False)


def _statuses() -> Iterator[tuple[str, Step]]:
    for status in (
        b"200", b"200 ", b"200 Very Well", b"200 \xe9t\xe9", b"201 Created", b"202 A", b"204 No Content",
        b"205 Reset Content", b"206 Partial Content",
        b"299 x", b"300 x", b"301 Moved", b"304 Not Modified", b"400 Bad", b"401 x", b"404 Not Found", b"408 Late",
        b"413 Large", b"417 x", b"418 x", b"421 x",
        b"429 x", b"431 x", b"500 Error", b"501 x", b"503 x", b"505 x", b"599 x", b"600 x", b"700 x", b"999 x",
        b"099 x", b"20 x", b"2000 x", b"2x0 x", b"-1 x", b"",
    ):  # fmt: skip
        yield f"status {status.decode('latin-1')}", _answer(status=status)
        if status[:3] in (b"200", b"204", b"205", b"304", b"404"):
            yield f"status {status.decode('latin-1')} without a body", _answer(status=status, body=b"")
            yield f"status {status.decode('latin-1')} without a length", _answer(status=status, body=b"", length=False)
            yield f"status {status.decode('latin-1')} in no chunks", _CHUNKED(status=status, body=b"0\r\n\r\n")
            yield f"status {status.decode('latin-1')} in chunks", _CHUNKED(status=status, body=t.chunked(_PREDICTIONS))
    for status in (
        b"100 Continue",
        b"101 Switching Protocols",
        b"102 Processing",
        b"103 Early Hints",
        b"110 x",
        b"199 x",
    ):
        said = status.decode()
        interim = b"HTTP/1.1 " + status + b"\r\nX-Early: hint\r\n\r\n"
        yield f"{said}, then 200", interim + _OK
        yield f"{said}, later 200", (interim, 0.2, _OK)
        yield f"{said} twice, then 200", interim + interim + _OK
        yield f"{said} alone", interim
        yield f"{said} with a body, then 200", _answer(status=status) + _OK


def _fields() -> Iterator[tuple[str, Step]]:
    lines = (
        b"X-A : 1", b" X-A: 1", b"X-A:1", b"X-A:  1  ", b"X-A: a\r\n folded", b"X-A: a\r\n\tfolded", b"X-A:\r\n v",
        b"X-A: a\nX-B: b", b"X-A: a\rb", b"X-A: \0", b"X-A: \x01",
        b"X-A: caf\xe9", b"X-A: caf\xc3\xa9", b"X\xe9: a", b"X A: a", b"X-A", b": a", b"X-A: 1\r\nX-A: 2",
        b"X-A: 1\r\nx-a: 2", b"Set-Cookie: a=b\r\nSet-Cookie: c=d",
        b"X-A: " + b"v" * 8000, b"X-A: " + b"v" * 65_000, b"X-A: " + b"v" * 70_000,
        b"\r\n".join(b"X-%d: v" % place for place in range(130)),
        b"\r\n".join(b"X-%d: " % place + b"v" * 1000 for place in range(60)), b"Connection: close",
        b"Connection: keep-alive", b"Connection: X-A\r\nX-A: hop",
        b"Connection: content-length", b"Keep-Alive: timeout=1", b"Proxy-Connection: close", b"Upgrade: h2c",
        b"Upgrade: websocket\r\nConnection: Upgrade", b"Trailer: X-T",
        b"TE: trailers", b"Proxy-Authenticate: Basic", b"Server: s", b"Content-Type: text/html",
        b"Content-Type: caf\xe9", b"Location: /elsewhere", b"Location: caf\xe9",
        b"Content-Encoding: gzip", b"Content-Encoding: identity", b"Date: y", b"Retry-After: 7",
        b"Content-Length: 19", b"Content-Length: 18", b"Content-Length: 20", b"Content-Length:",
        b"Content-Length: x", b"Content-Length: 19, 19", b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    )  # fmt: skip
    for line in lines:
        said = repr(line)[2:42]
        yield f"{said} more", _answer(line)
        yield f"{said} and no length", _answer(line, length=False)
    for length in (
        b"19",
        b"+19",
        b"-1",
        b"0x13",
        b"019",
        b"19 ",
        b"1_9",
        b"9" * 20,
        b"18446744073709551615",
        b"1e1",
        b"18",
        b"20",
        b"0",
        b"4294967315",
        b"19;",
        b"\xd9\xa3",
    ):
        yield f"length {length.decode('latin-1')}", _answer(b"Content-Length: " + length, length=False)
        yield (
            f"length {length.decode('latin-1')} and closes",
            (_answer(b"Content-Length: " + length, length=False), End.CLOSE),
        )


def _framings() -> Iterator[tuple[str, Step]]:
    body, two = t.chunked(_PREDICTIONS), t.chunked(_PREDICTIONS, 5)
    for name, sent in {
        "chunks": two, "chunk with extension": body.replace(b"13\r\n", b"13;a=b\r\n", 1),
        "trailers": t.chunked(_PREDICTIONS, last=b"0\r\nX-Sum: 9\r\nX-T: v\r\n\r\n"),
        "trailer Content-Length": t.chunked(_PREDICTIONS, last=b"0\r\nContent-Length: 3\r\n\r\n"),
        "trailer Set-Cookie": t.chunked(_PREDICTIONS, last=b"0\r\nSet-Cookie: a\r\n\r\n"),
        "bad trailer": t.chunked(_PREDICTIONS, last=b"0\r\nX T: v\r\n\r\n"), "bad chunk size": b"zz\r\n" + body,
        "bad second chunk": two[:8] + b"zz\r\n", "no last chunk": body[:-5],
        "no end of the last chunk": body[:-2], "LF only": body.replace(b"\r\n", b"\n"),
        "chunk too long": body.replace(b"13\r\n", b"12\r\n", 1), "more behind": body + b"more",
        "another answer behind": body + _OK, "nothing": b"", "17 digits": b"FFFFFFFFFFFFFFFFF\r\n",
        "space behind size": body.replace(b"13\r\n", b"13 \r\n", 1),
    }.items():  # fmt: skip
        yield f"in chunks: {name}", _CHUNKED(body=sent)
        yield f"in chunks: {name}, and closes", (_CHUNKED(body=sent), End.CLOSE)
        yield f"in chunks by pieces: {name}", (_CHUNKED(body=b""), sent[:8], sent[8:])
    for name, sent in {
        "more behind": _OK + b"more", "CRLF behind": _OK + b"\r\n",
        "another answer behind": _OK + _answer(body=b'{"predictions":[2]}'),
        "a 400 behind": _OK + _answer(status=b"400 x"),
    }.items():  # fmt: skip
        yield name, sent
        yield f"{name}, and closes", (sent, End.CLOSE)
        yield f"{name}, later", (_OK, 0.2, sent[len(_OK) :])
    for version in (
        b"HTTP/1.0",
        b"HTTP/1.2",
        b"HTTP/2.0",
        b"HTTP/0.9",
        b"http/1.1",
        b"HTTP/1",
        b"ICY",
        b"HTTP/1.1 ",
        b"HTTPS/1.1",
        b" HTTP/1.1",
        b"\r\nHTTP/1.1",
    ):
        yield f"version {version.decode()}", _answer(version=version)
        yield (
            f"version {version.decode()} without length, and closes",
            (_answer(version=version, length=False), End.CLOSE),
        )
        yield f"version {version.decode()} to be kept", _answer(b"Connection: keep-alive", version=version)
    for end in t.LINE_ENDS:
        yield f"lines end in {end!r}", _OK.replace(b"\r\n", end)
        yield f"status line ends in {end!r}", _OK.replace(b"\r\n", end, 1)


# What a predictor that says no more has said enough with; of the others its connection is not used again.
_COMPLETE = frozenset(
    {"an answer", "chunks", "garbage", "a greeting", "HTTP/2", "a request", "400 and closes", "500 without length"}
)


def _ends() -> Iterator[tuple[str, Step]]:
    head = _OK[: _OK.index(b"\r\n\r\n") + 4]
    parts = {
        "nothing": b"", "a byte": b"H", "a status line": b"HTTP/1.1 200 OK\r\n", "half a head": head[:30],
        "a head": head, "half a body": _OK[:-5],
        "an answer": _OK, "a head without length": _answer(body=b"", length=False),
        "a body without length": _answer(length=False),
        "a chunk": _CHUNKED(body=b"5\r\n{\"pre\r\n"), "half a chunk": _CHUNKED(body=b"5\r\n{\"p"),
        "chunks": _CHUNKED(body=t.chunked(_PREDICTIONS)), "garbage": b"garbage\r\n\r\n",
        "a greeting": b"220 smtp ready\r\n", "HTTP/2": b"\0\0\x12\4\0\0\0\0\0",
        "a request": b"GET / HTTP/1.1\r\n\r\n", "400 and closes": _answer(b"Connection: close", status=b"400 Bad"),
        "500 without length": _answer(status=b"500 Error", length=False),
    }  # fmt: skip
    for name, part in parts.items():
        said = (part,) if part else ()
        for end in End:
            yield f"{name}, then {end.name}", (*said, end)
            yield f"{name}, later {end.name}", (*said, 0.2, end)
            yield f"{name}, early {end.name}", Early((*said, end))
        if name not in _COMPLETE:
            yield f"{name}, and waits", (*said, 6.0)
        yield f"{name}, early", Early(said)
        if len(part) > 1:
            yield f"{name}, by pieces", tuple(part[at : at + 9] for at in range(0, min(len(part), 200), 9))
    for size in (70_000, 300_000):
        large = _answer(body=b'{"predictions":["' + b"x" * size + b'"]}')
        yield f"{size} bytes", large
        yield (
            f"{size} bytes in chunks",
            _CHUNKED(body=t.chunked(b'{"predictions":["' + b"x" * size + b'"]}', 30_000, 30_000)),
        )
        yield f"{size} bytes cut", (large[:-10], End.CLOSE)
    for name, body in {
        "no JSON": b"<html>", "no list": b'{"predictions":{"0":1}}', "too many": b'{"predictions":[1,2,3]}',
        "too few": b'{"predictions":[]}', "outputs": b'{"outputs":[1]}',
        "NaN": b'{"predictions":[NaN]}', "twice": b'{"predictions":[1],"predictions":[2]}',
        "more": b'{"predictions":[1],"id":"a"}', "not UTF-8": b'{"predictions":["\xff"]}',
        "a mark": b"\xef\xbb\xbf" + _PREDICTIONS,
    }.items():  # fmt: skip
        yield f"body: {name}", _answer(body=body)


def _later() -> Iterator[tuple[str, Step]]:
    stream = _CHUNKED(b"Content-Type: text/event-stream", body=b"")
    for count in (1, 3):
        events = [step for number in range(count) for step in (b"8\r\ndata: %d\n\r\n" % number, 0.4)]
        yield f"{count} events", (stream, *events, b"0\r\n\r\n")
        yield f"{count} events, and closes", (stream, *events, End.CLOSE)
        yield f"{count} events, and resets", (stream, *events, End.RESET)
        yield f"{count} events without end", (stream, *events, 20.0)
    yield "an answer after 2 s", (2.0, _OK)
    yield "an answer after 6 s", (6.0, _OK)


def _made(asked: str) -> Iterator[tuple[str, tuple[Step, ...], tuple[Step, ...]]]:
    request = ASKED[asked]
    tables = {
        "GET": (_statuses, _framings, _ends, _later), "HEAD": (_statuses, _framings), "PUT": (_ends, _later),
        "GET of 1.0": (_ends,),
    }  # fmt: skip
    for table in tables.get(asked, (_statuses, _fields, _framings, _ends, _later)):
        for name, given in table():
            answer = given if isinstance(given, tuple) else (given,)
            yield name, (request, NEXT), answer


GROUPS: dict[str, Callable[[], Iterator[tuple[str, tuple[Step, ...], tuple[Step, ...]]]]] = {
    asked: functools.partial(_made, asked) for asked in ASKED
}
