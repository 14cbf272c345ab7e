"""Bounds on bodies and on waiting: refused with the right status, and the room comes back."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import looptime
import pytest

from carpool_predictor import embeddings, errors, served_model, server, worker

from .conftest import Start, until

PATH = "/v1/models/slow:predict"


class SlowModel:
    """A supervisor whose worker answers when told to."""

    name = "slow"
    is_ready = True

    def __init__(self, calls: int, size: int) -> None:
        self.limit = served_model.WaitingLimit(calls, size)
        self.called = asyncio.Event()
        self.answer = asyncio.Event()

    async def predict(self, body: worker.Body) -> worker.Reply:
        self.called.set()
        await self.answer.wait()
        return worker.Reply(200, b"{}")

    async def embed(self, request: embeddings.Request) -> worker.Reply:
        return await self.predict(request.inputs)


def handler(
    model: SlowModel, max_body: int = 1000, unassigned: served_model.WaitingLimit | None = None
) -> server.Handler:
    models = {"slow": cast(served_model.ServedModel, model)}
    return server.Handler(models, max_body, 30.0, unassigned or served_model.WaitingLimit(10, max_body))


async def _pieces() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b"x" * 10


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_over_the_limit_get_413(start: Start, chunked: bool) -> None:
    predictor = await start("echo", max_body=100)
    data: Any = _pieces() if chunked else b"x" * 200
    status, body = await predictor.predict("echo", data)
    assert (status, body) == (413, b'{"error":"the request body is over the limit of 100 bytes"}')


async def test_the_limit_counts_decompressed_bytes(start: Start) -> None:
    predictor = await start("echo", max_body=1000)
    bomb = gzip.compress(b"0" * 1_000_000)[:900]
    status, _ = await predictor.predict("echo", bomb, headers={"Content-Encoding": "gzip"}, compress=None)
    assert status == 413


@pytest.mark.parametrize(("calls", "size"), [(1, 1000), (10, 15)])
async def test_more_than_may_wait_gets_503_at_once(
    aiohttp_raw_server: Any, aiohttp_client: Any, calls: int, size: int
) -> None:
    model = SlowModel(calls, size)
    client = await aiohttp_client(await aiohttp_raw_server(handler(model)))
    first = asyncio.create_task(client.post(PATH, data=b"0123456789"))
    await model.called.wait()
    async with client.post(PATH, data=b"0123456789") as refused:
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    model.answer.set()
    async with await first as answered:
        assert answered.status == 200
    assert (model.limit.calls, model.limit.size) == (calls, size)


@pytest.mark.parametrize(("calls", "size", "status"), [(1, 1000, 200), (0, 1000, 503), (1, 20, 503)])
async def test_bodies_that_have_not_named_their_model_yet_have_a_limit_of_their_own(
    aiohttp_raw_server: Any, aiohttp_client: Any, calls: int, size: int, status: int
) -> None:
    model, unassigned = SlowModel(10, 1000), served_model.WaitingLimit(calls, size)
    client = await aiohttp_client(await aiohttp_raw_server(handler(model, unassigned=unassigned)))
    asked = asyncio.create_task(client.post("/v1/embeddings", json={"model": "slow", "input": "text"}))
    if status == 200:
        await model.called.wait()
        assert (model.limit.calls, model.limit.size < 1000) == (9, True)
    assert (unassigned.calls, unassigned.size) == (calls, size)
    model.answer.set()
    async with await asked as answered:
        assert answered.status == status
    assert (unassigned.calls, unassigned.size, model.limit.calls, model.limit.size) == (calls, size, 10, 1000)


@pytest.mark.looptime
async def test_a_stalled_body_gets_408(aiohttp_raw_server: Any, looptime: looptime.LoopTimeProxy) -> None:
    served = await aiohttp_raw_server(handler(SlowModel(1, 1000)))
    reader, writer = await asyncio.open_connection(served.host, served.port)
    writer.write(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert 30 <= looptime < 31
    writer.close()
    await writer.wait_closed()


async def test_a_caller_that_leaves_within_its_body_gives_its_room_back(
    aiohttp_raw_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = SlowModel(1, 1000)
    served = await aiohttp_raw_server(handler(model))
    _, writer = await asyncio.open_connection(served.host, served.port)
    writer.write(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    await until(lambda: model.limit.size < 1000)
    writer.close()
    await writer.wait_closed()
    await until(lambda: model.limit.size == 1000)
    assert model.limit.calls == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_room_is_given_back_whatever_happens() -> None:
    space = served_model.WaitingLimit(calls=1, size=10)
    with space.claim() as claim:
        claim.grow(10)
        with pytest.raises(errors.TooMuchWaiting):
            space.claim()
        with pytest.raises(errors.TooMuchWaiting):
            claim.grow(1)
    assert (space.calls, space.size) == (1, 10)
