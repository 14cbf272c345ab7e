"""Clients that stop sending, or leave: nobody waits for them, and nothing of theirs stays counted."""

from __future__ import annotations

import json

import pytest

from carpool_sidecar import errors
from tests.server.connection_bench import BODY, Bench, Transport, get, post, settle

LONG = json.dumps({"instances": ["x" * 1000]}).encode()
HEAD = post(b"", length=len(LONG))


@pytest.fixture
def bench() -> Bench:
    """10 s for a head, 40 s for a body, 100 s for nothing at all."""
    return Bench(head_timeout=10, timeout=40, keep_alive=100)


def is_told_to_hurry(client: Transport, text: str) -> bool:
    return (
        client.statuses == [408]
        and b"\r\nConnection: close\r\n" in client.received
        and text in client.received.decode()
    )


# --- heads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 30, len(HEAD) - 1])
async def test_a_head_that_stops_arriving_is_408_after_the_heads_time(bench: Bench, size: int) -> None:
    client = bench.connect()
    client.send(HEAD[:size])
    await bench.pass_time(10)
    assert client.received == b""
    await bench.pass_time(0.5)
    assert is_told_to_hurry(client, "the head of the request did not arrive in time")
    await settle()
    assert client.is_lost
    assert bench.connections == set()
    assert bench.metrics.refused.labels("head_timeout").value == 1
    assert bench.life.active == 0


async def test_byte_by_byte_does_not_extend_the_heads_time(bench: Bench) -> None:
    client = bench.connect()
    for byte in HEAD[:20]:
        client.send(bytes([byte]))
        await bench.pass_time(0.5)
    assert client.statuses == []
    client.send(HEAD[20:21])
    await bench.pass_time(0.5)
    assert client.statuses == [408]


async def test_every_head_has_the_whole_time(bench: Bench) -> None:
    client = bench.connect()
    for count in range(1, 8):
        client.send(post()[:30])
        await bench.pass_time(6)
        client.send(post()[30:])
        bench.driver.answer()
        assert client.statuses == [200] * count
    assert bench.asked == []


async def test_a_head_may_begin_while_earlier_requests_wait_for_their_answers(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() + HEAD[:30])
    await bench.pass_time(9)
    bench.driver.answer()
    client.send(HEAD[30:] + LONG)
    bench.driver.answer()
    assert client.statuses == [200, 200]


async def test_a_late_head_is_told_so_once_however_slowly_the_client_reads(bench: Bench) -> None:
    client = bench.connect()
    client.stall()
    client.send(post() + HEAD[:30])
    bench.driver.answer()
    await bench.pass_time(20)
    client.go_on_reading()
    await settle()
    assert client.statuses == [200, 408]
    assert bench.metrics.refused.labels("head_timeout").value == 1


# --- bodies -----------------------------------------------------------------------------------------------------


async def test_a_body_counts_as_it_comes_and_is_given_back_at_its_end(bench: Bench) -> None:
    client = bench.connect()
    client.send(HEAD + LONG[:100])
    assert (bench.bodies.memory.held, bench.life.active) == (100, 1)
    client.send(LONG[100:300])
    assert (bench.bodies.memory.held, bench.life.active) == (300, 1)
    short = b'{"instances":["x"]}'
    client.send(LONG[300:] + post(short))
    assert (bench.memory.held, bench.life.active) == (len(LONG) + len(short), 2)
    assert bytes(bench.driver.calls[0].payload.text) == LONG[14:-1]
    bench.driver.answer()
    bench.driver.answer()
    assert client.statuses == [200, 200]
    assert bench.life.active == 0


async def test_a_body_is_given_back_when_its_client_leaves(bench: Bench) -> None:
    client = bench.connect()
    client.send(HEAD + LONG[:100])
    client.leave()
    assert (bench.bodies.memory.held, bench.life.active, bench.connections) == (0, 0, set())


async def test_a_body_that_stops_arriving_is_408_and_given_back(bench: Bench) -> None:
    client = bench.connect()
    client.send(HEAD + LONG[:100])
    for _ in range(40):
        client.send(b"x")
        await bench.pass_time(1)
    assert client.statuses == []
    await bench.pass_time(0.5)
    assert is_told_to_hurry(client, "the request body did not arrive in time")
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)
    assert bench.metrics.refused.labels("body_timeout").value == 1
    await settle()
    assert client.is_lost


async def test_a_body_on_a_connection_that_is_older_than_a_bodys_time_has_all_of_it(bench: Bench) -> None:
    client = bench.connect()
    client.send(post())
    bench.driver.answer()
    await bench.pass_time(60)
    client.send(HEAD + LONG[:100])
    await bench.pass_time(30)
    client.send(LONG[100:])
    bench.driver.answer()
    assert client.statuses == [200, 200]


async def test_a_body_that_is_no_call_in_the_end_is_given_back_and_handed_over_whole(bench: Bench) -> None:
    client = bench.connect()
    body = b'{"inputs":{"a":"%b"}}' % LONG[:-20].replace(b'"', b"x")
    body = body[:-2] + b" " * (len(LONG) - len(body)) + b"}}"
    for start in range(0, len(HEAD + body), 90):
        client.send((HEAD + body)[start : start + 90])
    assert bench.asked[0].data == HEAD + body
    assert (bench.bodies.memory.held, bench.life.active) == (0, 1)


async def test_a_body_for_which_the_room_runs_out_is_given_back_and_handed_over_as_far_as_it_came(bench: Bench) -> None:
    client = bench.connect()
    client.send(HEAD + LONG[:100])
    bench.memory.limit = 150
    client.send(LONG[100:149])
    assert bench.bodies.memory.held == 149
    client.send(LONG[149:160])
    assert bench.asked[0].data == HEAD + LONG[:160]
    assert (bench.bodies.memory.held, bench.life.active) == (0, 1)


async def test_no_body_begins_where_there_is_no_room_for_it(bench: Bench) -> None:
    bench.memory.limit = 50
    client = bench.connect()
    client.send(HEAD + LONG[:100])
    assert bench.asked[0].data == HEAD + LONG[:100]
    assert (bench.bodies.memory.held, bench.life.active) == (0, 1)


@pytest.mark.parametrize("is_full_then", [True, False])
async def test_a_head_that_has_no_room_is_refused_when_all_before_it_is_answered(
    bench: Bench, is_full_then: bool
) -> None:
    client = bench.connect()
    bench.memory.limit = len(BODY) + 10
    client.send(post() + HEAD[:11])
    assert client.statuses == []
    bench.memory.limit = 10 if is_full_then else 10_000
    bench.driver.answer()
    await settle()
    assert client.statuses == ([200, 429] if is_full_then else [200])
    if not is_full_then:
        client.send(HEAD[11:] + LONG)
        bench.driver.answer()
        assert client.statuses == [200, 200]
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)


async def test_a_body_behind_others_waits_until_they_are_answered(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() + HEAD + LONG[:10])
    assert bench.memory.held == len(BODY) + len(HEAD + LONG[:10])
    bench.driver.answer()
    await settle()
    assert client.is_reading()
    assert bench.bodies.memory.held == 10
    client.send(LONG[10:])
    bench.driver.answer()
    assert client.statuses == [200, 200]


async def test_large_bodies_are_reported_to_who_gives_their_memory_back(bench: Bench) -> None:
    told = []
    bench.memory.on_large = lambda: told.append(True)
    client = bench.connect()
    for size in (60_000, 70_000):
        body = json.dumps({"instances": ["x" * size]}).encode()
        client.send(post(body)[:-1])
        client.send(b"}")
        bench.driver.answer()
    assert told == [True]


# --- nothing at all ---------------------------------------------------------------------------------------------


async def test_idle_connections_are_closed_and_only_those(bench: Bench) -> None:
    fresh, used, busy = bench.connect(), bench.connect(), bench.connect()
    await bench.pass_time(60)
    for client in (used, busy):
        client.send(post())
    bench.driver.answer(bench.driver.calls[0])
    await bench.pass_time(60)
    await settle()
    assert (fresh.is_lost, used.is_lost, busy.is_lost) == (True, False, False)
    await bench.pass_time(60)
    await settle()
    assert (used.is_lost, busy.is_lost) == (True, False)
    bench.driver.answer()
    await bench.pass_time(90)
    assert (busy.statuses, busy.is_closing()) == ([200], False)


@pytest.mark.parametrize(
    "stray",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\0", b"nonsense", b"GET /\xff HTTP/1.1\r\n", b"SSH-2.0-x\r\n"],
)
async def test_what_can_become_no_request_is_refused_at_once(bench: Bench, stray: bytes) -> None:
    client = bench.connect()
    client.send(stray)
    assert client.statuses == [400]
    assert b"\r\nConnection: close\r\n" in client.received
    await settle()
    assert client.is_lost
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)


# --- clients who leave ------------------------------------------------------------------------------------------


async def test_requests_of_a_client_that_left_are_cancelled_answered_or_not(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() * 3 + get())
    first, second, third = bench.driver.calls
    bench.driver.answer(second)
    client.leave()
    assert bench.driver.cancelled == [first, third]
    assert bench.life.active == 0
    assert bench.connections == set()
    await settle()
    assert (client.received, bench.asked) == (b"", [])


async def test_an_answer_that_was_on_its_way_to_a_client_that_left_goes_nowhere(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() * 2)
    late = list(bench.driver.calls)
    client.leave()
    for call in late:
        bench.requests.refuse(call, errors.Overloaded())
    assert (client.received, bench.life.active) == (b"", 0)


async def test_bytes_that_waited_for_answers_are_not_served_after_their_client_left(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() * 65)
    while len(bench.driver.calls) > 0:
        bench.driver.answer()
    client.leave()  # before the connection goes on
    await settle()
    assert (bench.driver.submitted, bench.life.active) == (64, 0)


async def test_line_ends_between_requests_do_not_keep_a_connection_alive(bench: Bench) -> None:
    client = bench.connect()
    for _ in range(11):
        assert not client.is_closing()
        client.send(b"\r\n")
        await bench.pass_time(10)
    assert client.is_closing()
    assert client.received == b""


async def test_an_empty_line_behind_a_request_takes_no_time_from_its_connection(bench: Bench) -> None:
    client = bench.connect()
    client.send(get() + b"\r\n")
    await bench.pass_time(150)
    bench.asked[0].answer()
    await bench.pass_time(90)
    assert not client.is_closing()
    await bench.pass_time(20)
    assert client.is_closing()


@pytest.mark.parametrize("size", [None, -1])
async def test_nor_does_one_behind_a_request_that_is_refused_at_once(bench: Bench, size: int | None) -> None:
    client = bench.connect()
    refused = post(b"{")
    if size is not None:
        client.send(refused[:size])
        refused = refused[size:]
    await bench.pass_time(30)
    client.send(refused + b"\r\n")
    await settle()
    assert client.statuses == [400]
    await bench.pass_time(90)
    assert not client.is_closing()
    await bench.pass_time(20)
    assert client.is_closing()
