"""How connections end at SIGTERM: what was received is answered, and no client is left to guess."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from carpool_predictor import process, served_model, server, worker

pytestmark = pytest.mark.looptime
GRACE = 20.0
ASKED = b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n"
PREDICT = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: here\r\nContent-Length: 17\r\n\r\n"
BODY = b'{"instances":[1]}'
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Model:
    """Answers when it is let, or is told that there is no worker any more."""

    name, is_ready = "m", True

    def __init__(self) -> None:
        self.limit = served_model.WaitingLimit(99, 1 << 20)
        self.may_answer = asyncio.Event()
        self.content = b"{}"
        self.is_stopped = False

    async def predict(self, body: bytes) -> worker.Reply:
        await self.may_answer.wait()
        return worker.Reply(503 if self.is_stopped else 200, self.content)

    def stop(self) -> None:
        self.is_stopped = True
        self.may_answer.set()


class Here:
    """A predictor with that model, and the clients that connected."""

    def __init__(self) -> None:
        self.model = Model()
        models: Any = {"m": self.model}
        self.handler = server.Handler(models, 1 << 20, 60.0, self.model.limit)
        self.runner = web.ServerRunner(web.Server(self.handler, access_log=None), shutdown_timeout=1.0)
        self.hurry = asyncio.Event()
        self.clients: list[Pair] = []

    async def connect(self, *said: bytes) -> Pair:
        """A client that has said this, and got the first answer if it is a whole request."""
        host, port = self.runner.addresses[0][:2]
        self.clients.append(await asyncio.open_connection(host, port))
        reader, writer = self.clients[-1]
        for each in said:
            writer.write(each)
            if each == ASKED:
                assert b"connection: close" not in (await answer(reader)).lower()
        await asyncio.sleep(0.01)
        return reader, writer

    def stop(self) -> asyncio.Task[None]:
        models: Any = [self.model]
        return asyncio.create_task(process.stop(self.runner, self.handler, models, self.hurry, GRACE))


async def answer(reader: asyncio.StreamReader) -> bytes:
    """The head of one answer; its body is read as well."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return head


async def last_answer(reader: asyncio.StreamReader, status: bytes = b"200") -> None:
    """One answer that says that it is the last, and is."""
    head = await answer(reader)
    assert head.startswith(b"HTTP/1.1 " + status)
    assert b"\r\nconnection: close\r\n" in head.lower()
    assert await reader.read() == b""


@pytest.fixture
async def here() -> AsyncIterator[Here]:
    made = Here()
    await made.runner.setup()
    await web.TCPSite(made.runner, "127.0.0.1", 0).start()
    yield made
    made.model.stop()
    await made.runner.cleanup()
    for _, writer in made.clients:
        writer.close()


def seconds() -> float:
    return asyncio.get_running_loop().time()


async def test_a_request_that_is_being_answered_has_an_answer_that_says_it_is_the_last(here: Here) -> None:
    reader, _ = await here.connect(PREDICT + BODY)
    stopping = here.stop()
    await asyncio.sleep(5)
    here.model.may_answer.set()
    await last_answer(reader)
    await stopping


async def test_a_large_answer_on_its_way_has_the_grace_period_to_be_read(here: Here) -> None:
    reader, _ = await here.connect(PREDICT + BODY)
    here.model.content = b"x" * 20_000_000  # more than sockets hold
    here.model.may_answer.set()
    await reader.readuntil(b"\r\n\r\n")
    stopping = here.stop()
    await asyncio.sleep(GRACE / 2)
    assert not stopping.done()
    assert len(await reader.read()) == 20_000_000
    await stopping


async def test_a_request_that_was_under_way_on_an_idle_connection_is_answered(here: Here) -> None:
    reader, writer = await here.connect(ASKED)
    stopping = here.stop()
    await asyncio.sleep(process.LINGER / 2)
    writer.write(ASKED)
    await last_answer(reader)
    await stopping


async def test_a_body_that_is_still_arriving_is_waited_for(here: Here) -> None:
    here.model.may_answer.set()
    reader, writer = await here.connect(PREDICT, BODY[:5])
    stopping = here.stop()
    await asyncio.sleep(5)
    writer.write(BODY[5:])
    await last_answer(reader)
    await stopping


@pytest.mark.parametrize("said", [[], [ASKED]], ids=["new", "used before"])
async def test_a_connection_on_which_nothing_is_asked_is_closed_after_a_moment(here: Here, said: list[bytes]) -> None:
    reader, _ = await here.connect(*said)
    began = seconds()
    await here.stop()
    assert await reader.read() == b""
    assert process.LINGER <= seconds() - began < process.LINGER + 0.1


async def test_who_is_alone_stops_at_once_and_nobody_connects_any_more(here: Here) -> None:
    host, port = here.runner.addresses[0][:2]
    began = seconds()
    await here.stop()
    assert seconds() - began < 0.1
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)


@pytest.mark.parametrize("hurries", [False, True])
async def test_when_the_time_is_up_or_in_a_hurry_what_is_held_is_refused(here: Here, hurries: bool) -> None:
    reader, _ = await here.connect(PREDICT + BODY)
    began = seconds()
    stopping = here.stop()
    await asyncio.sleep(1)
    if hurries:
        here.hurry.set()
    await last_answer(reader, b"503")
    await stopping
    assert seconds() - began < (2 if hurries else GRACE + 2)
