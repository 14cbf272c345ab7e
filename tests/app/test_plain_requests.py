"""The data port on sockets, on asyncio's loop and on that of production: plain requests, and all that is not."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import json
import random
import socket

import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols import v1
from carpool_sidecar.server.http1 import exchange
from tests.app.plain_client import GET, connect, connections, is_at_rest, numbered, request, until

PUT = b"PUT /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
LARGE = json.dumps({"instances": ["x" * 8_000_000]}).encode()


def is_unread(bench):
    """Whether the predictor has answered a large request, and most of that waits for the client to read."""
    sidecar = bench.sidecar
    return len(bench.predictor.seen) == 1 and sidecar.core.idle and sidecar.bodies.memory.held > 7_900_000


class OnAnyLoop:
    """What holds on both loops."""

    async def test_one_connection_serves_predictions_and_all_else(self, sidecar_of):
        bench = await sidecar_of(max_latency=0)
        client = await connect(bench)
        for number in range(3):
            await client.send(numbered(number))
            assert await client.predictions() == [number]
        await client.send(GET)
        assert (await client.answer())[2] == b"passed:"
        await client.send(numbered(4) + GET)
        assert await client.predictions() == [4]
        assert (await client.answer())[2] == b"passed:"
        await client.leave()
        await until(lambda: is_at_rest(bench))

    async def test_a_body_of_many_megabytes_is_found_alike_scanned_as_it_comes_or_at_once(self, sidecar_of):
        bench = await sidecar_of(max_latency=0, max_batch_size=8)
        rows = [[[number / 8, -1], [0.25] * 50_000] for number in range(12)]
        body = json.dumps({"instances": rows}).encode()
        assert len(body) > v1.LARGE
        told = json.dumps({"instances": rows, "signature_name": "s"}).encode()
        for sent in (body, told):
            client = await connect(bench)
            await client.send(request(sent))
            assert await client.predictions() == rows
            await client.leave()
        assert [len(seen.rows) for seen in bench.predictor.seen] == [8, 4, 8, 4]
        await until(lambda: is_at_rest(bench))

    async def test_without_batching_predict_requests_are_passed_on_like_any_other(self, sidecar_of):
        bench = await sidecar_of(enable_batcher=False)
        status, body, _ = await bench.post('{"instances":[1]}')
        assert (status, json.loads(body)) == (200, {"predictions": [1]})

    async def test_a_connection_serves_another_request_and_predictions_again(self, sidecar_of):
        bench = await sidecar_of(max_latency=0)
        client = await connect(bench)
        for number in range(3):
            await client.send(numbered(number))
            assert await client.predictions() == [number]
            assert connections(bench) == 1
            await client.send(PUT[:20])
            await client.send(PUT[20:-1])
            await client.send(PUT[-1:])
            assert (await client.answer())[2] == b"passed:abc"
            assert connections(bench) == 1
        await client.leave()
        await until(lambda: is_at_rest(bench) and not bench.sidecar.connection_limit.open)

    async def test_hundreds_of_requests_of_all_kinds_leave_nothing_behind(self, sidecar_of):
        bench = await sidecar_of(max_latency=0, max_in_flight=8)
        client, other = await connect(bench), await connect(bench)
        await client.send(PUT + numbered(0))
        assert (await client.answer())[2] == b"passed:abc"
        assert await client.predictions() == [0]
        tasks = len(asyncio.all_tasks())
        for number in range(300):
            await other.send(PUT[:30])
            await client.send(numbered(number) + PUT + GET + request("{") + numbered(number) + PUT)
            assert await client.predictions() == [number]
            assert (await client.answer())[2] == b"passed:abc"
            assert (await client.answer())[2] == b"passed:"
            assert (await client.answer())[0] == 400
            assert await client.predictions() == [number]
            assert (await client.answer())[2] == b"passed:abc"
            await other.send(PUT[30:])
            assert (await other.answer())[2] == b"passed:abc"
        # Each connection to the fake predictor has a task, too.
        await until(lambda: len(asyncio.all_tasks()) < tasks + 20)
        assert connections(bench) == 2
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, exchange.Exchange)]
        await client.leave()
        await other.leave()
        await until(lambda: is_at_rest(bench) and not bench.sidecar.connection_limit.open)

    async def test_pipelined_requests_of_all_kinds_are_answered_in_order(self, sidecar_of):
        bench = await sidecar_of(max_latency=0, max_in_flight=8, max_batch_size=2)
        client = await connect(bench)
        await client.send(numbered(*range(200)) + GET + numbered(201) + request("{}") + numbered(202))
        assert [await client.predictions() for _ in range(200)] == [[number] for number in range(200)]
        assert (await client.answer())[2] == b"passed:"
        assert await client.predictions() == [201]
        assert (await client.answer())[0] == 400
        assert await client.predictions() == [202]
        await client.leave()
        await until(lambda: is_at_rest(bench))

    @pytest.mark.parametrize("stray", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"nonsense\r\n", b"\0"])
    async def test_a_tls_hello_or_garbage_is_400_at_once(self, sidecar_of, stray):
        bench = await sidecar_of()
        client = await connect(bench)
        await client.send(stray)
        assert (await client.rest()).startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
        await client.leave()

    async def test_a_large_body_that_arrives_in_pieces_is_counted_and_its_answer_comes_whole(self, sidecar_of):
        bench = await sidecar_of(max_latency=0)
        client = await connect(bench)
        await client.send(request(LARGE)[:1_000_000])
        await until(lambda: bench.sidecar.bodies.memory.held > 999_000)
        assert bench.sidecar.life.active == 1
        await client.send(request(LARGE)[1_000_000:])
        assert await client.predictions() == ["x" * 8_000_000]
        await until(lambda: is_at_rest(bench))
        await client.leave()

    async def test_a_large_body_for_which_there_is_no_room_is_429_and_the_connection_lives(self, sidecar_of):
        bench = await sidecar_of(max_latency=0, max_queue_bytes=2_000_000, max_body_bytes=2_000_000)
        clients = [await connect(bench) for _ in range(2)]
        body = json.dumps({"instances": ["x" * 1_500_000]}).encode()
        for client in clients:
            await client.send(request(body)[:900_000])
        await until(lambda: bench.sidecar.bodies.memory.held > 1_790_000)
        sending = asyncio.ensure_future(clients[0].send(request(body)[900_000:]))
        status, headers, _ = await clients[0].answer()
        assert (status, headers["retry-after"]) == (429, "1")
        await sending
        for client in clients:
            await client.leave()
        await until(lambda: is_at_rest(bench))

    async def test_a_client_that_reads_late_gets_all_its_answers_and_they_count_until_then(self, sidecar_of):
        bench = await sidecar_of(max_latency=0)
        client = await connect(bench, receive_buffer=4096)
        sending = asyncio.ensure_future(client.send(request(LARGE) * 4 + GET))
        await until(lambda: is_unread(bench))
        assert len(bench.predictor.seen) == 1  # for nothing more is read
        for _ in range(4):
            assert await client.predictions() == ["x" * 8_000_000]
        assert (await client.answer())[2] == b"passed:"
        await sending
        await until(lambda: is_at_rest(bench))
        await client.leave()

    @pytest.mark.parametrize("stage", ["head", "body", "queued", "at the predictor", "unread"])
    async def test_a_client_may_leave_at_any_stage(self, sidecar_of, stage):
        bench = await sidecar_of(max_latency=60_000, timeout=100, max_in_flight=1, max_batch_size=2)
        client = await connect(bench, receive_buffer=4096)
        sent = {"head": request()[:40], "body": request(length=100_000), "queued": request()}
        await client.send(sent.get(stage, request('{"instances":[1,2]}') if stage != "unread" else b""))
        if stage == "body":
            await until(lambda: bench.sidecar.bodies.memory.held == 17)
        elif stage == "queued":
            await bench.queued(1)
            await until(lambda: bench.sidecar.core.backlog.rows == 1)
        elif stage == "at the predictor":
            bench.predictor.gate.clear()
            await client.send(request('{"instances":[1,2]}'))
            await until(lambda: len(bench.sidecar.core.in_flight) == 1)
        elif stage == "unread":
            await client.send(request(LARGE[:-2] + b",2]}"))
            await until(lambda: is_unread(bench))
        await client.leave()
        await until(lambda: is_at_rest(bench))
        abandoned = 1 if stage in ("queued", "at the predictor") else 0
        assert bench.sidecar.metrics.abandoned.value >= abandoned
        await until(lambda: connections(bench) == 0)
        bench.predictor.gate.set()

    @pytest.mark.parametrize("how", ["chunked", "trailer", "gzip"])
    async def test_a_client_whose_large_unusual_request_came_at_once_may_leave(self, sidecar_of, how):
        bench = await sidecar_of(max_latency=60_000, timeout=100)
        body = b'{"instances":["%b"]}' % base64.b64encode(random.Random(1).randbytes(75_000))
        sent = request(body, "Trailer: x")
        if how == "chunked":
            chunk = b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            sent = request(b"", "Transfer-Encoding: chunked").replace(b"\r\nContent-Length: 0\r\n\r\n", chunk)
        elif how == "gzip":
            sent = request(gzip.compress(body), "Content-Encoding: gzip")
        assert len(sent) > 64 * 1024
        client = await connect(bench)
        await client.send(sent)
        await until(lambda: bench.sidecar.core.backlog.rows == 1)
        await client.leave()
        await until(lambda: connections(bench) == 0 and is_at_rest(bench))
        assert bench.sidecar.metrics.abandoned.value == 1

    async def test_2000_pipelined_requests_that_are_refused_at_once_are_all_told(self, sidecar_of):
        bench = await sidecar_of(max_latency=60_000, timeout=100, max_queue_instances=1)
        waiting, client = await connect(bench), await connect(bench)
        await waiting.send(request())
        await until(lambda: bench.sidecar.core.backlog.rows == 1)
        sending = asyncio.ensure_future(client.send(request() * 2000))
        answers = [await client.answer() for _ in range(2000)]
        await sending
        assert {status for status, _, _ in answers} == {429}
        assert await bench.metric('carpool_refused_total{reason="queue_full"}') == 2000
        await client.leave()
        await waiting.leave()
        await until(lambda: is_at_rest(bench))

    async def test_a_thousand_short_connections_leave_nothing_behind(self, sidecar_of):
        bench = await sidecar_of(max_latency=0)
        for number in range(1000):
            client = await connect(bench)
            if number % 3:
                await client.send(numbered(number))
            if number % 3 == 1:
                assert await client.predictions() == [number]
            await client.leave()
        await until(lambda: connections(bench) == 0 and is_at_rest(bench))
        assert bench.sidecar._http._listeners

    async def test_stop_ends_all_connections_and_frees_the_port(self, sidecar_of):
        bench = await sidecar_of(max_latency=60_000, timeout=100)
        idle, busy, sending, unread = [await connect(bench, 4096) for _ in range(4)]
        await unread.send(request(LARGE[:-2] + b"," + b",".join([b"1"] * 31) + b"]}"))
        await until(lambda: is_unread(bench))
        await busy.send(request())
        await sending.send(request(length=100))
        await until(lambda: bench.sidecar.core.backlog.rows == 1 and bench.sidecar.life.active == 3)
        await bench.sidecar.stop()
        assert await idle.rest() == b""
        assert (await busy.answer())[0] == errors.STATUSES[errors.Draining]
        assert await sending.rest() == b""
        await until(lambda: connections(bench) == 0 and is_at_rest(bench))
        with socket.create_server(("127.0.0.1", bench.sidecar.settings.port)):
            pass
        for client in (idle, busy, sending, unread):
            await client.leave()


@pytest.mark.looptime
class TestOnAsyncio(OnAnyLoop):
    """In virtual time."""


@pytest.mark.uvloop
class TestOnUvloop(OnAnyLoop):
    """In real time."""

    async def test_a_call_broken_off_while_its_connection_opens_does_not_hold_up_the_end(self, sidecar_of):
        bench = await sidecar_of(max_latency=0)
        client = await connect(bench)
        await client.send(request())
        opened = bench.sidecar.upstreams.http._pool._all
        await until(lambda: opened)
        [batch] = bench.sidecar.core.in_flight
        bench.sidecar.driver.cancel(batch.parts[0].request)
        for _ in range(100):
            await asyncio.sleep(0)
        left = list(opened)
        opened.clear()  # or this test would never end
        await client.leave()
        assert left == []
