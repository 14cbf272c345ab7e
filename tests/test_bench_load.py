"""The load generator against a real server on loopback, and the sentences of the demo."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable

from aiohttp import test_utils, web

from benchmarks import bodies, client, demo, load

Serve = Callable[[web.Application], Awaitable[test_utils.TestServer]]
PATH = "/predict"


async def _echo(request: web.Request) -> web.Response:
    return web.json_response({"predictions": (await request.json())["instances"]})


async def _refuse(_: web.Request) -> web.Response:
    return web.json_response({"error": "full"}, status=429)


async def _hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _address(serve: Serve, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> load.Address:
    app = web.Application()
    app.router.add_post(PATH, handler)
    server = await serve(app)
    assert server.port is not None
    return (server.host, server.port)


def _requests(count: int) -> list[bytes]:
    return [client.post("h", PATH, bodies.exact(50, number)) for number in range(count)]


async def test_each_request_is_sent_once_and_its_answer_handed_over(aiohttp_server: Serve) -> None:
    address = await _address(aiohttp_server, _echo)
    check = bodies.Check("instance", [bodies.exact(50, number) for number in range(40)])
    measured = await load.closed_loop(address, _requests(40), 8, on_answer=check.look_at)
    assert (measured.requests, measured.errors, check.count) == (40, {}, 0)
    assert 0 < measured.p50 <= measured.p99 <= measured.seconds


async def test_more_connections_than_requests_is_fine(aiohttp_server: Serve) -> None:
    address = await _address(aiohttp_server, _echo)
    assert (await load.closed_loop(address, _requests(2), 8)).requests == 2
    assert (await load.closed_loop(address, [], 8)).requests == 0


async def test_an_endless_load_ends_when_the_time_is_over(aiohttp_server: Serve) -> None:
    address = await _address(aiohttp_server, _echo)
    measured = await load.closed_loop(address, itertools.repeat(_requests(1)[0]), 2, seconds=0.02)
    assert measured.requests >= 2
    assert not measured.errors


async def test_other_statuses_are_errors_by_their_number(aiohttp_server: Serve) -> None:
    address = await _address(aiohttp_server, _refuse)
    measured = await load.closed_loop(address, _requests(5), 2)
    assert (measured.requests, measured.errors) == (0, {"status 429": 5})


async def test_a_connection_that_breaks_is_an_error_and_does_not_hang_the_run(aiohttp_server: Serve) -> None:
    address = await _address(aiohttp_server, _hang_up)
    measured = await load.closed_loop(address, _requests(5), 2)
    assert (measured.requests, sum(measured.errors.values())) == (0, 2)


def test_the_sentences_are_distinct_and_of_mixed_length() -> None:
    sentences = demo.SENTENCES.read_text().splitlines()
    assert len(sentences) == len(set(sentences)) > 300
    lengths = sorted(len(sentence.split()) for sentence in sentences)
    assert lengths[0] <= 4
    assert lengths[-1] >= 25
    assert all(json.loads(json.dumps(sentence)) == sentence.strip() for sentence in sentences)
