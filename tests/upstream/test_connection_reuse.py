"""Which connection to the predictor a request gets: one that nothing came over since its last answer, or a new one."""

from __future__ import annotations

import asyncio
import socket
import statistics

import pytest

from carpool_sidecar import errors
from carpool_sidecar.upstream import predictor as predictors
from tests.upstream.wire import ANSWER, TARGET, Bare, ask, closed, http, turns

pytestmark = pytest.mark.both_loops


async def test_one_connection_serves_one_request_after_the_other(wire, predictor):
    for _ in range(5):
        assert await ask(predictor) == ANSWER
    assert len(wire.peers) == 1


async def test_requests_at_the_same_time_have_connections_of_their_own(wire, predictor):
    await asyncio.gather(*(ask(predictor) for _ in range(5)))
    assert len(wire.peers) == 5


@pytest.mark.parametrize(
    "answer",
    [
        http(status=b"500 Internal Server Error"),
        http(status=b"304 Not Modified"),
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
    ],
)
async def test_a_connection_that_may_end_or_have_more_of_the_answer_is_used_no_more(wire, predictor, answer):
    wire.answers = [answer]
    with pytest.raises(errors.UpstreamStatus):
        await ask(predictor)
    await closed(wire.requests[0])
    wire.answers = [http(status=b"400 Bad Request"), http(status=b"503 Service Unavailable")]
    for _ in range(2):
        with pytest.raises(errors.UpstreamStatus):
            await ask(predictor)
    assert await ask(predictor) == ANSWER
    assert len(wire.peers) == 2


async def test_the_connection_used_last_is_used_next(wire, predictor):
    wire.answers = [None, None]
    first, second = (asyncio.ensure_future(ask(predictor)) for _ in range(2))
    await wire.received(2)
    early, late = wire.requests
    for peer in (late, early):
        peer.say(http(peer.body))
        await turns()
    await asyncio.gather(first, second)
    for _ in range(3):
        await ask(predictor)
        assert wire.requests[-1] is early


async def test_a_request_sent_from_within_a_reply_uses_the_connection_just_freed(wire, predictor):
    outcomes = []
    done = asyncio.Event()

    def reply(outcome):
        outcomes.append(outcome.body)
        if len(outcomes) == 4:
            done.set()
        else:
            predictor.post(TARGET, (), (b"{}",), 5.0, reply)

    predictor.post(TARGET, (), (b"{}",), 5.0, reply)
    assert outcomes == []
    await done.wait()
    assert outcomes == [ANSWER] * 4
    assert len(wire.peers) == 1


async def test_requests_leave_without_nagles_delay(predictor):
    opened = await predictor._pool._connect()
    sock = opened._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "answer",
    [
        http(headers=b"Connection: close\r\n"),
        http().replace(b"1.1", b"1.0"),
        http() + b"HTTP/1.1 200 OK\r\n",
        http() + http(b"another's"),
        http() + b"\0",
    ],
)
async def test_after_an_answer_that_ends_the_connection_or_goes_on_the_next_has_a_new_one(wire, predictor, answer):
    wire.answers = [answer, http(b"second")]
    assert await ask(predictor) == ANSWER
    await closed(wire.peers[0])
    assert await ask(predictor) == b"second"
    assert len(wire.peers) == 2


async def test_an_answer_nobody_asked_for_is_never_given_to_the_next_caller(wire, predictor):
    wire.answers = [http(b"first"), http(b"second")]
    assert await ask(predictor) == b"first"
    wire.peers[0].say(http(b"stale"))
    await closed(wire.peers[0])
    assert await ask(predictor) == b"second"
    assert wire.requests[0] is not wire.requests[1]


@pytest.mark.parametrize("stale", [b"", http(b"stale"), b"\r\n"])
async def test_not_even_what_the_loop_has_not_seen_yet_is_taken_for_the_next_answer(stale):
    bare = Bare()
    predictor = predictors.HttpPredictor(f"http://127.0.0.1:{bare.port}", 5.0)
    asked = asyncio.ensure_future(ask(predictor))
    first = await bare.accept()
    await bare.answer(first, http(b"first"))
    assert await asked == b"first"
    # From here on nothing gives way to the loop until the request is on its way.
    if stale:
        first.send(stale)
    else:
        first.shutdown(socket.SHUT_WR)
    outcome = asyncio.get_running_loop().create_future()
    predictor.post(TARGET, (), (b"{}",), 5.0, outcome.set_result)
    second = await bare.accept()
    await bare.answer(second, http(b"second"))
    assert (await outcome).body == b"second"
    await predictor.close()
    for each in (first, second, bare.listener):
        each.close()


async def test_a_connection_the_predictor_closed_while_idle_is_forgotten(wire, predictor):
    await ask(predictor)
    wire.peers[0].transport.close()
    await closed(wire.peers[0])
    await turns()
    assert predictor._pool._all == set()
    assert predictor._pool._free == []
    assert await ask(predictor) == ANSWER


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone can be told to confirm at once")
async def test_a_server_that_writes_head_and_body_apart_need_not_wait_for_the_kernel_to_confirm_the_head():
    """Nagle's algorithm holds the body back until then; the kernel would take 40 ms, on a connection used for long."""
    bare = Bare()
    predictor = predictors.HttpPredictor(f"http://127.0.0.1:{bare.port}", 5.0)
    head, body = http()[: -len(ANSWER)], http()[-len(ANSWER) :]
    loop, accepted, took = asyncio.get_running_loop(), None, []
    for _ in range(60):
        began = loop.time()
        asked = asyncio.ensure_future(ask(predictor))
        accepted = accepted or await bare.accept()
        await bare.answer(accepted, head)
        accepted.send(body)
        assert await asked == ANSWER
        took.append(loop.time() - began)
    assert statistics.median(took) < 0.025
    accepted.close()
    bare.listener.close()
