"""Connections to the webhook: how many there may be, how long they may dawdle, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import types
from dataclasses import dataclass
from typing import Any

import pytest

from carpool_injector.objects import review
from carpool_injector.webhook import connections, metrics, server
from tests import loopback
from tests.injector import reviews

BODY = json.dumps(reviews.asking()).encode()
HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
FEW = 3


@dataclass
class Caller:
    """A connection that is kept."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self) -> str:
        """The first line of the answer, which is read whole; "" where there is none."""
        self.writer.write(HEAD + BODY)
        return await self.answer()

    async def answer(self) -> str:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            await self.reader.readexactly(int(head.partition("Content-Length: ")[2].partition("\r\n")[0]))
            return f"{head.splitlines()[0]}{' close' if 'Connection: close' in head else ''}"
        return ""

    async def is_closed(self) -> bool:
        with contextlib.suppress(OSError):
            return await self.reader.read(1) == b""
        return True


class Listening:
    """A server on the loopback interface, and callers of it, which leave when it ends."""

    def __init__(self, subject: server.Server, most: int, grace: float = 10.0) -> None:
        self.tls, self.trusting = reviews.certificates()
        self.listener = connections.Listener(subject.reviews(), grace, most)
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def call(self, tls: bool = True) -> Caller:
        trusting: ssl.SSLContext | None = self.trusting if tls else None
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=trusting, server_hostname=name)
        self._writers.append(writer)
        return Caller(reader, writer)

    def open_connections(self) -> int:
        return len(self.listener._open)

    async def __aenter__(self) -> Listening:
        self.port = await self.listener.open("127.0.0.1", 0, self.tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.listener.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def at_once(_: review.Request) -> review.Answer:
    return review.Answer()


def listening(handler: server.Handler = at_once, most: int = FEW, grace: float = 10.0) -> Listening:
    return Listening(server.Server({"/mutate": handler}, metrics.Metrics(), list), most, grace)


# --- From where


@pytest.mark.parametrize("caller", ["127.0.0.1", "::1"])
async def test_the_api_server_may_call_over_either_family(caller: str) -> None:
    if caller == "::1" and not loopback.has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address")
    async with listening() as on:
        await on.listener.close()
        everywhere = connections.Listener(
            server.Server({"/mutate": at_once}, metrics.Metrics(), list).reviews(), 1.0, FEW
        )
        port = await everywhere.open("::", 0, on.tls)
        reader, writer = await asyncio.open_connection(caller, port, ssl=on.trusting, server_hostname="localhost")
        assert await Caller(reader, writer).ask() == "HTTP/1.1 200 OK"
        writer.close()
        await everywhere.close()


# --- How many


async def test_a_new_connection_gets_the_place_of_the_one_that_waited_longest_without_asking() -> None:
    async with listening() as on:
        api_server = await on.call()
        assert await api_server.ask() == "HTTP/1.1 200 OK"
        idle = [await on.call() for _ in range(2)]
        await reviews.until(lambda: on.open_connections() == 3)
        for _ in range(5):
            idle.append(await on.call())
            assert await idle.pop(0).is_closed()
            assert on.open_connections() <= 3
        assert await api_server.ask() == "HTTP/1.1 200 OK"


async def test_connections_without_a_handshake_count_and_make_room_too() -> None:
    async with listening() as on:
        silent = [await on.call(tls=False) for _ in range(3)]
        await reviews.until(lambda: on.open_connections() == 3)
        assert await (await on.call()).ask() == "HTTP/1.1 200 OK"
        assert await silent[0].is_closed()


async def test_a_connection_too_many_is_closed_while_all_others_are_being_answered() -> None:
    go_on, inside = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(_: review.Request) -> review.Answer:
        inside.release()
        await go_on.wait()
        return review.Answer()

    async with listening(slow) as on:
        busy = [asyncio.create_task((await on.call()).ask()) for _ in range(3)]
        for _ in busy:
            await inside.acquire()
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await on.call()
        go_on.set()
        assert await asyncio.gather(*busy) == ["HTTP/1.1 200 OK"] * 3
        assert await (await on.call()).ask() == "HTTP/1.1 200 OK"


# --- How long


@pytest.mark.looptime
async def test_a_handshake_that_does_not_come_ends_the_connection() -> None:
    async with listening() as on:
        caller = await on.call(tls=False)
        began = asyncio.get_running_loop().time()
        assert await caller.is_closed()
        assert asyncio.get_running_loop().time() - began == pytest.approx(connections.HANDSHAKE, abs=1)
        assert on.open_connections() == 0


@pytest.mark.looptime
async def test_a_head_that_drips_ends_the_connection_also_after_a_whole_request() -> None:
    async def drip(caller: Caller) -> None:
        while True:
            caller.writer.write(b"X: y\r\n")
            await asyncio.sleep(0.9)

    async with listening() as on:
        for asks in (False, True):
            caller = await on.call()
            if asks:
                assert await caller.ask() == "HTTP/1.1 200 OK"
            caller.writer.write(b"POST /mutate HTTP/1.1\r\n")
            began = asyncio.get_running_loop().time()
            dripping = asyncio.create_task(drip(caller))
            assert await caller.is_closed()
            assert asyncio.get_running_loop().time() - began == pytest.approx(connections.HEAD, abs=1)
            dripping.cancel()


@pytest.mark.looptime
async def test_a_kept_connection_may_be_idle_for_longer_than_an_api_server_keeps_it() -> None:
    async with listening() as on:
        caller = await on.call()
        await asyncio.sleep(95)
        assert await caller.ask() == "HTTP/1.1 200 OK"
        await asyncio.sleep(95)
        assert await caller.ask() == "HTTP/1.1 200 OK"


# --- The end


@pytest.mark.looptime
async def test_who_connected_just_before_the_end_is_answered_all_the_same() -> None:
    async with listening() as on:
        raw = socket.create_connection(("127.0.0.1", on.port))  # in the backlog: nobody accepted it yet
        raw.setblocking(False)
        fresh = await on.call()
        task = asyncio.create_task(on.listener.close())
        reader, writer = await asyncio.open_connection(sock=raw, ssl=on.trusting, server_hostname="localhost")
        assert await Caller(reader, writer).ask() == "HTTP/1.1 200 OK close"
        assert await fresh.ask() == "HTTP/1.1 200 OK close"
        await task
        writer.transport.abort()


@pytest.mark.looptime
async def test_idle_connections_hold_up_the_end_for_a_second_at_most() -> None:
    loop = asyncio.get_running_loop()
    async with listening() as on:
        asked, fresh, silent = await on.call(), await on.call(), await on.call(tls=False)
        assert await asked.ask() == "HTTP/1.1 200 OK"
        await reviews.until(lambda: on.open_connections() == 3)
        began = loop.time()
        await on.listener.close()
        assert loop.time() - began < 2.5
        assert all([await each.is_closed() for each in (asked, fresh, silent)])
    async with listening() as on:
        assert await (await on.call()).ask() == "HTTP/1.1 200 OK"
        began = loop.time()
        await on.listener.close()
        assert loop.time() - began < 0.5


@pytest.mark.looptime
async def test_a_request_that_is_half_in_at_the_end_is_answered() -> None:
    async with listening() as on:
        caller = await on.call()
        caller.writer.write(HEAD[:30])
        await asyncio.sleep(0.1)
        task = asyncio.create_task(on.listener.close())
        await asyncio.sleep(3)
        caller.writer.write(HEAD[30:] + BODY)
        assert await caller.answer() == "HTTP/1.1 200 OK close"
        await task


async def test_callers_that_come_and_go_while_it_ends_get_an_answer_or_no_connection() -> None:
    found: list[str] = []

    async def calls(on: Listening) -> None:
        while True:
            try:
                caller = await on.call()
            except OSError:
                return
            found.append(await caller.ask())
            caller.writer.close()

    async with listening(most=1000) as on:
        load = [asyncio.create_task(calls(on)) for _ in range(8)]
        await reviews.until(lambda: len(found) > 20)
        await on.listener.close()
        await asyncio.gather(*load)
    assert {answer.removesuffix(" close") for answer in found} == {"HTTP/1.1 200 OK"}


class Writer(asyncio.Protocol):
    """Knows whether it is to write."""

    is_paused = False

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False


async def test_a_caller_that_does_not_read_its_answers_gets_no_more_until_it_does() -> None:
    listener: Any = types.SimpleNamespace(loop=asyncio.get_running_loop())
    writer = Writer()
    with socket.socket() as sock:
        connection = connections.Connection(writer, sock, listener)
        connection.pause_writing()
        assert writer.is_paused
        connection.resume_writing()
        assert not writer.is_paused
