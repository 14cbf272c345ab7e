"""Messages are read alike however they are cut, with the meaning that h11 gives them, or are refused."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.server.http1 import messages
from tests import examples

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
BEHIND = b"GET / HTTP/1.1\r\n"


def read(parts: list[bytes]) -> tuple[bytes, bytes] | None:
    """The content of a body in chunks and what is behind it; None if it is refused, or not complete."""
    body, content, behind = messages.ChunkedBody(), b"", b""
    try:
        for part in parts:
            left = part
            while left and not body.is_complete:
                piece, left = body.feed(left)
                content += piece
            behind += left
    except messages.Malformed:
        return None
    return (content, behind) if body.is_complete else None


def read_by_h11(data: bytes) -> bytes | None:
    """The content of a body in chunks; None if it is refused, or not complete."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(HEAD + data)
    content = b""
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event in (h11.NEED_DATA, h11.PAUSED):
                return None
            content += bytes(event.data) if isinstance(event, h11.Data) else b""
    except h11.RemoteProtocolError:
        return None
    return content


_SIZES = st.sampled_from([b"0", b"1", b"3", b"A", b"a", b"00", b"0003", b"f" * 17, b"", b"-1", b"0x3", b"3 ", b" 3"])
_EXTENSIONS = st.sampled_from([b""] * 6 + [b";a", b";a=b", b';a="b;\\""', b";", b"; a", b";a=\n", b';a="\r"', b" ;a"])
_ENDS = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"\r\r\n", b""])
_DATA = st.sampled_from([b"", b"x", b"abc", b"\r\n", b"0123456789", b"0\r\n\r\n"])
_CHUNKS = st.lists(st.tuples(_SIZES, _EXTENSIONS, _ENDS, _DATA, _ENDS).map(b"".join), max_size=5).map(b"".join)
_TRAILERS = st.sampled_from(
    [b""] * 4 + [b"A: b\r\n", b"A : b\r\n", b" folded\r\n", b"Content-Length: 3\r\n", b"A: b\n"]
)
_LAST = st.tuples(st.sampled_from([b"0\r\n"] * 6 + [b"0\n", b""]), _TRAILERS, st.sampled_from([b"\r\n"] * 6 + [b"\n"]))


@examples.examples(300)
@given(
    st.lists(_DATA.filter(bool), max_size=5), _CHUNKS, _LAST.map(b"".join), st.lists(st.integers(0, 200), max_size=8)
)
def test_a_body_in_chunks_is_read_alike_however_it_is_cut_and_as_h11_reads_it_or_refused(
    good: list[bytes], odd: bytes, last: bytes, cuts: list[int]
) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in good) + odd + last
    whole = read([data + BEHIND])
    edges = sorted({0, len(data) + len(BEHIND), *(cut for cut in cuts if cut < len(data) + len(BEHIND))})
    parts = [(data + BEHIND)[start:stop] for start, stop in itertools.pairwise(edges)]
    assert read(parts) == whole
    if whole is not None:
        content, behind = whole
        assert (data + BEHIND).endswith(behind)
        assert read_by_h11((data + BEHIND)[: len(data + BEHIND) - len(behind)]) == content


def test_many_small_chunks_are_not_all_read_at_once() -> None:
    body = messages.ChunkedBody()
    content, rest = body.feed(b"1\r\nx\r\n" * 1000)
    assert len(content) <= 128
    assert len(rest) >= 872 * 6
    assert not body.is_complete


@pytest.mark.parametrize(("start", "piece"), [(b"1;", b"a"), (b"0\r\n", b"A: b\r\n")], ids=["extensions", "trailers"])
def test_extensions_and_trailers_are_bounded_however_slowly_they_come(start: bytes, piece: bytes) -> None:
    assert read([start, *[piece] * messages.MOST_TRAILERS]) is None


@pytest.mark.parametrize(
    ("lines", "keep_alive"),
    [
        ([], True),
        ([b"Connection: close"], False),
        ([b"Connection: Upgrade", b"Upgrade: x"], True),
        ([b"Connection: Upgrade", b"Upgrade: WebSocket"], False),
        ([b"Upgrade: x", b"Transfer-Encoding: chunked"], False),
    ],
)
def test_nothing_follows_a_request_behind_which_servers_may_read_differently(
    lines: list[bytes], keep_alive: bool
) -> None:
    head = messages.read_head(b"\r\n".join([b"POST / HTTP/1.1", b"Host: h", *lines, b"", b""]))
    assert head.keep_alive is keep_alive


def test_values_keep_their_bytes() -> None:
    head = messages.read_head(b"GET / HTTP/1.1\r\nHost: h\r\nX-User: Jos\xe9\r\n\r\n")
    assert head.headers["X-User"].encode(errors="surrogateescape") == b"Jos\xe9"


@pytest.mark.parametrize(
    ("fields", "keep_alive"), [(b"Content-Length: 0", True), (b"Transfer-Encoding: chunked", False)]
)
def test_nothing_follows_chunks_of_a_version_that_has_none(fields: bytes, keep_alive: bool) -> None:
    head = messages.read_head(b"POST / HTTP/1.0\r\nConnection: keep-alive\r\n" + fields + b"\r\n\r\n")
    assert head.keep_alive is keep_alive


@pytest.mark.parametrize(("digits", "length"), [(b"0" * 5000, 0), (b"0" * 5000 + b"17", 17)])
def test_a_length_may_have_any_number_of_zeros_before_it(digits: bytes, length: int) -> None:
    assert messages.read_head(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + digits + b"\r\n\r\n").length == length


@pytest.mark.parametrize("line", [b"OPTIONS /a RTSP/1.0", b"SOURCE /a ICE/1.0"])
def test_requests_of_other_protocols_are_none(line: bytes) -> None:
    with pytest.raises(messages.Malformed):
        messages.read_head(line + b"\r\nHost: h\r\n\r\n")


@pytest.mark.parametrize("line", [b"GET  /a HTTP/1.1", b"GET /a  HTTP/1.1"], ids=["method", "target"])
def test_a_request_line_has_one_space_behind_each_word(line: bytes) -> None:
    with pytest.raises(messages.Malformed):
        messages.read_head(line + b"\r\nHost: h\r\n\r\n")


def test_zeros_count_as_digits_of_a_chunks_size() -> None:
    assert read([b"0" * 14 + b"1\r\nx\r\n0\r\n\r\n"]) == (b"x", b"")
    assert read([b"0" * 15 + b"1\r\nx\r\n0\r\n\r\n"]) is None
