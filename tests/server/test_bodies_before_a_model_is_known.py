"""What came of a request counts as held while nobody has taken it, as while the predictor is asked about its model."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from carpool_sidecar.batching import calls, routes
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.lists import rules
from tests.server.connection_bench import V1_ROUTE, Bench, OwnHandler, get, post, settle
from tests.server.test_connections_v2 import BODY, INFER, Predictor, answer, infer, told

pytestmark = pytest.mark.looptime

LARGE = BODY + b" " * 20_000


@pytest.fixture
async def predictor() -> AsyncIterator[Predictor]:
    found = Predictor(models.ModelInfo(max_batch_size=4))
    yield found
    await found.registry.close()


def chunked(body: bytes = LARGE) -> bytes:
    head = post(b"", target=INFER).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def coded() -> bytes:
    return infer(gzip.compress(LARGE, 0), b"Content-Encoding: gzip")


def hurried() -> bytes:
    return infer(LARGE, b"carpool-timeout-ms: 300000")


REQUESTS = pytest.mark.parametrize(
    "request_of", [lambda: infer(LARGE), chunked, coded, hurried], ids=["sized", "chunked", "coded", "hurried"]
)


async def settle_all() -> None:
    for _ in range(5):
        await settle()


@REQUESTS
async def test_a_body_counts_once_until_its_request_is_answered(
    predictor: Predictor, request_of: Callable[[], bytes]
) -> None:
    bench = predictor.bench()
    client = bench.connect()
    client.send(request_of())
    await settle()
    assert len(LARGE) <= bench.memory.held < len(LARGE) + 100
    await told(predictor, client)
    [call] = bench.driver.calls
    assert bench.memory.held == call.size == len(LARGE)
    bench.memory.held -= call.size  # as the scheduler does
    answer(bench)
    assert (client.statuses, bench.memory.held, bench.life.active) == ([200], 0, 0)


@REQUESTS
@pytest.mark.parametrize("when", ["before its body is whole", "when its body is whole"])
async def test_nothing_counts_of_a_client_that_left(
    predictor: Predictor, request_of: Callable[[], bytes], when: str
) -> None:
    bench = predictor.bench()
    client = bench.connect()
    text = request_of()
    client.send(text[:-10] if when.startswith("before") else text)
    await settle()
    assert bench.memory.held > 0
    client.leave()
    assert (bench.memory.held, bench.life.active) == (0, 0)
    await settle_all()
    assert bench.memory.held == 0


async def test_once_memory_is_full_no_more_of_bodies_is_read_and_others_are_refused(predictor: Predictor) -> None:
    bench = predictor.bench(max_queue_bytes=50_000, max_body_bytes=50_000, max_batch_bytes=50_000)
    clients = [bench.connect() for _ in range(5)]
    for client in clients:
        if client.is_reading():
            client.send(infer(LARGE)[:-10])
        await settle()
    assert [client.is_reading() for client in clients] == [True, True, False, False, False]
    assert bench.memory.held > 50_000
    other = bench.connect()
    other.send(post(b'{"instances":[1]}'))
    await settle_all()
    assert other.statuses == [429]
    for client in clients:
        client.leave()
    await settle_all()
    assert (bench.memory.held, bench.life.active) == (0, 0)


@pytest.mark.parametrize("is_sized", [True, False])
async def test_a_body_that_was_not_read_for_want_of_room_is_read_on_once_there_is_some(
    predictor: Predictor, is_sized: bool
) -> None:
    bench = predictor.bench(max_queue_bytes=50_000, max_body_bytes=50_000, max_batch_bytes=50_000)
    bench.memory.held += 45_000
    client, text = bench.connect(), infer(LARGE) if is_sized else chunked()
    client.send(text[:-100])
    await settle()
    assert not client.is_reading()
    bench.memory.held -= 45_000
    await told(predictor, client)
    client.send(text[-100:])
    await settle_all()
    assert [call.size for call in bench.driver.calls] == [len(LARGE)]


@pytest.mark.parametrize("is_sized", [True, False])
async def test_a_body_without_room_is_refused_when_its_model_is_known(predictor: Predictor, is_sized: bool) -> None:
    bench = predictor.bench(max_queue_bytes=50_000, max_body_bytes=50_000, max_batch_bytes=50_000)
    bench.memory.held += 45_000
    client = bench.connect()
    client.send(infer(LARGE) if is_sized else chunked())
    predictor.may_tell.set()
    await settle_all()
    assert (client.statuses, bench.memory.held) == ([429], 45_000)


async def test_a_body_that_names_its_model_counts_while_the_predictor_is_asked_about_that(predictor: Predictor) -> None:
    chosen = [rules.built_in()["openai-embeddings"]]
    nobody = cast(calls.Predictor, None)  # whom nothing is sent
    by_body = routes.ByBody(chosen, predictor.registry, nobody, lambda body: "m")
    bench = Bench(routes.Routes(V1_ROUTE, routes.Models(predictor.registry, nobody), None, [by_body]))
    bench.handler = OwnHandler(bench)
    client = bench.connect()
    client.send(post(LARGE, target=b"/v1/embeddings"))
    await settle_all()
    assert bench.memory.held == len(LARGE)
    client.leave()
    await settle_all()
    assert (bench.memory.held, bench.life.active) == (0, 0)


async def test_what_is_dropped_of_a_body_counts_nowhere_and_is_read_whatever_room_there_is() -> None:
    bench = Bench()
    full = bench.memory.held = bench.settings.max_queue_bytes + 1
    client = bench.connect()
    client.send(get(b"/any").replace(b"\r\n\r\n", b"\r\nContent-Length: 100000\r\n\r\n"))
    [asked] = bench.asked
    asked.exchange.consumer = None
    asked.exchange.drop_body()
    for _ in range(4):
        client.send(b"x" * 20_000)
    assert bench.memory.held == full
    bench.memory.held = 0
    asked.answer()
    client.send(b"x" * 20_000)
    assert (client.statuses, bench.memory.held, bench.life.active) == ([200], 0, 0)
