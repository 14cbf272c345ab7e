"""A request reaches the predictor as the caller wrote it."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Start = Callable[[Any], Awaitable[Any]]
Exchange = Callable[[bytes, bytes], Awaitable[tuple[bytes, bytes]]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
pytestmark = pytest.mark.uvloop


def fields(message: bytes) -> list[tuple[str, str]]:
    """The header fields of a raw message, in order, names in lower case."""
    lines = message.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/v2/models/a%2Fb%3Ac:predict",
        "/a?b=c+d&e=%20&&f",
        "//double//slash/",
        "/up/../down/./here",
        "/empty?",
        "/q?x?y=/z:@!$'()*,;",
        "/%zz/%",
        "/" + "long/" * 1000,
    ],
)
async def test_the_target_arrives_byte_for_byte(proxy_exchange: Exchange, target: str) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode()
    got, _ = await proxy_exchange(request, OK)
    assert got.split(b"\r\n")[0] == f"GET {target} HTTP/1.1".encode()


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ("OPTIONS *", "OPTIONS *"),
        ("GET http://other.example:1/a%2Fb?", "GET /a%2Fb?"),
        ("GET http://other.example", "GET /"),
        ("GET http://other.example?q", "GET /?q"),
        ("OPTIONS http://other.example", "OPTIONS *"),
        ("OPTIONS http://other.example/", "OPTIONS /"),
        ("OPTIONS http://other.example?q", "OPTIONS /?q"),
    ],
)
async def test_asterisk_and_absolute_targets_become_what_a_server_expects(
    proxy_exchange: Exchange, sent: str, arrives: str
) -> None:
    got, _ = await proxy_exchange(f"{sent} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode(), OK)
    assert got.split(b"\r\n")[0] == f"{arrives} HTTP/1.1".encode()


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "PATCH", "PUT", "POST", "TRACE", "PROPFIND"])
async def test_any_method_is_forwarded(proxy_exchange: Exchange, method: str) -> None:
    got, answer = await proxy_exchange(f"{method} /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode(), EMPTY)
    assert got.startswith(f"{method} /x ".encode())
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_connect_is_refused(proxy_exchange: Exchange) -> None:
    got, answer = await proxy_exchange(b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\n\r\n", OK)
    assert got == b""
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_no_header_is_invented_but_those_that_tell_of_the_hop(proxy_exchange: Exchange) -> None:
    got, _ = await proxy_exchange(b"GET / HTTP/1.1\r\nHost: Model.Example:80\r\nConnection: close\r\n\r\n", OK)
    assert fields(got) == [
        ("host", "Model.Example:80"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "Model.Example:80"),
        ("forwarded", 'for=127.0.0.1;host="Model.Example:80";proto=http'),
    ]


async def test_end_to_end_headers_arrive_and_hop_by_hop_ones_do_not(proxy_exchange: Exchange) -> None:
    got, _ = await proxy_exchange(
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 9\r\nTE: trailers\r\n"
        b"Proxy-Authorization: p\r\nUpgrade: h2c\r\nCookie: a=b\r\nX-Two: 1\r\nX-Two: 2\r\nUser-Agent: u\r\n\r\n",
        OK,
    )
    kept = [field for field in fields(got) if "forwarded" not in field[0]]
    assert kept == [("host", "h"), ("cookie", "a=b"), ("x-two", "1"), ("x-two", "2"), ("user-agent", "u")]


async def test_a_body_with_a_length_keeps_it(proxy_exchange: Exchange) -> None:
    got, _ = await proxy_exchange(
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 6\r\nContent-Encoding: gzip\r\n\r\nabcEND",
        OK,
    )
    names = dict(fields(got))
    assert (names["content-length"], names["content-encoding"]) == ("6", "gzip")
    assert "transfer-encoding" not in names
    assert "content-type" not in names
    assert got.endswith(b"\r\n\r\nabcEND")


async def test_a_chunked_body_stays_chunked_and_its_trailers_are_dropped(proxy_exchange: Exchange) -> None:
    got, _ = await proxy_exchange(
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"6;ext=1\r\nabcEND\r\n0\r\nX-Sum: 7\r\n\r\n",
        OK,
    )
    names = dict(fields(got))
    assert names["transfer-encoding"] == "chunked"
    assert "content-length" not in names
    assert "trailer" not in names
    assert got.endswith(b"\r\n\r\n6\r\nabcEND\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"Content-Length: +3\r\n\r\nabc",
        b"Content-Length: 3, 3\r\n\r\nabc",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"X: a\r\n b\r\n\r\n",
        b"X: a\0b\r\n\r\n",
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_head_that_two_servers_could_read_differently_is_refused(proxy_exchange: Exchange, head: bytes) -> None:
    got, answer = await proxy_exchange(b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + head, OK)
    assert got == b""
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))


async def test_expect_continue_is_answered_by_the_sidecar(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        assert b"Expect" not in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(OK)

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"body")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_pipelined_requests_are_answered_in_order(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number for number in range(100)))
    for number in range(100):
        await reader.readuntil(b"\r\n\r\n")
        body = b"/%d" % number
        assert await reader.readexactly(len(body)) == body


async def test_requests_share_a_connection_to_the_predictor(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    connections: list[Writer] = []

    async def predictor(reader: Reader, writer: Writer) -> None:
        connections.append(writer)
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)

    _, port = await proxy_front(await proxy_predictor(predictor))
    for _ in range(3):
        reader, writer = await proxy_connect(port)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nok")
    assert len(connections) == 1


class NoQuestions:
    """Implements `local_answers.V1Models` for requests that are none of v1's."""

    def answers(self, method: str, target: str) -> bool:
        return False


@pytest.mark.parametrize(
    ("framing", "body"),
    [(b"Content-Length: 5", b"hello"), (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")],
)
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_a_body_of_what_might_have_been_a_question_about_models_arrives_whole(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, method: bytes, framing: bytes, body: bytes
) -> None:
    got: list[bytes] = []

    async def script(reader: Reader, writer: Writer) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            got.append(head + await reader.readexactly(len(body)))
            writer.write(EMPTY)

    front, port = await proxy_front(await proxy_predictor(script))
    front.handler._v1_models = NoQuestions()
    reader, writer = await proxy_connect(port)
    async with asyncio.timeout(10):
        for _ in range(2):
            writer.write(method + b" /x HTTP/1.1\r\nHost: h\r\n" + framing + b"\r\n\r\n" + body)
            await reader.readuntil(b"\r\n\r\n")
    assert [each[-len(body) :] for each in got] == [body, body]


async def test_a_body_that_breaks_in_the_bytes_of_its_head_is_refused_at_once(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def script(reader: Reader, writer: Writer) -> None:
        raise AssertionError("nothing of it is passed on")

    front, port = await proxy_front(await proxy_predictor(script))
    front.handler._v1_models = NoQuestions()
    reader, writer = await proxy_connect(port)
    writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nZZ\r\n")
    async with asyncio.timeout(10):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("method", "body", "connections"),
    [(b"GET", b"", 1), (b"GET", b"abc", 2), (b"HEAD", b"abc", 2), (b"DELETE", b"abc", 2), (b"POST", b"abc", 1)],
)
async def test_nothing_follows_a_body_that_a_server_may_not_expect_on_its_connection(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, method: bytes, body: bytes, connections: int
) -> None:
    opened: list[Writer] = []

    async def script(reader: Reader, writer: Writer) -> None:
        opened.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(len(body) if head.startswith(method) else 0)
            writer.write(EMPTY)

    _, port = await proxy_front(await proxy_predictor(script))
    reader, writer = await proxy_connect(port)
    async with asyncio.timeout(10):
        for request in (
            method + b" /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
            b"OPTIONS /y HTTP/1.1\r\nHost: h\r\n\r\n",
        ):
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
    assert len(opened) == connections


async def test_a_body_that_breaks_behind_its_answer_ends_the_connection_without_another(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def script(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(EMPTY)
        await reader.read()

    _, port = await proxy_front(await proxy_predictor(script))
    reader, writer = await proxy_connect(port)
    writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
    async with asyncio.timeout(10):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"ZZ\r\n")
        assert await reader.read() == b""
