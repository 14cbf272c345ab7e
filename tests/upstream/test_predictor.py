"""Batches over HTTP: what comes back, and what a misbehaving predictor cannot do."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import test_utils, web

from sidecar import errors
from sidecar.upstream import predictor as predictors


class Wire:
    """A predictor made of bytes: answers each request with the next of `answers`, then `later` after a moment."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.later: list[bytes] = []
        self.requests = 0
        self.said_later = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (await reader.readuntil(b"\r\n\r\n")) and await reader.readexactly(2):
                self.requests += 1
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.later:
                    await asyncio.sleep(0)
                    writer.write(self.later.pop(0))
                    await writer.drain()
                    self.said_later.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def http(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), headers, body)


@pytest.fixture
async def wire():
    return Wire()


@pytest.fixture
async def predictor(wire):
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = predictors.HttpPredictor(f"http://127.0.0.1:{port}", 5.0, max_answer_bytes=1000)
    yield client
    await client.close()
    server.close()
    await server.wait_closed()


async def ask(predictor) -> bytes:
    return await predictor.predict("/v1/models/m:predict", (), (b"{}",), 5.0)


async def test_an_answer_nobody_asked_for_is_never_given_to_the_next_caller(wire, predictor):
    wire.answers = [http(b"first"), http(b"second")]
    wire.later = [http(b"stale")]
    assert await ask(predictor) == b"first"
    await wire.said_later.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert await ask(predictor) == b"second"
    assert wire.requests == 2


@pytest.mark.parametrize("status", [b"101 Switching Protocols", b"600 What", b"999 Eh"])
async def test_a_status_that_is_no_answer_to_a_post_is_502(wire, predictor, status):
    wire.answers = [http(b"", status)]
    with pytest.raises(errors.UpstreamBroken):
        await ask(predictor)


async def test_headers_of_a_refusal_with_control_characters_are_left_out(wire, predictor):
    wire.answers = [http(b"no", b"400 Bad Request", b"Content-Type: te\x01xt\r\nRetry-After: 3\r\n")]
    with pytest.raises((errors.UpstreamStatus, errors.UpstreamBroken)) as caught:
        await ask(predictor)
    assert "Content-Type" not in dict(getattr(caught.value, "headers", ()))


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_answer_beyond_the_limit_is_broken_off(wire, predictor, chunked):
    body = b"x" * 1001
    wire.answers = [http(body)]
    if chunked:
        wire.answers = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n%b\r\n0\r\n\r\n" % body]
    with pytest.raises(errors.UpstreamBroken, match="larger than 1000 bytes"):
        await ask(predictor)


async def test_an_answer_at_the_limit_is_fine(wire, predictor):
    wire.answers = [http(b"x" * 1000)]
    assert await ask(predictor) == b"x" * 1000


class Recorder:
    """A predictor that notes what it is asked and answers as told."""

    def __init__(self) -> None:
        self.seen: list[web.BaseRequest] = []
        self.answer = lambda: web.Response(body=b'{"predictions":[]}')

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        self.seen.append(request)
        return self.answer()


@pytest.fixture
async def recorder():
    return Recorder()


@pytest.fixture
async def recorded(recorder):
    server = test_utils.RawTestServer(recorder.handle)
    await server.start_server()
    client = predictors.HttpPredictor(str(server.make_url("/")).rstrip("/"), 5.0)
    yield client
    await client.close()
    await server.close()


async def test_the_target_reaches_the_predictor_unchanged(recorder, recorded):
    for target in ("/v1/models/m%41:predict", "/a%2Fb:predict?x=%20&", "//a/../b:predict", "/a:predict?"):
        await recorded.predict(target, (), (b"{}",), 5.0)
        assert recorder.seen[-1].raw_path == target


async def test_nothing_is_invented_about_the_callers_client(recorder, recorded):
    await recorded.predict("/m:predict", (("Authorization", "Bearer t"),), (b"{}",), 5.0)
    headers = recorder.seen[0].headers
    assert "User-Agent" not in headers
    assert headers["Authorization"] == "Bearer t"
    assert headers["Content-Type"] == "application/json"


async def test_cookies_do_not_cross_from_one_batch_to_the_next(recorder, recorded):
    recorder.answer = lambda: web.Response(body=b"{}", headers={"Set-Cookie": "session=1"})
    await ask(recorded)
    await ask(recorded)
    assert "Cookie" not in recorder.seen[1].headers


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (302, {"Location": "/elsewhere"}),
        (401, {"WWW-Authenticate": "Bearer"}),
        (405, {"Allow": "GET"}),
        (429, {"Retry-After": "3"}),
        (500, {"Content-Type": "text/odd"}),
    ],
)
async def test_refusals_and_redirects_are_the_callers_with_the_headers_that_explain_them(
    recorder, recorded, status, headers
):
    recorder.answer = lambda: web.Response(status=status, body=b"why", headers={**headers, "X-Other": "no"})
    with pytest.raises(errors.UpstreamStatus) as caught:
        await ask(recorded)
    assert (caught.value.status, caught.value.body) == (status, b"why")
    told = dict(caught.value.headers)
    assert headers.items() <= told.items()
    assert "X-Other" not in told
    assert len(recorder.seen) == 1


@pytest.mark.looptime
async def test_a_predictor_that_does_not_take_the_connection_is_unreachable_after_the_connect_timeout():
    backlog = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = backlog.getsockname()[1]
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    client = predictors.HttpPredictor(f"http://127.0.0.1:{port}", 0.5)
    with pytest.raises(errors.UpstreamUnreachable):
        await ask(client)
    await client.close()
    for open_socket in (*fillers, backlog):
        open_socket.close()
