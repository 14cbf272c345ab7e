"""Clients that send and do not read: what waits for them is bounded, counted, and cut off in time."""

from __future__ import annotations

import json

import pytest

from carpool_sidecar import drain, errors
from tests.server.connection_bench import Bench, Transport, get, post, settle

ROW = b'"%b"'
LARGE = 1_000_000


@pytest.fixture
def bench() -> Bench:
    """10 s for an answer to be read, and as many as it has 64 kB."""
    return Bench(timeout=10, max_latency=500, keep_alive=100)


def answer_large(bench: Bench, size: int = LARGE) -> None:
    bench.driver.answer(rows=[ROW % (b"x" * size)])


def blocked(bench: Bench) -> Transport:
    """A client that has not read its large answer."""
    client = bench.connect()
    client.stall()
    client.send(post())
    answer_large(bench)
    return client


async def test_a_large_answer_is_written_in_two_pieces_and_a_small_one_in_one(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() * 2)
    answer_large(bench)
    assert [len(piece) > LARGE for piece in client.writes] == [False, True]
    head, body = client.writes
    assert head.endswith(b"\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert json.loads(body)["predictions"] == ["x" * LARGE]
    answer_large(bench, 60_000)
    assert len(client.writes) == 3
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)


async def test_nothing_more_is_read_of_a_client_that_does_not_read_until_it_does(bench: Bench) -> None:
    client = blocked(bench)
    assert not client.is_reading()
    client.go_on_reading()
    assert client.is_reading()
    client.send(post())
    bench.driver.answer()
    assert client.statuses == [200, 200]


async def test_requests_that_are_here_already_wait_for_the_client_to_read(bench: Bench) -> None:
    bench.driver.on_submit = lambda call: answer_large(bench)
    client = bench.connect()
    client.stall()
    client.send(post() * 5 + get())
    await settle()
    assert bench.driver.submitted == 1
    assert bench.asked == []
    client.go_on_reading()
    await settle()
    assert client.statuses == [200] * 5
    assert bench.asked[0].data == get()


async def test_an_unread_answer_counts_as_a_body_and_its_request_as_active_until_it_is_read(bench: Bench) -> None:
    client = blocked(bench)
    assert LARGE < bench.bodies.memory.held < LARGE + 300
    assert bench.life.active == 1
    client.go_on_reading()
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)


async def test_all_unread_answers_count(bench: Bench) -> None:
    client = bench.connect()
    client.stall()
    client.send(post() * 3)
    for _ in range(3):
        answer_large(bench)
    assert 3 * LARGE < bench.bodies.memory.held < 3 * LARGE + 900
    assert bench.life.active == 3
    client.go_on_reading()
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)


async def test_a_large_answer_counts_in_full_until_its_last_byte_is_sent(bench: Bench) -> None:
    client = bench.connect()
    client.stall(room=LARGE - 1000)
    client.send(post())
    answer_large(bench)
    assert LARGE < bench.bodies.memory.held < LARGE + 300
    assert bench.life.active == 1
    client.go_on_reading()
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)
    client.stall()
    client.send(post())
    bench.driver.answer()
    assert client.is_reading()  # a small answer need not be read before the next request
    assert bench.bodies.memory.held == 0


async def test_the_memory_is_told_when_a_large_unread_answer_is_gone(bench: Bench) -> None:
    told: list[bool] = []
    bench.memory.on_large = lambda: told.append(True)
    reader, leaver = blocked(bench), blocked(bench)
    assert told == []
    reader.go_on_reading()
    assert len(told) == 1
    leaver.leave()
    assert len(told) == 2


async def test_unread_answers_that_fill_the_memory_refuse_new_work(bench: Bench) -> None:
    bench.memory.limit = LARGE
    blocked(bench)
    other = bench.connect()
    other.send(post())
    assert bench.driver.submitted == 1
    assert bench.asked[0].data == post()  # which refuses it


async def test_a_client_that_does_not_read_is_cut_off_sooner_when_memory_is_short(bench: Bench) -> None:
    bench.memory.limit = 2 * LARGE
    client = blocked(bench)
    await bench.pass_time(1.9 + LARGE / 65536)
    assert not client.is_lost
    await bench.pass_time(0.5)
    assert client.is_aborted


async def test_an_unread_answer_is_given_back_when_its_client_leaves(bench: Bench) -> None:
    client = blocked(bench)
    client.leave()
    assert (bench.bodies.memory.held, bench.life.active, bench.connections) == (0, 0, set())


async def test_an_answer_that_is_not_read_in_time_is_cut_off_and_given_back(bench: Bench) -> None:
    client = blocked(bench)
    await bench.pass_time(10 + LARGE / 65536)
    assert not client.is_lost
    await bench.pass_time(1)
    assert client.is_aborted
    assert client.is_lost
    assert (bench.bodies.memory.held, bench.life.active, bench.connections) == (0, 0, set())


async def test_a_client_that_does_not_read_is_not_idle(bench: Bench) -> None:
    bench.keep_alive = 1
    client = blocked(bench)
    await bench.pass_time(5)
    client.go_on_reading()
    assert client.statuses == [200]
    assert not client.is_closing()


async def test_requests_behind_an_unread_answer_are_cancelled_when_it_is_cut_off(bench: Bench) -> None:
    client = bench.connect()
    client.stall()
    client.send(post() * 3)
    answer_large(bench)
    await bench.pass_time(30)
    assert client.is_lost
    assert len(bench.driver.cancelled) == 2
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)


async def test_a_last_answer_that_is_not_read_is_cut_off_too(bench: Bench) -> None:
    client = bench.connect()
    client.stall()
    client.send(post() * 2)
    answer_large(bench)
    bench.driver.refuse(errors.Draining())
    assert (client.is_ended, client.is_lost) == (True, False)
    await bench.pass_time(30)
    assert client.is_lost
    assert (bench.bodies.memory.held, bench.life.active, bench.connections) == (0, 0, set())


async def test_a_closed_connection_whose_last_bytes_nobody_reads_is_cut_off(bench: Bench) -> None:
    client = bench.connect()
    client.stall()
    client.send(post())
    bench.driver.refuse(errors.Draining())
    await bench.pass_time(30)
    assert client.is_lost
    assert bench.connections == set()


# --- what waits for its turn ------------------------------------------------------------------------------------


async def test_an_answer_that_waits_for_its_turn_counts_as_a_body(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() * 2)
    slow, quick = bench.driver.calls
    bench.driver.answer(quick, rows=[ROW % (b"x" * LARGE)])
    assert LARGE < bench.bodies.memory.held < LARGE + 300
    bench.driver.answer(slow)
    assert client.statuses == [200, 200]
    assert bench.bodies.memory.held == 0


async def test_a_refused_request_that_waits_for_its_turn_keeps_no_body(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() * 2)
    _, refused = bench.driver.calls
    bench.driver.refuse(errors.Overloaded(), refused)
    assert refused.payload is None


# --- shutting down ----------------------------------------------------------------------------------------------


async def test_in_the_quiet_period_all_is_served_here_and_connections_are_kept(bench: Bench) -> None:
    bench.life.draining, bench.life.phase = True, drain.Phase.QUIET
    client = bench.connect()
    for _ in range(3):
        client.send(post())
        bench.driver.answer()
        client.send(post(b"{"))
    assert client.statuses == [200, 400] * 3
    assert b"Connection: close" not in client.received
    assert bench.asked == []


async def test_at_the_end_of_the_quiet_period_a_refusal_closes_the_connection_too(bench: Bench) -> None:
    bench.life.draining, bench.life.phase, bench.life.parting = True, drain.Phase.QUIET, True
    client = bench.connect()
    client.send(post(b"{"))
    await settle()
    assert client.statuses == [400]
    assert b"Connection: close" in client.received
    assert client.is_lost


async def test_while_draining_an_answer_says_that_the_connection_closes(bench: Bench) -> None:
    client = bench.connect()
    client.send(post())
    bench.life.draining = bench.life.parting = True
    bench.driver.answer()
    await settle()
    assert client.statuses == [200]
    assert b"\r\nConnection: close\r\n" in client.received
    assert client.is_lost


async def test_while_draining_all_accepted_requests_are_answered_before_the_connection_closes(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() * 3)
    bench.life.draining = bench.life.parting = True
    for call in reversed(bench.driver.calls[:]):
        bench.driver.answer(call)
    await settle()
    assert client.statuses == [200] * 3
    assert client.received.count(b"\r\nConnection: close\r\n") == 1
    assert client.is_lost


async def test_while_draining_new_requests_are_left_to_who_answers_any_request(bench: Bench) -> None:
    bench.life.draining, bench.life.phase = True, drain.Phase.REFUSING
    client = bench.connect()
    client.send(post())
    assert bench.asked[0].data == post()


async def test_all_connections_can_be_ended_whatever_they_are_at(bench: Bench) -> None:
    idle, busy, sending, unread = bench.connect(), bench.connect(), bench.connect(), blocked(bench)
    busy.send(post())
    sending.send(post(length=1000))
    for connection in list(bench.connections):
        connection.shut()
    await settle()
    assert all(client.is_lost for client in (idle, busy, sending, unread))
    assert (bench.bodies.memory.held, bench.life.active, bench.connections) == (0, 0, set())
    assert len(bench.driver.cancelled) == 1


async def test_a_connection_with_few_unread_bytes_can_be_ended_too(bench: Bench) -> None:
    client = bench.connect()
    client.stall()
    client.send(post() + post(length=1000))
    bench.driver.answer()
    [connection] = bench.connections
    await settle()
    connection.shut()
    await bench.pass_time(30)
    assert client.is_lost
    assert bench.bodies.memory.held == 0
