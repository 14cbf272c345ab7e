"""A connection that ends while its client still sends: told at once, read for a bounded time, then closed."""

from __future__ import annotations

from carpool_sidecar.server import unread
from carpool_sidecar.server.http1 import connection
from tests.server.connection_bench import Bench, Transport, settle

_LAST = b"nothing of HTTP\r\n\r\n"


async def ended() -> tuple[Bench, Transport]:
    """A client that was told that this was all, and stays."""
    bench = Bench()
    client = bench.connect()
    client.stays = True
    client.send(_LAST)
    assert client.statuses == [400]
    assert client.is_ended
    assert not client.is_closing()
    await settle()
    return bench, client


async def told_what_it_does_not_take(bench: Bench) -> Transport:
    """A client that takes nothing of its last answer, and stays."""
    client = bench.connect()
    client.stays = True
    client.stall()
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    await settle()
    bench.asked[0].exchange.write(b"x" * 100_000)
    bench.asked[0].exchange.end()
    return client


async def test_a_client_that_leaves_ends_it() -> None:
    bench, client = await ended()
    client.leave()
    assert not bench.connections


async def test_a_client_that_is_quiet_is_waited_for_a_little() -> None:
    bench, client = await ended()
    await bench.pass_time(connection.QUIET - 0.1)
    assert not client.is_closing()
    await bench.pass_time(0.2)
    await settle()
    assert client.is_lost
    assert not bench.connections


async def test_what_a_client_sends_is_dropped_and_never_for_longer_than_a_while() -> None:
    bench, client = await ended()
    seconds = 0
    while not client.is_closing():
        client.send(b"x")
        await bench.pass_time(1)
        seconds += 1
    assert connection.LONGEST_PARTING - 1 <= seconds <= connection.LONGEST_PARTING + 1
    await settle()
    assert client.is_lost
    assert bench.memory.held == bench.memory.active == 0


async def test_it_is_read_once_in_a_turn_of_the_loop_and_also_if_it_was_not_read_before() -> None:
    bench = Bench()
    client = await told_what_it_does_not_take(bench)
    await settle()
    assert client.is_ended
    assert client.is_reading()
    client.send(b"x")
    assert not client.is_reading()
    await settle()
    assert client.is_reading()
    client.leave()


async def test_a_client_that_sends_on_and_takes_nothing_is_cut_off_as_any_other_is() -> None:
    bench = Bench(timeout=3.0)
    client = await told_what_it_does_not_take(bench)
    seconds = 0
    while not client.is_aborted:
        await settle()
        client.send(b"x")
        await bench.pass_time(1)
        seconds += 1
    assert 3 + 100_000 / unread.SLOWEST_STEPS <= seconds <= 20
