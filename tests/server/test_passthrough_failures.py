"""When a side fails: clear answers before the first byte, no half answer taken for a whole one, nothing left open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import struct
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Start = Callable[[Any], Awaitable[Any]]
Exchange = Callable[[bytes, bytes], Awaitable[tuple[bytes, bytes]]]

GET = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
pytestmark = pytest.mark.uvloop


def error_of(answer: bytes) -> tuple[bytes, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split()[1], json.loads(body)["error"]


async def test_a_predictor_that_does_not_listen_is_unreachable(proxy_front: Start, proxy_connect: Start) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        _, port = await proxy_front(unused.getsockname()[1])
        reader, writer = await proxy_connect(port)
        writer.write(GET)
        status, error = error_of(await reader.read())
    assert status == b"502"
    assert error.startswith("the predictor cannot be reached: ")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_predictor_that_closes_before_its_head_is_complete_is_a_502(
    proxy_exchange: Exchange, answer: bytes
) -> None:
    _, got = await proxy_exchange(GET, answer)
    assert error_of(got) == (b"502", "the predictor closed the connection before answering")


@pytest.mark.parametrize(
    "answer",
    [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 101 Now\r\nUpgrade: x\r\n\r\n"],
)
async def test_an_answer_that_is_not_http_is_a_502(proxy_exchange: Exchange, answer: bytes) -> None:
    _, got = await proxy_exchange(GET, answer)
    assert error_of(got)[0] == b"502"


@pytest.mark.parametrize("second", [b"identity", b"gzip"])
async def test_an_answer_whose_transfer_codings_are_in_two_lines_is_a_502(
    proxy_exchange: Exchange, second: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: " + second
    _, got = await proxy_exchange(GET, head + b"\r\n\r\n1\r\na\r\n0\r\n\r\n")
    assert error_of(got)[0] == b"502"


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 49\r\n\r\n"),
        (b"PUT", b"HTTP/1.1 204 No Content\r\nContent-Length: 49\r\n\r\n"),
        (b"PUT", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (b"PUT", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"PUT", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 49\r\n\r\n"),
    ],
)
async def test_a_body_that_comes_behind_an_answer_that_has_none_is_nobodys_answer(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, method: bytes, head: bytes
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(method):
            writer.write(head)
            with contextlib.suppress(asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")  # of whoever gets the connection next
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nnobodys")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 49\r\n\r\n" + b"x" * 49)

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(method + b" / HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.write(GET)
    assert (await reader.read()).endswith(b"x" * 49)


@pytest.mark.parametrize(
    "field",
    [b"Content-Length : 2", b"Transfer-Encoding\t: chunked", b"Upgrade : x", b"Proxy-Connection : close", b"X : y"],
)
async def test_a_space_before_a_colon_in_an_answer_is_a_502(proxy_exchange: Exchange, field: bytes) -> None:
    _, got = await proxy_exchange(GET, b"HTTP/1.1 200 OK\r\n" + field + b"\r\n\r\n0\r\n\r\n")
    assert error_of(got)[0] == b"502"


async def test_a_connection_of_http_1_0_whose_answer_came_in_chunks_is_used_no_more(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    connections = 0

    async def predictor(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n")
                writer.write(b"2\r\nok\r\n0\r\n\r\n")

    _, port = await proxy_front(await proxy_predictor(predictor))
    for _ in range(2):
        reader, writer = await proxy_connect(port)
        writer.write(GET)
        assert b"ok" in await reader.read()
    assert connections == 2


@pytest.mark.parametrize(
    ("request_", "status"),
    [(GET, b"200"), (POST, b"502"), (POST.replace(b"POST", b"PUT"), b"502")],
    ids=["GET", "POST", "PUT with a body"],
)
async def test_only_a_repeatable_request_is_sent_again_when_a_kept_connection_was_closed(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, request_: bytes, status: bytes
) -> None:
    connections = 0

    async def predictor(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"\r\n\r\nok")
    writer.write(request_)
    assert (await reader.readuntil(b"\r\n")).split()[1] == status
    assert connections == (2 if request_ is GET else 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nnonsense\r\n",
    ],
)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_an_answer_that_breaks_off_resets_the_callers_connection(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, answer: bytes, version: bytes
) -> None:
    break_off = asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head, body, rest = answer.partition(b"half")
        writer.write(head + body)
        await break_off.wait()
        writer.write(rest)

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(GET.replace(b"1.1", version))
    await reader.readuntil(b"half")
    break_off.set()
    with pytest.raises(ConnectionResetError):
        await reader.read()


async def test_a_malformed_chunk_of_the_caller_is_not_passed_on_as_the_end(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"abc\r\n")
        started.set()
        assert await reader.read() == b""
        ended.set()

    _, port = await proxy_front(await proxy_predictor(predictor))
    _, writer = await proxy_connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await started.wait()
    writer.write(b"nonsense\r\n")
    writer.close()
    await ended.wait()


async def test_a_body_that_is_no_http_is_the_callers_fault(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.read()

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"the body is not valid HTTP: Invalid character in chunk size" in await reader.readuntil(b"}")


@pytest.mark.parametrize(
    ("answer", "until"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", b"half"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + bytes(1 << 22), b"\r\n\r\n"),
    ],
    ids=["before the answer", "amid the answer", "stalled amid the answer"],
)
@pytest.mark.parametrize("request_", [GET, POST], ids=["GET", "POST"])
async def test_a_caller_that_leaves_closes_the_predictors_connection(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, request_: bytes, answer: bytes, until: bytes
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"hi" if request_ is POST else b"\r\n\r\n")
        writer.write(answer)
        started.set()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        ended.set()

    _, port = await proxy_front(await proxy_predictor(predictor))
    reader, writer = await proxy_connect(port)
    writer.write(request_)
    await started.wait()
    if until:
        await reader.readuntil(until)
    writer.transport.abort()
    await ended.wait()


async def test_a_caller_that_leaves_amid_its_upload_closes_the_predictors_connection(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"first")
        started.set()
        assert await reader.read() == b""
        ended.set()

    _, port = await proxy_front(await proxy_predictor(predictor))
    _, writer = await proxy_connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nfirst")
    await started.wait()
    writer.transport.abort()
    await ended.wait()


async def test_close_ends_streams_and_idle_connections(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start
) -> None:
    ended = asyncio.Semaphore(0)

    async def predictor(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(OK if b"/idle" in head else b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
        assert await reader.read() == b""
        ended.release()

    proxy, port = await proxy_front(await proxy_predictor(predictor))
    streaming, writer = await proxy_connect(port)
    writer.write(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
    await streaming.readuntil(b"\r\n\r\nok")
    idle, writer = await proxy_connect(port)
    writer.write(b"GET /idle HTTP/1.1\r\nHost: h\r\n\r\n")
    await idle.readuntil(b"\r\n\r\nok")
    await proxy.close()
    with pytest.raises(ConnectionResetError):
        await streaming.read()
    await ended.acquire()
    await ended.acquire()


@pytest.mark.parametrize("sent", [OK, OK[:-1]], ids=["an answer", "part of an answer"])
async def test_a_connection_that_the_predictor_resets_leaves_no_exception_that_nobody_has_looked_at(
    proxy_predictor: Start, proxy_front: Start, proxy_connect: Start, sent: bytes
) -> None:
    untold: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: untold.append(context))
    head, body = sent.split(b"\r\n\r\n")

    async def predictor(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await asyncio.sleep(0.02)  # else aiohttp has all of it before anybody reads
        writer.write(body)
        await asyncio.sleep(0.02)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    _, port = await proxy_front(await proxy_predictor(predictor))
    for _ in range(2):  # with the second aiohttp finds that the connection of the first is lost
        reader, writer = await proxy_connect(port)
        writer.write(GET)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await asyncio.sleep(0.05)
    gc.collect()
    assert untold == []
