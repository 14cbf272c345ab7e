"""Memory follows what is being worked on: nothing keeps a body once its request has been answered."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest

from carpool_sidecar import errors
from tests.app import plain_client
from tests.app.fake_predictor import hang_up, refuse

pytestmark = pytest.mark.looptime

BODY = json.dumps({"instances": ["x" * 50_000]}).encode()


@pytest.fixture
def no_collector():
    """Reference counting alone has to do: the collector comes round rarely, and a body may be megabytes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def kept_bodies() -> int:
    """Bodies that only a reference cycle still holds: errors whose traceback leads to frames with bodies in them."""
    # By type: `isinstance` asks every object for its class, and some of torch's answer that with a warning.
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), errors.CarpoolError)]
    return sum(error.__traceback__ is not None for error in found)


@pytest.mark.parametrize(
    ("behave", "body", "status"),
    [
        (refuse(500), BODY, 500),
        (hang_up(times=99), BODY, 502),
        (refuse(200, b"not json"), BODY, 502),
        (None, b"[" + BODY, 400),
        (None, BODY + b"x", 400),
    ],
)
async def test_a_failed_request_leaves_nothing_behind(sidecar_of, no_collector, behave, body, status):
    bench = await sidecar_of(max_latency=0)
    if behave is not None:
        bench.predictor.behave = behave
    before = kept_bodies()
    for _ in range(5):
        assert (await bench.post(body))[0] == status
    assert kept_bodies() - before <= 1
    assert bench.sidecar.core.ledger.held == 0
    assert bench.sidecar.bodies.memory.held == 0


@pytest.mark.parametrize("in_chunks", [False, True])
async def test_a_caller_that_does_not_read_its_answer_is_counted_and_then_cut_off(sidecar_of, in_chunks):
    bench = await sidecar_of(max_latency=0, timeout=5)
    told = []
    body = json.dumps({"instances": ["x" * 20_000_000]}).encode()
    framing = "Transfer-Encoding: chunked" if in_chunks else f"Content-Length: {len(body)}"
    head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode()
    _reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.port, limit=1024)
    writer.write(head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if in_chunks else body))
    await writer.drain()
    await bench.predictor.received(1)
    await asyncio.sleep(1)
    assert bench.sidecar.bodies.memory.held >= len(body) - 100
    bench.sidecar.ledger.on_large = lambda: told.append(True)
    await asyncio.sleep(5 + len(body) / 65536)
    assert bench.sidecar.bodies.memory.held == 0
    assert told
    assert bench.sidecar.life.active == 0
    writer.close()


async def test_what_waits_of_a_passed_answer_for_its_caller_to_read_counts_as_held_until_the_caller_leaves(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.behave = refuse(200, b"x" * 20_000_000)
    client = await plain_client.connect(bench, receive_buffer=4096)
    await client.send(plain_client.GET)
    await plain_client.until(lambda: bench.sidecar.bodies.memory.held > 10_000)
    await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))
    assert bench.sidecar.bodies.memory.held == 0


async def test_a_body_that_is_passed_on_is_read_to_its_end_though_memory_is_full(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.behave = refuse(200, b"taken")
    for _ in range(2):  # with a connection to the predictor, and with none yet
        full = bench.sidecar.ledger.reserve(bench.sidecar.settings.max_queue_bytes + 1)
        client = await plain_client.connect(bench)
        await client.send(b"PUT /other HTTP/1.1\r\nHost: h\r\nContent-Length: 40000\r\n\r\n" + b"x" * 20_000)
        await asyncio.sleep(0.1)
        await client.send(b"x" * 20_000)
        assert (await client.answer())[::2] == (200, b"taken")
        full.release()
        await client.leave()
    await plain_client.until(lambda: plain_client.is_at_rest(bench))
    assert bench.sidecar.bodies.memory.held == 0
