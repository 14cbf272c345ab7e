"""Bodies of predict requests: what people send, and what nobody should."""

from __future__ import annotations

import zlib

from hypothesis import strategies as st

from tests.http1.tables import COLUMNS, INVALID, OTHERS, ROWS, gzip_at_once

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
