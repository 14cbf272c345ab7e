"""Callers of one batch who differ in a header of --forward-headers: the predictor sees the first value, or all."""

from __future__ import annotations

import asyncio

import pytest

from e2e.triton import http_requests
from tests.app import v2_bench

GIVEN = "X-Plan=first,x-user=joined"
CALLERS = [{"X-Plan": "gold", "X-User": "ann"}, {"X-User": "bob", "X-Other": "1"}, {"X-Plan": "free", "X-User": "ann"}]


@pytest.mark.looptime
async def test_requests_share_a_batch_which_has_the_first_value_or_all_of_them(sidecar_of):
    bench = await sidecar_of(max_latency=500, forward_headers=GIVEN)
    json = {"Content-Type": "application/json"}
    answers = []
    for number, caller in enumerate(CALLERS):
        answers.append(asyncio.create_task(bench.post(f'{{"instances":[{number}]}}', headers={**json, **caller})))
        await asyncio.sleep(0.01)
    await asyncio.gather(*answers)
    (seen,) = bench.predictor.seen
    assert len(seen.rows) == 3
    assert (seen.headers["x-plan"], seen.headers["x-user"]) == ("gold", "ann, bob")
    assert "x-other" not in seen.headers


@pytest.mark.looptime
async def test_a_request_alone_has_its_own_value(sidecar_of):
    bench = await sidecar_of(max_latency=500, forward_headers=GIVEN)
    for caller in CALLERS * 2:
        await bench.post('{"instances":[1]}', headers={"Content-Type": "application/json", **caller})
        assert bench.predictor.seen[-1].headers.get("x-plan") == caller.get("X-Plan")
        assert bench.predictor.seen[-1].headers["x-user"] == caller["X-User"]


@pytest.mark.both_loops
@pytest.mark.parametrize("protocol", ["v2", "gRPC"])
async def test_v2_batches_have_them_in_any_protocol(protocol):
    async with v2_bench.running(forward_headers=GIVEN) as bench:

        async def call(caller: dict[str, str]) -> None:
            if protocol == "gRPC":
                lower = {name.lower(): value for name, value in caller.items()}
                await bench.infer("identity", ("rows", [[1.0]]), headers=lower)
                return
            asked = http_requests.ask("", "identity", http_requests.rows())._replace(headers=caller)
            assert (await bench.ask(asked)).status == 200

        bench.fake.gate.clear()
        calls = [asyncio.create_task(call({}))]
        await bench.fake.at_work(1)
        for number, caller in enumerate(CALLERS, 2):
            calls.append(asyncio.create_task(call(caller)))
            await bench.queued(number)
        bench.fake.gate.set()
        await asyncio.gather(*calls)
        heads = [each.headers for each in bench.fake.received if each.path.endswith(("infer", "ModelInfer"))]
        assert bench.fake.batches == [1, 3]
    assert "x-plan" not in heads[0]
    assert (heads[1]["x-plan"], heads[1]["x-user"]) == ("gold", "ann, bob")


@pytest.mark.both_loops
@pytest.mark.parametrize("value", ["Zoë", "a\tb"])
async def test_a_value_that_grpc_cannot_carry_fails_nobody_elses_request(value):
    options = {"upstream": "triton-grpc", "lists": "openai-embeddings", "forward_headers": GIVEN}
    async with v2_bench.running(**options) as bench:

        async def embed(user: str) -> int:
            body = {"model": "embedder", "input": "some words"}
            headers = {"Content-Type": "application/json", "X-User": user}
            return (await bench.post("/v1/embeddings", body, headers)).status

        bench.fake.gate.clear()
        calls = [asyncio.create_task(embed("first"))]
        await bench.fake.at_work(1)
        refused = asyncio.create_task(embed(value))
        calls += [asyncio.create_task(embed(user)) for user in ("ann", "bob")]
        await bench.queued(3)
        bench.fake.gate.set()
        assert await refused == 400
        assert await asyncio.gather(*calls) == [200, 200, 200]
