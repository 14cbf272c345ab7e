"""Which header fields make a request."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.server.http2 import frames, headers

METHOD, SCHEME, PATH = (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C")


def test_a_request_is_its_pseudo_headers_and_the_rest_in_order() -> None:
    fields = [PATH, METHOD, (b":authority", b"host:1"), SCHEME, (b"b", b"2"), (b"a", b"1"), (b"b", b"3")]
    assert headers.request_head(fields) == headers.Head(
        "POST", "/a.B/C", b"host:1", ((b"b", b"2"), (b"a", b"1"), (b"b", b"3"))
    )


def test_content_length_is_told() -> None:
    assert headers.request_head([METHOD, SCHEME, PATH, (b"content-length", b"12")]).content_length == 12


@pytest.mark.parametrize(
    "fields",
    [
        [METHOD, SCHEME],
        [METHOD, PATH],
        [SCHEME, PATH],
        [METHOD, SCHEME, (b":path", b"")],
        [METHOD, METHOD, SCHEME, PATH],
        [METHOD, SCHEME, PATH, (b":unknown", b"1")],
        [METHOD, SCHEME, PATH, (b":status", b"200")],
        [METHOD, SCHEME, (b"a", b"1"), PATH],
        [METHOD, SCHEME, PATH, (b"", b"1")],
        [METHOD, SCHEME, PATH, (b"Upper", b"1")],
        [METHOD, SCHEME, PATH, (b"a b", b"1")],
        [METHOD, SCHEME, PATH, (b"a\x7f", b"1")],
        [METHOD, SCHEME, PATH, (b"connection", b"close")],
        [METHOD, SCHEME, PATH, (b"transfer-encoding", b"chunked")],
        [METHOD, SCHEME, PATH, (b"te", b"gzip")],
        [METHOD, SCHEME, PATH, (b"a", b"1\n2")],
        [METHOD, SCHEME, PATH, (b"a", b"1\x00")],
        [METHOD, SCHEME, PATH, (b"a", b" 1")],
        [METHOD, SCHEME, PATH, (b"content-length", b"+1")],
        [METHOD, SCHEME, PATH, (b"content-length", b"1"), (b"content-length", b"2")],
        [METHOD, SCHEME, (b":path", b"/\xff")],
    ],
)
def test_a_malformed_request_is_refused(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(frames.Http2StreamError) as caught:
        headers.request_head(fields)
    assert caught.value.code == frames.Code.PROTOCOL_ERROR


@pytest.mark.parametrize("field", [(b":path", b"/"), (b"Upper", b"1"), (b"a", b"\r\n")])
def test_malformed_trailers_are_refused(field: tuple[bytes, bytes]) -> None:
    headers.check_trailers([(b"a", b"1")])
    with pytest.raises(frames.Http2StreamError):
        headers.check_trailers([field])


def test_long_names_leave_nothing_behind() -> None:
    tracemalloc.start()
    try:
        for number in range(100):
            headers.request_head([METHOD, SCHEME, PATH, (b"%d" % number + b"x" * 50_000, b"1")])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000


@given(st.lists(st.sampled_from([b"\0", b"\r", b"\n", b" ", b"\t", b"\x0b", b"a", b"\xff"]), max_size=5))
def test_a_value_has_no_nul_no_line_break_and_no_white_space_around_it(parts: list[bytes]) -> None:
    value = b"".join(parts)
    is_good = not re.search(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z", value)
    try:
        headers.check_trailers([(b"a", value)])
    except frames.Http2StreamError:
        assert not is_good
    else:
        assert is_good
