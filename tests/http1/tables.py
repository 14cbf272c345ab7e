"""Pieces of HTTP/1.1 as people, proxies and attackers write them, and the requests made of them.

`NUMBER` stands for the number of a stream, so that what reaches the predictor can be told apart.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable

NUMBER = b"@@@@@@"
"""What fills the place of a stream's number while it is made."""

_TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_ID = b"-" + NUMBER
Field = tuple[bytes, bytes]


def target(model: bytes) -> bytes:
    """The plain target of a predict request to a model, that is to a behaviour of the predictor."""
    return b"/v1/models/" + model + _ID + b":predict"


_ECHO = target(b"echo")
METHODS = [
    b"GET", b"HEAD", b"PUT", b"OPTIONS", b"PATCH", b"DELETE", b"post", b"Post", b"CONNECT", b"PRI", b"BREW",
    b"M-SEARCH",
    b"POS", b"POSTS", b"", b"P\0ST", b"\x16\x03\x01",
]  # fmt: skip
VERSIONS = [
    b"HTTP/1.0", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.2", b"HTTP/0.9", b"http/1.1", b"HTTP/1", b"HTTP/11",
    b"", b"HTTP/1.1 ", b"HTTPS/1.1", b"RTSP/1.1", b"HTTP/1.1\t", b"HTTP/01.1", b"ICE/1.0",
]  # fmt: skip
ODD_TARGETS = [
    _ECHO[:-8] + b"%3Apredict", _ECHO[:-8] + b"%3apredict", _ECHO[:-8] + b"%3A%70redict", _ECHO + b"?", _ECHO + b"?a=b",
    _ECHO + b"?x=:predict", b"/other" + _ID + b"?x=:predict", _ECHO + b"#frag", b"/a" + _ID + b"#:predict",
    _ECHO + b"?a#b", b"http://host" + _ECHO, b"HTTP://host:80" + _ECHO + b"?q", b"http://host?x" + _ID + b":predict",
    b"http://" + _ECHO, b"ftp://h" + _ECHO, b"http://h", b"//host" + _ECHO, b"x" + _ECHO, b"*", b"h:80", _ECHO[1:],
    _ECHO + b" ", _ECHO[:-1] + b" t", b"\t" + _ECHO, _ECHO + b"\t", b"/\xc3\xa9" + _ECHO, b"/\xff" + _ECHO,
    b"/\x01" + _ECHO, b"/\0" + _ECHO, b"/\x7f" + _ECHO, _ECHO + b"/", _ECHO + b"s", _ECHO.upper(), b"/" + _ECHO,
    b"/./.." + _ECHO, b"/%2e%2e" + _ECHO, b"/%" + _ECHO, b"/%zz" + _ECHO, b"/%00" + _ECHO, b"/a b" + _ECHO,
    b'/"<>\\^`{|}' + _ECHO, b"/" + b"p" * 5000 + _ECHO, b"/" + b"p" * 70_000 + _ECHO, b":predict", b"/:predict", b"",
    _ECHO + b"?" + b"q" * 66_000, b"/v1/models/m" + _ID, b"/v1/models/m" + _ID + b":explain", b"/", b"?:predict",
    b"/v2/models/m" + _ID + b"/infer", _ECHO + b";x", _ECHO + b"%20", b"http://[::1]" + _ECHO, b"http://[" + _ECHO,
    b"http://user@host" + _ECHO, b"http://h:x" + _ECHO, b"://" + _ECHO, b"/a://b" + _ECHO, b"a://b" + _ECHO,
]  # fmt: skip
# Fields that some part of the sidecar looks at, with values it may like or not.
KNOWN: list[Field] = [
        *[(b"Content-Type", value) for value in (
            b"application/json", b"application/json; charset=utf-8", b"APPLICATION/JSON", b"text/plain", b"",
            b"application/x-www-form-urlencoded", b"application/octet-stream", b"application/cloudevents+json",
            b"application/vnd.x+json", b"multipart/form-data; boundary=x", b"application/json\xff", b"text/json;",
            b"\xc3\xa9", b"application/json, text/plain", b";", b" ", b"text/html", b"text/csv", b"text/event-stream",
            b"image/png", b"application/x-ndjson",
        )],
        *[(b"Authorization", value) for value in (b"Bearer a", b"Bearer b", b"", b"caf\xc3\xa9", b"\xff\xfe", b"a\tb")],
        *[(b"X-Request-ID", value) for value in (b"id-1", b"", b"a, b", b"\xc3\xa9", b"\xff", b"r" * 300, b"r" * 9000)],
        *[(b"traceparent", value) for value in (_TRACE, b"", b"00-0-0-00", _TRACE + b"-x", b"\xff", _TRACE.upper())],
        *[(b"tracestate", value) for value in (b"a=b", b"", b"s" * 513, b"\xff")],
        *[(b"carpool-timeout-ms", value) for value in (
            b"500", b"1", b"86400000", b"86400001", b"0", b"-1", b"1.5", b"", b"soon", b"\xd9\xa3", b"0500", b"+5",
            b"9" * 30, b" 7", b"1_0", b"\xff",
        )],
        *[(b"K-Network-Probe", value) for value in (b"queue", b"probe", b"", b"x", b"Queue", b"\xff")],
        *[(b"K-Network-Hash", value) for value in (b"h", b"", b"\xff")],
        *[(b"User-Agent", value) for value in (
            b"kube-probe/1.30", b"Knative-Activator-Probe", b"curl/8", b"", b"\xff",
        )],
        *[(b"ce-id", value) for value in (b"1", b"")],
        *[(b"Expect", value) for value in (b"100-continue", b"100-Continue", b"200-ok", b"", b"100-continue, x")],
        *[(b"Connection", value) for value in (
            b"close", b"Close", b"keep-alive", b"Keep-Alive", b"keep-alive, close", b"close, keep-alive", b"upgrade",
            b"Upgrade, keep-alive", b"te", b"x-hop", b"", b",", b"close,", b"content-length",
            b"authorization", b"clo se",
        )],
        *[(b"Upgrade", value) for value in (b"websocket", b"h2c", b"", b"tcp", b"WebSocket", b"x, h2c", b"\xff")],
        *[(b"Keep-Alive", value) for value in (b"timeout=5", b"")],
        *[(b"Host", value) for value in (b"other", b"", b"h:80", b"\xff", b"a b", b"[::1]", b"h" * 300)],
        *[(b"Transfer-Encoding", value) for value in (
            b"chunked", b"Chunked", b"identity", b"gzip", b"gzip, chunked", b"chunked, gzip", b"chunked, chunked", b"",
            b"xchunked", b"chunked\x0b", b"\x0bchunked", b" chunked", b'"chunked"', b"chunked;x=y", b", chunked",
        )],
        *[(b"Content-Encoding", value) for value in (b"identity", b"", b"gzip", b"br", b"identity, identity", b"\xff")],
        *[(b"Sec-WebSocket-Key1", value) for value in (b"x", b"")],
        *[(name, b"v") for name in (
            b"Accept", b"Cookie", b"Forwarded", b"X-Forwarded-For", b"TE", b"Trailer", b"Proxy-Connection", b"Server",
            b"ETag", b"Max-Forwards", b"Content-Length ", b"HTTP2-Settings", b"Date", b"Content-Range", b"X-Hop",
        )],
    ]  # fmt: skip
NAMES = (
    b"X-A", b"x_b", b"X", b"", b"X A", b"X\tA", b"X\xc3\xa9", b"X\xff", b"X\0", b"X(", b"1", b"X:", b"X" * 300,
    b"X" * 66_000, b"!#$%&'*+-.^_`|~", b"Content\xadLength", b"\x0bX", b'"X"', b"X/Y", b"@",
)  # fmt: skip
VALUES = (
    b"", b"v", b"v" * 9000, b"v" * 66_000, b"caf\xc3\xa9", b"\xff", b"a\0b", b"a\x01b", b"a\x7fb", b"a\tb", b"  v  ",
    b"\tv\t", b"a\rb", b"a\nb", b"a\r\n folded", b"a\r\n\tfolded", b"a\r\n ", b"\r\n v", b"a:b", b"a\x0bb", b"\x80",
    b'"q"', b",", b"v\r", b"\rv", b"a\n b",
)  # fmt: skip
LENGTHS = [
    b"0", b"00012", b"+5", b"-1", b"5,5", b"5, 5", b"5 5", b"0x5", b"5.0", b"", b"9" * 20, b"9" * 19,
    b"18446744073709551615", b"18446744073709551616", b"4294967296", b"400001", b"1e1", b"\xd9\xa3", b"5\0",
    b"5;", b"abc",
    b"3", b"1000", b"1_0",
]  # fmt: skip
SPELLINGS: list[Callable[[bytes, bytes], bytes]] = [
    lambda name, value: name + b": " + value,
    lambda name, value: name.lower() + b":" + value,
    lambda name, value: name.upper() + b":" + value + b" \t",
    lambda name, value: name.swapcase() + b":\t \t" + value + b"  ",
    lambda name, value: name.title() + b":\r\n " + value,
    lambda name, value: name + b" : " + value,
    lambda name, value: name + b"\t:" + value,
    lambda name, value: b" " + name + b": " + value,
    lambda name, value: name + b"; " + value,
    lambda name, value: name + b":: " + value,
    lambda name, value: name + b":" + b" " * 300 + value,
]
"""How a header line may be written, without its end."""

ROWS = (
    b"1", b"-0.0", b"1e400", b"1.10", b"null", b"true", b'"a"', b'"bad"', '"é\\u00e9"'.encode(), b'"\\"]}"', b"[1,2]",
    b"[[],[ ]]", b'{"instances":[1]}', b'{"a":{"b":[{"c":"]"}]}}', b'"' + b"x" * 300 + b'"', b" 7 ", b"\t8\n",
)  # fmt: skip
OTHERS = (
    b'"signature_name":"s"', b'"parameters":{"k":[1,2]}', b'"a":null', b'"\\u0061":1', '"é":"é"'.encode(), b'"id":"7"',
    b'"Instances":[1]', b'"predictions":[9]', b'"x":{"instances":[5]}',
)  # fmt: skip
INVALID = (
    b"", b" ", b"{}", b"[]", b"null", b"1", b'"instances"', b"{", b'{"instances":', b'{"instances":[1', b"[1]",
    b'{"instances":[1]', b'{"instances":[]}', b'{"instances":1}', b'{"instances":null}', b'{"instances":{"a":[1]}}',
    b'{"instances":[1]}x', b'{"instances":[1]]', b'{"instances":[1]}}', b'{"instances":[1]}{"instances":[2]}',
    b'{"instances":[1],"instances":[2]}', b'{"instances":[1],"inputs":[2]}', b'{"a":1,"\\u0061":2,"instances":[1]}',
    b'{"instances":[NaN]}', b"{'instances':[1]}", b'{"instances":["\xff"]}', b'{"instances":["\xc3"]}', b"\xff\xfe",
    b'\xef\xbb\xbf{"instances":[1]}', b'{"instances":[1,]}', b'{"instances":[01]}', b'{"Instances":[1]}',
    b'{"instances":' + b"[" * 5000, b'{"instances":[' + b"1," * 100 + b"1]}", b'{"inputs":3}', b"\0" * 20,
    b'{"a":"' + b"y" * 70_000 + b'","instances":[1]}', b"a=b&c=d", b"--x\r\nContent-Disposition: form-data\r\n\r\n",
)  # fmt: skip
# Valid, but not to be cut into rows: passed through as it is.
COLUMNS = (b'{"inputs":{"a":[1,2],"b":[3,4]}}', b'{"inputs":{}}', b'{"signature_name":"s","inputs":{"a":[1]}}')
LINE_ENDS = [b"\n", b"\r", b"\r\r\n", b"\n\r\n", b" \r\n", b"\r\n\r\n", b"\r\n \r\n", b"\0\r\n"]


def request(
    body: bytes = b'{"instances":[1]}',
    target: bytes = _ECHO,
    *lines: bytes,
    method: bytes = b"POST",
    version: bytes = b"HTTP/1.1",
    host: bool = True,
    length: bool = True,
) -> bytes:
    """A well-formed request, apart from what the arguments make of it."""
    fixed = [b"Host: h"] * host + [b"Content-Length: %d" % len(body)] * length
    return b"\r\n".join([method + b" " + target + b" " + version, *fixed, *lines, b"", body])


def chunked(body: bytes, *sizes: int, last: bytes = b"0\r\n\r\n") -> bytes:
    """A body in chunks of these sizes and one more for the rest."""
    parts, at = [], 0
    for size in (*sizes, len(body)):
        if part := body[at : at + size]:
            parts.append(b"%x\r\n%b\r\n" % (len(part), part))
        at += size
    return b"".join(parts) + last


def gzip_at_once(data: bytes) -> bytes:
    """gzip with no time in it, so that equal data gives equal bytes."""
    return gzip.compress(data, mtime=0)
