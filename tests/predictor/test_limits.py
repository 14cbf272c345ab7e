"""Bounds on bodies and on waiting: refused with the right status, and the room comes back."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import looptime
import pytest

from carpool_predictor import errors, served_model, server, worker

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


def handler(model: SlowModel, max_body: int = 1000) -> server.Handler:
    return server.Handler({"slow": cast(served_model.ServedModel, model)}, max_body, body_timeout=30.0)


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
