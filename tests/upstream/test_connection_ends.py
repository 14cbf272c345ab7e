"""What the end of a connection to the predictor means, and who ends one."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket

import pytest

from carpool_sidecar import errors
from carpool_sidecar.upstream import predictor as predictors
from tests.upstream.wire import ANSWER, CHUNKED, TARGET, Bare, ask, closed, http, turns

pytestmark = pytest.mark.both_loops


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("end", ["close", "abort"])
async def test_an_end_before_the_first_byte_of_an_answer_is_closed(wire, predictor, end, before):
    wire.answers = [before]
    asked = asyncio.ensure_future(ask(predictor))
    await wire.received(1)
    await turns()
    getattr(wire.peers[0].transport, end)()
    with pytest.raises(errors.UpstreamClosed):
        await asked
    assert await ask(predictor) == ANSWER


@pytest.mark.parametrize(
    "part",
    [b"H", b"HTTP/1.1 200 OK\r\nContent-Le", http()[:-1], CHUNKED + b"2\r\nab\r\n", CHUNKED + b"2\r\nab\r\n0\r\n"],
)
async def test_an_end_amid_an_answer_is_broken(wire, predictor, part):
    wire.answers = [part]
    asked = asyncio.ensure_future(ask(predictor))
    await wire.received(1)
    wire.peers[0].transport.close()
    with pytest.raises(errors.UpstreamBroken, match="the predictor's answer broke off"):
        await asked
    assert await ask(predictor) == ANSWER


async def test_an_answer_without_a_length_is_complete_at_the_connections_end(wire, predictor):
    wire.answers = [b"HTTP/1.1 200 OK\r\n\r\nall "]
    asked = asyncio.ensure_future(ask(predictor))
    await wire.received(1)
    wire.peers[0].say(b"of it")
    wire.peers[0].transport.close()
    assert await asked == b"all of it"


async def test_a_reset_completes_no_answer_without_a_length():
    bare = Bare()
    predictor = predictors.HttpPredictor(f"http://127.0.0.1:{bare.port}", 5.0)
    asked = asyncio.ensure_future(ask(predictor))
    accepted = await bare.accept()
    await bare.answer(accepted, b"HTTP/1.1 200 OK\r\n\r\nsome")
    await turns()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    accepted.close()
    with pytest.raises(errors.UpstreamBroken):
        await asked
    await predictor.close()
    bare.listener.close()


@pytest.mark.parametrize("answer", [b"<html>", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", http(status=b"700 Eh")])
async def test_a_broken_answer_ends_its_connection_only(wire, predictor, answer):
    wire.answers = [answer]
    with pytest.raises(errors.UpstreamBroken):
        await ask(predictor)
    await closed(wire.peers[0])
    assert await ask(predictor) == ANSWER


async def test_a_head_without_end_is_broken_off(wire, predictor):
    wire.answers = [b"HTTP/1.1 200 OK\r\nA: " + b"x" * 1_000_000]
    with pytest.raises(errors.UpstreamBroken):
        await ask(predictor)
    await closed(wire.peers[0])


async def test_a_caller_that_leaves_takes_its_connection_with_it(wire, predictor):
    wire.answers = [None]
    asked = asyncio.ensure_future(ask(predictor))
    await wire.received(1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await closed(wire.peers[0])
    assert await ask(predictor) == ANSWER
    assert predictor.out == set()


async def test_an_exchange_that_is_cancelled_has_no_reply_and_may_be_cancelled_again(wire, predictor):
    outcomes = []
    exchange = predictor.post(TARGET, (), (b"{}",), 5.0, outcomes.append)
    exchange.cancel()
    await turns()
    wire.answers = [None]
    exchange = predictor.post(TARGET, (), (b"{}",), 5.0, outcomes.append)
    await wire.received(1)
    exchange.cancel()
    exchange.cancel()
    await closed(wire.requests[0])
    assert outcomes == []
    over = asyncio.get_running_loop().create_future()
    exchange = predictor.post(TARGET, (), (b"{}",), 5.0, over.set_result)
    assert (await over).body == ANSWER
    exchange.cancel()
    await ask(predictor)
    assert wire.requests[-1] is wire.requests[-2]


async def test_closing_fails_who_still_waits_and_leaves_nothing_open(wire, predictor):
    wire.answers = [None]
    waiting = asyncio.ensure_future(ask(predictor))
    await wire.received(1)
    await ask(predictor)
    connecting = asyncio.ensure_future(ask(predictor, (b"x" * 10,)))
    another = asyncio.ensure_future(ask(predictor))
    await asyncio.sleep(0)
    await predictor.close()
    for asked in (waiting, connecting, another):
        with contextlib.suppress(errors.UpstreamClosed):
            await asked
    with pytest.raises(errors.UpstreamClosed):
        await waiting
    for peer in wire.peers:
        await closed(peer)
    with pytest.raises(errors.UpstreamUnreachable):
        await ask(predictor)
    await predictor.close()


async def test_no_more_sockets_is_told_apart_from_no_predictor(wire, predictor):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(errors.OutOfSockets):
            await ask(predictor)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await ask(predictor) == ANSWER
