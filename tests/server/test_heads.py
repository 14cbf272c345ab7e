"""Which heads are those of plain predict requests: read once and recognised when they come again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks import mix
from carpool.scheduling import ledger
from carpool_sidecar import config
from carpool_sidecar.server import predict
from carpool_sidecar.server.http1 import bodies, heads, messages
from tests.server.connection_bench import PREDICT, V1_ROUTES, post

SETTINGS = config.Settings(key_headers=("authorization", "content-type", "x-tenant"))
BODIES = bodies.Limits(0, ledger.Ledger(), 0.0)
RULES = predict.PredictRules(SETTINGS, SETTINGS.scheduler_limits, BODIES, V1_ROUTES, None, None)  # type: ignore[arg-type] # for heads alone
READER = heads.Reader(RULES)

NAMES = (
    "Host", "Content-Type", "Content-Length", "X-Request-ID", "traceparent", "tracestate", "Authorization", "X-Tenant",
    "User-Agent", "Accept", "Connection", "carpool-timeout-ms", "X-Other", "x-request-idx", "Content-Length-Not",
)  # fmt: skip
VALUES = {
    "Content-Type": st.sampled_from(["application/json", "text/plain", "application/json; charset=utf-8", "image/png"]),
    "Content-Length": st.one_of(st.integers(0, 10**13).map(str), st.sampled_from(["007", "1", "+5", "5,5", ""])),
    "Connection": st.sampled_from(["keep-alive", "Keep-Alive", "close"]),
    "carpool-timeout-ms": st.sampled_from(["1", "250", "0", "86400001", "soon"]),
}
ANY_VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300).map(str.strip)


@st.composite
def plain_heads(draw: st.DrawFn) -> bytes:
    """Heads that are mostly plain, in any order, spelling and spacing."""
    others = [name for name in NAMES if name != "Content-Length"]
    names = draw(st.permutations(["Content-Length", *draw(st.lists(st.sampled_from(others), unique=True, max_size=8))]))
    lines = []
    for name in names:
        spelt = draw(st.sampled_from([name, name.lower(), name.upper()]))
        lines.append(f"{spelt}:{draw(st.sampled_from(['', ' ', '  ']))}{draw(VALUES.get(name, ANY_VALUE))}\r\n")
    target = draw(st.sampled_from([PREDICT.decode(), "/v1/models/a%20b:predict?x=1", "/x%3Apredict", "/other"]))
    return f"POST {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


def recognise(known: bytes) -> heads.HeadTemplate | None:
    """The shape of a head, if it is plain and may come again."""
    found = READER.read(known)
    return None if found is None else READER.template(known, found[2])


def agree(known: bytes, data: bytes) -> bool:
    """Whether what the shape of a known head says of other bytes is what reading them says, or nothing."""
    shape = recognise(known)
    told = shape.match(b"before" + data + b"behind", 6) if shape else None
    if told is None:
        return True
    size = data.find(b"\r\n\r\n") + 4
    read = READER.read(data[:size]) if size >= 4 else None
    end, length, head = told
    return read is not None and (end - 6, length, head) == read


@given(plain_heads())
def test_a_head_is_recognised_as_what_it_was_read_as(head: bytes) -> None:
    found, shape = READER.read(head), recognise(head)
    if found is None or shape is None:
        return
    assert shape.match(head, 0) == found
    assert shape.match(b"x" * 7 + head + b"body", 7) == (len(head) + 7, *found[1:])
    assert agree(head, head)


@given(plain_heads(), st.data())
def test_of_changed_bytes_a_shape_says_nothing_or_what_reading_says(head: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(head) - 1))
    stop = at + data.draw(st.integers(0, 20))
    put = data.draw(
        st.one_of(st.binary(max_size=20), st.sampled_from([b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"0"]))
    )
    assert agree(head, head[:at] + put + head[stop:])


@given(
    st.lists(st.sampled_from([b"7", b"37", b"38", b"3", b"370", b"0", b"x"]), max_size=20),
    st.lists(st.sampled_from([b"", b"GET / HTTP/1.1\r\n"])),
)
def test_a_shape_tells_each_length_whatever_came_before(lengths: list[bytes], before: list[bytes]) -> None:
    def head(length: bytes) -> bytes:
        return b"POST " + PREDICT + b" HTTP/1.1\r\nHost: h\r\nContent-Length: " + length + b"\r\nAccept: *\r\n\r\n"

    shape = recognise(head(b"37"))
    assert shape is not None
    for length, first in itertools.zip_longest(lengths, before[: len(lengths)], fillvalue=b""):
        told, read = shape.match(first + head(length) + b"behind", len(first)), READER.read(head(length))
        assert told == (None if read is None else (len(first) + read[0], *read[1:]))


@given(plain_heads(), plain_heads())
def test_of_another_head_a_shape_says_nothing_or_what_reading_says(known: bytes, other: bytes) -> None:
    assert agree(known, other)


@given(
    length=st.one_of(st.integers(0, 10**13).map(str), st.text("0123456789 +-_x\r\n", max_size=14)).map(str.encode),
    request_id=st.one_of(st.text(max_size=300).map(str.encode), st.text("abc-09", max_size=300).map(str.encode)),
    order=st.permutations([0, 1, 2]),
)
@example(length=b"5", request_id=b"x\r\nExpect: 100-continue", order=[0, 1, 2])
@example(length=b"5\r\nTransfer-Encoding: chunked", request_id=b"1", order=[2, 1, 0])
def test_values_that_vary_are_told_from_all_else(length: bytes, request_id: bytes, order: list[int]) -> None:
    def head(length: bytes, request_id: bytes, trace: bytes) -> bytes:
        lines = [b"Content-Length: " + length, b"X-Request-ID: " + request_id, b"traceparent: " + trace]
        text = b"\r\n".join([b"POST " + PREDICT + b" HTTP/1.1", b"Host: h", *(lines[index] for index in order)])
        return text + b"\r\n\r\n"

    assert agree(head(b"17", b"first", b"00-1"), head(length, request_id, request_id[::-1]))


_PIECES = [
    b"\r", b"\n", b"\r\n", b"\r\n ", b"\r\n\r\n", b"\n\n", b" ", b"  ", b"\t", b":", b": ", b" :", b"\0", b"\x7f",
    b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x85", b"\xff", b"0", b"GET ", b"RTSP", b" HTTP/1.0",
    b" HTTP/1.1\r\n",
    *(b"\r\n" + line for line in (
        b"Content-Length: 9", b"content-length:9", b"Transfer-Encoding: chunked", b"Host: b", b"Host:  b", b"Host: ",
        b": 1", b"X_Any: 1", b"X-Request-ID: r", b"traceparent: ", b"Connection: close", b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Expect: 100-continue", b"Cookie:", b"Cookie: ", b"Cookie", b"Cookie : a", b"Cookie: a\nX-Request-ID: r",
    )),
]  # fmt: skip
_CHANGES = st.tuples(
    st.integers(0, 1 << 20),
    st.sampled_from([0, 0, 0, 1, 1, 2, 4, 20]),
    st.one_of(st.sampled_from(_PIECES), st.binary(max_size=3)),
)
_MIXED = [
    request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    for request in mix.requests("mixed", "h:80", PREDICT.decode(), 37)[:99]
]


def agrees(head: bytes) -> bool:
    """Whether a head is read without the parser as by it, or not at all; the request line is read with the plan."""
    if b"\t" in head or not head.isascii():
        return READER._sort_usual(head) is None
    long, short = READER._sort_any(head), READER._sort_usual(head)
    return READER.read(head) is None if long is None else short in (None, long)


@given(st.one_of(st.sampled_from(_MIXED), plain_heads()), st.lists(_CHANGES, max_size=4))
def test_of_any_bytes_lines_are_read_without_the_parser_as_it_reads_them_or_not_at_all(
    head: bytes, changes: list[tuple[int, int, bytes]]
) -> None:
    for place, size, put in changes:
        at = place % (len(head) + 1)
        head = head[:at] + put + head[at + size :]
    assert agrees(head)


@pytest.mark.parametrize("code", range(256))
def test_a_byte_anywhere_in_a_head_is_read_without_the_parser_as_by_it_or_not_at_all(code: int) -> None:
    head = _MIXED[0]
    assert all(agrees(head[:at] + bytes([code]) + head[at:]) for at in range(len(head)))
    assert all(agrees(head[:at] + bytes([code]) + head[at + 1 :]) for at in range(len(head)))


def test_heads_of_a_mix_are_read_without_the_parser_once_it_has_read_their_names() -> None:
    reader = heads.Reader(RULES)
    told = [reader._sort_any(head) for head in _MIXED]
    assert [reader._sort_usual(head) for head in _MIXED] == told
    assert heads.Reader(RULES)._sort_usual(_MIXED[0]) is None


def test_names_that_are_remembered_are_few_and_short() -> None:
    reader = heads.Reader(RULES)
    for number in range(3000):
        reader.read(post(b"", b"x%d: 1" % number, b"x" * 100 + b"%d: 1" % number, length=17))
    assert len(reader._starts) < 1100
    assert max(map(len, reader._starts)) < 70


def test_a_head_is_recognised_with_another_length_and_read_with_another_id() -> None:
    known = post(b"x", b"X-Request-ID: one", b"traceparent: 00-a", b"Authorization: me")[:-1]
    shape = recognise(known)
    assert shape is not None
    longer = known.replace(b"Length: 1", b"Length: 345")
    assert shape.match(longer, 0) == READER.read(longer)
    other = known.replace(b"one", b"another").replace(b"00-a", b"00-bcd")
    found = READER.read(other)
    assert shape.match(other, 0) is None
    assert found is not None
    assert (found[2].request_id, found[2].traceparent) == ("another", "00-bcd")


@pytest.mark.parametrize("name", ["user-agent", "x-forwarded-for"])
def test_a_header_that_varies_belongs_to_the_key_where_that_is_asked_for(name: str) -> None:
    settings = config.Settings(key_headers=(name,))
    rules = predict.PredictRules(settings, settings.scheduler_limits, BODIES, V1_ROUTES, None, None)  # type: ignore[arg-type]
    reader = heads.Reader(rules)
    texts = [post(b"", f"{name}: {value}".encode(), length=17) for value in ("one", "two")]
    found = [reader.read(text) for text in texts]
    assert [dict(each[2].headers) for each in found if each] == [{name.title(): "one"}, {name.title(): "two"}]
    shape = reader.template(texts[0], found[0][2]) if found[0] else None
    assert shape is not None
    assert shape.match(texts[1], 0) is None


@pytest.mark.parametrize("cut", [1, 40, 60, 90, -1])
def test_an_incomplete_head_is_not_recognised(cut: int) -> None:
    head = post(b"", length=17)
    for known in (head, post(b"", b"X-Request-ID: 1", length=17)):
        shape = recognise(known)
        assert shape is not None
        assert shape.match(known[:cut], 0) is None


def test_a_head_that_may_be_too_long_when_it_comes_again_has_no_shape() -> None:
    room = heads.MAX_HEAD - 12 - len(post(b"", b"X-Filler: ", length=17))  # with a length of twelve digits more
    for size, may_come_again in ((room, True), (room + 1, False)):
        known = post(b"", b"X-Filler: " + b"x" * size, length=17)
        assert READER.read(known) is not None
        assert (recognise(known) is not None) is may_come_again


# --- what is left to the general server -------------------------------------------------------------------------


def is_plain(
    *lines: bytes, start: bytes = b"POST %b HTTP/1.1" % PREDICT, length: bytes = b"Content-Length: 17"
) -> bool:
    text = b"".join(line + b"\r\n" for line in (start, b"Host: h", *lines, length) if line)
    return READER.read(text + b"\r\n") is not None


def test_plain_heads_are_those_of_plain_requests() -> None:
    assert is_plain()
    assert is_plain(b"Content-Type: application/json; charset=utf-8", b"Accept: */*", b"User-Agent: curl/8")
    assert is_plain(b"Connection: Keep-Alive", b"carpool-timeout-ms: 100", b"X-Any: !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    assert is_plain(length=b"content-length:17")
    assert is_plain(start=b"POST /any/where%2F:predict?q=1&r=%20 HTTP/1.1")


@pytest.mark.parametrize(
    "line",
    [
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Content-Encoding: br",
        b"Content-Encoding: identity", b"Content-Encoding: gzip, gzip", b"Content-Encoding:",
        b"Expect: 100-continue", b"Upgrade: websocket", b"Trailer: X",
        b"HTTP2-Settings: AAMAAABkAAQAAP__", b"Sec-WebSocket-Key1: x", b"Connection: close", b"Connection: upgrade",
        b"Connection: keep-alive, X-Any", b"Connection:", b"Proxy-Connection: close", b"K-Network-Probe: queue",
        b"User-Agent: kube-probe/1.29", b"User-Agent: Knative-Activator-Probe", b"ce-id: 1",
        b"Content-Type: application/octet-stream", b"Content-Type: application/cloudevents+json",
        b"Content-Type: multipart/form-data; boundary=x", b"Content-Type: text/event-stream",
        b"carpool-timeout-ms: soon", b"carpool-timeout-ms: 0",
    ],
)  # fmt: skip
def test_a_header_with_a_meaning_beyond_a_body_to_answer_is_unusual(line: bytes) -> None:
    assert not is_plain(line)
    assert not is_plain(line.lower().replace(b"knative-a", b"Knative-A").replace(b"or-probe", b"or-Probe"))


@pytest.mark.parametrize(
    "start",
    [
        b"GET %b HTTP/1.1", b"PUT %b HTTP/1.1", b"post %b HTTP/1.1", b"QUERY %b HTTP/1.1", b"POST %b HTTP/1.0",
        b"POST %b HTTP/2.0", b"POST %b HTTP/0.9", b"POST %b HTTP/1.2", b"POST %b", b"POST %b http/1.1",
        b"POST %b ICE/1.1", b"POST http://h%b HTTP/1.1", b"POST *%b HTTP/1.1",
        b"POST x%b HTTP/1.1", b"POST %b#x HTTP/1.1", b'POST "%b HTTP/1.1', b"POST \\%b HTTP/1.1",
        b"POST %b\xc3\xa4 HTTP/1.1",
        b"POST %b/x HTTP/1.1", b"\r\nPOST %b HTTP/1.1", b" POST %b HTTP/1.1", b"",
    ],
)  # fmt: skip
def test_any_other_request_line_is_unusual(start: bytes) -> None:
    assert not is_plain(start=start.replace(b"%b", PREDICT))


@pytest.mark.parametrize(
    "length",
    [
        b"", b"Content-Length: 0", b"Content-Length: 017", b"Content-Length: +17", b"Content-Length: -17",
        b"Content-Length: 1_7", b"Content-Length: 0x17", b"Content-Length: 17, 17", b"Content-Length: 1 7",
        b"Content-Length: 17;", b"Content-Length:", b"Content-Length: 1234567890123", b"Content-Length : 17",
        b"Content-Length: 17\r\nContent-Length: 17", b"Content-Length: 17\r\ncontent-length: 18",
        "Content-Length: ١٧".encode(),
    ],
)  # fmt: skip
def test_any_length_but_a_plain_number_of_bytes_is_unusual(length: bytes) -> None:
    assert not is_plain(length=length)


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Type: text/plain", b"content-type: text/plain", b"X-Request-ID: 1\r\nx-request-id: 2", b"Host: h",
        b"X-Any: \xc3\xa4", b"X-Any: \xff",
        b"X-Any:\ttab", b"X-Any: a\tb", b"X-Any: a\0b", b"X-Any: a\x7fb", b"X-Any: a\nX-Other: b", b"X-Any: a\n b",
        b"X-Any: a\rX-Other: b", b"X-Any: a\r\n folded", b" X-Any: a", b"X-Any : a", b"X Any: a", b"X-Any", b": a",
        b"X(Any): a", b"X-\xc3\xa4: a",
    ],
)  # fmt: skip
def test_lines_that_servers_read_in_different_ways_are_unusual(line: bytes) -> None:
    assert not is_plain(b"Content-Type: application/json", line)
    assert not is_plain(b"Accept: x", line, b"User-Agent: y", b"Content-Type: application/json")


@pytest.mark.parametrize(
    "name",
    sorted(
        {"Content-Location", "Content-Range", "Content-Type", "ETag", "Host", "Max-Forwards", "Server", "User-Agent"}
    ),
)
def test_two_headers_of_which_aiohttp_takes_one_are_unusual(name: str) -> None:
    """The general server answers 400 to them; it may do so to one that is alone."""
    line = name.encode() + (b": application/json" if name == "Content-Type" else b": x")
    assert not is_plain(line, line)
    assert not is_plain(line, line.upper())


def test_a_head_without_a_host_is_unusual() -> None:
    """RFC 9112, 3.2: to be answered 400."""
    assert READER.read(post(b"", length=17).replace(b"Host: h\r\n", b"Hosts: h\r\n")) is None


def test_more_lines_than_a_head_may_have_are_unusual() -> None:
    room = messages.MAX_LINES - 2  # beside Host and Content-Length
    assert is_plain(*(b"X-%d: x" % number for number in range(room)))
    assert not is_plain(*(b"X-%d: x" % number for number in range(room + 1)))


def test_values_are_read_without_the_spaces_around_them() -> None:
    found = READER.read(post(b"", b"X-Request-ID:   an id  ", b"Authorization: me ", length=17))
    if found is not None:
        assert found[2].request_id == "an id"
        assert dict(found[2].headers)["Authorization"] == "me"


# --- heads on their way -----------------------------------------------------------------------------------------


def test_a_plain_head_may_go_on_at_every_byte() -> None:
    beginning = messages.PartialHead(0.0)
    text = post(b"", b"X-Request-ID: 7", length=17)
    for count, byte in enumerate(text[:-1], 1):
        assert not beginning.add(bytes([byte]))
        assert beginning.text == text[:count]
    assert beginning.add(text[-1:])
    assert beginning.text == text


@pytest.mark.parametrize(
    "begun",
    [b"\x16\x03\x01", b"\0", b" ", b"FOO", b"POST / HTTP/3.0\r\n", b"POST / HTTP/1.1\r\nX Y", b"HTTP/1.1 200",
     b"GET / HTTP/1.1\nHost: h\n\n", b"POST / HTTP/1.1\r\nContent-Length: x"],
)  # fmt: skip
def test_what_can_become_no_head_is_known_at_once(begun: bytes) -> None:
    with pytest.raises(messages.Malformed):
        messages.PartialHead(0.0).add(begun)
    beginning = messages.PartialHead(0.0)
    with pytest.raises(messages.Malformed):
        assert not any(beginning.add(begun[at : at + 1]) for at in range(len(begun)))


def test_the_first_head_of_a_connection_is_recognised_by_those_of_others() -> None:
    reader = heads.Reader(RULES)
    known, other = (post(target=b"/v1/models/%b:predict" % name, body=b"") for name in (b"m", b"n"))
    for text in (known, other):
        text = text.replace(b"Length: 0", b"Length: 17")
        found = reader.read(text)
        assert found is not None
        reader.template(text, found[2])
    newcomer = known.replace(b"Length: 0", b"Length: 4321")
    shared = reader.shared(newcomer, 0)
    assert shared is not None
    assert shared[1] == reader.read(newcomer)
    assert reader.shared(newcomer.replace(b"/m:", b"/k:"), 0) is None


@pytest.mark.parametrize("lines", [[b"Authorization: b"], [b"X-Tenant: b"], [b"carpool-timeout-ms: 5"], [b"X-More: 1"]])
def test_a_head_with_another_line_is_not_taken_for_that_of_another_connection(lines: list[bytes]) -> None:
    reader = heads.Reader(RULES)
    known = post(b"", b"Authorization: a", b"X-Tenant: a", b"carpool-timeout-ms: 9", length=17)
    found = reader.read(known)
    assert found is not None
    reader.template(known, found[2])
    assert reader.shared(known, 0) is not None
    assert reader.shared(post(b"", *lines, length=17), 0) is None


def test_templates_that_connections_share_are_few_and_those_in_use_stay() -> None:
    reader = heads.Reader(RULES)
    texts = [post(b"", target=b"/v1/models/%d:predict" % number, length=17) for number in range(100)]
    for text in texts:
        found = reader.read(text)
        assert found is not None
        reader.template(text, found[2])
        assert reader.shared(texts[0], 0) is not None
    assert sum(reader.shared(text, 0) is not None for text in texts) == 4
