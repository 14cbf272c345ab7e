"""Whatever callers choose (paths, models, headers, ids, connections), a sidecar keeps a bounded amount of it."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from carpool_sidecar import caches
from tests import growth
from tests.app.conftest import Bench
from tests.app.fake_predictor import Seen

pytestmark = pytest.mark.looptime

FEW, MANY = 600, 2_400
_MODELS = 90  # of v2, with a tensor each: how many names and templates are remembered have tests of their own
_AT_ONCE = 30


def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
    """Knows every other model of v2, and refuses a few requests."""
    number = int("".join(filter(str.isdigit, seen.target.partition("models/")[2])) or "1")
    if seen.target.endswith("/config") and number % 2:
        return web.json_response({"name": f"model-{number}", "max_batch_size": 8})
    if seen.method == "GET" and "/v2/models/" in seen.target and number % 2:
        about = [{"name": f"x{number}", "datatype": "FP32", "shape": [-1, 1]}]
        told = {"name": f"model-{number}", "platform": "p", "inputs": about, "outputs": about}
        return web.json_response(told)
    return web.Response(status=400, body=b'{"error":"no"}') if number % 7 == 0 else None


async def one(bench: Bench, number: int) -> None:
    """A caller with a choice of its own in everything that a caller may choose."""
    headers = {"Content-Type": "application/json", "X-Request-ID": f"id-{number}", "X-Forwarded-For": f"10.0.{number}"}
    v1 = json.dumps({"instances": [[number]]})
    tensor = {"name": f"x{number % _MODELS}", "shape": [1, 1], "datatype": "FP32", "data": [number]}
    v2 = json.dumps({"id": str(number), "inputs": [tensor]})
    if number % 3 == 0:
        await bench.post(v1, f"/v1/models/model-{number}:predict", headers=headers)
    elif number % 3 == 1:
        await bench.post(v2, f"/v2/models/model-{number % _MODELS}/infer", headers=headers)
    else:
        await bench.get(f"{bench.url}/odd/{number}", headers={f"X-Odd-{number}": "1"})


async def use(bench: Bench, numbers: range) -> None:
    for at in range(numbers.start, numbers.stop, _AT_ONCE):
        await asyncio.gather(*[one(bench, number) for number in range(at, min(at + _AT_ONCE, numbers.stop))])
        bench.predictor.seen.clear()
    await bench.get(bench.admin + "/metrics")
    await asyncio.sleep(700)  # arrivals are kept for ten minutes
    await bench.post('{"instances":[1]}')  # what is old is forgotten when somebody comes
    for cache in list(caches._all.values()):
        cache.clear()  # how much they may hold has tests of its own


async def test_a_sidecar_keeps_no_more_of_many_callers_than_of_few(sidecar_of):
    bench: Bench = await sidecar_of(max_latency=1, max_batch_size=4)
    bench.predictor.behave = behave
    await use(bench, range(FEW))
    objects, size = growth.kept(bench.sidecar)
    await use(bench, range(FEW, FEW + MANY))
    later_objects, later_size = growth.kept(bench.sidecar)
    assert later_objects <= 1.1 * objects + 500
    assert later_size <= 1.1 * size + 50_000
