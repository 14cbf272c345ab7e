"""Batches over HTTP: what comes back, and what a misbehaving predictor cannot do."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from aiohttp import test_utils, web

from carpool_sidecar import errors
from carpool_sidecar.upstream import predictor as predictors
from tests import cycles
from tests.upstream.wire import TARGET, Peer, ask, http, turns


@pytest.fixture
async def predictor(wire):
    client = predictors.HttpPredictor(f"http://127.0.0.1:{wire.port}", 5.0, max_answer_bytes=1000)
    yield client
    await client.close()


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


@pytest.mark.parametrize("base", ["https://127.0.0.1:1", "127.0.0.1:1", "http://", "unix:///tmp/x"])
def test_an_address_that_is_not_plain_http_is_an_error_at_once(base):
    with pytest.raises(ValueError, match="must be http://HOST:PORT"):
        predictors.HttpPredictor(base, 1.0)


async def test_a_request_says_which_host_it_is_for_and_how_long_it_is(wire, predictor):
    await predictor.predict("/m:predict", (("traceparent", "00-1"),), (b'{"instances":', b"[1]}"), 5.0)
    peer = wire.requests[0]
    headers = dict(peer.headers)
    assert headers[b"Host"] == b"127.0.0.1:%d" % wire.port
    assert headers[b"Content-Length"] == b"17"
    assert headers[b"traceparent"] == b"00-1"
    assert b"Transfer-Encoding" not in headers
    assert peer.body == b'{"instances":[1]}'


async def test_a_header_that_would_end_its_line_is_refused_before_anything_is_sent(wire, predictor):
    with pytest.raises(errors.BadRequest):
        await predictor.predict("/m:predict", (("Authorization", "a\r\nX: b"),), (b"{}",), 5.0)
    assert wire.peers == []


async def test_no_listener_is_unreachable_with_the_systems_reason(wire, unused_tcp_port):
    client = predictors.HttpPredictor(f"http://127.0.0.1:{unused_tcp_port}", 5.0)
    with pytest.raises(errors.UpstreamUnreachable, match="the predictor cannot be reached: Connection refused"):
        await ask(client)
    await client.close()


@pytest.mark.uvloop
@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_body_is_not_copied_while_a_slow_predictor_takes_it(wire, predictor, pieces):
    body = [b"x" * (30_000_000 // pieces)] * pieces
    stalled = asyncio.Event()

    def stall(peer: Peer) -> None:
        peer.transport.pause_reading()
        stalled.set()

    wire.on_head = stall
    wire.on_body = lambda peer, data: peer.pieces.clear()
    tracemalloc.start()
    try:
        asked = asyncio.ensure_future(ask(predictor, body))
        await stalled.wait()
        await turns()
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


@pytest.mark.parametrize("turns_before", [0, 5])
async def test_an_exchange_that_is_cancelled_while_it_connects_leaves_nothing(wire, predictor, turns_before):
    with cycles.counted() as found:
        predictor.post(TARGET, (), [bytes(200_000)], 5.0, lambda outcome: None).cancel()
        exchange = predictor.post(TARGET, (), [bytes(200_000)], 5.0, lambda outcome: None)
        await turns(turns_before)
        exchange.cancel()
        del exchange
        await turns(20)
    assert found == []
