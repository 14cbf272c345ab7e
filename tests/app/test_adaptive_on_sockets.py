"""The adaptive policy in the running sidecar: no latency to set, good answers to bursts, loops and overload."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

pytestmark = pytest.mark.looptime


@pytest.fixture
async def bench(sidecar_of):
    bench = await sidecar_of(max_batch_size=32, policy="adaptive")
    bench.predictor.service = lambda instances: 0.010 + 0.0001 * instances
    return bench


def batched(bench):
    return [len(seen.rows) for seen in bench.predictor.seen if seen.method == "POST"]


async def closed_loop(bench, callers: int, seconds: float) -> float:
    """Requests a second of so many callers who send again as soon as they are answered."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    answered = 0

    async def call(number: int) -> None:
        nonlocal answered
        while loop.time() < end:
            status, body, _ = await bench.post(f'{{"instances":[{number}]}}')
            assert (status, json.loads(body)["predictions"]) == (200, [number])
            answered += 1

    await asyncio.gather(*(call(number) for number in range(callers)))
    return answered / seconds


async def test_a_lone_caller_never_waits_for_company(bench):
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert (await bench.post('{"instances":[1]}'))[0] == 200
    assert loop.time() - started < 0.012


async def test_the_scene_of_kserves_documentation(bench):
    """`hey -z 10s -c 5`: KServe's batcher answers 9.49 requests a second, for everybody waits out the window."""
    assert await closed_loop(bench, callers=5, seconds=3) >= 400


async def test_callers_of_a_closed_loop_find_together(bench):
    await closed_loop(bench, callers=16, seconds=2)
    late = batched(bench)[-20:]
    assert sum(late) / len(late) > 12


async def test_under_overload_who_is_accepted_makes_the_objective_and_the_rest_is_refused_at_once(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, slo=100, policy="adaptive")
    bench.predictor.service = lambda instances: 0.020
    await closed_loop(bench, callers=4, seconds=1)
    loop = asyncio.get_running_loop()
    times = {200: [], 429: []}

    async def call() -> None:
        started = loop.time()
        status, _, headers = await bench.post('{"instances":[1]}')
        times[status].append(loop.time() - started)
        assert status == 200 or int(headers["Retry-After"]) >= 1

    calls = []
    for _ in range(400):  # 400 a second, twice what it can do
        calls.append(asyncio.ensure_future(call()))
        await asyncio.sleep(0.0025)
    await asyncio.gather(*calls)
    in_time = [seconds for seconds in times[200] if seconds <= 0.1]
    assert len(in_time) >= 0.94 * 200
    assert len(times[429]) > 100


async def test_what_was_learned_is_visible(bench):
    await closed_loop(bench, callers=5, seconds=1)
    _, text, _ = await bench.get(bench.admin + "/config")
    learned = json.loads(text)["learned"]
    assert learned["service_fixed_seconds"] == pytest.approx(0.010, rel=0.1)
    assert learned["workers"] == 1
    assert await bench.metric("carpool_service_fixed_seconds") == pytest.approx(0.010, rel=0.1)
    assert await bench.metric("carpool_in_flight_limit") >= 2
    assert 0 < await bench.metric("carpool_utilisation") < 1


async def test_the_way_to_the_predictor_is_measured_once_it_is_ready(bench):
    await asyncio.sleep(1)
    assert bench.sidecar.policy.predictor.knows_overhead
    assert {seen.method for seen in bench.predictor.seen} == {"GET"}
    seen = len(bench.predictor.seen)
    await asyncio.sleep(100)
    assert len(bench.predictor.seen) == seen


async def test_who_waits_when_the_way_is_measured_has_the_batch_sent_just_in_time_from_then_on(bench, predictor):
    """The predictor may be ready long before it tells how far away it is; a batch that waits then need not go on."""
    for _ in range(6):
        await bench.post('{"instances":[1]}')
        await asyncio.sleep(0.1)
    device = bench.sidecar.policy.predictor
    device._hint = None
    calls = [asyncio.ensure_future(bench.post('{"instances":[2]}')) for _ in range(2)]
    await bench.queued(8)
    assert bench.sidecar.core.asking.at > asyncio.get_running_loop().time() + 0.1
    await bench.sidecar._measure_overhead(bench.sidecar.policy)
    assert bench.sidecar.core.asking.at < asyncio.get_running_loop().time() + 0.012
    assert {status for status, _, _ in await asyncio.gather(*calls)} == {200}


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"policy": "adaptive"}, "auto"),
        ({"policy": "adaptive", "max_latency": 5}, 5),
        ({"policy": "window"}, 500),
        ({"policy": "window", "max_latency": 0}, 0),
    ],
)
async def test_the_log_tells_the_longest_wait_where_the_policy_does_not_decide(sidecar_of, caplog, chosen, told):
    caplog.set_level(logging.INFO)
    await sidecar_of(**chosen)
    (serving,) = (record.facts for record in caplog.records if record.message == "serving")
    assert (serving["policy"], serving["max_latency_ms"]) == (chosen["policy"], told)
