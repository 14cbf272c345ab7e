"""Bodies of predict requests: what people send, and what nobody should."""

from __future__ import annotations

import gzip
import zlib

from hypothesis import strategies as st

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

spaces = st.sampled_from([b"", b"", b"", b" ", b"\r\n", b"\t "])


@st.composite
def valid(draw: st.DrawFn) -> bytes:
    """One JSON object with a list, perhaps with other members and space in it."""
    rows = b",".join(draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=12)))
    name = draw(st.sampled_from([b'"instances"', b'"instances"', b'"inputs"', b'"\\u0069nstances"']))
    space = draw(spaces)
    members = [name + space + b":" + draw(spaces) + b"[" + rows + b"]"]
    members += draw(st.lists(st.sampled_from(OTHERS), max_size=2, unique=True))
    if len(members) > 1 and draw(st.booleans()):
        members.reverse()
    return draw(spaces) + b"{" + space + (b"," + space).join(members) + b"}" + draw(spaces)


@st.composite
def large(draw: st.DrawFn) -> bytes:
    """Over 64 KiB, up to over the limit of one body."""
    size = draw(st.sampled_from([65_000, 65_536, 70_000, 150_000, 399_980, 400_000, 400_001, 500_000]))
    row = draw(st.sampled_from([b"1", b'"x"', b"[1]"]))
    filler = b'"' + b"z" * (size - len(row) - 20) + b'"'
    return b'{"instances":[' + row + b"," + filler + b"]}"


bodies = st.one_of(
    valid(), valid(), valid(), valid(), st.sampled_from(INVALID), st.sampled_from(COLUMNS), st.binary(max_size=40)
)
sometimes_large = st.one_of(*[bodies] * 15, large())


@st.composite
def coded(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A body and the Content-Encoding it claims, which may be wrong."""
    body = draw(bodies)
    coding, encode = draw(
        st.sampled_from(
            [
                (b"gzip", gzip_at_once), (b"GZip", gzip_at_once), (b"x-gzip", gzip_at_once),
                (b"deflate", zlib.compress),
                (b"gzip, gzip", lambda data: gzip_at_once(gzip_at_once(data))), (b"identity", bytes), (b"", bytes),
                (b"gzip", bytes), (b"br", bytes), (b"gzip", lambda data: gzip_at_once(data)[:-3]),
                (b"gzip", lambda data: gzip_at_once(data) + b"x"), (b"zstd", bytes), (b"gzip", lambda data: b""),
            ]
        )
    )  # fmt: skip
    return encode(body), coding


def gzip_at_once(data: bytes) -> bytes:
    """gzip with no time in it, so that equal data gives equal bytes."""
    return gzip.compress(data, mtime=0)
