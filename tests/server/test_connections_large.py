"""Large bodies are looked through in later turns of the loop; all else on the connection waits."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from carpool_sidecar import drain
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.protocols import interface, steps, v1
from carpool_sidecar.server.http1 import bodies
from tests.server.connection_bench import BODY, Bench, OwnHandler, Transport, post, settle

LARGE = b'{"instances":[%b]}' % b",".join([b'"a string"'] * 100)
BROKEN = LARGE[:-1]


class Slow:
    """v1, but a large body takes a turn of the loop for each step until it is let go."""

    large = len(BROKEN)
    max_batch_size = 1000
    parse = staticmethod(v1.parse_request)

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.is_closed = False

    def parse_in_steps(
        self, body: bytes, max_rows: int, json_size: int | None = None
    ) -> steps.Steps[interface.Payload]:
        try:
            while not self.may_end.is_set():
                yield
        finally:
            self.is_closed = True
        return v1.parse_request(body, max_rows)


@pytest.fixture
async def slow() -> Slow:
    return Slow()


@pytest.fixture
async def bench(slow: Slow) -> Bench:
    found = Bench(routes.Routes(calls.Route(slow, None), routes.Models(None, None)))  # type: ignore[arg-type] # nothing is sent
    found.handler = OwnHandler(found)
    return found


def send(client: Transport, body: bytes, after: bytes = b"") -> None:
    request = post(body)
    client.send(request[:200])
    client.send(request[200:] + after)


async def let_go(slow: Slow) -> None:
    slow.may_end.set()
    for _ in range(5):
        await settle()


async def test_a_large_body_becomes_a_call_once_it_was_looked_through(bench: Bench, slow: Slow) -> None:
    client = bench.connect()
    send(client, LARGE)
    await settle()
    assert not bench.driver.calls
    assert (bench.memory.held, bench.memory.active) == (len(LARGE), 1)
    await let_go(slow)
    bench.driver.answer()
    assert client.statuses == [200]
    await settle()
    assert (bench.memory.held, bench.memory.active) == (0, 0)


async def test_what_comes_a_few_bytes_at_a_time_is_kept_in_few_parts() -> None:
    parts = bodies.Parts()
    for _ in range(2000):
        parts.add(b"x" * 50)
    assert parts.size == 100_000
    assert len(parts.take()) < 100_000 / 8192


async def test_a_large_body_of_v1_is_looked_through_as_it_comes_and_kept_in_few_parts() -> None:
    bench = Bench()
    client, body = bench.connect(), b'{"instances":[%b]}' % b",".join([b'"%b"' % (b"x" * 2000)] * 600)
    message = post(body)
    client.send(message[:200])
    for at in range(200, len(message), 50):
        if not client.is_reading():
            await settle()  # others were let in
        client.send(message[at : at + 50])
    payload = bench.driver.calls[0].payload
    assert isinstance(payload, v1.Payload)
    assert payload.parts is not None
    pieces = payload.parts.between(0, len(body))
    assert b"".join(pieces) == body
    assert len(pieces) < len(body) / 8192


async def test_requests_behind_it_keep_their_order(bench: Bench, slow: Slow) -> None:
    client = bench.connect()
    small = post(b'{"instances":["a string"]}')
    send(client, LARGE, small[:30])
    await settle()
    client.send(small[30:])
    await settle()
    assert not bench.driver.calls
    await let_go(slow)
    assert [call.rows for call in bench.driver.calls] == [100]
    bench.driver.answer()
    await settle()
    assert [call.rows for call in bench.driver.calls] == [1]
    bench.driver.answer()
    assert client.statuses == [200, 200]


async def test_small_requests_of_others_are_served_meanwhile(bench: Bench, slow: Slow) -> None:
    large, small = bench.connect(), bench.connect()
    send(large, LARGE)
    await settle()
    small.send(post(BODY))
    bench.driver.answer()
    assert small.statuses == [200]
    await let_go(slow)


@pytest.mark.parametrize("after", [b"", post()])
async def test_what_turns_out_to_be_no_call_is_refused_and_what_follows_waits(
    bench: Bench, slow: Slow, after: bytes
) -> None:
    client = bench.connect()
    send(client, BROKEN, after)
    await settle()
    assert not client.statuses
    await let_go(slow)
    assert client.statuses == [400]
    assert len(bench.driver.calls) == bool(after)


async def test_a_caller_that_leaves_meanwhile_leaves_nothing_behind(bench: Bench, slow: Slow) -> None:
    client = bench.connect()
    send(client, LARGE)
    await settle()
    client.leave()
    await settle()
    assert slow.is_closed
    await let_go(slow)
    assert not bench.driver.calls
    assert (bench.memory.held, bench.memory.active) == (0, 0)


async def test_a_connection_that_is_shut_meanwhile_ends_behind_the_answer(bench: Bench, slow: Slow) -> None:
    client = bench.connect()
    send(client, LARGE)
    await settle()
    (connection,) = bench.connections
    connection.shut()
    await let_go(slow)
    bench.driver.answer()
    await settle()
    assert client.statuses == [200]
    assert client.is_lost
    assert (bench.memory.held, bench.memory.active) == (0, 0)


async def test_a_connection_that_is_cut_meanwhile_leaves_nothing_behind(bench: Bench, slow: Slow) -> None:
    client = bench.connect()
    send(client, LARGE)
    await settle()
    (connection,) = bench.connections
    connection.cut()
    await let_go(slow)
    assert client.is_lost
    assert not bench.driver.calls
    assert (bench.memory.held, bench.memory.active) == (0, 0)


async def test_one_that_comes_in_a_shutdown_is_refused(bench: Bench) -> None:
    client = bench.connect()
    bench.life.draining, bench.life.phase = True, drain.Phase.REFUSING
    send(client, LARGE)
    await settle()
    assert client.statuses == [503]


async def test_any_other_request_waits_for_it(bench: Bench, slow: Slow) -> None:
    client = bench.connect()
    send(client, LARGE, b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n")
    await let_go(slow)
    assert not client.received
    bench.driver.answer()
    await settle()
    assert client.statuses == [200, 400]


def seconds(bench: Bench) -> float:
    """What was measured of all requests together."""
    return bench.metrics.request_seconds.read().sum


@pytest.mark.parametrize("body", [LARGE, BROKEN], ids=["answered", "refused"])
async def test_the_time_in_which_a_body_arrives_counts_as_its_requests(bench: Bench, slow: Slow, body: bytes) -> None:
    client, request = bench.connect(), post(body)
    client.send(request[:200])
    bench.now += 3
    client.send(request[200:])
    bench.now += 1
    await let_go(slow)
    if bench.driver.calls:
        bench.driver.answer()
    assert (len(client.statuses), seconds(bench)) == (1, 4)


@pytest.mark.parametrize("line", [b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"])
async def test_so_does_that_of_a_body_that_is_coded_or_comes_in_chunks(line: bytes) -> None:
    bench = Bench()
    bench.handler = OwnHandler(bench)
    if line.startswith(b"Content"):
        request = post(gzip.compress(BODY + b" " * 100_000, 0), line)
    else:
        request = post(b"", line).replace(b"Content-Length: 0\r\n", b"") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    client = bench.connect()
    client.send(request[:-20])
    await settle()
    bench.now += 3
    client.send(request[-20:])
    for _ in range(5):
        await settle()
    bench.driver.answer()
    assert (client.statuses, seconds(bench)) == ([200], 3)
