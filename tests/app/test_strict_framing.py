"""Requests over which servers disagree, on sockets: what Go's net/http server answers is written beside each."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from aiohttp import web

from tests.app import plain_client
from tests.app.conftest import PREDICT

pytestmark = pytest.mark.looptime

BODY = b'{"instances":[1]}'
CHUNKS = b"11\r\n" + BODY + b"\r\n0\r\n\r\n"
POST = f"POST {PREDICT} HTTP/1.1".encode()
GET = b"GET / HTTP/1.1"


def request(start: bytes, *lines: bytes, host: bytes | None = b"h", body: bytes = b"") -> bytes:
    fixed = [] if host is None else [b"Host: " + host]
    return b"\r\n".join([start, *fixed, *lines, b"", body])


async def statuses(bench, sent: bytes) -> tuple[list[int], bool]:
    """The statuses answered, and whether the connection was closed then."""
    return await in_two(bench, sent, b"")


async def in_two(bench, sent: bytes, later: bytes) -> tuple[list[int], bool]:
    """The same for bytes of which some are sent when the first were read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.port)
    writer.write(sent)
    if later:
        await asyncio.sleep(0.1)
        writer.write(later)
    received, is_closed = b"", False
    try:
        async with asyncio.timeout(5):
            while part := await reader.read(65536):
                received += part
            is_closed = True
    except TimeoutError:
        pass
    writer.close()
    await writer.wait_closed()
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)], is_closed


# What was sent, what Go 1.26 answers, and what is answered here if that is something else: llhttp says 400 to
# all that it does not understand.
REFUSED = [
    (request(POST, b"Transfer-Encoding: gzip, chunked", body=CHUNKS), 501, None),
    (request(POST, b"Transfer-Encoding: ,chunked", body=CHUNKS), 501, None),
    (request(POST, b"Transfer-Encoding:", b"Content-Length: 17", body=BODY), 501, 400),
    (request(POST, b"Transfer-Encoding: ", body=CHUNKS), 501, 400),
    (request(POST, b"Transfer-Encoding: gzip", body=CHUNKS), 501, 400),
    (request(POST, b"Transfer-Encoding: identity", body=CHUNKS), 501, 400),
    (request(POST, b"Transfer-Encoding: chunked, chunked", body=CHUNKS), 501, 400),
    (request(POST, b"Transfer-Encoding: chunked, gzip", body=CHUNKS), 501, 400),
    (request(POST, b"Transfer-Encoding: xchunked", body=CHUNKS), 501, 400),
    (request(POST, b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKS), 501, 400),
    (request(POST, b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked", body=CHUNKS), 501, 400),
    (request(b"GET / HTTP/2.0"), 505, None),
    (request(POST.replace(b"1.1", b"2.0"), b"Content-Length: 17", body=BODY), 505, None),
    (request(b"GET / HTTP/3.0"), 505, 400),
    (request(b"GET / HTTP/0.9"), 505, 400),
    (request(b"GET /"), 400, None),
    (request(b"GET / http/1.1"), 400, None),
    (request(b"GET / HTTP/1"), 400, None),
    (request(b"GET / HTTP/1.10"), 400, None),
    (request(b"GET / x HTTP/1.1"), 400, None),
    (request(GET, host=None), 400, None),
    (request(GET, b"Host: h"), 400, None),
    (request(GET, b"Host: g"), 400, None),
    *[
        (request(start, b"Content-Length: 17", host=host, body=BODY), 400, None)
        for start in (GET, POST, b"POST http://x:predict HTTP/1.1")
        for host in (b"a b", b"a/b", b"c@d", b"a b/c@d", b"h?x", b"a\\b", b"<h>", b"\xc3\xbc", b'a"b')
    ],
]


async def test_what_gos_server_refuses_is_refused_and_the_connection_closed(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    for sent, go, here in REFUSED:
        assert await statuses(bench, sent) == ([here or go], True), sent
    assert bench.predictor.seen == []


TAKEN = [
    request(GET), request(GET, host=b""), request(GET, host=b"h:80"), request(GET, host=b"[::1]:80"),
    request(GET, host=b"a_b"), request(POST, b"Transfer-Encoding: chunked", body=CHUNKS),
    request(POST, b"Transfer-Encoding: Chunked", body=CHUNKS),
]  # fmt: skip


async def test_what_gos_server_takes_is_taken(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    for sent in TAKEN:
        assert await statuses(bench, sent) == ([200], False), sent


@pytest.mark.parametrize("protocol", [b"h2c", b"x", b"tcp"])
async def test_a_request_behind_a_refused_upgrade_is_answered(sidecar_of, protocol):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.behave = lambda seen, request: None if seen.method == "POST" else web.Response()
    upgrade = (b"Connection: Upgrade", b"Upgrade: " + protocol)
    for first in (request(GET, *upgrade), request(POST, *upgrade, b"Content-Length: 17", body=BODY)):
        sent = first + request(b"GET /second HTTP/1.1") + request(POST, b"Content-Length: 17", body=BODY)
        assert await statuses(bench, sent) == ([200, 200, 200], False), first


UPGRADE = (b"Connection: Upgrade", b"Upgrade: x")


@pytest.mark.parametrize(
    "upgrade",
    [request(GET, *UPGRADE), request(POST, *UPGRADE, b"Content-Length: 17", body=BODY)],
    ids=["a head", "a body"],
)
async def test_a_request_behind_a_refused_upgrade_is_answered_however_many_came_before_it(sidecar_of, upgrade):
    bench = await sidecar_of(max_latency=0)
    behind = request(POST, b"Content-Length: 17", body=BODY) * 3
    sent = (request(GET) * plain_client.MORE_THAN_AIOHTTP_QUEUES + upgrade + behind) * 3
    assert await statuses(bench, sent) == ([200] * 3 * (plain_client.MORE_THAN_AIOHTTP_QUEUES + 4), False)


HIDDEN = request(b"GET /hidden HTTP/1.1")
STORED = request(b"PUT /stored HTTP/1.1", b"Content-Length: %d" % len(HIDDEN))  # the head; HIDDEN is its body
SWITCH = request(GET, *UPGRADE)
WEBSOCKET = (b"Connection: Upgrade", b"Upgrade: websocket")


def ends_at(border: int, *lines: bytes) -> bytes:
    """A request, and SWITCH or one with `lines` and a body, whose last byte is in this place."""
    last = request(POST, *UPGRADE, *lines, body=BODY) if lines else SWITCH
    unpadded = request(GET, b"X: ") + last
    return request(GET, b"X: " + b"v" * (border - len(unpadded))) + last


def uploads(length: bytes, body: bytes = BODY) -> bytes:
    return request(POST, *UPGRADE, b"Content-Length: " + length, body=body)


@pytest.mark.parametrize(
    ("before", "count"),
    [
        pytest.param(ends_at(2048), 2, id="a head that ends with a step"),
        pytest.param(ends_at(2048, b"Content-Length: 17"), 2, id="a body that ends with a step"),
        pytest.param(uploads(b"2048", BODY.ljust(2048)), 1, id="a body as long as a step"),
        pytest.param(uploads(b"17 ") + SWITCH, 2, id="a length with a space behind it"),
        pytest.param(uploads(b"0" * 30 + b"17") + SWITCH, 2, id="a length with many zeros"),
        pytest.param((SWITCH + request(GET) * 40) * 2 + SWITCH, 83, id="behind many"),
        pytest.param(request(GET, *UPGRADE, b"Content-Length: 0") + SWITCH, 2, id="a length of nothing"),
    ],
)
async def test_what_is_stored_behind_an_upgrade_is_never_run_as_a_request(sidecar_of, before, count):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.behave = lambda seen, request: None if request.path == PREDICT else web.Response()
    assert await in_two(bench, before + STORED, HIDDEN + request(GET)) == ([200] * (count + 2), False)
    assert "/hidden" not in {seen.target for seen in bench.predictor.seen}


@pytest.mark.parametrize(
    ("last", "status"),
    [
        pytest.param(request(POST, *UPGRADE, b"Transfer-Encoding: chunked", body=CHUNKS), 200, id="upgrade in chunks"),
        pytest.param(request(GET, *WEBSOCKET), 200, id="WebSocket"),
        pytest.param(request(POST, *WEBSOCKET, b"Content-Length: 17", body=BODY), 200, id="WebSocket with a body"),
        pytest.param(
            request(POST, *WEBSOCKET, b"Transfer-Encoding: chunked", body=CHUNKS), 200, id="WebSocket in chunks"
        ),
        pytest.param(request(b"CONNECT a:1 HTTP/1.1"), 400, id="CONNECT"),
        pytest.param(request(b"CONNECT a:1 HTTP/1.1", b"Content-Length: 5"), 400, id="CONNECT with a body"),
        pytest.param(request(b"CONNECT a:1 HTTP/1.1", b"Transfer-Encoding: chunked"), 400, id="CONNECT in chunks"),
    ],
)
async def test_nothing_is_taken_behind_a_request_whose_end_servers_see_in_different_places_or_for_a_websocket(
    sidecar_of, last, status
):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.behave = lambda seen, request: None if request.path == PREDICT else web.Response()
    assert await in_two(bench, last + STORED, HIDDEN) == ([status], True)
    assert await in_two(bench, last + SWITCH + STORED, HIDDEN) == ([status], True)
    assert await in_two(bench, last, HIDDEN) == ([status], True)
    assert "/hidden" not in {seen.target for seen in bench.predictor.seen}


LONGEST = 2**64 - 1  # aiohttp's parser takes this length for no body


@pytest.mark.parametrize("length", [LONGEST, LONGEST - 1, 10**18])
@pytest.mark.parametrize("path", [b"/other", PREDICT.encode()])
async def test_a_length_that_no_body_has_is_refused_and_reaches_no_predictor(sidecar_of, length, path):
    bench = await sidecar_of(max_latency=0)
    client = await plain_client.connect(bench)
    await client.send(request(b"POST %b HTTP/1.1" % path, b"Content-Length: %d" % length))
    status, headers, body = await client.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert json.loads(body) == {"error": "Content-Length has more than 18 digits"}
    assert bench.predictor.seen == []
    await client.leave()


@pytest.mark.parametrize("path", [b"/other", PREDICT.encode()])
@pytest.mark.parametrize("upgrade", [(), UPGRADE, WEBSOCKET])
async def test_a_malformed_chunk_that_comes_later_is_told_once_and_ends_the_connection(sidecar_of, path, upgrade):
    bench = await sidecar_of(max_latency=0)
    head = request(b"POST %b HTTP/1.1" % path, *upgrade, b"Transfer-Encoding: chunked")
    for later in (b"zz\r\n", b"5\r\nhello\r\nzz\r\n"):
        client = await plain_client.connect(bench)
        await client.send(head)
        await asyncio.sleep(0.1)
        await client.send(later + request(GET))
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert b"not valid HTTP: Invalid character in chunk size" in body
        assert await client.rest() == b""
        await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"garbage\r\n\r\n", "Invalid method encountered"),
        (request(GET, b"A\x00: b"), "Invalid header token"),
        (request(GET, host=None), "Missing 'Host' header in request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "Received HTTPS traffic on an HTTP port"),
        (request(POST, b"Content-Length: x"), "Invalid character in Content-Length"),
        (request(b"GET / HTTP/3.1"), "Invalid HTTP version"),
    ],
)
async def test_what_is_malformed_is_told_as_any_other_error_is_and_counted(bench, sent, words):
    client = await plain_client.connect(bench)
    await client.send(plain_client.GET + sent)
    assert (await client.answer())[0] == 200
    status, headers, body = await client.answer()
    assert (status, headers["connection"], headers["content-type"]) == (400, "close", "application/json")
    assert json.loads(body) == {"error": f"malformed HTTP: {words}"}
    assert "server" not in headers
    assert await bench.metric('carpool_malformed_total{code="400"}') == 1
    await client.rest()
    await client.leave()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([b"Cookie: " + b"c" * 70_000], 200),
        ([b"X-%d: 1" % number for number in range(900)], 200),
        ([b"X-%d: " % number + b"b" * 60_000 for number in range(4)], 200),
        ([b"X-%d: 1" % number for number in range(1001)], 431),
        ([b"X-%d: 1" % number for number in range(20_000)], 431),
        ([b"Cookie: " + b"c" * 300_000], 431),
    ],
    ids=["a long line", "many lines", "long lines", "too many lines", "far too many lines", "too long a line"],
)
async def test_heads_are_taken_up_to_a_size_and_a_number_of_lines(sidecar_of, lines, status):
    bench = await sidecar_of(max_latency=0)
    sent = request(POST, *lines, b"Content-Length: 17", body=BODY)
    assert await statuses(bench, sent) == ([status], status == 431)
    assert (await bench.metric('carpool_malformed_total{code="431"}') == 1) is (status == 431)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (request(POST, b"Transfer-Encoding: gzip, chunked", body=CHUNKS), 501),
        (request(f"POST {PREDICT} HTTP/2.0".encode(), b"Content-Length: 17", body=BODY), 505),
        (request(GET, host=b"a b"), 400),
    ],
)
async def test_a_request_that_is_not_served_is_counted_as_malformed(bench, sent, code):
    assert await statuses(bench, sent) == ([code], True)
    assert await bench.metric(f'carpool_malformed_total{{code="{code}"}}') == 1


@pytest.mark.parametrize("path", [b"/other", PREDICT.encode()])
async def test_a_trailer_is_no_header_of_the_next_request(sidecar_of, path):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.behave = lambda seen, request: None if request.path == PREDICT else web.Response()
    chunked = request(b"POST %b HTTP/1.1" % path, b"Transfer-Encoding: chunked", body=CHUNKS[:-2])
    sent = chunked + b"X-First: a\r\nAuthorization: stolen\r\n\r\n"
    behind = request(b"GET /second HTTP/1.1")
    assert await in_two(bench, sent, behind) == ([200, 200], False)
    found, _ = await in_two(bench, sent + behind, b"")
    assert found[0] == 200
    assert bench.predictor.seen
    assert not any("authorization" in {name.lower() for name in seen.headers} for seen in bench.predictor.seen)


async def test_trailers_without_end_are_refused(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    client = await plain_client.connect(bench)
    await client.send(request(POST, b"Transfer-Encoding: chunked", body=CHUNKS[:-2]))
    for _ in range(4):
        await client.send(b"".join(b"X-%d: %b\r\n" % (each, b"v" * 990) for each in range(30)))
        await asyncio.sleep(0.01)
    status, headers, body = await client.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert json.loads(body) == {"error": "the body is not valid HTTP: more than 65536 bytes of trailers"}
    await client.rest()
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))
