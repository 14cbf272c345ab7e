"""Server-Timing on answers: what the caller waited for, what the predictor took, and which batch it was."""

from __future__ import annotations

import asyncio
import re

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from tests.app import fake_predictor, v2_bench

TIMING = re.compile(r'queue;dur=(\d+\.\d\d), predict;dur=(\d+\.\d\d), batch;desc="(\w+), (\d+) instances"')


def told(text: str) -> tuple[float, float, str, int]:
    match = TIMING.fullmatch(text)
    assert match is not None, text
    return float(match[1]), float(match[2]), match[3], int(match[4])


@pytest.mark.looptime
async def test_each_caller_is_told_of_its_own_wait_and_of_the_batch(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=500, server_timing=True)
    bench.predictor.service = lambda rows: 0.1
    early = asyncio.create_task(bench.post('{"instances":[1]}'))
    await asyncio.sleep(0.2)
    late = asyncio.create_task(bench.post('{"instances":[2,3]}'))
    found = [told((await each)[2]["Server-Timing"]) for each in (early, late)]
    assert found[0] == (pytest.approx(200, abs=20), pytest.approx(100, abs=20), "full", 3)
    assert found[1] == (pytest.approx(0, abs=20), pytest.approx(100, abs=20), "full", 3)


@pytest.mark.looptime
async def test_nothing_is_told_unless_asked_for_nor_with_a_refusal(sidecar_of):
    silent = await sidecar_of(max_latency=0)
    assert "Server-Timing" not in (await silent.post('{"instances":[1]}'))[2]
    telling = await sidecar_of(max_latency=0, server_timing=True)
    assert "Server-Timing" not in (await telling.post("{"))[2]


@pytest.mark.looptime
async def test_a_request_of_several_batches_is_told_of_its_first(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=0, max_in_flight=1, server_timing=True)
    bench.predictor.service = lambda rows: 0.1
    _, _, headers = await bench.post('{"instances":[1,2,3,4]}')
    queue, predict, _, rows = told(headers["Server-Timing"])
    assert (queue, predict, rows) == (pytest.approx(0, abs=20), pytest.approx(200, abs=20), 2)


@pytest.mark.both_loops
async def test_grpc_callers_are_told_in_trailing_metadata():
    request = service_pb2.ModelInferRequest(model_name="identity")
    request.inputs.add(name="rows", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(b"\0\0\x80?")
    async with v2_bench.running(server_timing=True) as bench:
        address = f"127.0.0.1:{bench.sidecar.settings.grpc_port}"
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString())
            await call
            trailers = dict(await call.trailing_metadata())
    assert told(trailers["server-timing"])[3] == 1


@pytest.mark.looptime
async def test_a_request_that_was_sent_again_is_told_of_its_first_batch(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=500, server_timing=True)
    bench.predictor.service = lambda rows: 0.1
    bench.predictor.behave = fake_predictor.refuse_poison(400, b"666")
    posts = [asyncio.create_task(bench.post(body)) for body in ('{"instances":[1]}', '{"instances":[666]}')]
    (status, _, headers), (refused, _, _) = [await post for post in posts]
    assert (status, refused) == (200, 400)
    assert told(headers["Server-Timing"])[0] == pytest.approx(0, abs=20)
    assert told(headers["Server-Timing"])[2:] == ("full", 2)
