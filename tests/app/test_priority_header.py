"""Callers say how urgent they are in the header of --priority-header, and the more urgent ones leave first."""

from __future__ import annotations

import asyncio

import pytest
from tritonclient.utils import InferenceServerException

from carpool.scheduling import limits
from carpool_sidecar import config
from e2e.triton import http_requests
from tests.app import v2_bench

HEADER = "x-Priority"


@pytest.mark.looptime
async def test_higher_levels_leave_first_whatever_word_they_say(sidecar_of):
    bench = await sidecar_of(policy="window", max_latency=0, max_batch_size=1, max_in_flight=1, priority_header=HEADER)
    json = {"Content-Type": "application/json"}
    bench.predictor.gate.clear()
    calls = []
    for number, said in enumerate([None, "low", "-1", None, "0", "normal", "High", "1"]):
        headers = json if said is None else {**json, "X-PRIORITY": said}
        calls.append(asyncio.create_task(bench.post(f'{{"instances":[{number}]}}', headers=headers)))
        await bench.queued(number + 1)
    bench.predictor.gate.set()
    await asyncio.gather(*calls)
    assert [int(row) for seen in bench.predictor.seen for row in seen.rows] == [0, 6, 7, 3, 4, 5, 1, 2]
    waited = bench.sidecar.metrics.level_requests.read()
    assert waited == {("normal",): 4, ("low",): 2, ("high",): 2}


@pytest.mark.looptime
async def test_who_says_anything_else_is_told_what_may_be_said(sidecar_of):
    bench = await sidecar_of(priority_header=HEADER)
    status, body, _ = await bench.post(
        '{"instances":[1]}', headers={"Content-Type": "application/json", HEADER: "urgent"}
    )
    assert status == 400
    assert b"x-priority must be high, normal or low" in body


@pytest.mark.looptime
async def test_without_the_setting_the_header_says_nothing(sidecar_of):
    bench = await sidecar_of()
    status, _, _ = await bench.post('{"instances":[1]}', headers={"Content-Type": "application/json", HEADER: "urgent"})
    assert status == 200
    assert not bench.sidecar.metrics.level_requests.read()


@pytest.mark.both_loops
@pytest.mark.parametrize("protocol", ["v2", "gRPC"])
async def test_levels_are_those_of_any_protocol(protocol):
    settings = {"max_batch_size": 1, "max_in_flight": 1, "max_latency": 0, "priority_header": HEADER}
    async with v2_bench.running(**settings) as bench:
        order = []

        async def call(said: str) -> None:
            if protocol == "gRPC":
                await bench.infer("identity", ("rows", [[1.0]]), headers={"x-priority": said})
            else:
                asked = http_requests.ask("", "identity", http_requests.rows())._replace(headers={HEADER: said})
                assert (await bench.ask(asked)).status == 200
            order.append(said)

        bench.fake.gate.clear()
        calls = [asyncio.create_task(call("normal"))]
        await bench.fake.at_work(1)
        for number, said in enumerate(["low", "0", "high"], 2):
            calls.append(asyncio.create_task(call(said)))
            await bench.queued(number)
        bench.fake.gate.set()
        await asyncio.gather(*calls)
        assert order == ["normal", "high", "0", "low"]


@pytest.mark.both_loops
async def test_a_grpc_call_that_says_anything_else_is_told_what_may_be_said():
    async with v2_bench.running(priority_header=HEADER) as bench:
        with pytest.raises(InferenceServerException, match="x-priority must be high, normal or low"):
            await bench.infer("identity", ("rows", [[1.0]]), headers={"x-priority": "urgent"})


def test_ageing_bounds_levels_too():
    chosen = config.load(["--priority-header", "X-Priority", "--priority-ageing", "500"])
    assert chosen.priority_header == "x-priority"
    assert (chosen.scheduler_limits.priority_ageing, chosen.scheduler_limits.level_ageing) == (0.5, 30.0)
    assert config.load([]).scheduler_limits.level_ageing == limits.Limits().level_ageing


@pytest.mark.parametrize("name", ["host", "Authorization", "carpool-timeout-ms", "grpc-timeout", "x,y"])
def test_a_header_that_says_something_else_is_refused_at_the_start(name, capsys):
    with pytest.raises(SystemExit):
        config.load(["--priority-header", name])
    assert repr(name) in capsys.readouterr().err
