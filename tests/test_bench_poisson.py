"""The open-loop client: sends when requests are due, never waits for a free connection, counts from the due time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import client, load
from benchmarks.peers import poisson

REQUEST = client.post("127.0.0.1", "/predict", b"[1]")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]"
TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"

# What a server does with the connections that have a request on them, in order of arrival, and how many came so far.
Answering = Callable[[list[socket.socket], int], None]


def answer_at_once(asking: list[socket.socket], count: int) -> None:
    for each in asking:
        each.sendall(OK)
    asking.clear()


def answer_after(needed: int) -> Answering:
    """Nobody is answered until so many have asked."""

    def answer(asking: list[socket.socket], count: int) -> None:
        if count >= needed:
            answer_at_once(asking, count)

    return answer


@contextlib.contextmanager
def serving(answer: Answering) -> Iterator[load.Address]:
    """A server in a thread; one thread for each connection."""
    asking: list[socket.socket] = []
    counted = 0
    lock = threading.Lock()

    def talk(connected: socket.socket) -> None:
        nonlocal counted
        with contextlib.suppress(OSError):
            while connected.recv(1 << 16):
                with lock:
                    counted += 1
                    asking.append(connected)
                    answer(asking, counted)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = listener.accept()
                accepted.append(connected)
                threads.append(threading.Thread(target=talk, args=(connected,)))
                threads[-1].start()

    accepted: list[socket.socket] = []
    threads = [threading.Thread(target=accept)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads[0].start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            threads[0].join()
            for each in accepted:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            for thread in threads[1:]:
                thread.join()
            for each in accepted:
                each.close()


def test_the_same_seed_draws_the_same_times() -> None:
    assert poisson.draw(500, 2, seed=7) == poisson.draw(500, 2, seed=7)
    assert poisson.draw(500, 2, seed=7) != poisson.draw(500, 2, seed=8)


@given(rate=st.floats(1, 5000), seconds=st.floats(0.01, 2), seed=st.integers(0, 1000))
def test_times_ascend_within_the_run_and_are_as_many_as_the_rate_says(rate: float, seconds: float, seed: int) -> None:
    times = poisson.draw(rate, seconds, seed)
    assert times == sorted(times)
    assert all(0 < time < seconds for time in times)
    mean = rate * seconds
    assert abs(len(times) - mean) <= 6 * mean**0.5 + 6  # six standard deviations


def test_every_request_is_sent_and_its_answer_counted_from_the_time_it_was_due() -> None:
    times = poisson.draw(1000, 0.05, seed=1)
    with serving(answer_at_once) as address:
        seen = poisson.run(address, REQUEST, times, most_outstanding=100)
    assert (seen.sent, seen.requests, seen.errors) == (len(times), len(times), {})
    assert not seen.is_saturated
    assert 0 < seen.p50 <= seen.p99
    assert 0 <= seen.lag_p99 <= seen.lag_max


def test_a_server_that_answers_late_delays_no_request() -> None:
    """More than there are connections at first: a client that waited for a free one would wait for ever here."""
    count = poisson.FIRST_CONNECTIONS + 8
    times = [number * 0.0005 for number in range(count)]
    with serving(answer_after(count)) as address:
        seen = poisson.run(address, REQUEST, times, most_outstanding=count + 1)
    assert (seen.requests, seen.connections) == (count, count)
    assert seen.p99 >= times[-1], "the first request waited from when it was due until the last one was sent"


def test_a_server_that_falls_behind_is_saturated_and_the_run_broken_off() -> None:
    with serving(answer_after(1000)) as address:
        seen = poisson.run(address, REQUEST, [0.0] * 10, most_outstanding=4, patience=0)
    assert seen.is_saturated
    assert (seen.sent, seen.requests) == (4, 0)


def test_requests_that_are_never_answered_are_errors() -> None:
    with serving(answer_after(1000)) as address:
        seen = poisson.run(address, REQUEST, [0.0] * 3, most_outstanding=10, patience=0)
    assert (seen.requests, seen.errors, seen.is_saturated) == (0, {"no answer": 3}, False)


def test_refusals_wrong_answers_and_broken_connections_are_errors_by_name() -> None:
    def answer(asking: list[socket.socket], count: int) -> None:
        replies = {1: TOO_MANY, 2: OK.replace(b"[1]", b"[2]"), 3: OK}
        if count in replies:
            asking.pop().sendall(replies[count])
        else:
            asking.pop().shutdown(socket.SHUT_RDWR)

    times = [number * 0.005 for number in range(4)]
    with serving(answer) as address:
        seen = poisson.run(address, REQUEST, times, most_outstanding=10, is_right=lambda body: body == b"[1]")
    assert seen.requests == 1
    assert seen.errors == {"status 429": 1, "wrong answer": 1, "connection closed": 1}


def test_a_request_that_is_larger_than_what_the_socket_takes_is_sent_whole() -> None:
    body = bytes(8 << 20)
    request = client.post("127.0.0.1", "/predict", body)
    received = bytearray()

    def answer(asking: list[socket.socket], count: int) -> None:
        """Called before the rest is read."""
        connected = asking.pop()
        received.extend(b"x")  # the first piece, of unknown length, was read already
        connected.settimeout(5)
        while not received.endswith(b"end"):
            received.extend(connected.recv(1 << 20))
        connected.sendall(OK)

    with serving(answer) as address:
        seen = poisson.run(address, request[:-3] + b"end", [0.0], most_outstanding=2)
    assert (seen.requests, seen.errors) == (1, {})


def test_several_requests_take_turns() -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connected, _ = listener.accept()
                    threading.Thread(target=talk, args=(connected,)).start()

        def talk(connected: socket.socket) -> None:
            with connected, contextlib.suppress(OSError):
                while data := connected.recv(1 << 16):
                    received.append(data[-3:])
                    connected.sendall(OK)

        thread = threading.Thread(target=serve)
        thread.start()
        requests = [client.post("127.0.0.1", "/", b"[%d]" % number) for number in range(3)]
        seen = poisson.sample(listener.getsockname(), requests, [0.0, 0.02, 0.04, 0.06], most_outstanding=9)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert sorted(received) == [b"[0]", b"[0]", b"[1]", b"[2]"]  # each has a connection, and threads are late at will
    assert len(seen.latencies) == len(seen.lags) == 4


def test_what_two_clients_saw_at_the_same_time_adds_up_to_one_run() -> None:
    first = poisson.Samples([0.1, 0.2], [0.0, 0.001], 32, False, Counter({"status 429": 1}))
    second = poisson.Samples([0.3], [0.002], 33, True, Counter({"status 429": 2}))
    seen = (first + second).outcome()
    assert (seen.sent, seen.requests, seen.connections, seen.is_saturated) == (3, 3, 65, True)
    assert (seen.p50, seen.longest, seen.lag_max) == (0.2, 0.3, 0.002)
    assert seen.errors == {"status 429": 3}


def test_nobody_listening_is_an_error_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            poisson.run(unused.getsockname(), REQUEST, [0.0], most_outstanding=1)
