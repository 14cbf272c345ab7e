"""Requests on a connection: understood however they arrive, answered each in its turn."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.server.http1 import connection, handler, heads, relay
from carpool_sidecar.upstream import predictor as upstream
from tests.server.connection_bench import BODY, PREDICT, V1_ROUTE, Bench, Transport, get, post, settle


@pytest.fixture
def bench() -> Bench:
    return Bench()


def numbered(count: int, start: int = 0) -> bytes:
    return b"".join(post(b'{"instances":[%d]}' % number) for number in range(start, start + count))


def predictions(client: Transport) -> list[int]:
    """What was answered, in order; only for answers with predictions of one number each."""
    bodies = [part.partition(b"\r\n\r\n")[2] for part in client.received.split(b"HTTP/1.1 ")[1:]]
    return [number for body in bodies for number in json.loads(body)["predictions"]]


async def test_a_request_becomes_a_call_and_its_answer_one_write(bench: Bench) -> None:
    client = bench.connect()
    client.send(post(BODY, b"Authorization: me", b"X-Request-ID: 7", b"carpool-timeout-ms: 250"))
    [call] = bench.driver.calls
    headers = (("Authorization", "me"), ("Content-Type", "application/json"))
    assert call.tag == calls.Head(V1_ROUTE, PREDICT.decode(), headers, 0.25, "7", host="h")
    assert (call.timeout, call.rows, call.size) == (0.25, 1, len(BODY))
    assert [bytes(row) for row in call.payload.rows] == [b"1"]
    assert call.key == (call.tag.target, call.tag.headers, call.payload.key)
    assert bench.life.active == 1
    bench.driver.answer()
    [written] = client.writes
    assert written.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: ")
    assert written.endswith(b'\r\n\r\n{"message":"","batchId":"an-id","predictions":[1]}')
    assert b"Connection" not in written
    assert bench.life.active == 0
    assert bench.metrics.requests.labels("batched", 200).value == 1


@pytest.mark.parametrize("before", [b"", post()], ids=["first", "second"])
async def test_a_request_may_be_cut_at_any_byte(bench: Bench, before: bytes) -> None:
    request = post(BODY, b"X-Request-ID: 7")
    for cut in range(1, len(request)):
        client = bench.connect()
        if before:
            client.send(before)
            bench.driver.answer()
        client.send(request[:cut])
        client.send(request[cut:])
        [call] = bench.driver.calls
        assert (call.tag.request_id, bytes(call.payload.text)) == ("7", b"[1]")
        bench.driver.answer()
        assert client.statuses == [200] * (2 if before else 1)
    assert bench.asked == []
    assert (bench.life.active, bench.bodies.memory.held) == (0, 0)


async def test_requests_that_come_byte_by_byte_are_served(bench: Bench) -> None:
    client = bench.connect()
    for number in range(3):
        for byte in post(b'{"instances":[%d]}' % number):
            client.send(bytes([byte]))
        bench.driver.answer()
    assert predictions(client) == [0, 1, 2]


@given(order=st.permutations(range(8)))
def test_answers_come_in_the_order_of_the_requests_whatever_finishes_first(order: list[int]) -> None:
    async def converse() -> None:
        bench = Bench()
        client = bench.connect()
        client.send(numbered(8))
        waiting = list(bench.driver.calls)
        for done, index in enumerate(order, 1):
            bench.driver.answer(waiting[index])
            # All that nobody before them waits for, and no more.
            expected = next((number for number in range(8) if number not in order[:done]), 8)
            assert predictions(client) == list(range(expected))
        assert bench.life.active == 0

    asyncio.run(converse())


async def test_no_more_than_64_requests_wait_and_most_of_the_rest_stays_in_the_socket(bench: Bench) -> None:
    client = bench.connect()
    client.send(numbered(100))
    assert len(bench.driver.calls) == 64
    assert client.is_reading()  # else nobody would notice if the client left
    following = get() * 2000
    client.send(following)
    assert not client.is_reading()
    while bench.driver.calls:
        bench.driver.answer()
        await settle()
    assert predictions(client) == list(range(100))
    [asked] = bench.asked
    assert asked.data == following


async def test_of_pipelined_requests_only_those_of_one_batch_key_are_in_the_queue_at_once(bench: Bench) -> None:
    client = bench.connect()
    targets = [b"/v1/models/%b:predict" % name for name in (b"a", b"a", b"b", b"b", b"b", b"a", b"c")]
    client.send(b"".join(post(b'{"instances":[%d]}' % n, target=target) for n, target in enumerate(targets)))
    together = []
    while bench.driver.calls:
        together.append(len(bench.driver.calls))
        assert len({call.key for call in bench.driver.calls}) == 1
        assert bench.life.active == len(bench.driver.calls)
        for call in reversed(bench.driver.calls[:]):
            bench.driver.answer(call)
        await settle()
    assert together == [2, 3, 1, 1]
    assert predictions(client) == list(range(7))
    assert (bench.life.active, bench.bodies.memory.held) == (0, 0)


async def test_any_other_request_waits_until_earlier_answers_are_given_and_those_behind_wait_for_its_own(
    bench: Bench,
) -> None:
    client = bench.connect()
    client.send(numbered(2) + get() + post())
    assert len(bench.driver.calls) == 2
    assert bench.asked == []
    bench.driver.answer()
    await settle()
    assert bench.asked == []
    bench.driver.answer()
    await settle()
    [asked] = bench.asked
    assert asked.data == get() + post()
    assert client.is_reading()
    asked.answer()
    await settle()
    bench.driver.answer()
    assert client.statuses == [200] * 4
    assert (bench.bodies.memory.held, bench.life.active) == (0, 0)


def with_head_of(size: int, request: bytes) -> bytes:
    end = request.index(b"\r\n\r\n")
    filler = b"\r\nX-Filler: "
    return request[:end] + filler + b"x" * (size - end - 4 - len(filler)) + request[end:]


async def test_a_head_of_more_than_16_kib_is_not_that_of_a_plain_request(bench: Bench) -> None:
    bench.connect().send(with_head_of(heads.MAX_HEAD, post()))
    assert (len(bench.asked), bench.driver.submitted) == (0, 1)
    longer = with_head_of(heads.MAX_HEAD + 1, post())
    bench.connect().send(longer)
    assert (len(bench.asked), bench.driver.submitted) == (1, 1)
    assert bench.asked[0].data == longer


async def test_a_head_of_more_than_16_kib_that_came_in_parts_is_no_begun_head_any_more(bench: Bench) -> None:
    longer = with_head_of(heads.MAX_HEAD + 1, post())
    client = bench.connect()
    protocol = client.protocol
    client.send(longer[:1000])
    client.send(longer[1000:])
    assert bench.asked[0].data == longer
    assert isinstance(protocol, connection.Connection)
    assert not protocol.may_ask(bench.now + 1)  # as it may where a head has begun


async def test_a_small_head_behind_much_else_is_that_of_a_plain_request(bench: Bench) -> None:
    client = bench.connect()
    much = post(b'{"instances":["' + b"x" * 2 * heads.MAX_HEAD + b'"]}')
    client.send(much + post(b'{"instances":["x"]}', b"X-Other: 1"))
    assert (bench.driver.submitted, bench.asked) == (2, [])


async def test_a_connection_with_a_request_that_takes_its_time_is_left_alone(bench: Bench) -> None:
    client = bench.connect()
    client.send(get())
    client.send(post())
    await bench.pass_time(10_000)
    assert bench.asked[0].data == get() + post()
    assert bench.driver.submitted == 0
    assert not client.is_closing()


@pytest.mark.parametrize(
    "request_",
    [
        post(b'{"inputs":{"a":[1]}}'), post(b"x" * 2000), post(b"", length=2000),
        post(b"nonsense").replace(b"application/json", b"text/html"),
        post(b"not gzip", b"Content-Encoding: gzip"), post(gzip.compress(b"x" * 70_000), b"Content-Encoding: gzip"),
        post(gzip.compress(BODY) * 2, b"Content-Encoding: gzip"),
        post(gzip.compress(b"{" + b" " * 2000), b"Content-Encoding: gzip"),
    ],
    ids=[
        "columns", "too large", "to be too large", "perhaps no JSON at all", "not in its coding", "large in the end",
        "in two pieces", "too large in the end",
    ],
)  # fmt: skip
async def test_a_body_that_is_no_call_is_left_to_who_answers_any_request(request_: bytes) -> None:
    bench = Bench(max_body_bytes=1024)
    for cut in (len(request_), len(request_) - 1):
        client = bench.connect()
        client.send(request_[:cut])
        client.send(request_[cut:])
        assert bench.asked[-1].data == request_
        bench.asked[-1].answer(close=True)
    assert (bench.life.active, bench.bodies.memory.held, bench.driver.submitted) == (0, 0, 0)


@pytest.mark.parametrize("body", [b"{}", b"nonsense", b'{"instances":[]}', b'{"instances":[1]}x'])
@pytest.mark.parametrize("coding", [False, True], ids=["plain", "gzip"])
async def test_a_body_that_is_no_predict_request_is_told_so_and_the_connection_goes_on(
    bench: Bench, body: bytes, coding: bool
) -> None:
    request = post(gzip.compress(body), b"Content-Encoding: gzip") if coding else post(body)
    client = bench.connect()
    for cut in (len(request), len(request) - 1):
        client.send(request[:cut])
        client.send(request[cut:] + post())
        bench.driver.answer()
    assert client.statuses == [400, 200] * 2
    assert bench.asked == []
    assert (bench.life.active, bench.bodies.memory.held, bench.driver.submitted) == (0, 0, 2)
    refused = bench.metrics.registry.get_sample_value
    assert refused("carpool_requests_total", {"lane": "batched", "code": "400"}) == 2


async def test_a_body_that_is_no_predict_request_is_told_so_in_its_turn(bench: Bench) -> None:
    client = bench.connect()
    client.send(post() + post(b"{") + post() + post(b"{"))
    assert client.statuses == []
    bench.driver.answer()
    await settle()
    assert client.statuses == [200, 400]
    bench.driver.answer()
    await settle()
    assert client.statuses == [200, 400, 200, 400]


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZip", "deflate"])
async def test_a_small_coded_body_is_a_call_of_its_size_when_it_is_undone(bench: Bench, coding: str) -> None:
    client = bench.connect()
    coded = zlib.compress(BODY) if coding == "deflate" else gzip.compress(BODY)
    client.send(post(coded, b"Content-Encoding: " + coding.encode()) + post())
    assert [call.size for call in bench.driver.calls] == [len(BODY)] * 2
    bench.driver.answer()
    bench.driver.answer()
    assert client.statuses == [200, 200]
    assert bench.asked == []


async def test_bytes_after_an_answer_that_closes_are_not_served(bench: Bench) -> None:
    def refuse(call: calls.Call) -> None:
        bench.driver.refuse(errors.PayloadTooLarge())

    client = bench.connect()
    bench.driver.on_submit = refuse
    client.send(post() + post() + get())
    await settle()
    assert client.statuses == [413]
    assert b"\r\nConnection: close\r\n" in client.received
    assert bench.driver.submitted == 1
    assert bench.asked == []
    assert client.is_lost
    assert bench.life.active == 0


async def test_requests_behind_an_answer_that_closes_are_cancelled(bench: Bench) -> None:
    client = bench.connect()
    client.send(numbered(3))
    first, *others = bench.driver.calls
    bench.driver.refuse(errors.Draining(), first)
    assert bench.driver.cancelled == others
    await settle()
    assert client.statuses == [503]
    assert bench.life.active == 0


async def test_refused_within_submit_2000_pipelined_requests_are_answered_one_after_the_other(bench: Bench) -> None:
    def refuse(call: calls.Call) -> None:
        bench.driver.refuse(errors.Overloaded())

    bench.driver.on_submit = refuse
    client = bench.connect()
    client.send(post() * 2000)
    assert client.statuses == [429] * 2000
    assert client.is_reading()
    assert bench.life.active == 0
    assert bench.metrics.refused.labels("queue_full").value == 2000


async def test_answered_within_submit_2000_requests_behind_a_slow_one_wait_for_it(bench: Bench) -> None:
    client = bench.connect()
    client.send(post())
    slow = bench.driver.calls[0]
    bench.driver.on_submit = bench.driver.answer
    client.send(numbered(2000, start=2))
    assert client.statuses == []
    bench.driver.answer(slow)
    for _ in range(100):
        await settle()
    assert predictions(client) == [1, *range(2, 2002)]
    assert client.is_reading()


async def test_a_bug_in_submit_is_a_500_on_a_connection_that_lives(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(call: calls.Call) -> None:
        bench.driver.calls.remove(call)
        raise ZeroDivisionError("secret")

    client = bench.connect()
    bench.driver.on_submit = break_down
    client.send(post())
    assert client.statuses == [500]
    assert b"secret" not in client.received
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    bench.driver.on_submit = lambda call: None
    client.send(post())
    bench.driver.answer()
    assert client.statuses == [500, 200]
    assert bench.life.active == 0


async def test_a_bug_after_the_answer_within_submit_does_no_harm(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def answer_and_break_down(call: calls.Call) -> None:
        bench.driver.answer(call)
        raise ZeroDivisionError

    client = bench.connect()
    bench.driver.on_submit = answer_and_break_down
    client.send(post() * 2)
    assert client.statuses == [200, 200]
    assert bench.life.active == 0


class Unreachable:
    """Implements what a relay asks of its pool: a predictor to whom a connection takes for ever, until `opened`."""

    host = "predictor"

    def __init__(self) -> None:
        self.opened: Callable[[Any], None] | None = None

    def take(self) -> None:
        """None is free."""

    def open(self, then: Callable[[Any], None], failed: Callable[[Any], None]) -> asyncio.Future[None]:
        self.opened = then
        return asyncio.get_running_loop().create_future()


class Reached:
    """A connection to the predictor that takes all."""

    is_full = False

    def take(self, receiver: Any, is_head: bool, is_last: bool) -> None:
        """It answers nothing."""

    def write(self, data: bytes) -> None:
        """It takes all."""

    def end_request(self) -> None:
        """It waits for more."""

    def abort(self) -> None:
        """It is gone."""


@pytest.mark.skipif(not str(upstream.__file__).endswith(".py"), reason="compiled classes take no fakes of each other")
@pytest.mark.parametrize("framing", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("how", ["sent", "the client leaves"])
async def test_what_came_of_a_body_counts_while_it_waits_for_a_connection_to_the_predictor(
    bench: Bench, framing: bytes, how: str
) -> None:
    pool = Unreachable()
    relays = relay.Relays(cast(Any, pool), lambda: False, lambda status: None)
    bench.handler = handler.Handler(bench.rules, None, relays, cast(Any, None))
    client = bench.connect()
    part = b"%x\r\n%b\r\n" % (50_000, b"x" * 50_000) if b"chunked" in framing else b"x" * 50_000
    client.send(b"PUT /x HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n%b" % (framing, part))
    assert bench.memory.held >= 50_000
    if how == "sent":
        assert pool.opened is not None
        pool.opened(Reached())
        assert bench.memory.held == 0
    client.leave()
    assert (bench.memory.held, bench.memory.active) == (0, 0)


@pytest.mark.skipif(not str(upstream.__file__).endswith(".py"), reason="compiled classes take no fakes of each other")
async def test_a_caller_that_was_not_told_to_go_on_waits_as_long_as_a_connection_to_the_predictor_takes() -> None:
    bench = Bench(timeout=2.0)
    pool = Unreachable()
    relays = relay.Relays(cast(Any, pool), lambda: False, lambda status: None)
    bench.handler = handler.Handler(bench.rules, None, relays, cast(Any, None))
    client = bench.connect()
    client.send(b"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    await bench.pass_time(60)
    assert client.received == b""
    assert pool.opened is not None
    pool.opened(Reached())
    assert client.received == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.leave()
