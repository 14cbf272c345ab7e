"""Callers who differ in a header of the batch key, on every way in: the names may be given in any case."""

from __future__ import annotations

import asyncio

import pytest

from e2e.triton import http_requests
from tests.app import v2_bench

GIVEN = ["Authorization,X-Tenant", "authorization,x-tenant", "AUTHORIZATION,x-TeNANT"]
CALLERS = ["a", "a", "b"]
APART = [("a", "Bearer a", 2), ("b", "Bearer b", 1)]


def headers_of(tenant: str) -> dict[str, str]:
    return {"X-Tenant": tenant, "Authorization": f"Bearer {tenant}"}


@pytest.mark.looptime
@pytest.mark.parametrize("given", GIVEN)
async def test_v1_requests_of_different_tenants_never_share_a_batch_on_any_lane(sidecar_of, given):
    bench = await sidecar_of(max_latency=500, key_headers=given)
    json = {"Content-Type": "application/json"}
    calls = [bench.post('{"instances":[1]}', headers={**json, **headers_of(tenant)}) for tenant in CALLERS]
    await asyncio.gather(*calls)
    seen = bench.predictor.seen
    assert sorted((each.headers["X-Tenant"], each.headers["Authorization"], len(each.rows)) for each in seen) == APART


@pytest.mark.both_loops
@pytest.mark.parametrize("protocol", ["v2", "gRPC"])
@pytest.mark.parametrize("given", GIVEN)
async def test_v2_calls_of_different_tenants_never_share_a_batch_in_any_protocol(given, protocol):
    async with v2_bench.running(key_headers=given) as bench:

        async def call(tenant: str) -> None:
            if protocol == "gRPC":
                lower = {name.lower(): value for name, value in headers_of(tenant).items()}
                await bench.infer("identity", ("rows", [[1.0]]), headers=lower)
                return
            asked = http_requests.ask("", "identity", http_requests.rows())._replace(headers=headers_of(tenant))
            assert (await bench.ask(asked)).status == 200

        bench.fake.gate.clear()
        calls = [asyncio.create_task(call("first"))]
        await bench.fake.at_work(1)
        calls += [asyncio.create_task(call(tenant)) for tenant in CALLERS]
        await bench.queued(1 + len(CALLERS))
        bench.fake.gate.set()
        await asyncio.gather(*calls)
        heads = [each.headers for each in bench.fake.received if each.path.endswith(("infer", "ModelInfer"))][1:]
        rows = bench.fake.batches[1:]
    found = [(head["x-tenant"], head["authorization"], count) for head, count in zip(heads, rows, strict=True)]
    assert sorted(found) == APART


BY_SERVERS = [
    "serve_multiplexed_model_id", "seldon-model", "x-seldon-route", "mm-model-id", "mm-vmodel-id",
    "x-amzn-sagemaker-target-model", "x-amzn-sagemaker-custom-attributes",
]  # fmt: skip
"""The names that docs/protocols.md lists for servers that choose the model by a header."""


@pytest.mark.looptime
@pytest.mark.parametrize("name", BY_SERVERS)
async def test_a_header_by_which_a_server_chooses_the_model_reaches_it_and_keeps_callers_apart(sidecar_of, name):
    bench = await sidecar_of(max_latency=500, key_headers=f"authorization,content-type,{name}")
    json = {"Content-Type": "application/json"}
    calls = [bench.post('{"instances":[1]}', headers={**json, name: model}) for model in CALLERS]
    await asyncio.gather(*calls)
    assert sorted((each.headers[name], len(each.rows)) for each in bench.predictor.seen) == [("a", 2), ("b", 1)]
