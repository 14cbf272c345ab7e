"""An answer reaches the caller as the predictor wrote it."""

from __future__ import annotations

import gzip
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Start = Callable[[Any], Awaitable[Any]]
Exchange = Callable[[bytes, bytes], Awaitable[tuple[bytes, bytes]]]

GET = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
pytestmark = pytest.mark.uvloop


def head(message: bytes) -> list[bytes]:
    """Status line and header fields but Date, which the sidecar owes, and Connection, which is its own."""
    lines = message.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return [line for line in lines if not line.startswith((b"Date:", b"Connection:"))]


async def test_status_reason_and_headers_arrive_in_order_with_nothing_invented(proxy_exchange: Exchange) -> None:
    _, answer = await proxy_exchange(
        GET,
        b"HTTP/1.1 299 All Good\r\nSet-Cookie: a=1; Path=/\r\nx-odd: 1\r\nSet-Cookie: a=2\r\n"
        b"Content-Length: 2\r\n\r\nok",
    )
    assert head(answer) == [
        b"HTTP/1.1 299 All Good",
        b"Set-Cookie: a=1; Path=/",
        b"x-odd: 1",
        b"Set-Cookie: a=2",
        b"Content-Length: 2",
    ]
    assert answer.endswith(b"\r\n\r\nok")


async def test_the_predictors_own_server_type_and_date_are_kept(proxy_exchange: Exchange) -> None:
    stated = [b"Server: model/1", b"Content-Type: text/x; charset=y", b"Date: Mon, 01 Jan 2001 00:00:00 GMT"]
    _, answer = await proxy_exchange(
        GET, b"HTTP/1.1 200 OK\r\n" + b"\r\n".join(stated) + b"\r\nContent-Length: 0\r\n\r\n"
    )
    for line in stated:
        assert answer.count(line + b"\r\n") == 1


async def test_hop_by_hop_headers_and_trailers_are_dropped(proxy_exchange: Exchange) -> None:
    _, answer = await proxy_exchange(
        GET,
        b"HTTP/1.1 200 OK\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nTrailer: X-Sum\r\n"
        b"Proxy-Authenticate: Basic\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n",
    )
    assert head(answer) == [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked"]
    assert answer.endswith(b"\r\n\r\n2\r\nok\r\n0\r\n\r\n")


async def test_a_body_without_length_is_chunked_for_the_caller(proxy_exchange: Exchange) -> None:
    _, answer = await proxy_exchange(GET, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok")
    assert head(answer) == [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked"]
    assert answer.endswith(b"\r\n\r\n2\r\nok\r\n0\r\n\r\n")


async def test_an_http_1_0_caller_gets_no_chunks(proxy_exchange: Exchange) -> None:
    _, answer = await proxy_exchange(
        b"GET / HTTP/1.0\r\nHost: h\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    )
    assert b"Transfer-Encoding" not in answer
    assert answer.endswith(b"\r\n\r\nok")


async def test_an_answer_to_head_keeps_its_length_and_has_no_body(proxy_exchange: Exchange) -> None:
    _, answer = await proxy_exchange(
        b"HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n",
    )
    assert head(answer) == [b"HTTP/1.1 200 OK", b"Content-Length: 12345"]
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answers_that_never_have_a_body_have_none(proxy_exchange: Exchange, status: bytes) -> None:
    _, answer = await proxy_exchange(GET, b"HTTP/1.1 " + status + b"\r\nAge: 1\r\n\r\n")
    assert head(answer) == [b"HTTP/1.1 " + status, b"Age: 1"]
    assert answer.endswith(b"\r\n\r\n")


async def test_redirects_are_the_callers_to_follow(proxy_exchange: Exchange) -> None:
    _, answer = await proxy_exchange(GET, b"HTTP/1.1 302 Found\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n")
    assert head(answer) == [b"HTTP/1.1 302 Found", b"Location: /else", b"Content-Length: 0"]


async def test_informational_answers_are_passed_on_but_for_100(proxy_exchange: Exchange) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    _, answer = await proxy_exchange(
        GET, b"HTTP/1.1 100 Continue\r\n\r\n" + hints * 2 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    )
    assert answer.startswith(hints * 2)
    assert head(answer[len(hints * 2) :]) == [b"HTTP/1.1 200 OK", b"Content-Length: 2"]


@pytest.mark.parametrize("length", [b"Content-Length: 0", b"Transfer-Encoding: chunked"])
async def test_an_informational_answer_says_nothing_of_the_length_of_a_body(
    proxy_exchange: Exchange, length: bytes
) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n"
    last = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    _, answer = await proxy_exchange(GET, early + length + b"\r\n\r\n" + last)
    assert answer.startswith(early + b"\r\n")


@pytest.mark.parametrize("status", [b"110", b"199"])
async def test_what_an_informational_answer_has_for_a_body_is_no_part_of_the_next(
    proxy_exchange: Exchange, status: bytes
) -> None:
    early = b"HTTP/1.1 " + status + b" x\r\nContent-Length: 5\r\n\r\nearly"
    _, answer = await proxy_exchange(GET, early + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert b"early" not in answer
    assert b"\r\n\r\nHTTP/1.1 502 " in answer


async def test_an_encoded_body_stays_encoded(proxy_exchange: Exchange) -> None:
    body = gzip.compress(b"x" * 1000)
    _, answer = await proxy_exchange(
        GET, b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert b"Content-Encoding: gzip" in head(answer)
    assert answer.endswith(b"\r\n\r\n" + body)


async def test_a_header_that_is_not_utf8_arrives_as_it_is(proxy_exchange: Exchange) -> None:
    got, answer = await proxy_exchange(
        GET.replace(b"\r\n\r\n", b"\r\nX-User: Jos\xe9\r\n\r\n"),
        b"HTTP/1.1 200 OK\r\nX-Any: a\xffb\r\nContent-Length: 2\r\n\r\nok",
    )
    assert b"\r\nX-User: Jos\xe9\r\n" in got
    assert b"\r\nX-Any: a\xffb\r\n" in answer


async def test_a_header_with_a_control_character_is_refused_by_name(proxy_exchange: Exchange) -> None:
    _, answer = await proxy_exchange(GET, b"HTTP/1.1 200 OK\r\nX-Any: a\x01b\r\nContent-Length: 2\r\n\r\nok")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"the value of the predictor's header X-Any has a control character" in answer


async def test_a_reason_with_a_control_character_is_left_out(proxy_exchange: Exchange) -> None:
    _, answer = await proxy_exchange(GET, b"HTTP/1.1 418 a\x01b\r\nContent-Length: 2\r\n\r\nok")
    assert head(answer) == [b"HTTP/1.1 418 ", b"Content-Length: 2"]


async def test_a_header_in_utf8_arrives_as_it_is(proxy_exchange: Exchange) -> None:
    line = "X-Any: größe €".encode()
    _, answer = await proxy_exchange(GET, b"HTTP/1.1 200 OK\r\n" + line + b"\r\nContent-Length: 2\r\n\r\nok")
    assert line in head(answer)


async def test_a_long_header_of_the_predictor_is_no_error(proxy_exchange: Exchange) -> None:
    long = b"X-Long: " + b"x" * 60_000
    _, answer = await proxy_exchange(GET, b"HTTP/1.1 200 OK\r\n" + long + b"\r\nContent-Length: 0\r\n\r\n")
    assert long in head(answer)


async def test_cookies_of_one_caller_are_not_sent_for_another(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    heads: list[bytes] = []

    async def predictor(reader: Reader, writer: Writer) -> None:
        while True:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: secret=1\r\nContent-Length: 2\r\n\r\nok")

    _, port = await proxy_front(await proxy_predictor(predictor))
    for _ in range(2):
        reader, writer = await proxy_connect(port)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nok")
    assert len(heads) == 2
    assert b"ookie" not in heads[0] + heads[1]
