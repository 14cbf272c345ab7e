"""What a sidecar keeps of its arrivals, and what a replay makes of them: known traffic, in virtual time."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from carpool_sidecar.planning import advice, advise_text
from carpool_sidecar.recording import document

pytestmark = pytest.mark.looptime

SERVICE = (0.010, 0.001)  # seconds of a call, and of an instance


def serve(rows: int) -> float:
    return SERVICE[0] + SERVICE[1] * rows


async def arrivals_of(bench) -> document.Recording:
    async with bench.client.get(bench.admin + "/arrivals") as response:
        assert response.status == 200
        return document.decode(await response.read())


async def drive(bench, rate: float, seconds: float, rows: int = 1) -> list[int]:
    """Poisson callers, whose number is known; the statuses that they got."""
    source = random.Random(7)
    body = json.dumps({"instances": [1] * rows})
    tasks = []
    now = asyncio.get_running_loop().time
    end = now() + seconds
    while now() < end:
        await asyncio.sleep(source.expovariate(rate))
        tasks.append(asyncio.ensure_future(bench.post(body)))
    return [status for status, _, _ in await asyncio.gather(*tasks)]


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"policy": "window", "max_latency": 20, "max_batch_size": 8}, 150),
        ({"policy": "window", "max_latency": 5, "max_batch_size": 4, "max_in_flight": 2}, 200),
        ({"policy": "adaptive", "max_batch_size": 16}, 300),
    ],
)
async def test_the_replay_of_the_present_setting_agrees_with_what_was_measured(sidecar_of, settings, rate):
    bench = await sidecar_of(**settings)
    bench.predictor.service = serve
    statuses = await drive(bench, rate, 10)
    recording = await arrivals_of(bench)
    found = advice.advise(recording)
    assert len(found.arrivals.times) == len(statuses)
    print(advise_text.text(found, 1))
    assert found.off < 0.1
